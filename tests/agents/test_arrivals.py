"""What others send to an agent is shown at its next turn, once: messages to its thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspyer import CompiledGraph, Thread, agents, view
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, modes, start, turn
from tests.rows import each


def told(program: CompiledGraph, *texts: str, **options: Any) -> Thread:
    """A thread that has had a run, and then got these messages."""
    thread = program.thread("t")
    with ScriptedLM([SUBMIT]):
        start(thread)
    for text in texts:
        thread.send(text, **options)
    return thread


def agent(**options: Any) -> tuple[CompiledGraph, Callable[..., str]]:
    """An agent whose tool sends a message to its own thread, as another process could at that moment."""

    def tell(text: str, by: str = "") -> str:
        """Sends a message."""
        return str(program.thread("t").send(text, by=by).number)

    program = agents.tool_loop("question -> answer", [tell], **options).compile(store=":memory:")
    return program, tell


TELL = turn(("tell", {"text": "Leave out Hull.", "by": "ada"}), ("tell", {"text": "Only 2025."}))


@modes
def test_messages_are_committed_with_the_turn_that_shows_them(mode: str) -> None:
    program, _ = agent()
    thread = program.thread("t")
    with ScriptedLM([TELL, turn(("tell", {"text": "Thanks."})), SUBMIT]) as lm:
        run = start(thread, mode)
    assert (run.status, run.error, thread.unread) == ("completed", None, ())
    said = [(one["role"], one.get("name", ""), one["content"]) for one in run.state["messages"] if "sent" in one]
    assert sorted(said) == [("user", "", "Only 2025."), ("user", "", "Thanks."), ("user", "ada", "Leave out Hull.")]
    numbers = [one["sent"]["number"] for one in run.state["messages"] if "sent" in one]
    assert numbers == [0, 1, 2], "in the order of their numbers"
    turns = [commit for commit in run.commits if commit.node == "react"]
    assert [sum("sent" in one for one in commit.patch["messages"]) for commit in turns[1:]] == [2, 1]
    shown = [call.prompt.inputs.get("question", "") for call in lm.calls]
    assert ['<message from="ada">\nLeave out Hull.\n</message>' in text for text in shown] == [False, True, False]
    assert ["Thanks." in text for text in shown] == [False, False, True]


@modes
@each("max_turns", {"turns are left": 2, "none is left": 1, "all are": 0})
def test_a_run_does_not_end_over_a_message(mode: str, max_turns: str) -> None:
    given = {"turns are left": 2, "none is left": 1, "all are": 0}[max_turns]
    program, tell = agent(max_turns=given)
    answers = iter(["first", "second", "third"])

    def answer(prompt: Any) -> dict[str, Any]:
        text = next(answers)
        if text == "first":
            tell("And Hull?")
        return turn(("submit", {"answer": text}))

    with ScriptedLM(answer) as lm:
        run = start(program.thread("t"), mode)
    more = given == 2
    assert (run.status, run.state["answer"], len(lm.calls)) == ("completed", "second" if more else "first", 1 + more)
    assert [one.text for one in program.thread("t").unread] == ([] if more else ["And Hull?"])


@modes
@each("check", {"a function": None, "itself": True})
def test_what_comes_during_the_check_is_taken_too(mode: str, check: str) -> None:
    sent: list[int] = []

    def tells(answer: str) -> list[str]:
        """Finds nothing, while someone writes."""
        sent.extend([] if sent else [program.thread("t").send("And Hull?").number])
        return []

    program, _ = agent(check=True if check == "itself" else tells)

    def answer(prompt: Any) -> dict[str, Any]:
        return {"problems": tells("")} if "problems" in prompt.asks else SUBMIT

    with ScriptedLM(answer) as lm:
        run = start(program.thread("t"), mode)
    assert (run.status, run.error, program.thread("t").unread) == ("completed", None, ())
    assert "And Hull?" in str([call.prompt.inputs for call in lm.calls])
    assert [commit.node for commit in run.commits if commit.node == "react"] == ["react"] * 2


def test_the_next_run_begins_with_what_was_unread() -> None:
    program, _ = agent()
    thread = told(program, "Be brief.", "In English.")
    with ScriptedLM([SUBMIT]) as lm:
        run = start(thread)
    assert [one["content"] for one in run.state["messages"] if one["role"] == "user"] == [
        "Why?",
        "Be brief.",
        "In English.",
        "Why?",
    ]
    assert lm.calls[0].prompt.inputs["question"] == "Be brief.\n\nIn English.\n\nWhy?"
    with ScriptedLM([SUBMIT]) as lm:
        start(thread)
    assert lm.calls[0].prompt.inputs["question"] == "Why?"


def without_ada(messages: list[Any]) -> list[Any]:
    return [one for one in messages if one.get("name") != "ada"]


CONTEXTS: dict[str, tuple[Any, list[str]]] = {
    "a function": (without_ada, ["Only 2025."]),
    "the last turn": (view("messages").turns(1), ["Hull", "Only 2025."]),
    "a size": (view("messages").fit(10_000), ["Hull", "Only 2025."]),
    "an author": (view("messages").by("react"), ["Hull", "Only 2025."]),
}


@each("case", CONTEXTS)
def test_the_context_holds_for_what_arrives(case: str) -> None:
    context, expected = CONTEXTS[case]
    program, _ = agent(context=context)
    with ScriptedLM([TELL, SUBMIT]) as lm:
        run = start(program.thread("t"))
    assert run.status == "completed"
    shown = lm.calls[1].prompt.inputs["question"]
    assert [text for text in ("Hull", "Only 2025.") if text in shown] == expected
    assert sum("sent" in one for one in run.state["messages"]) == 2, "the conversation has all"


def test_an_author_named_like_the_check_is_no_correction() -> None:
    program, _ = agent(check=lambda answer: ["a draft"] if answer == "draft" else [], max_fixes=1)
    draft, told_twice = turn(("submit", {"answer": "draft"})), turn(("tell", {"text": "Quick.", "by": "check"}))
    with ScriptedLM([told_twice, draft, SUBMIT]):
        run = start(program.thread("t"))
    assert (run.status, run.error, run.state["answer"]) == ("completed", None, "done")


def test_a_summary_covers_messages_too() -> None:
    program, _ = agent(compact=agents.Compact(after=10, turns=1))
    script = [
        (lambda prompt: "summary" in {field.name for field in prompt.output_fields}, [{"summary": "no Hull"}] * 2),
        (lambda prompt: True, [TELL, turn(("tell", {"text": "Thanks."})), turn(("nothing", {})), SUBMIT]),
    ]
    with ScriptedLM(script) as lm:
        run = start(program.thread("t"))
    assert (run.status, run.error) == ("completed", None)
    covered = [call.prompt for call in lm.calls if "Leave out Hull." in call.prompt.inputs.get("messages", "")]
    assert covered, "the summary was made of what was sent"
    assert "Leave out Hull." not in str(lm.calls[-1].prompt.inputs)
    assert sum("sent" in one for one in run.state["messages"]) == 3
