"""The pane of a step in Chromium: conversations, prompts, prompts sent again, copies with an edited state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest
from dspy.adapters.baml_adapter import BAMLAdapter
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph, agents
from dspyer.agents import Approval
from dspyer.testing import Prompt, ScriptedLM
from tests.asgi_server import served
from tests.inspector.desk import HOSTILE
from tests.inspector.watching import TOKEN, Tab, fits, until

LONGEST = 60_000
PARSE = Path(__file__).parents[2] / "inspector" / "src" / "parse.js"
FACTS = {"bees": f"Bees dance. {HOSTILE}", "ants": "Ants lay trails. " + "trail " * (LONGEST // 6)}
REFUSAL = f"too short for {HOSTILE}"


class Report(BaseModel):
    task: str
    topics: list[str] = []
    report: str = ""
    words: int = 0


class Plan(dspy.Signature):
    """Name the topics of a task."""

    task: str = dspy.InputField()
    topics: list[str] = dspy.OutputField()


def read(topic: str) -> dict[str, Any]:
    """Reads about a topic."""
    return {"topic": topic, "text": FACTS[topic], "pages": list(range(120))}


def divide(expression: str) -> float:
    """Divides."""
    raise ValueError(f"no number in {expression}")


def publish(title: str, body: str = "-") -> str:
    """Publishes."""
    return f"https://reports.example/{title}"


def turn(thought: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    named = [{"name": name, "args": args} for name, args in calls]
    return {"next_thought": thought, "tool_calls": {"tool_calls": named}}


def rules(prompt: Prompt) -> Any:
    """An answer by what is asked for; the first plan for a task is in no known form."""
    seen = "\n".join([turn.content for turn in prompt.turns[1:]])
    if "topics" in prompt.asks:
        return {"topics": ["bees", "ants"]} if "JSON object" in seen or "again" in seen else "bees, and ants"
    if "`finding`" in prompt.turns[0].content:
        topic = "bees" if "\nbees" in seen else "ants"
        return (
            turn("", ("submit", {"finding": topic}))
            if FACTS[topic][:9] in seen
            else turn("", ("read", {"topic": topic}))
        )
    if "`reply`" in prompt.turns[0].content:
        return turn("I greet.", ("submit", {"reply": f"Hello {prompt.inputs.get('message', '')}"}))
    if "reports.example" in seen:
        return turn("Done.", ("submit", {"report": "Bees dance and ants lay trails.", "words": 6}))
    if REFUSAL[:9] in seen:
        return turn("It is ready.", ("publish", {"title": "draft", "body": "Bees dance."}))
    if "no number" in seen:
        return turn("I try.", ("submit", {"report": "Bees.", "words": 1}))
    calls = [("research", {"topic": "bees"}), ("research", {"topic": "ants"}), ("divide", {"expression": HOSTILE})]
    return turn(f"I need both. {HOSTILE}", *calls)


def report_graph() -> Graph:
    """A plan with examples, and an agent with sub-agents, a tool that fails, a check, and a call to be approved."""
    plan = dspy.Predict(Plan)
    plan.demos = [
        dspy.Example(task="Compare cats and dogs", topics=["cats", "dogs"]),
        dspy.Example(task="Name a drink", topics=["tea"]),
    ]
    reader = agents.tool_loop("topic -> finding", [read], name="Reader")
    tools = [agents.tool(reader, name="research", desc="Reads."), divide, agents.tool(publish, approve=True)]
    lead = agents.tool_loop(
        "task, topics: list[str] -> report, words: int",
        tools,
        check=lambda words: [] if words > 1 else [REFUSAL],
        name="Lead",
    )
    graph = Graph(Report, name="Reports", inputs=["task"]).add_node("plan", plan).add_node("lead", lead)
    return graph.add_path(START, "plan", "lead", END)


class Served(NamedTuple):
    address: str
    program: CompiledGraph


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One store and one server for all tests."""
    path = tmp_path_factory.mktemp("pane") / "runs.db"
    lm = ScriptedLM(rules)
    with dspy.context(lm=lm):
        program = report_graph().compile(store=str(path), record_lm_calls="full")
        thread = program.thread("rich")
        thread.run({"task": "Compare bees and ants"})
        answer = Approval(True, args={"title": "final", "body": "Bees dance and ants lay trails."})
        thread.resume({"publish": answer}, by="ada", comment=f"fine, {HOSTILE}")
        program.thread("waits").run({"task": "Compare bees and ants"})
        report_graph().compile(store=str(path)).thread("bare").run({"task": "again"})
        secret = report_graph().compile(store=str(path), record_lm_calls="full", redact=["task"])
        secret.thread("secret").run({"task": "again, unseen"})
        chat = agents.tool_loop("message -> reply", [], name="Chat").compile(store=str(path)).thread("chat")
        for message in ("Ada", "Bob"):
            chat.run({"message": message})
    program.set_lm(lm)
    with served(dspyer.inspector.app(str(path), program, token=TOKEN)) as address:
        yield Served(address, program)


