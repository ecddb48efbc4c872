"""Agents on one pad: each is shown, once and in one order, what others post to the live fields that it reads."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError
from pydantic import BaseModel, create_model

from dspyer import END, START, CompiledGraph, Context, Graph, Messages, Run, agents, live, reducers
from dspyer.events import Posted
from dspyer.testing import Prompt, ScriptedLM, no_pauses
from tests.agents.kit import modes, turn
from tests.budget import deep
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.rows import each


class Notes(BaseModel):
    research: Annotated[list[str], reducers.append, live] = []


class Pad(Notes):
    task: str = "t"
    found: str = ""
    report: str = ""
    talk: Messages = []
    rounds: int = 0


def note(text: str, ctx: Context) -> str:
    """Writes a finding to the pad."""
    ctx.post("research", text)
    return "noted"


def pad(
    store: Any = None, *, path: bool = False, inner: Any = None, outer: Any = None, **options: Any
) -> CompiledGraph:
    """The researcher posts, the analyst is shown what it posts; what the analyst was shown is in `talk`."""
    researcher = agents.tool_loop("task -> found", [agents.tool(note, writes=["research"])], schema=Notes)
    analyst = agents.tool_loop("task -> report", [agents.wait_for_posts], schema=Notes).compile(**inner or {})
    graph = Graph(Pad)
    graph.add_node("researcher", researcher, reads=["task"], writes=["found", "research"])
    writes = {"report": "report", "messages": "talk"}
    graph.add_node("analyst", analyst, reads=["task", "research"], writes=writes, **outer or {})
    if path:
        graph.add_path(START, "researcher", "analyst", END)
    else:
        graph.add_edge(START, ["analyst", "researcher"]).add_edge(["researcher", "analyst"], END)
    return graph.compile(**({} if store is None else {"store": store}), **options)


TEXTS = ("tide at 9:40", "wind from west")


def answer(prompt: Prompt) -> dict[str, Any]:
    """The researcher notes the texts, one a turn; the analyst waits until it was shown all, and reports them."""
    said = str(prompt.turns[1:])
    if "wait_for_posts" not in str(prompt.turns[0]) + said:
        done = said.count("'noted'") + said.count('"noted"')
        return turn(("note", {"text": TEXTS[done]})) if done < len(TEXTS) else turn(("submit", {"found": "all"}))
    shown = [text for text in TEXTS if f"research: {text}" in said]
    if len(shown) == len(TEXTS) or "No one else works" in said:
        return turn(("submit", {"report": ", ".join(shown)}))
    return turn(("wait_for_posts", {}))


def posts_in(messages: Iterable[Any]) -> list[tuple[int, str, str]]:
    return [(one["posted"]["number"], one["name"], one["content"]) for one in messages if "posted" in one]


SHOWN = [(1, "researcher", "research: tide at 9:40"), (2, "researcher", "research: wind from west")]


def run_of(program: Any, mode: str = "sync", **inputs: Any) -> Run:
    run: Run = program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))
    return run


@modes
def test_an_agent_is_shown_the_posts_of_another_one(mode: str) -> None:
    program = pad()
    with ScriptedLM(answer) as lm:
        run = run_of(program, mode)
    assert (run.status, run.error) == ("completed", None)
    assert (run.state["report"], run.state["research"]) == ("tide at 9:40, wind from west", list(TEXTS))
    assert posts_in(run.state["talk"]) == SHOWN
    block = '<message from="researcher">\nresearch: tide at 9:40\n</message>'
    assert any(block in str(call.prompt.inputs.get("task")) for call in lm.calls)
    own = [call.prompt for call in lm.calls if "wait_for_posts" not in call.prompt.turns[0].content]
    assert not any("from=" in str(prompt.inputs) for prompt in own), "an agent is not shown its own posts"


@modes
def test_without_live_posts_a_run_has_none_to_wait_for(mode: str) -> None:
    with ScriptedLM(answer):
        program = pad()
        run = program.run({}, live=False) if mode == "sync" else asyncio.run(program.arun({}, live=False))
    assert (run.status, run.error, run.state["report"]) == ("completed", None, "")
    assert run.state["research"] == list(TEXTS)


@pytest.mark.slow("a process is killed after every second write of a run, and the run resumed from the file")
def test_kill_9_after_its_writes(tmp_path: Path) -> None:
    store = FailingSQLite(tmp_path / "runs.db")
    program = pad(store)

    def work(thread: Any) -> Run:
        with dspy.context(lm=ScriptedLM(answer)):
            run: Run = thread.run({}) if thread.status == "new" else thread.resume()
            return run

    killed = 0
    for at in range(1, 100, 1 if deep else 2):
        thread = program.thread(f"t {at}")

        def child(thread: Any = thread, at: int = at) -> None:
            store.arm(kill, at, after=True)
            work(thread)

        ended = end_of(fork(child))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed += 1
        run = work(thread) if thread.status != "completed" else None
        assert run is None or (run.status, run.error) == ("completed", None)
        assert thread.state["research"] == list(TEXTS), f"each post is there once, killed after write {at}"
        numbers = [number for number, _, _ in posts_in(thread.state["talk"])]
        assert numbers == sorted(set(numbers)), "each post is shown once, in one order"
        assert [text for _, _, text in posts_in(thread.state["talk"])] == [text for _, _, text in SHOWN]
    assert killed > (12 if deep else 6)


def test_a_copy_has_what_was_shown() -> None:
    program = pad(":memory:")
    with ScriptedLM(answer):
        program.thread("t").run({})
    copy = program.thread("t").copy(to="u")
    assert posts_in(copy.state["talk"]) == SHOWN


def test_a_conversation_that_goes_on_is_not_shown_a_post_again() -> None:
    """In a loop, the agent has a new state at each visit; its conversation is that of the graph."""
    reader = agents.tool_loop("task -> report", [], schema=Notes)
    graph = Graph(Pad)

    def writer(ctx: Context, rounds: int) -> dict[str, Any]:
        ctx.post("research", f"note {rounds}")
        return {"rounds": rounds + 1}

    graph.add_node("writer", writer, reads=["rounds"], writes=["research", "rounds"])
    maps = {"messages": "talk", "task": "task", "research": "research"}
    graph.add_node("reader", reader, reads=maps, writes={"report": "report", "messages": "talk"})
    graph.add_path(START, "writer", "reader")
    graph.add_conditional_edges(
        "reader", lambda rounds: "again" if rounds < 3 else "done", {"again": "writer", "done": END}
    )
    with ScriptedLM(lambda prompt: turn(("submit", {"report": "read"}))):
        run = graph.compile().run({})
    assert (run.status, run.error) == ("completed", None)
    assert [text for _, _, text in posts_in(run.state["talk"])] == [f"research: note {n}" for n in range(3)]


def test_posts_of_another_run_are_numbered_anew() -> None:
    """An agent whose conversation lasts over runs is shown those of each."""
    reader = agents.tool_loop("task -> report", [agents.wait_for_posts], schema=Notes)
    graph = Graph(Pad)
    graph.add_node("writer", lambda ctx: ctx.post("research", "again"), writes=["research"])
    maps = {"messages": "talk", "task": "task", "research": "research"}
    graph.add_node("reader", reader, reads=maps, writes={"report": "report", "messages": "talk"})
    graph.add_edge(START, "writer").add_path("writer", "reader", END)
    thread = graph.compile(store=":memory:").thread("t")
    with ScriptedLM(lambda prompt: turn(("submit", {"report": "read"}))):
        for _ in range(2):
            run = thread.run({})
    assert [text for _, _, text in posts_in(run.state["talk"])] == ["research: again"] * 2


def test_an_agent_that_waits_for_posts_which_its_node_does_not_read_is_a_warning() -> None:
    reader = agents.tool_loop("task -> report", [agents.wait_for_posts], schema=Notes)
    graph = Graph(inputs=["task"]).add_node("reader", reader, reads=["task"]).add_path(START, "reader", END)
    with pytest.warns(UserWarning, match="node 'reader' reads no live field, so that `wait_for_posts` of its agent"):
        graph.compile()


TUNED = dspy.Example(task="t").with_inputs("task")


def scored(_example: Any, found: Any, _trace: Any = None, _name: Any = None, _steps: Any = None) -> Any:
    return dspy.Prediction(score=0.5 * ("wind" in found.report), feedback="name the wind")


def test_each_agent_is_tuned_and_its_demos_have_what_it_was_shown() -> None:
    program = pad(path=True)  # of several turns one becomes a demo, by chance
    with ScriptedLM(answer):
        tuner = dspy.BootstrapFewShot(lambda example, found, trace=None: "wind" in found.report)
        tuned = tuner.compile(program, trainset=[TUNED])
    assert len(tuned.researcher.react.demos) == 1
    assert "research: wind from west" in str([dict(demo) for demo in tuned.analyst.react.demos])


def test_gepa_tunes_each_agent() -> None:
    program = pad()
    reflected: list[str] = []

    def tunes(prompt: Prompt) -> Any:
        if "new_instruction" in prompt.asks:
            reflected.append(str(prompt.turns))
            return {"new_instruction": "Read the pad."}
        return answer(prompt)

    lm = ScriptedLM(tunes)
    with dspy.context(lm=lm):
        tuner = dspy.GEPA(scored, max_metric_calls=8, reflection_lm=lm, component_selector="all", num_threads=1, seed=0)
        tuner.compile(program, trainset=[TUNED], valset=[TUNED])
    assert len(reflected) >= 2, "each agent was reflected on"
    assert any("research: wind from west" in text for text in reflected)


@modes
def test_an_agent_that_waits_holds_no_slot(mode: str) -> None:
    with ScriptedLM(answer):
        run = run_of(pad(max_concurrency=1), mode)
    assert (run.status, run.state["report"]) == ("completed", "tide at 9:40, wind from west")


@modes
def test_a_message_ends_a_wait_while_another_node_works(mode: str) -> None:
    reader = agents.tool_loop("task -> report", [agents.wait_for_posts], schema=Notes)
    shown = threading.Event()

    def worker() -> None:
        program.thread("t").send("Now.", to="reader", by="ada")
        assert shown.wait(60), "the agent is shown it although no one has posted"

    def reads(prompt: Prompt) -> dict[str, Any]:
        if "Now." not in str(prompt.turns[1:]):
            return turn(("wait_for_posts", {}))
        shown.set()
        return turn(("submit", {"report": "told"}))

    graph = Graph(Pad).add_node("worker", worker, writes=[])
    graph.add_node("reader", reader, reads=["task", "research"], writes=["report"])
    graph.add_edge(START, ["worker", "reader"]).add_edge(["worker", "reader"], END)
    program = graph.compile(store=":memory:")
    with ScriptedLM(reads) as lm:
        run = run_of(program.thread("t"), mode)
    assert (run.status, run.error, run.state["report"]) == ("completed", None, "told")
    assert program.thread("t").unread == ()
    assert len(lm.calls) <= 2, "it waits without an LM call"


@modes
def test_a_wait_is_made_again_after_a_sibling_has_asked(mode: str) -> None:
    reader = agents.tool_loop("task -> report", [agents.wait_for_posts], schema=Notes)
    graph = Graph(Pad)

    def asker(ctx: Context) -> None:
        ctx.post("research", f"he says {ctx.interrupt('ask', 'What?', str)}")

    graph.add_node("asker", asker, writes=["research"])
    graph.add_node("reader", reader, reads=["task", "research"], writes={"report": "report", "messages": "talk"})
    graph.add_edge(START, ["asker", "reader"]).add_edge(["asker", "reader"], END)
    thread = graph.compile(store=":memory:").thread("t")

    def reads(prompt: Prompt) -> dict[str, Any]:
        done = "research: he says yes" in str(prompt.turns[1:])
        return turn(("submit", {"report": "read"})) if done else turn(("wait_for_posts", {}))

    with ScriptedLM(reads) as lm:
        assert run_of(thread, mode).status == "interrupted"
        asked = len(lm.calls)
        run = thread.resume({"ask": "yes"})
    assert (run.status, run.error, run.state["report"]) == ("completed", None, "read")
    assert [text for _, _, text in posts_in(run.state["talk"])] == ["research: he says yes"]
    assert (asked, len(lm.calls)) == (1, 2), "the turn that waits is not taken again"


@each("place", {"the turn": {}, "the agent": {}})
def test_a_turn_that_is_attempted_again_shows_the_same_posts(place: str) -> None:
    inner = {"retry": 3} if place == "the turn" else {}
    program = pad(inner=inner, outer={} if inner else {"retry": 3})
    failed: list[str] = []

    def fails_once(prompt: Prompt) -> Any:
        if "research: wind" in str(prompt.turns[1:]) and not failed:
            failed.append("once")
            return LMRateLimitError("busy")
        return answer(prompt)

    with ScriptedLM(fails_once), no_pauses():
        run = program.run({})
    assert (run.status, run.error, failed) == ("completed", None, ["once"])
    assert posts_in(run.state["talk"]) == SHOWN


class Code(BaseModel):
    code: Annotated[dict[str, str], reducers.update, live] = {}


def test_a_post_to_a_key_is_shown_with_its_key() -> None:
    graph = Graph(type("All", (Code,), {"__annotations__": {"task": str, "report": str}, "task": "t", "report": ""}))
    graph.add_node("coder", lambda ctx: ctx.post("code", {"main": "print(1)"}), writes=["code"])
    reader = agents.tool_loop("task -> report", [], schema=Code)
    graph.add_node("reader", reader, reads=["task", "code"], writes=["report"])
    graph.add_path(START, "coder", "reader", END)
    with ScriptedLM([turn(("submit", {"report": "read"}))]) as lm:
        run = graph.compile().run({})
    assert run.status == "completed"
    assert "code.main: print(1)" in lm.calls[0].prompt.inputs["task"]


def random_team(rng: random.Random) -> tuple[CompiledGraph, dict[str, list[str]]]:
    """Agents that post, wait and look at random, with a field each; who reads which."""
    names = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    kind: Any = (Annotated[list[str], reducers.append, live], [])
    pad = create_model("Pad", **dict.fromkeys(names, kind))
    talks: dict[str, Any] = {f"talk_{name}": (Messages, []) for name in names}
    outputs: dict[str, Any] = {f"by_{name}": (str, "") for name in names}
    state: Any = create_model("State", __base__=pad, task=(str, "t"), **outputs, **talks)
    graph, reads = Graph(state), dict[str, list[str]]()
    for name in names:
        plan = [rng.choice(["post", "post", "wait_for_posts", "look"]) for _ in range(rng.randint(1, 5))]
        reads[name] = [other for other in names if other != name and rng.random() < 0.7]
        tools = [agents.tool(posts_to(name), name="post", writes=[name]), agents.wait_for_posts, look]
        lm = ScriptedLM(planned(name, plan))
        own = create_model("Own", **dict.fromkeys([name, *reads[name]], kind))
        agent = agents.tool_loop(f"task -> by_{name}", tools, schema=own, lm=lm, max_turns=99)
        writes = {f"by_{name}": f"by_{name}", name: name, "messages": f"talk_{name}"}
        graph.add_node(f"node_{name}", agent, reads=["task", *reads[name]], writes=writes)
    nodes = [f"node_{name}" for name in names]
    graph.add_edge(START, nodes).add_edge(nodes, END)
    return graph.compile(max_concurrency=rng.randint(1, 4)), reads


def posts_to(field: str) -> Callable[..., str]:
    def post(text: str, ctx: Context) -> str:
        """Writes to the pad."""
        ctx.post(field, text)
        return "done"

    return post


def look() -> str:
    """Looks."""
    return "nothing"


def planned(name: str, plan: list[str]) -> Callable[[Prompt], dict[str, Any]]:
    """A model that follows its plan, then waits until no one else works."""
    left = list(enumerate(plan))

    def answer(prompt: Prompt) -> dict[str, Any]:
        if left:
            number, step = left.pop(0)
            return turn(("post", {"text": f"{name}{number}"}) if step == "post" else (step, {}))
        ended = "No one else works" in str(prompt.turns[1:])
        return turn(("submit", {f"by_{name}": "end"}) if ended else ("wait_for_posts", {}))

    return answer


@pytest.mark.filterwarnings("ignore:.*node 'node_.' reads no live field")
@modes
def test_each_reader_gets_each_post_once_and_in_one_order(mode: str) -> None:
    for seed in range(8):
        program, reads = random_team(random.Random(seed))
        run = run_of(program, mode)
        assert (run.status, run.error) == ("completed", None), seed
        events = [event for event in run.events if isinstance(event, Posted)]
        order = [(event.seq, event.field) for event in events if not event.scope]
        for name, fields in reads.items():
            shown = posts_in(run.state[f"talk_{name}"])
            numbers = [number for number, _, _ in shown]
            posted = [number for number, field in order if field in fields]
            assert numbers == posted[: len(numbers)], f"{seed}: no gap, none twice, none of its own"
            assert [text.partition(":")[0] for _, _, text in shown] == [
                field for number, field in order if number in numbers
            ]
