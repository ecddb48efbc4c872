"""Graphs that LangGraph's engine runs whole inside of a node, beside LangGraph: questions, memory, processes."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from signal import SIGKILL
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from dspyer.errors import ChangedGraphError, GraphError, InputError, MergeConflictError, StateError
from dspyer.events import Emitted
from dspyer.migrate import explain_langgraph, from_langgraph, langgraph_inputs
from dspyer.stores import Memory
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.migrate.cases import Seen, plain
from tests.migrate.flow_graphs import Log, edges
from tests.rows import each


@dataclass
class Unnamed:
    """A class of which no field tells."""

    word: str = ""


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
    invoke = keeper(seen, checkpointer=True).invoke
    return around(seen.node("call", lambda state: {"word": invoke({"word": state["word"]})["word"]}), seen)


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


def sends_to_a_memory(seen: Seen, *words: str) -> Any:
    builder = StateGraph(Log).add_node("s", seen.node("s", {}))
    builder.add_node("x", between(keeper(seen, checkpointer=True), seen, "^ x, x last"))
    builder.add_conditional_edges(
        "s", lambda state: [Send("x", {"word": word}) for word in words or [state["word"]]], ["x"]
    )
    return edges(builder, "^ s")


def an_entrypoint_with_a_memory(seen: Seen) -> Any:
    @entrypoint(checkpointer=True)
    def joined(word: str, *, previous: Unnamed | None = None) -> Any:
        seen.append("joined")
        said = Unnamed(f"{previous.word} {word}" if previous else word)
        return entrypoint.final(value=said.word, save=said)

    return around(lambda state: {"word": joined.invoke(state["word"])}, seen)


# Graphs, each with the questions of a turn.
GRAPHS: list[tuple[Callable[[Seen], Any], str]] = [
    (a_memory, "ok?"),
    (a_memory_in_a_graph, "ok?"),
    (a_memory_that_a_function_calls, "ok?"),
    (an_entrypoint_with_a_memory, ""),
    (a_function_that_calls_two_and_asks, "mine? ok? more?"),
    (two_questions_at_once, "left? right?"),
    (a_question_twice_in_a_node, "one? two?"),
    (a_breakpoint, "x has stopped at a breakpoint: go on?"),
    (a_command_for_the_parent, ""),
    (a_command_for_the_parent_two_deep, ""),
    (a_command_after_a_question, "where?"),
    (a_tool_that_hands_over, ""),
    (an_async_graph, ""),
    (sends_to_a_memory, "ok?"),
]


def answer(text: str, turn: int = 0) -> str:
    return "other" if text == "where?" else f"{text} {turn}"


def resumed(thread: Any, run: Any, turn: int = 0) -> list[str]:
    """Answers the questions of a run, which come one by one, until it ends."""
    asked: list[str] = []
    while run.questions:
        (question,) = run.questions
        assert len(asked) < 9, asked
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


@pytest.mark.slow("a process is killed at every write of two runs, and another one ends them")
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
    # Two calls at once would leave the memory of one: LangGraph drops the other's without a word.
    graph = sends_to_a_memory(Seen(), "a", "b")
    both = from_langgraph(graph, merge={"word": "last_write_wins"}).compile(answers={"x-0": "yes"})
    with pytest.raises(MergeConflictError, match="langgraph_checkpoints"):
        both.run({"word": "w"}).raise_error()


def test_an_answer_that_no_node_inside_takes_is_an_error() -> None:
    """LangGraph ends such a run without the answer; here the code that asked takes it, and the other one says so."""

    def thread(ask: str) -> Any:
        builder = StateGraph(Notes).add_node(ask, lambda state: {"word": interrupt("ok?")})
        inner = edges(builder, f"^ {ask}").compile(checkpointer=True)
        return from_langgraph(around(inner, Seen())).compile(store=store).thread("t")

    store = Memory()
    thread("old").run({"word": "w"})
    run = thread("new").resume({"x-0": "yes"})
    assert isinstance(run.error, ChangedGraphError)
    assert "node 'x': the graph that asked question 'x-0' has no such node any more" in str(run.error)
    assert thread("old").resume().state["word"] == "yes"


def test_nodes_inside_find_what_they_found_in_langgraph() -> None:
    def look(state: Word, config: RunnableConfig) -> Any:
        get_stream_writer()("written")
        place, found = config["configurable"]["checkpoint_ns"], config["configurable"]
        seen.append(
            (found["thread_id"], found["user"], config["tags"], config["recursion_limit"], sorted(config["metadata"]))
        )
        return {"word": place.split("|")[0].split(":")[0]}

    seen: list[Any] = []
    inner = edges(StateGraph(Word).add_node("look", look), "^ look").compile(checkpointer=True)
    graph = StateGraph(Word).add_node("x", inner).add_node("y", lambda state: {**inner.invoke(state)})
    edges(graph, "^ x", "x y")
    config: Any = {"tags": ["a"], "metadata": {"m": 1}, "recursion_limit": 33}
    app = graph.compile(checkpointer=InMemorySaver())
    app.invoke({"word": "w"}, config | {"configurable": {"thread_id": "t", "user": "u"}})
    thread = from_langgraph(graph, configurable={"user": "u"}).compile(store=":memory:").thread("t")
    events = thread.stream({"word": "w"}, resources={RunnableConfig: config})
    assert [event.value for event in events if isinstance(event, Emitted)] == ["written", "written"]
    assert seen[:2] == seen[2:]
    assert thread.state["word"] == "y"


class Opaque:
    """A class of which no field tells."""


class Sure(BaseModel):
    sure: bool
    others: list[Sure] = []


def holding(value: Any) -> Any:
    class Held(Word):
        held: Any

    builder = StateGraph(Held).add_node("hold", lambda state: {"held": value, "word": "held"})
    return edges(builder.add_node("ask", lambda state: {"word": interrupt("ok?")}), "^ hold", "hold ask")


@each(
    ("node", "error", "sentence"),
    [
        (holding(Opaque()).compile(checkpointer=True), StateError, "a value that cannot be kept: .*Opaque"),
        (holding(Unnamed()).compile(checkpointer=True), StateError, "holds a .*Unnamed, which no field and no node"),
        (
            lambda state: (
                edges(StateGraph(Word).add_node("a", lambda state: {}), "^ a").compile(checkpointer=True).invoke(state)
            ),
            GraphError,
            "checkpointer=True, which its code does not name",
        ),
    ],
)
def test_what_cannot_be_kept_is_an_error_when_it_would_be(node: Any, error: Any, sentence: str) -> None:
    graph = edges(StateGraph(Word).add_node("x", node), "^ x")
    with pytest.raises(error, match=sentence):
        from_langgraph(graph).compile().run({"word": "w"}).raise_error()


def test_options_for_nodes_inside_a_whole_graph_are_a_problem_and_its_answers_are_validated() -> None:
    def ask(state: Notes) -> Any:
        return {"notes": [str(interrupt("sure?", response_schema=Sure).sure)]}

    graph = around(keeper(Seen(), ask, checkpointer=True), Seen())
    why = "nodes= names 'x.note', and 'x' runs whole, by LangGraph's engine: it was compiled with checkpointer=True"
    with pytest.raises(GraphError, match=why):
        from_langgraph(graph, nodes={"x.note": lambda word: word})
    (note,) = [note for note in explain_langgraph(graph).notes if "whole" in note]
    assert note == (
        "node 'x' is a graph that LangGraph's engine runs whole, since it was compiled with checkpointer=True: it is "
        "one commit, nothing in it is tuned, and returned keys that are no fields are dropped"
    )
    thread = from_langgraph(graph).compile(store=":memory:").thread("t")
    thread.run({"word": "w"})
    with pytest.raises(InputError, match=r"question 'x-0' .* The question is open"):
        thread.resume({"x-0": {"sure": "perhaps"}})
    assert thread.resume({"x-0": {"sure": True}}).state["word"] == "w True"