@pytest.fixture
def tab(page: Any, desk: Served) -> Iterator[Tab]:
    one = Tab(page, desk.address)
    yield one
    one.clean()


def test_the_conversation_of_an_agent(tab: Tab, desk: Served) -> None:
    page = tab.run("rich", step="rich.1/trunk:2")
    talk = page.locator(".talk").first
    talk.wait_for()
    assert page.get_by_role("tab", name="Conversation").get_attribute("aria-selected") == "true"
    told = [re.sub(r"\s+", " ", one) for one in talk.locator(":scope > .turn").all_inner_texts()]
    assert [one.split(" ")[0] for one in told] == ["task", "react", "react", "check", "react", "react"]
    assert all(part in told[0] for part in ("Compare bees and ants", "topics", "1 bees 2 ants")), told[0]
    assert f"I need both. {HOSTILE}" in told[1]
    assert "refused by the check" in told[2]
    assert REFUSAL in told[3]
    assert "arguments, edited" in told[4]
    assert "Approved by ada after" in told[4]
    assert f"“fine, {HOSTILE}”" in told[4]
    assert "final output" in told[5]
    calls = talk.locator(":scope > .turn").nth(1).locator(":scope > .call")
    assert [one.split("\n")[0] for one in calls.all_inner_texts()] == ["research", "research", "divide"]
    assert f"ValueError: no number in {HOSTILE}" in calls.nth(2).inner_text()
    edited = talk.locator(".call", has_text="arguments, edited").first
    assert (edited.locator("del").all_inner_texts()[0], edited.locator("ins").all_inner_texts()[0]) == (
        "draft",
        "final",
    )
    # The conversation of a sub-agent is inside of its call, by keyboard: a long text and a long list unfold.
    for number in (0, 1):
        calls.nth(number).get_by_role("button", name="Show its conversation · 2 turns").focus()
        page.keyboard.press("Enter")
    calls.nth(1).locator(".talk .call").first.wait_for()
    inside = calls.nth(1).locator(".talk .call").first
    assert "trail trail" in inside.inner_text()
    assert len(inside.inner_text()) < LONGEST / 4
    inside.get_by_role("button", name=re.compile("show all 60,0")).click()
    assert len(inside.locator(".text", has_text="trail trail").first.inner_text()) > LONGEST
    inside.get_by_role("button", name="show less").click()
    inside.get_by_role("button", name="last items").click()
    assert inside.get_by_text("101–120 of 120 items").is_visible()
    fits(page, "a conversation")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 380, "height": 800})
    fits(page, "a conversation on a phone")
    page.set_viewport_size({"width": 1440, "height": 900})
    # A step inside of an agent has recorded what it added: nothing was taken away from the messages.
    second = next(one for one in desk.program.thread("rich").record().steps if (one.node, one.visit) == ("react", 2))
    tab.run("rich", step=second.id, tab="changes")
    page.locator("#panel ins").first.wait_for()
    assert page.locator("#panel del").count() == 0
    # A call that waits shows the form of its answer, which is sent from here.
    tab.run("waits", step="waits.1/trunk:2")
    asks = page.locator(".talk .beneath", has_text="Waits for approval")
    asks.wait_for()
    work = desk.program.thread("waits").record().seconds  # what the agent did before it asked counts
    assert page.locator(".figs").inner_text().startswith(f"{round(1000 * work)} ms of work")
    asks.get_by_label("Approve", exact=True).check()
    asks.get_by_role("button", name="Answer").click()
    page.locator(".talk .beneath", has_text="Approved").wait_for()
    page.locator(".talk .call.final").wait_for()
    fits(page, "an answered call", axe=False)


def test_a_run_that_is_a_conversation(tab: Tab) -> None:
    """A thread whose graph is an agent: each of its steps has the conversation, with what was said in earlier runs."""
    page = tab.run("chat", tab="conversation")
    talk = page.locator(".talk")
    talk.get_by_text("Hello Bob").wait_for()
    assert "Ada" not in talk.inner_text()
    talk.get_by_role("button", name="Show 3 messages of earlier runs").click()
    assert "Hello Ada" in talk.inner_text()
    fits(page, "a chat", axe=False)


