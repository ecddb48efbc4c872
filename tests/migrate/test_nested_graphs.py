"""Graphs that LangGraph's engine runs whole inside of a node, beside LangGraph: questions, memory, processes."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from signal import SIGKILL
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from dspyer.migrate import from_langgraph, langgraph_inputs
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.migrate.cases import Seen, plain
from tests.migrate.flow_graphs import Log, edges
from tests.rows import each


class Notes(TypedDict, total=False):
    word: str
    notes: Annotated[list[str], operator.add]
    secret: str


def keeper(seen: Seen, ask: Any = None, **options: Any) -> Any:
    """A graph that notes each word, may ask between, and returns all notes as the word."""
    builder = StateGraph(Notes)
    builder.add_node("note", seen.node("note", lambda state: {"notes": [state["word"]], "secret": "s"}))
    builder.add_node("ask", seen.node("ask", ask or (lambda state: {"notes": [interrupt("ok?")]})))
    builder.add_node("tell", seen.node("tell", lambda state: {"word": " ".join(state["notes"])}))
    return edges(builder, "^ note", "note ask", "ask tell").compile(**options)


def around(node: Any, seen: Seen, *more: str) -> Any:
    """A graph of a node `x` and one after it."""
    builder = StateGraph(Log)
    builder.add_node("x", node)
    for name in ("last", *more):
        builder.add_node(name, seen.node(name, {"log": [name]}))
    return edges(builder, "^ x", *(() if more else ("x last",)))


def a_memory(seen: Seen) -> Any:
    return around(keeper(seen, checkpointer=True), seen)


class Word(TypedDict, total=False):
    word: str


def between(node: Any, seen: Seen, path: str) -> Any:
    """A graph of a node `x` and a node `last`, to be a node itself."""
    builder = StateGraph(Word).add_node("x", node)
    builder.add_node("last", seen.node("last inside", lambda state: {"word": state["word"] + "!"}))
    return edges(builder, *path.split(", ")).compile()


def a_memory_in_a_graph(seen: Seen) -> Any:
    return around(between(keeper(seen, checkpointer=True), seen, "^ x, x last"), seen)


def a_memory_that_a_function_calls(seen: Seen) -> Any:
    inner = keeper(seen, checkpointer=True)
    return around(seen.node("call", lambda state: {"word": inner.invoke({"word": state["word"]})["word"]}), seen)


def a_function_that_calls_two_and_asks(seen: Seen) -> Any:
    quiet, asking = keeper(seen, lambda state: {}), keeper(seen)

    def call(state: Log) -> Any:
        seen.append("call")
        first = quiet.invoke({"word": state["word"]})["word"]
        mine = interrupt("mine?")
        return {"word": asking.invoke({"word": first})["word"] + mine, "log": [interrupt("more?")]}

    return around(call, seen)


def two_questions_at_once(seen: Seen) -> Any:
    builder = StateGraph(Notes)
    for name in ("left", "right"):
        builder.add_node(name, seen.node(name, lambda state, name=name: {"notes": [interrupt(f"{name}?")]}))
    builder.add_node("tell", seen.node("tell", lambda state: {"word": " ".join(state["notes"])}))
    return around(edges(builder, "^ left", "^ right", "left tell", "right tell").compile(checkpointer=True), seen)


def a_question_twice_in_a_node(seen: Seen) -> Any:
    return around(
        keeper(seen, lambda state: {"notes": [interrupt("one?"), interrupt("two?")]}, checkpointer=True), seen
    )


def a_breakpoint(seen: Seen) -> Any:
    return around(keeper(seen, lambda state: {}, checkpointer=True, interrupt_before=["tell"]), seen)


def leaves(seen: Seen, to: str) -> Any:
    builder = StateGraph(Log)
    builder.add_node("up", seen.node("up", Command(graph=Command.PARENT, goto=to, update={"word": "up"})))
    return edges(builder, "^ up").compile()


def a_command_for_the_parent(seen: Seen) -> Any:
    return around(leaves(seen, "last"), seen, "other")


def a_command_for_the_parent_two_deep(seen: Seen) -> Any:
    return around(between(leaves(seen, "last"), seen, "^ x"), seen)


def a_command_after_a_question(seen: Seen) -> Any:
    def decide(state: Notes) -> Any:
        return Command(graph=Command.PARENT, goto=interrupt("where?"))

    return around(keeper(seen, decide), seen, "other")


def a_tool_that_hands_over(seen: Seen) -> Any:
    @tool
    def hand_over() -> Any:
        """Hand over."""
        return Command(graph=Command.PARENT, goto="last", update={"messages": [AIMessage("over", id="2")]})

    calls = [{"name": "hand_over", "args": {}, "id": "1"}]
    agent = StateGraph(MessagesState)
    agent.add_node("model", seen.node("model", {"messages": [AIMessage("", tool_calls=calls, id="1")]}))
    agent.add_node("tools", ToolNode([hand_over]))
    builder = StateGraph(MessagesState)
    builder.add_node("x", edges(agent, "^ model", "model tools").compile())
    builder.add_node("last", seen.node("last", {}))
    return edges(builder, "^ x")


def an_async_graph(seen: Seen) -> Any:
    async def tell(state: Notes) -> Any:
        await asyncio.sleep(0)
        return {"word": state["word"] + "!"}

    builder = StateGraph(Notes).add_node("tell", tell)
    return around(edges(builder, "^ tell").compile(checkpointer=True), seen)


# Graphs, each with the questions of a turn.
GRAPHS: list[tuple[Callable[[Seen], Any], str]] = [
    (a_memory, "ok?"),
    (a_memory_in_a_graph, "ok?"),
    (a_memory_that_a_function_calls, "ok?"),
    (a_function_that_calls_two_and_asks, "mine? ok? more?"),
    (two_questions_at_once, "left? right?"),
    (a_question_twice_in_a_node, "one? two?"),
    (a_breakpoint, "x has stopped at a breakpoint: go on?"),
    (a_command_for_the_parent, ""),
    (a_command_for_the_parent_two_deep, ""),
    (a_command_after_a_question, "where?"),
    (a_tool_that_hands_over, ""),
    (an_async_graph, ""),
]


def answer(text: str, turn: int = 0) -> str:
    return "other" if text == "where?" else f"{text} {turn}"


def resumed(thread: Any, run: Any, turn: int = 0) -> list[str]:
    """Answers the questions of a run, which come one by one, until it ends."""
    asked = []
    while run.questions:
        (question,) = run.questions
        asked.append(question.text)
        run = thread.resume({question.key: answer(question.text, turn)})
    assert not run.error, run.error
    return asked


def state_of(thread: Any) -> Any:
    return plain({key: value for key, value in thread.state.to_dict().items() if key != "langgraph_checkpoints"})


@each(("build", "texts"), GRAPHS, ids=lambda value: getattr(value, "__name__", str(value)), items=2)
def test_three_turns_are_those_of_langgraph(build: Callable[[Seen], Any], texts: str) -> None:
    there, here = Seen(), Seen()
    config: Any = {"configurable": {"thread_id": "t"}}
    graph = build(here)
    app = build(there).compile(checkpointer=InMemorySaver())
    program = from_langgraph(graph).compile(store=":memory:")
    thread = program.thread("t")
    for turn in range(3):
        value = {"word": f"w{turn}", "messages": [HumanMessage(f"w{turn}", id=f"{turn}")]}
        given = asyncio.run(app.ainvoke(value, config))  # keys that are none are left out
        while (state := app.get_state(config)).next:
            resume = {one.id: answer(str(one.value), turn) for one in state.interrupts}
            given = app.invoke(Command(resume=resume) if resume else None, config)
        run = thread.run(langgraph_inputs(app, value))
        assert " ".join(resumed(thread, run, turn)) == texts
        given.pop("__interrupt__", None)
        assert state_of(thread) == {"log": [], **plain(given)} if "log" in thread.state else plain(given)
        assert Counter(here) == Counter(there)
        assert "langgraph_checkpoints" not in (program.graph.outputs or ())


class Written(Seen):
    """Calls that other processes read."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        file.touch()

    def append(self, name: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{name} ")

    def calls(self) -> list[str]:
        return self.file.read_text().split()


@each("build", [two_questions_at_once, a_function_that_calls_two_and_asks], ids=lambda build: build.__name__)
def test_kill_9_at_any_write(build: Callable[[Seen], Any], tmp_path: Path) -> None:
    """Another process goes on, and what had finished before the last question is not called again."""
    seen = Written(tmp_path / "whole")
    thread = from_langgraph(build(seen)).compile(store=":memory:").thread("t")
    run, lengths = thread.run({"word": "w"}), [0]
    while run.questions:
        lengths.append(len(seen.calls()))
        run = thread.resume({run.questions[0].key: answer(run.questions[0].text)})
    whole, ends = seen.calls(), state_of(thread)
    longest = max(after - before for before, after in pairwise([*lengths, len(whole)]))
    for at in count(1):
        calls, store = Written(tmp_path / f"calls {at}"), FailingSQLite(tmp_path / f"{at}.db")
        thread = from_langgraph(build(calls)).compile(store=store).thread("t")

        def go_on(at: int = 0, thread: Any = thread, store: Any = store) -> None:
            if at:
                store.arm(kill, at, after=at % 2 == 0)
            if thread.status == "new":
                resumed(thread, thread.run({"word": "w"}))
            elif thread.status != "completed":
                resumed(thread, thread if thread.questions else thread.resume())
            assert state_of(thread) == ends

        ended = end_of(fork(partial(go_on, at)))
        if ended == 0:
            break
        assert ended == -SIGKILL
        assert end_of(fork(go_on)) == 0
        assert not Counter(whole) - Counter(calls.calls())
        assert len(calls.calls()) - len(whole) <= longest
    assert at > 8


def test_what_a_graph_remembers_was_true_at_the_commit() -> None:
    program = from_langgraph(a_memory(Seen())).compile(store=":memory:")
    thread = program.thread("t")
    for turn in range(2):
        resumed(thread, thread.run({"word": f"w{turn}"}), turn)
    assert thread.state["word"] == "w0 ok? 0 w1 ok? 1"
    first_end = next(commit.id for commit in thread.history() if commit.node == "last")
    early = thread.copy(to="early", at=first_end)
    late = thread.copy(to="late")
    for copied, before in ((early, "w0 ok? 0"), (late, thread.state["word"])):
        resumed(copied, copied.run({"word": "w"}), 2)
        assert copied.state["word"] == f"{before} w ok? 2"
    assert thread.at(first_end)["langgraph_checkpoints"] != thread.state["langgraph_checkpoints"]
    resumed(thread, thread.rerun([commit.id for commit in thread.history() if commit.node == "START"][-1]), 3)
    assert thread.state["word"] == "w0 ok? 0 w1 ok? 3"
    waits = program.thread("waits")
    waits.run({"word": "w"})
    copied = waits.copy(to="copied")
    for one in (copied, waits):
        resumed(one, one.resume())
        assert one.state["word"] == "w ok? 0"
