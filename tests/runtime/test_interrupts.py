"""Questions: no thread waits for an answer, no answer is lost or misassigned, finished nodes are not called again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any, Literal

import dspy
import pytest
from dspy.teleprompt import BootstrapFewShot
from dspy.utils import DummyLM
from pydantic import BaseModel, PositiveInt

from dspyer import END, START, Breakpoints, Command, CompiledGraph, Context, Graph, Retry, Send
from dspyer.errors import AttemptError, GraphError, InputError, Interrupt, Interrupted, ThreadError
from dspyer.events import Asked, NodeFailed, Question, RunEnded
from tests.runtime.conftest import Play

Work = Callable[..., Any]


def alone(node: Any, **options: Any) -> CompiledGraph:
    return Graph().add_node("work", node).add_path(START, "work", END).compile(**options)


def approving(calls: list[str] | None = None, **options: Any) -> CompiledGraph:
    def work(ctx: Context) -> dict[str, Any]:
        (calls if calls is not None else []).append("work")
        return {"ok": ctx.interrupt("ok", "Sure?")}

    return alone(work, **options)


# --- a run that waits


def test_a_question_ends_the_run_and_says_what_is_asked(play: Play) -> None:
    run = play(approving(), {})
    question = Question("ok", "Sure?", {"type": "boolean"}, "work", (), "trunk:1")
    assert (run.status, run.questions, run.error) == ("interrupted", (question,), None)
    assert question.id == "trunk:1/ok"
    assert [type(event) for event in run.events[-2:]] == [Asked, RunEnded]
    assert [commit.node for commit in run.commits] == ["START"]
    assert run.state.to_dict() == {}
    with pytest.raises(Interrupted, match=r"'ok' of node 'work': 'Sure\?'.*run it on a thread"):
        _ = run.prediction
    assert "? work waits for an answer" in run.report()
    assert "<title>work: function, waits for an answer</title>" in run.to_svg()


def test_a_plain_call_raises() -> None:
    with pytest.raises(Interrupted) as caught:
        approving()()
    assert [question.key for question in caught.value.questions] == ["ok"]


def test_a_stream_ends_with_the_question() -> None:
    stream = approving().stream({})
    assert [type(event).__name__ for event in stream][-2:] == ["Asked", "RunEnded"]
    assert stream.run.status == "interrupted"
    assert [question.key for question in stream.run.questions] == ["ok"]
    with pytest.raises(Interrupted):
        _ = stream.run.prediction


class Colour(Enum):
    RED = "red"


class Verdict(BaseModel):
    ok: bool
    why: str = ""


ANSWERS: dict[str, tuple[Any, Any, Any]] = {
    "no": (bool, False, False),
    "zero": (int, 0, 0),
    "empty text": (str, "", ""),
    "empty list": (list[int], [], []),
    "none": (int | None, None, None),
    "nothing to answer": (None, None, None),
    "literal": (Literal["a", "b"], "b", "b"),
    "enum": (Colour, "red", Colour.RED),
    "model": (Verdict, {"ok": False}, Verdict(ok=False)),
    "model as such": (Verdict, Verdict(ok=True, why="so"), Verdict(ok=True, why="so")),
}


def asking(kind: Any, seen: list[Any]) -> Work:
    def work(ctx: Context) -> dict[str, Any]:
        seen.append(ctx.interrupt("q", "?", answer=kind))
        return {"done": True}

    return work


def test_answers_on_a_thread() -> None:
    for case, (kind, given, got) in ANSWERS.items():
        seen: list[Any] = []

        program = alone(asking(kind, seen), store=":memory:")
        assert program.thread("t").run({}).status == "interrupted", case
        assert seen == []
        assert program.thread("t").resume({"q": given}).status == "completed", case
        assert seen == [got]
        assert program.run({}, answers={"q": given}).status == "completed", case
        assert seen == [got, got]


def test_an_answer_of_another_type_leaves_the_question_open() -> None:
    calls: list[str] = []
    thread = approving(calls, store=":memory:").thread("t")
    thread.run({})
    for answer in ("perhaps", "yes", 1, None, [True]):
        with pytest.raises(InputError, match=r"to question 'ok' of node 'work' does not fit .*The question is open"):
            thread.resume({"ok": answer})
    assert (thread.status, calls) == ("interrupted", ["work"])  # nothing was stored, and the node was not called
    assert thread.resume({"ok": False}).state["ok"] is False
    assert calls == ["work"] * 2


ASKING: dict[str, Callable[[Graph, Work], Graph]] = {
    "a node with a retry": lambda graph, ask: graph.add_node("ask", ask, retry=Retry(3, on=Exception)),
    "a node with an error edge": lambda graph, ask: graph.add_node("ask", ask).add_error_edge("ask", END),
    "a graph with an error edge": lambda graph, ask: graph.add_node(
        "ask", Graph().add_node("inside", ask).add_path(START, "inside", END)
    ).add_error_edge("ask", END),
    "an item of a map with failures": lambda graph, ask: graph.add_map(
        "ask", lambda item, ctx: ask(ctx), over="items", item="item", into="given", failures="failed"
    ),
}


@pytest.mark.parametrize("build", ASKING.values(), ids=ASKING)
def test_no_layer_takes_a_refused_answer_for_a_failure_of_the_work(build: Callable[[Graph, Work], Graph]) -> None:
    calls: list[str] = []

    def ask(ctx: Context) -> dict[str, Any]:
        calls.append("ask")
        return {"n": ctx.interrupt("n", "How many?", answer=PositiveInt)}

    graph = build(Graph(inputs=["items"]), ask).add_path(START, "ask", END)
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({"items": [0]})
    assert isinstance(thread.resume({"n": -1}).error, InputError)
    assert [question.key for question in thread.questions] == ["n"]
    run = thread.resume({"n": 2})
    assert (run.status, run.commits[1].failure, len(calls)) == ("completed", None, 3)
    assert not run.state.get("failed")


def waiting(ctx: Context) -> dict[str, Any]:
    return {"a": ctx.interrupt("wait", "Now?")}


def half(item: int, ctx: Context) -> dict[str, Any]:
    return waiting(ctx) if item else failing()


def failing() -> dict[str, Any]:
    raise ValueError("no")


HALVES = Graph().add_node("waits", waiting, writes=["a"]).add_node("fails", failing, writes=["b"])
HALVES.add_edge(START, ["waits", "fails"]).add_edge(["waits", "fails"], END)
WAITING_INSIDE: dict[str, Callable[[Graph], Graph]] = {
    "a graph": lambda graph: graph.add_node("work", HALVES),
    "a program that the node calls": lambda graph: graph.add_node(
        "work", lambda ctx, part: ctx.call(part, {}), modules={"part": HALVES.compile()}, writes=["a", "b"]
    ),
    "an item of a map": lambda graph: graph.add_map("work", half, over="items", item="item", into="given"),
}


@pytest.mark.parametrize("build", WAITING_INSIDE.values(), ids=WAITING_INSIDE)
def test_a_question_ends_with_the_node_around_it(build: Callable[[Graph], Graph]) -> None:
    graph = build(Graph(inputs=["items"])).add_node("next", waiting, writes=["a"])
    graph.add_path(START, "work", "next", END).add_error_edge("work", "next")
    program = graph.compile(store=":memory:", layers=[Breakpoints(after=["next"])])
    thread = program.thread("t")
    for asked in (program.run({"items": [1, 0]}).questions, thread.run({"items": [1, 0]}).questions, thread.questions):
        assert [question.node for question in asked] == ["next"]
    assert [question.key for question in thread.resume({"wait": True}).questions] == ["after"]
    assert [question.key for question in thread.questions] == ["after"]
    assert thread.resume().status == "completed"


# --- questions of one node


def test_two_questions_one_after_the_other() -> None:
    def work(ctx: Context) -> dict[str, Any]:
        return {"name": ctx.interrupt("name", "Name?", answer=str), "age": ctx.interrupt("age", "Age?", answer=int)}

    thread = alone(work, store=":memory:").thread("t")
    assert [question.key for question in thread.run({}).questions] == ["name"]
    assert [question.key for question in thread.resume({"name": "Ann"}).questions] == ["age"]
    assert thread.resume({"age": 41}).state.to_dict() == {"name": "Ann", "age": 41}


def later(*asks: Callable[[Context], Any]) -> Work:
    """A node that asks otherwise in every attempt."""
    attempts = iter(asks)

    def work(ctx: Context) -> dict[str, Any]:
        return {"got": [next(attempts)(ctx)]}

    return work


def first(ctx: Context) -> bool:
    return ctx.interrupt("a", "A?")


def swallowed(ctx: Context) -> Any:
    try:
        return ctx.interrupt("b", "B?")
    except Exception:  # noqa: BLE001 - a node that catches everything
        return None


CHANGED: dict[str, tuple[Callable[[Context], Any], list[str]]] = {
    "another question": (lambda ctx: ctx.interrupt("b", "B?"), ["'a'", "'b'"]),
    "another question, its error caught": (swallowed, ["'a'", "'b'"]),
    "no question": (lambda _: 1, ["'a'", "came to its end"]),
    "another type": (lambda ctx: ctx.interrupt("a", "A?", answer=int), ["'a'", "'integer'", "'boolean'"]),
    "no type": (lambda ctx: ctx.interrupt("a", "A?", answer=None), ["'a'", "nothing", "'boolean'"]),
}


@pytest.mark.parametrize(("second", "named"), CHANGED.values(), ids=CHANGED)
def test_an_attempt_that_asks_a_different_question_fails(second: Callable[[Context], Any], named: list[str]) -> None:
    thread = alone(later(first, second, first), store=":memory:").thread("t")
    assert thread.run({}).status == "interrupted"
    error = thread.resume({"a": True}).error
    assert isinstance(error, AttemptError)
    assert all(name in str(error) for name in ["'work'", *named]), str(error)
    assert thread.resume().state["got"] == [True], "the answer is still there"


def test_the_text_of_a_question_may_change() -> None:
    thread = alone(later(first, lambda ctx: ctx.interrupt("a", "A, really?")), store=":memory:").thread("t")
    thread.run({})
    assert thread.resume({"a": False}).state["got"] == [False]


def _twice(ctx: Context) -> Any:
    return [ctx.interrupt("a", "A?"), ctx.interrupt("a", "A?")]


REFUSED: list[tuple[Callable[[Context], Any], type[Exception], str]] = [
    (_twice, AttemptError, "used the key 'a' of ctx.interrupt twice"),
    (lambda ctx: ctx.interrupt("", "?"), AttemptError, "takes a key"),
    (lambda ctx: ctx.interrupt("before", "?"), AttemptError, "belongs to Breakpoints(before"),
    (lambda ctx: ctx.interrupt("a", "?", answer=first), TypeError, "is no type of answers"),
    (lambda ctx: ctx.interrupt("a", ["?"]), TypeError, "a question is a text"),  # type: ignore[call-overload]
]


def test_wrong_uses_are_refused() -> None:
    for use, kind, text in REFUSED:
        run = alone(later(use)).run({}, answers={"a": True})
        assert isinstance(run.error, kind)
        assert text in str(run.error)


def test_except_exception_does_not_catch_a_question() -> None:
    def work(ctx: Context) -> dict[str, Any]:
        with suppress(BaseException):
            ctx.interrupt("a", "A?")
        return {"went": "on"}

    run = alone(work).run({})
    assert ([question.key for question in run.questions], [commit.node for commit in run.commits]) == (["a"], ["START"])
    assert not issubclass(Interrupt, Exception)


def test_async_nodes_and_tasks_inside_them_ask(play: Play) -> None:
    async def ask(ctx: Context) -> bool:
        return ctx.interrupt("a", "A?")

    async def work(ctx: Context) -> dict[str, Any]:
        return {"got": await asyncio.create_task(ask(ctx))}

    assert play(alone(work), {}).questions[0].key == "a"
    assert play(alone(work), {}, answers={"a": False}).state["got"] is False


# --- other branches


def test_other_branches_continue_and_several_may_ask(play: Play) -> None:
    graph = Graph().add_node("plan", lambda: {"n": 1})
    for name in ("a", "b"):
        graph.add_node(name, lambda ctx, name=name: {name: ctx.interrupt("ok", f"{name}?")})
    graph.add_node("c", lambda: {"c": 1}).add_node("d", lambda c: {"d": c}).add_node("join", lambda state: {"all": 1})
    graph.add_edge(START, "plan").add_edge("plan", ["a", "b", "c"]).add_edge("c", "d")
    graph.add_edge(["a", "b", "d"], "join").add_edge("join", END)
    run = play(graph.compile(), {})
    assert [question.id for question in run.questions] == ["0:0/ok", "1:0/ok"]
    assert [commit.node for commit in run.commits] == ["START", "plan", "c", "d"]
    assert run.state.to_dict() == {"n": 1}, "what all branches shared"
    assert {path: sorted(state) for path, state in run.branches.items()} == {
        (0,): ["n"],
        (1,): ["n"],
        (2,): ["c", "d", "n"],
    }


def test_finished_and_waiting_siblings_are_not_called_again() -> None:
    calls: list[str] = []
    graph = Graph().add_node("side", lambda: calls.append("side"))
    for name in ("a", "b"):

        def ask(ctx: Context) -> dict[str, Any]:
            calls.append(ctx.node)
            return {ctx.node: ctx.interrupt("ok", "?")}

        graph.add_node(name, ask)
    graph.add_edge(START, ["a", "b", "side"]).add_edge(["a", "b", "side"], END)
    program = graph.compile(store=":memory:")
    thread = program.thread("t")
    thread.run({})
    assert sorted(calls) == ["a", "b", "side"]
    with pytest.raises(ThreadError, match="2 open questions have the key 'ok'"):
        thread.resume({"ok": True})
    assert [question.id for question in thread.resume({"t.1/1:0/ok": False}).questions] == ["t.1/0:0/ok"]
    assert sorted(calls) == ["a", "b", "b", "side"]
    assert thread.resume({"ok": False}).state.to_dict() == {"a": False, "b": False}
    assert sorted(calls) == ["a", "a", "b", "b", "side"]


def test_a_failure_takes_precedence_over_questions(play: Play) -> None:
    def fails() -> None:
        raise ConnectionError("lost")

    graph = Graph().add_node("fails", fails).add_node("asks", lambda ctx: {"ok": ctx.interrupt("ok", "?")})
    graph.add_edge(START, ["asks", "fails"]).add_edge(["asks", "fails"], END)
    run = play(graph.compile(), {})
    assert (run.status, run.questions) == ("failed", ())
    assert isinstance(run.error, ConnectionError)


def test_a_resume_without_answers_asks_again() -> None:
    calls: list[str] = []
    thread = approving(calls, store=":memory:").thread("t")
    thread.run({})
    nothing: dict[str, Any] = {}
    for answers in (None, nothing):
        assert [question.key for question in thread.resume(answers).questions] == ["ok"]
    assert calls == ["work"]


def test_a_router_may_ask() -> None:
    calls: list[str] = []

    def route(ctx: Context) -> str:
        return "left" if ctx.interrupt("left", "Left?") else "right"

    for source in (START, "first"):
        graph = Graph().add_node("first", lambda: calls.append("first"))
        graph.add_node("left", lambda: {"way": "left"}).add_node("right", lambda: {"way": "right"})
        graph.add_conditional_edges(source, route, ["left", "right"]).add_edge(["left", "right"], END)
        graph.add_edge(START if source == "first" else "right", "first")
        if source == START:
            graph.add_edge("first", END)
        thread = graph.compile(store=":memory:").thread("t")
        assert thread.run({}).questions[0].key == "left"
        assert thread.resume({"left": False}).state["way"] == "right"


def test_a_loop_asks_on_every_visit() -> None:
    def lap(ctx: Context) -> dict[str, Any]:
        return {"again": ctx.interrupt("again", f"Lap {ctx.visit}. Again?")}

    graph = Graph().add_node("lap", lap).add_edge(START, "lap")
    graph.add_conditional_edges("lap", "again", {True: "lap", False: END})
    thread = graph.compile(store=":memory:").thread("t")
    run = thread.run({})
    texts = []
    for again in (True, True, False):
        texts.append(run.questions[0].text)
        run = thread.resume({"again": again})
    assert (run.status, texts) == ("completed", [f"Lap {n}. Again?" for n in (1, 2, 3)])


def test_each_send_asks_its_own_question() -> None:
    graph = Graph().add_node("plan", lambda: Command(goto=[Send("work", {"doc": doc}) for doc in "ab"]), goto=["work"])
    graph.add_node("work", lambda doc, ctx: {"ok": {doc: ctx.interrupt("ok", f"{doc}?")}}).add_edge("work", END)
    thread = graph.add_edge(START, "plan").compile(store=":memory:").thread("t")
    assert [question.text for question in thread.run({}).questions] == ["a?", "b?"]
    assert thread.resume({"t.1/0:0/ok": True, "t.1/1:0/ok": False}).state["ok"] == {"a": True, "b": False}


# --- maps and subgraphs


def test_each_item_of_a_map_asks_its_own_question_and_finished_items_are_kept(play: Play) -> None:
    def item(doc: str, ctx: Context) -> dict[str, Any]:
        calls.append(doc)
        size = ctx.once("size", lambda: len(doc))
        return {"size": [size, ctx.interrupt("ok", f"{doc}?")] if doc.startswith("?") else size}

    calls: list[str] = []
    program = Graph().add_map("work", item, over="docs", item="doc", into="sizes").add_path(START, "work", END)
    run = play(program.compile(), {"docs": ["?a", "bb", "?c", "d"]})
    assert [question.id for question in run.questions] == ["trunk:1[0]/ok", "trunk:1[2]/ok"]
    assert sorted(calls) == ["?a", "?c", "bb", "d"], "the others are not held up"
    calls.clear()
    thread = program.compile(store=":memory:").thread("t")
    thread.run({"docs": ["?a", "bb", "?c", "d"]})
    calls.clear()
    assert len(thread.resume({"t.1/trunk:1[2]/ok": True}).questions) == 1
    assert calls == ["?c"]
    assert thread.resume({"ok": False}).state["sizes"] == [[2, False], 2, [2, True], 1]
    assert calls == ["?c", "?a"]


def test_in_a_map_a_failure_takes_precedence_over_questions(play: Play) -> None:
    def item(n: int, ctx: Context) -> Any:
        return ctx.interrupt("ok", "?") if n == 0 else 1 // (n - 1)

    graph = Graph().add_map("work", item, over="ns", item="n", into="out").add_path(START, "work", END)
    run = play(graph.compile(), {"ns": [0, 1, 2]})
    assert isinstance(run.error, ZeroDivisionError)


def inner(calls: list[str], **options: Any) -> CompiledGraph:
    def draft(x: str) -> dict[str, Any]:
        calls.append(x)
        return {"y": x.upper()}

    graph = Graph().add_node("draft", draft)
    graph.add_node("ask", lambda y, ctx: {"z": [y, ctx.interrupt("ok", f"{y}?")]})
    return graph.add_path(START, "draft", "ask", END).compile(**options)


def test_a_question_of_an_inner_graph_is_asked_by_the_outer_run(play: Play) -> None:
    calls: list[str] = []
    graph = Graph().add_node("sub", inner(calls)).add_path(START, "sub", END)
    run = play(graph.compile(), {"x": "a"})
    assert [(question.id, question.node) for question in run.questions] == [("trunk:1/trunk:2/ok", "ask")]
    assert not [event for event in run.events if isinstance(event, NodeFailed)]
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({"x": "a"})
    assert thread.resume({"ok": False}).state["z"] == ["A", False]
    assert calls == ["a", "a"], "one for each run"


def test_inner_graphs_of_items_and_of_graphs_have_questions_of_their_own() -> None:
    calls: list[str] = []
    middle = Graph().add_map("each", inner(calls), over="xs", item="x", into="out").add_path(START, "each", END)
    graph = Graph().add_node("one", middle.compile()).add_node("two", middle.compile(), writes={"out": "more"})
    program = graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile(store=":memory:")
    run = program.thread("t").run({"xs": ["a", "b"]})
    names = [f"t.1/{branch}:0/trunk:1[{item}]/trunk:2/ok" for branch in (0, 1) for item in (0, 1)]
    assert sorted(question.id for question in run.questions) == names
    for count, name in enumerate(names):
        run = program.thread("t").resume({name: count % 2 == 1})
    assert run.status == "completed"
    assert [out["z"][1] for out in (*run.state["out"], *run.state["more"])] == [False, True, False, True]
    assert sorted(calls) == ["a", "a", "b", "b"]


# --- before and after


def stopping(calls: list[str], **options: Any) -> CompiledGraph:
    graph = Graph()
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda name=name: calls.append(name))
    return graph.add_path(START, "a", "b", "c", END).compile(**options)


STOPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "before the first": ({"layers": [Breakpoints(before=["a"])]}, ["", "abc"]),
    "before two": ({"layers": [Breakpoints(before=["b", "c"])]}, ["a", "b", "c"]),
    "after": ({"layers": [Breakpoints(after="b")]}, ["ab", "c"]),
    "after the last": ({"layers": [Breakpoints(after=["c"])]}, ["abc", ""]),
    "both": ({"layers": [Breakpoints(before=["b"], after=["b"])]}, ["a", "b", "c"]),
    "between, twice": ({"layers": [Breakpoints(before=["b"], after=["a"])]}, ["a", "", "bc"]),
}


def test_where_a_program_pauses() -> None:
    for case, (options, parts) in STOPS.items():
        calls: list[str] = []
        thread = stopping(calls, store=":memory:", **options).thread("t")
        run = thread.run({})
        found = ["".join(calls)]
        while run.status == "interrupted":
            assert all(question.answer is None for question in run.questions)
            calls.clear()
            run = thread.resume()
            found.append("".join(calls))
        assert (case, run.status, found) == (case, "completed", parts)


def test_other_branches_continue_while_one_is_paused(play: Play) -> None:
    calls: list[str] = []
    graph = Graph()
    for name in ("a", "b", "c", "d"):
        graph.add_node(name, lambda name=name: calls.append(name))
    graph.add_edge(START, ["a", "b"]).add_edge("a", "c").add_edge("b", "d").add_edge(["c", "d"], END)
    run = play(graph.compile(layers=[Breakpoints(before=["c"])]), {})
    assert (sorted(calls), [question.id for question in run.questions]) == (["a", "b", "d"], ["0:1/before"])
    assert play(graph.compile(layers=[Breakpoints(after=["b"])]), {}).questions[0].id == "1:0/after"
    assert play(graph.compile(layers=[Breakpoints(after=["b"])]), {}, answers={"after": None}).status == "completed"


def test_explain_shows_the_pauses() -> None:
    text = stopping([], layers=[Breakpoints(before=["c", "a"], after=["b"])]).graph.explain()
    assert "\n  stops before a, c\n  stops after b" in text


def test_names_of_pauses_are_checked() -> None:
    for option in ("before", "after"):
        with pytest.raises(GraphError, match=rf"\({option}=\) names 'aa', which is no node\. Did you mean 'a'"):
            stopping([], layers=[Breakpoints(**{option: ["aa"]})])
        given: Any
        for given in (None, [3]):
            with pytest.raises(TypeError, match=rf"Breakpoints\({option}=.*give the names of nodes"):
                Breakpoints(**{option: given})


def test_false_leaves_a_run_paused(play: Play) -> None:
    for option in ("before", "after"):
        run = play(stopping([], layers=[Breakpoints(**{option: ["b"]})]), {}, answers=lambda _: False)
        assert isinstance(run.error, InputError)
        assert "takes no answer, and was given one" in str(run.error)


# --- answers that are there before


def answer(question: Question) -> Any:
    return question.text == "Sure?"


SUPPLIED: dict[str, tuple[Any, Any, Any]] = {
    "compiled": ({"ok": True}, None, True),
    "of the run": (None, {"ok": False}, False),
    "the run's come first": ({"ok": True}, {"ok": False}, False),
    "the other's behind": ({"ok": True}, {"else": 1}, True),
    "by id": (None, {"trunk:1/ok": True}, True),
    "a function": (answer, None, True),
    "a function of the run": ({"ok": False}, answer, True),
}


def test_supplied_answers(play: Play) -> None:
    for case, (compiled, given, expected) in SUPPLIED.items():
        calls: list[str] = []
        run = play(approving(calls, answers=compiled), {}, answers=given)
        assert (case, run.state["ok"], calls) == (case, expected, ["work"]), "nothing is called twice"


def test_supplied_answers_reach_graphs_inside() -> None:
    for outer, within in (({"ok": True}, None), (None, {"ok": True}), ({"ok": True}, {"ok": False})):
        graph = Graph().add_node("sub", inner([], answers=within)).add_path(START, "sub", END)
        assert graph.compile(answers=outer)(x="a").z == ["A", True]


def test_invalid_answers_are_refused() -> None:
    with pytest.raises(TypeError, match="give a dict from the key"):
        approving(answers=[True])
    with pytest.raises(TypeError, match="give a dict from the key"):
        approving().run({}, answers=3)  # type: ignore[arg-type]


def test_copies_and_pickles_keep_supplied_answers() -> None:
    program = approving(answers={"ok": True})
    assert program.deepcopy()().ok is True
    assert program.reset_copy()().ok is True


# --- under DSPy


def predicting(**options: Any) -> CompiledGraph:
    graph = Graph().add_node("answer", dspy.Predict("question -> answer"))
    graph.add_interrupt("approve", question="Send {answer}?", answer=bool, into="approved")
    return graph.add_path(START, "answer", "approve", END).compile(**options)


EXAMPLES = [dspy.Example(question=str(n), answer="yes").with_inputs("question") for n in range(2)]


def right(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    del trace
    return bool(prediction.answer == example.answer and prediction.approved)


@pytest.mark.parametrize("threads", [1, 2])
def test_evaluate_names_the_question(threads: int) -> None:
    logged: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(logged)
    handler.addFilter(lambda record: record.levelno == logging.ERROR)
    logger = logging.getLogger("dspy.utils.parallelizer")
    logger.addHandler(handler)
    with dspy.context(lm=DummyLM([{"answer": "yes"}] * 4)):
        evaluate = dspy.Evaluate(devset=EXAMPLES, metric=right, num_threads=threads, max_errors=1)
        with pytest.raises(Exception, match="cancelled due to errors"):
            evaluate(predicting())
        text = logged.get(timeout=60).getMessage()  # a worker may log after the evaluation has raised
        logger.removeHandler(handler)
        assert "waits for 1 answer: 'approve' of node 'approve'" in text
        assert "compile(answers={...})" in text
        assert evaluate(predicting(answers={"approve": True})).score == 100


def test_an_optimizer_stops_with_the_error_or_gets_the_answers() -> None:
    with dspy.context(lm=DummyLM([{"answer": "yes"}] * 8)):
        bootstrap = BootstrapFewShot(metric=right, max_errors=1)
        with pytest.raises(Interrupted, match="'approve' of node 'approve'"):
            bootstrap.compile(predicting(), trainset=EXAMPLES)
        tuned = bootstrap.compile(predicting(answers={"approve": True}), trainset=EXAMPLES)
        assert len(tuned.answer.demos) == 2