def test_prompts_by_field(tab: Tab) -> None:
    page = tab.run("rich", step="rich.1/trunk:1")
    calls = page.locator(".called")
    calls.nth(1).locator("dl").first.wait_for()
    assert "not in the form that was asked for" in calls.nth(0).inner_text()
    assert "Differs from the call before in form" in calls.nth(1).inner_text()
    second = calls.nth(1)
    second.get_by_role("button", name="2 examples").click()
    text = re.sub(r"\s+", " ", second.inner_text())
    examples = "example 1 task Compare cats and dogs topics 1 cats 2 dogs example 2 task Name a drink topics 1 tea"
    for part in (
        "instructions Name the topics of a task.",
        f"{examples} task Compare bees and ants",
        "topics 1 bees 2 ants",
    ):
        assert part in text, text
    second.get_by_role("button", name=re.compile("Raw messages")).click()
    assert "Your input fields are:" in second.locator(".raw").first.inner_text()
    second.get_by_role("button", name="Differs from").click()
    assert [second.locator(".differs del").inner_text(), second.locator(".differs ins").inner_text()] == [
        "chat",
        "JSON",
    ]
    fits(page, "a prompt")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 380, "height": 800})
    fits(page, "a prompt on a phone")
    # What is not there says why.
    for thread, told in (("bare", 'record_lm_calls="full"'), ("secret", "Its program redacts task")):
        tab.run(thread, step=f"{thread}.1/trunk:1", tab="prompt")
        until(page, "document.querySelector('#panel .note')?.innerText.includes(value)", told)
        assert "unseen" not in page.inner_text("body")


def test_a_prompt_is_sent_again(tab: Tab) -> None:
    page = tab.run("rich", step="rich.1/trunk:1")
    again = page.get_by_role("button", name="Run this prompt again")
    again.click()
    said = page.get_by_label("message of user").last
    said.fill(said.input_value().replace("bees and ants", "ants again"))
    page.locator("[role=treeitem]", has_text="inputs").first.click()  # what was typed stays
    page.locator("[role=treeitem]", has_text="plan").first.click()
    again.click()
    assert "ants again" in page.get_by_label("message of user").last.input_value()
    page.get_by_role("button", name="Send").click()
    beside = page.get_by_role("group", name="both answers")
    beside.wait_for()
    text = re.sub(r"\s+", " ", beside.inner_text())
    assert text.count("topics 1 bees 2 ants") == 2
    assert "tokens" in text
    fits(page, "two answers")


def test_a_copy_with_an_edited_state(tab: Tab, desk: Served) -> None:
    page = tab.run("rich", step="rich.1/trunk:1")
    page.get_by_role("button", name="Copy with edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile("^words ")).click()
    dialog.get_by_label("words").fill("many")
    dialog.get_by_role("button", name="Copy and run").click()
    dialog.get_by_text("this is no number").wait_for()
    dialog.get_by_label("words").fill("3")
    assert dialog.get_by_label("words").bounding_box()["width"] > 400
    page.keyboard.press("Escape")  # what was typed stays
    page.get_by_role("button", name="Copy with edit").click()
    assert dialog.get_by_label("words").input_value() == "3"
    dialog.get_by_role("button", name=re.compile("^topics ")).click()
    fits(page, "an editor of the state")
    dialog.get_by_role("textbox", name="topics 2").fill("bees")
    assert "2 fields changed" in dialog.inner_text()
    dialog.get_by_role("button", name="Copy and run").click()
    until(page, "location.hash.includes('thread=rich-try-1')")
    page.locator("[role=treeitem]", has_text="edited by hand").wait_for()
    copy = desk.program.thread("rich-try-1")
    (edit,) = [step for step in copy.record().steps if step.kind == "edit"]
    assert {name: one.value for name, one in edit.wrote.items()} == {"words": 3, "topics": ["bees", "bees"]}


def test_the_difference_of_long_texts(tab: Tab, desk: Served) -> None:
    """By words, with what is equal folded, and in bounded time; whole below a third in common."""
    words = [f"word{number}" for number in range(LONGEST // 9)]
    edited = [f"<b>{word}" if number % 20 == 7 else word for number, word in enumerate(words)]
    others = [f"other{number}" for number in range(LONGEST // 9)]
    thread = desk.program.thread("rich")
    for name, text in (("long", words), ("edited", edited), ("others", others)):
        edits = [step.id for step in thread.record().steps if step.parent is None and step.kind in ("start", "edit")]
        thread = thread.copy(name, at=edits[-1], patch={"report": " ".join(text)})
    for name, marks in (("edited", (0, len(words) // 20)), ("others", (1, 1))):
        page = tab.run(name, tab="changes")
        page.locator("[role=treeitem]", has_text="edited by hand").last.click()
        page.locator("#panel .words").wait_for()
        shown = page.locator("#panel .words")
        assert (shown.locator("del").count(), shown.locator("ins").count()) == marks, name
        fits(page, name, axe=False)
    assert "show all" in page.inner_text("#panel")


# --- prompts as DSPy makes them


class Place(BaseModel):
    name: str
    people: int = 0


class Ask(dspy.Signature):
    """Answer the question.

    Be brief:
    - use few words"""

    question: str = dspy.InputField(desc="what is asked")
    places: list[Place] = dspy.InputField()
    picture: dspy.Image = dspy.InputField()
    answer: str = dspy.OutputField()
    best: Place = dspy.OutputField()


class Chat(dspy.Signature):
    """Chat."""

    history: dspy.History = dspy.InputField()
    said: str = dspy.InputField()
    reply: str = dspy.OutputField()


HARD = """Who is [[ ## answer ## ]] in Rome?

[[ ## question ## ]]
[[ ## all ## ]]
<question>Who?</question>

Respond with care: `<answer>` {"a": 1}"""
PARSED = """([source, all]) => {
  const { parsePrompt, parseResponse, valueOf } = new Function(
    `${source}; return { parsePrompt, parseResponse, valueOf }`)();
  const fields = (list) => list && Object.fromEntries(list.map(([name, value]) => [name, valueOf(value)]));
  return all.map(([messages, answer]) => {
    const prompt = parsePrompt(messages);
    return prompt && {
      kind: prompt.kind, instructions: prompt.instructions,
      values: fields(prompt.values), answer: fields(parseResponse(answer, prompt)),
      demos: prompt.demos.map((demo) => [fields(demo.inputs), fields(demo.outputs), demo.incomplete]),
      talk: prompt.talk.map((one) => [one.role, fields(one.fields)]),
    };
  });
}"""


def test_prompts_of_the_adapters_are_read(page: Any) -> None:
    """Each field of what the adapters of the installed DSPy write is read as it was given, whatever it contains."""
    picture = dspy.Image("data:image/png;base64,iVBORw0KGgo=")
    given = {"question": HARD, "places": [Place(name="Rome <b>")], "picture": picture}
    whole = {
        "question": "Where?",
        "places": [],
        "picture": picture,
        "answer": "Here & <there>",
        "best": Place(name="Oslo"),
    }
    history = dspy.History(messages=[{"said": "Hi", "reply": "Hello"}, {"said": "And?", "reply": "Well"}])
    adapters = [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter(), BAMLAdapter()]
    sent = []
    for adapter in adapters:
        outputs = adapter.format_assistant_message_content(Ask, {"answer": HARD, "best": Place(name="Rome", people=3)})
        sent.append((adapter.format(Ask, [whole, {"question": "Why?", "answer": "So."}], dict(given)), outputs))
        sent.append((adapter.format(Chat, [], {"history": history, "said": "Bye"}), ""))
    sent += [([{"role": "user", "content": "Plain."}], ""), ([], ""), ([{"role": "system", "content": "Be kind."}], "")]
    source = re.sub(r"^export ", "", PARSE.read_text(), flags=re.MULTILINE)
    found = page.evaluate(PARSED, [source, sent])
    kinds = ("chat", "JSON", "XML", "chat")
    shown = [{"type": "image_url", "image_url": {"url": picture.url}}]
    for kind, one, chat in zip(kinds, found[::2], found[1::2], strict=False):
        assert one["kind"] == chat["kind"] == kind
        assert one["instructions"] == "Answer the question.\n\nBe brief:\n- use few words"
        assert one["values"]["question"] == HARD
        assert "Rome <b>" in str(one["values"]["places"])
        assert one["values"]["picture"] == shown
        assert one["answer"]["answer"] == HARD, kind
        part, complete = one["demos"]
        assert (part[0], part[1]["answer"], part[2]) == ({"question": "Why?"}, "So.", True)
        assert part[1].get("best") is None
        assert (complete[0]["question"], complete[1]["answer"], complete[2]) == ("Where?", "Here & <there>", False)
        assert chat["talk"] == [
            [role, {name: text}]
            for role, name, text in (
                ("user", "said", "Hi"),
                ("assistant", "reply", "Hello"),
                ("user", "said", "And?"),
                ("assistant", "reply", "Well"),
            )
        ]
        assert (chat["values"], chat["demos"]) == ({"said": "Bye"}, [])
    assert found[8:] == [None, None, None]
