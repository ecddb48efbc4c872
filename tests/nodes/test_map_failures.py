"""Maps with failures: which items run, what is committed, when the map fails, and what its items' attempts leave."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel, Field
from tenacity import wait_none

from dspyer import END, START, CompiledGraph, Context, Failure, Graph, Retry, Run, Send, reducers
from dspyer.errors import ChangedGraphError, GraphError, LimitError, MapError, NodeOutputError, RouteError, StoreError
from dspyer.events import AttemptFailed, ItemFinished, NodeFailed
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM, no_pauses
from tests.nodes.kit import MODES
from tests.rows import each
from tests.timeouts import TimeIsOver


class Corpus(BaseModel):
    docs: list[str] = []
    notes: list[str] = []
    unread: list[Failure] = []


FIRST_ITEMS = 20
"""After as many items that all failed alike, a map gives up: `docs/guides/failures.md`."""

NOW = Retry(3, wait=wait_none())


def reading(node: Any, schema: Any = Corpus, *, limit: int = 8, store: Any = None, **options: Any) -> CompiledGraph:
    given = {"over": "docs", "item": "doc", "into": "notes", "failures": "unread", **options}
    graph = Graph(schema, inputs=["docs"]).add_map("read", node, **given).add_path(START, "read", END)
    return graph.compile(max_concurrency=limit, store=store)


def play(program: CompiledGraph, docs: list[Any], mode: str, **options: Any) -> Run:
    if mode == "sync":
        return program.run({"docs": docs}, **options)
    return asyncio.run(program.arun({"docs": docs}, **options))


class Reader:
    """A node that notes its calls, and raises for documents that say so: `bad ...`, `gone ...` or `no ...`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def read(self, doc: str) -> str:
        self.calls[doc] += 1
        kind, _, rest = doc.partition(" ")
        if kind == "gone":
            raise ConnectionError(rest)
        if kind == "flaky" and self.calls[doc] < 3:
            raise ConnectionError(rest)
        if kind == "no":
            raise KeyError(rest)
        if kind == "bad":
            raise ValueError(rest)
        return doc.upper()

    async def aread(self, doc: str) -> str:
        await asyncio.sleep(0)
        return self.read(doc)

    def node(self, mode: str) -> Any:
        return self.read if mode == "sync" else self.aread


# --- what is committed


@MODES
def test_a_map_with_failures_makes_one_commit_of_results_and_failures(mode: str) -> None:
    reader = Reader()
    docs = [f"bad {i}" if i in (3, 50, 199) else f"doc {i}" for i in range(200)]
    run = play(reading(reader.node(mode)), docs, mode)
    assert run.status == "completed"
    assert run.state["notes"] == [doc.upper() for doc in docs if not doc.startswith("bad")]
    assert [(one.index, one.type, one.message) for one in run.state["unread"]] == [
        (i, "ValueError", str(i)) for i in (3, 50, 199)
    ]
    one = run.state["unread"][1]
    assert (one.node, one.execution, one.attempt, one.retryable) == ("read", "trunk:1[50]", 1, False)
    assert [commit.node for commit in run.commits] == ["START", "read"]
    assert reader.calls.total() == 200
    ends = Counter(event.status for event in run.events if isinstance(event, ItemFinished))
    assert ends == {"completed": 197, "failed": 3}


@MODES
def test_a_map_writes_no_failures_if_there_are_none(mode: str) -> None:
    run = play(reading(Reader().node(mode), None), ["a"], mode)
    assert run.commits[-1].patch == {"notes": ["A"], "unread": []}


@MODES
def test_an_empty_list_is_a_success(mode: str) -> None:
    run = play(reading(Reader().node(mode), min_success=1.0), [], mode)
    assert (run.status, run.state["notes"], run.state["unread"]) == ("completed", [], [])


def test_a_graph_without_a_schema_takes_any_field_for_failures() -> None:
    run = play(reading(Reader().read, None), ["a", "bad b"], "sync")
    assert run.state["notes"] == ["A"]
    assert [type(one) for one in run.state["unread"]] == [Failure]


def test_a_loop_leaves_the_failures_of_its_last_visit() -> None:
    class Loop(Corpus):
        turn: int = 0

    graph = Graph(Loop, inputs=["docs"])
    graph.add_map("read", Reader().read, over="docs", item="doc", into="notes", failures="unread")
    graph.add_node("next", lambda turn: {"turn": turn + 1, "docs": ["x"]}, writes=["turn", "docs"])
    graph.add_path(START, "read", "next")
    graph.add_conditional_edges("next", lambda turn: "read" if turn < 2 else END, ["read", END])
    assert graph.compile().run({"docs": ["a", "bad b"]}).state["unread"] == []


def test_what_an_item_returns_and_the_field_refuses_is_a_failure_of_the_item() -> None:
    class Numbers(Corpus):
        notes: list[int] = []  # type: ignore[assignment]

    run = play(reading(lambda doc: doc, Numbers), ["1", "two", "3"], "sync")
    assert run.state["notes"] == [1, 3]
    (failure,) = run.state["unread"]
    assert (failure.index, failure.type) == (1, "NodeOutputError")
    assert "for notes[1], which is refused" in failure.message
    assert "No further item" not in failure.message


@pytest.mark.parametrize("store", [None, ":memory:"])
def test_what_no_state_holds_is_a_failure_of_the_item(store: str | None) -> None:
    program = reading(lambda doc: threading.Lock() if doc == "b" else doc, None, store=store)
    run = program.thread("t").run({"docs": ["a", "b"]}) if store else program.run({"docs": ["a", "b"]})
    assert run.state["notes"] == ["a"]
    assert [failure.index for failure in run.state["unread"]] == [1]


def test_a_lookup_that_ends_an_iterator_is_a_failure_by_its_own_name() -> None:
    def first(doc: str) -> str:
        return next(iter(doc))

    assert [one.type for one in play(reading(first), ["a", ""], "sync").state["unread"]] == ["StopIteration"]
    error = play(reading(first, failures=None), ["a", ""], "sync").error
    assert isinstance(error, StopIteration)
    assert error.__notes__[0] == "in docs[1] of the map 'read' (2 items)"


# --- when the map fails


@each(
    ("share", "failed", "count", "text"),
    [
        (0.0, 5, 5, "all 5 items failed"),
        (0.0, 4, 5, None),
        (0.8, 1, 5, None),
        (0.8, 2, 5, "2 of 5 items failed, and min_success=0.8 needs 4 that succeed"),
        (1.0, 1, 5, "1 of 5 items failed, and min_success=1.0 needs 5 that succeed"),
        (1, 0, 5, None),
        (0.29, 71, 100, None),  # 0.29 * 100 is 28.999...
        (0.29, 72, 100, "needs 29 that succeed"),
        (0.57, 43, 100, None),
        (0.07, 93, 100, None),  # 0.07 * 100 is 7.000...1
    ],
)
@MODES
def test_a_map_fails_if_too_few_items_succeed(
    share: float, failed: int, count: int, text: str | None, mode: str
) -> None:
    docs = [f"doc {i}" for i in range(count - failed)] + [f"bad {i}" for i in range(failed)]
    run = play(reading(Reader().node(mode), min_success=share), docs, mode)
    assert run.status == ("completed" if text is None else "failed")
    if text is not None:
        assert text in str(run.error)


@MODES
def test_the_error_of_a_map_has_its_failures_and_the_first_error(mode: str) -> None:
    run = play(reading(Reader().node(mode), limit=1, min_success=0.9), ["a", "bad b", "no c", *"defgh"], mode)
    error = run.error
    assert isinstance(error, MapError)
    assert [failure.index for failure in error.failures] == [1]
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.__notes__ == ["in docs[1] of the map 'read' (8 items)"]
    assert str(error) == (
        "node 'read': 1 of 8 items failed, and min_success=0.9 needs 8 that succeed. The first of them: read[1] "
        "(execution trunk:1[1], attempt 1): ValueError: b"
    )
    assert [type(event) for event in run.events if isinstance(event, NodeFailed)] == [NodeFailed]


@MODES
def test_nothing_starts_once_the_share_cannot_be_reached(mode: str) -> None:
    reader = Reader()
    play(reading(reader.node(mode), limit=1, min_success=0.9), ["a", "bad 1", "bad 2", *"bcdefgh"], mode)
    assert list(reader.calls) == ["a", "bad 1", "bad 2"]


@MODES
def test_a_wrong_key_ends_the_map_after_the_first_items(mode: str) -> None:
    reader = Reader()
    run = play(reading(reader.node(mode), limit=4), [f"bad {i}" for i in range(1000)], mode)
    assert isinstance(run.error, MapError)
    assert f"the first {FIRST_ITEMS} items all failed with ValueError, which no retry mends" in str(run.error)
    assert FIRST_ITEMS <= reader.calls.total() < FIRST_ITEMS + 4


@each(
    "first",
    [
        ["gone 0"] + [f"gone {i}" for i in range(1, 20)],  # another attempt may mend it
        ["no 0"] + [f"bad {i}" for i in range(1, 20)],  # two types
        ["doc"] + [f"bad {i}" for i in range(1, 20)],
        [f"bad {i}" for i in range(19)] + ["doc"],
    ],
)
@MODES
def test_a_map_goes_on_if_the_first_items_do_not_fail_alike(first: list[str], mode: str) -> None:
    reader = Reader()
    run = play(reading(reader.node(mode), limit=4), [*first, *[f"bad {i + 20}" for i in range(20)], "doc"], mode)
    assert (run.status, reader.calls.total()) == ("completed", 41)


def wait_first(first: str, reader: Reader, others: threading.Event, doc: str) -> str:
    """Reads documents; the first one after 20 others."""
    if doc == first:
        assert others.wait(20)
    try:
        return reader.read(doc)
    finally:
        if reader.calls.total() == FIRST_ITEMS:
            others.set()


def test_whether_the_first_items_fail_alike_does_not_depend_on_time() -> None:
    """The first item ends after all others that may start: the map waits for it, and starts nothing meanwhile."""
    docs = [f"bad {i}" for i in range(200)]
    for first, status in (("doc", "completed"), ("bad first", "failed")):
        reader, others = Reader(), threading.Event()
        run = play(reading(partial(wait_first, first, reader, others), limit=2), [first, *docs, "end"], "sync")
        assert run.status == status
        assert reader.calls.total() == (202 if status == "completed" else FIRST_ITEMS + 1)


def test_a_slow_first_item_holds_nothing_up_once_an_item_has_succeeded() -> None:
    """The first item ends after the last one."""
    reader, last = Reader(), threading.Event()

    def read(doc: str) -> str:
        if doc == "first":
            assert last.wait(20)
        if doc == "last":
            last.set()
        return reader.read(doc)

    docs = ["first", "doc", *[f"bad {i}" for i in range(2 * FIRST_ITEMS)], "last"]
    assert play(reading(read, limit=2), docs, "sync").state["notes"] == ["FIRST", "DOC", "LAST"]


def test_failures_are_in_the_order_of_the_items_in_whatever_order_they_end() -> None:
    reader, others = Reader(), threading.Event()

    def read(doc: str) -> str:
        if doc == "bad 0":
            assert others.wait(20)
        if doc == "bad 2":
            others.set()
        return reader.read(doc)

    error = play(reading(read, limit=2), ["bad 0", "bad 1", "bad 2"], "sync").error
    assert isinstance(error, MapError)
    assert [failure.index for failure in error.failures] == [0, 1, 2]
    assert str(error.__cause__) == "0"


def test_items_of_an_earlier_process_count_among_the_first_ones() -> None:
    def read(doc: str, ctx: Context) -> str:
        return ctx.interrupt("ok", "?", answer=str) if doc == "ask" else Reader().read(doc)

    t = reading(read, store=":memory:", limit=1).thread("t")
    run = t.run({"docs": ["doc", *[f"bad {i}" for i in range(2 * FIRST_ITEMS)], "ask", "end"]})
    run = t.resume({run.questions[0].id: "yes"})
    assert run.state["notes"] == ["DOC", "yes", "END"]
    assert len(run.state["unread"]) == 2 * FIRST_ITEMS


def test_a_map_keeps_the_values_of_one_failed_item_at_most() -> None:
    """An exception holds the frames of its call, and a map may have many items that fail."""

    class Big:
        pass

    alive: weakref.WeakSet[Big] = weakref.WeakSet()

    def read(doc: str) -> str:
        if doc == "end":
            return str(len(alive))
        big = Big()
        alive.add(big)
        raise ValueError(doc)

    assert play(reading(read, limit=1), ["bad 0", "bad 1", "bad 2", "end"], "sync").state["notes"] == ["1"]


# --- what passes through


@pytest.mark.parametrize(
    "error",
    [
        RouteError("nowhere"),
        LimitError("too long"),
        ExceptionGroup("tasks", [StoreError("full"), KeyError()]),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_errors_that_no_item_can_mend_pass_through(error: BaseException) -> None:
    calls: list[str] = []

    def read(doc: str) -> str:
        calls.append(doc)
        if doc == "b":
            raise error
        if doc == "a":
            raise ValueError(doc)
        return doc

    program = reading(read, limit=1)
    if isinstance(error, Exception):
        assert play(program, ["a", "b", "c"], "sync").error is error
    else:
        with pytest.raises(KeyboardInterrupt):
            play(program, ["a", "b", "c"], "sync")
    assert calls == ["a", "b"]


@MODES
def test_errors_that_no_item_can_mend_pass_beside_the_failure_of_an_earlier_item(mode: str) -> None:
    """C3: of two items that fail at once, an error edge would take the first one's error, and the other be lost."""
    both = threading.Barrier(2)

    def read(doc: str) -> str:
        both.wait(20)
        raise ConnectionError("no line") if doc == "a" else StoreError("no space left")

    graph = Graph(Corpus, inputs=["docs"]).add_map("read", read, over="docs", item="doc", into="notes")
    program = graph.add_path(START, "read", END).add_error_edge("read", END).compile()
    assert isinstance(play(program, ["a", "b"], mode).error, StoreError)


@MODES
def test_questions_of_items_suspend_the_map_and_failed_items_run_again(mode: str) -> None:
    calls: Counter[str] = Counter()

    def read(doc: str, ctx: Context) -> str:
        calls[doc] += 1
        if doc == "bad":
            raise ValueError(doc)
        return ctx.interrupt("ok", f"{doc}?", answer=str) if doc == "ask" else doc

    t = reading(read, store=":memory:").thread("t")
    docs = ["a", "bad", "ask", "b"]
    run = t.run({"docs": docs}) if mode == "sync" else asyncio.run(t.arun({"docs": docs}))
    assert run.status == "interrupted"
    answers = {run.questions[0].id: "yes"}
    run = t.resume(answers) if mode == "sync" else asyncio.run(t.aresume(answers))
    assert run.state["notes"] == ["a", "yes", "b"]
    assert [failure.index for failure in run.state["unread"]] == [1]
    assert calls == {"a": 1, "bad": 2, "ask": 2, "b": 1}


@MODES
def test_a_map_that_has_failed_asks_nothing(mode: str) -> None:
    def read(doc: str, ctx: Context) -> str:
        if doc == "bad":
            raise ValueError(doc)
        return ctx.interrupt("ok", "?", answer=str)

    run = play(reading(read, min_success=1.0, limit=1), ["ask", "bad", "ask"], mode)
    assert (run.status, run.questions) == ("failed", ())


# --- attempts of items


@MODES
def test_each_item_has_attempts_of_its_own(mode: str) -> None:
    reader = Reader()
    program = reading(reader.node(mode), retry=NOW, limit=3)
    run = play(program, ["a", "gone b", "flaky c", "bad d", "flaky e"], mode)
    assert reader.calls == {"a": 1, "gone b": 3, "flaky c": 3, "bad d": 1, "flaky e": 3}
    assert run.state["notes"] == ["A", "FLAKY C", "FLAKY E"]
    assert [(one.index, one.attempt, one.retryable) for one in run.state["unread"]] == [(1, 3, True), (3, 1, False)]
    commit = run.commits[-1]
    assert [(one.index, one.attempt) for one in commit.failed_attempts] == [
        (1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2),
    ]  # fmt: skip
    assert (commit.attempt, commit.failure) == (1, None)
    events = [event for event in run.events if isinstance(event, AttemptFailed)]
    assert Counter(event.execution for event in events) == {f"trunk:1[{i}]": 2 for i in (1, 2, 4)}


@MODES
def test_an_attempt_of_an_item_keeps_its_execution_and_its_effects(mode: str) -> None:
    seen: list[tuple[int, str]] = []
    charged: list[str] = []

    def read(doc: str, ctx: Context) -> str:
        seen.append((ctx.attempt, ctx.execution))
        ctx.once("charge", lambda: charged.append(doc))
        if ctx.attempt < 3:
            raise TimeoutError
        return doc

    run = play(reading(read, retry=NOW, failures=None), ["a"], mode)
    assert run.state["notes"] == ["a"]
    assert seen == [(1, "trunk:1[0]"), (2, "trunk:1[0]"), (3, "trunk:1[0]")]
    assert charged == ["a"]


@MODES
def test_without_failures_the_last_attempt_of_an_item_fails_the_map(mode: str) -> None:
    reader = Reader()
    run = play(reading(reader.node(mode), failures=None, retry=NOW, limit=1), ["a", "gone b", "c"], mode)
    assert isinstance(run.error, ConnectionError)
    assert run.error.__notes__[0] == "in docs[1] of the map 'read' (3 items, attempt 3)"
    assert run.error.__notes__[1].endswith("visit 1, attempt 1)")
    assert reader.calls == {"a": 1, "gone b": 3}


def test_the_policy_of_the_graph_reaches_items_that_are_no_graph() -> None:
    for own, calls in (({}, 3), ({"retry": None}, 1), ({"retry": Retry(2, wait=wait_none())}, 2)):
        reader = Reader()
        graph = Graph(Corpus, inputs=["docs"])
        graph.add_map("read", reader.read, over="docs", item="doc", into="notes", failures="unread", **own)
        graph.add_path(START, "read", END).compile(retry=NOW).run({"docs": ["gone a", "b"]})
        assert reader.calls["gone a"] == calls


def test_the_policy_of_the_graph_does_not_reach_items_that_are_graphs() -> None:
    reader = Reader()
    inner = Graph(inputs=["doc"], outputs=["text"]).add_node(
        "say", lambda doc: {"text": reader.read(doc)}, writes=["text"]
    )
    program = inner.add_path(START, "say", END).compile()
    graph = Graph(Corpus, inputs=["docs"])
    graph.add_map("read", program, over="docs", item="doc", into="notes", failures="unread")
    graph.add_path(START, "read", END).compile(retry=NOW).run({"docs": ["gone a", "b"]})
    assert reader.calls["gone a"] == 1


@MODES
def test_an_output_of_a_module_that_the_field_refuses_is_asked_for_again(mode: str) -> None:
    class Numbers(BaseModel):
        docs: list[str] = []
        notes: list[Annotated[int, Field(lt=5)]] = []
        unread: list[Failure] = []

    with no_pauses(), ScriptedLM([{"note": 9}, {"note": 2}]) as lm:
        run = play(reading(dspy.Predict("doc -> note: int"), Numbers, retry=2), ["a"], mode)
    assert run.state["notes"] == [2]
    assert len(lm.calls) == 2
    assert [one.retryable for one in run.commits[-1].failed_attempts] == [True]


@MODES
def test_a_response_that_does_not_parse_is_a_failure_of_its_item(mode: str) -> None:
    def read(doc: str) -> str:
        if doc == "b":
            raise AdapterParseError("ChatAdapter", dspy.Signature("doc -> note"), "garbage")
        return doc

    run = play(reading(read), ["a", "b"], mode)
    assert [(one.type, one.retryable) for one in run.state["unread"]] == [("AdapterParseError", True)]


# --- other shapes of graphs


def inner_graph(reader: Reader) -> CompiledGraph:
    graph = Graph(inputs=["doc"], outputs=["text"]).add_node("ask", lambda doc: {"asked": doc}, writes=["asked"])
    graph.add_node("say", lambda asked: {"text": reader.read(asked)}, writes=["text"])
    return graph.add_path(START, "ask", "say", END).compile()


@MODES
def test_a_map_of_a_graph(mode: str) -> None:
    run = play(reading(inner_graph(Reader())), ["a", "bad b", "c"], mode)
    assert run.state["notes"] == ["A", "C"]
    assert [(one.index, one.execution) for one in run.state["unread"]] == [(1, "trunk:1[1]")]


@MODES
def test_a_map_inside_a_graph_inside_a_map(mode: str) -> None:
    class Shelf(BaseModel):
        shelves: list[list[str]] = []
        rows: list[Any] = []
        lost: list[Failure] = []

    inner = reading(Reader().node(mode))
    graph = Graph(Shelf, inputs=["shelves"])
    graph.add_map("row", inner, over="shelves", item="docs", into="rows", failures="lost", writes=["notes", "unread"])
    program = graph.add_path(START, "row", END).compile()
    shelves = {"shelves": [["a", "bad b"], ["bad c"], ["d"]]}
    run = program.run(shelves) if mode == "sync" else asyncio.run(program.arun(shelves))
    assert [row["notes"] for row in run.state["rows"]] == [["A"], ["D"]]
    assert [(one.index, one.type) for one in run.state["lost"]] == [(1, "MapError")]


def test_maps_under_send_fold_their_failures() -> None:
    class Many(BaseModel):
        parts: list[list[str]] = []
        docs: list[str] = []
        notes: Annotated[list[str], reducers.extend] = []
        unread: Annotated[list[Failure], reducers.extend] = []

    graph = Graph(Many, inputs=["parts"]).add_node("split", lambda: None, writes=[])
    graph.add_map("read", Reader().read, over="docs", item="doc", into="notes", failures="unread")
    graph.add_conditional_edges("split", lambda parts: [Send("read", {"docs": part}) for part in parts], ["read"])
    run = graph.add_edge(START, "split").add_edge("read", END).compile().run({"parts": [["a", "bad b"], ["no c", "d"]]})
    assert run.state["notes"] == ["A", "D"]
    assert [(one.type, one.index, one.branch) for one in run.state["unread"]] == [
        ("ValueError", 1, (0,)),
        ("KeyError", 0, (1,)),
    ]


def test_two_maps_that_run_at_once_need_a_reducer_for_their_failures() -> None:
    class Two(Corpus):
        more: list[str] = []

    graph = Graph(Two, inputs=["docs"])
    for name, into in (("one", "notes"), ("two", "more")):
        graph.add_map(name, Reader().read, over="docs", item="doc", into=into, failures="unread")
    graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END)
    with pytest.raises(GraphError, match="both write 'unread': give the field a reducer"):
        graph.compile()


# --- build


@each(
    ("options", "text"),
    [
        (
            {"failures": "unred"},
            "'title', 'tags', 'problem'). Did you mean 'unread'?",
        ),
        ({"failures": "docs"}, "failures='docs' is its over=, too: give the failures their own field"),
        ({"failures": "notes"}, "failures='notes' is its into=, too"),
        (
            {"failures": "title"},
            "the list of its failures is list[dspyer.failure.Failure], and field 'title' takes str",
        ),
        ({"failures": "problem"}, "declare it as problem: list[dspyer.Failure] = []"),
        ({"failures": "tags"}, "declare it as tags: list[dspyer.Failure] = []"),
        ({"failures": 3}, "failures=3: give one name"),
        ({"failures": ["bad"]}, "failures=['bad']: give one name"),
        ({"failures": None, "min_success": 0.5}, "min_success=0.5 lets items fail, so it needs failures='a field'"),
        ({"min_success": 1.5}, "min_success=1.5 is no share of the items: give a number from 0 to 1"),
        ({"min_success": -0.1}, "min_success=-0.1 is no share"),
        ({"min_success": float("nan")}, "min_success=nan is no share"),
        ({"min_success": "0.5"}, "min_success='0.5' is no share"),
        ({"min_success": True}, "min_success=True is no share"),
        ({"retry": 0}, "give 1 or more; the first attempt counts"),
    ],
)
def test_wrong_options_are_refused_at_build(options: dict[str, Any], text: str) -> None:
    class Titled(Corpus):
        title: str = ""
        tags: list[str] = []
        problem: Failure | None = None

    with pytest.raises(GraphError) as caught:
        reading(Reader().read, Titled, **options)
    assert text in str(caught.value)


def test_a_field_that_only_a_map_writes_its_failures_to_is_written() -> None:
    assert "writes notes, unread;" in reading(Reader().read).graph.explain()


def test_node_output_errors_of_functions_are_not_retried() -> None:
    calls: list[str] = []

    def read(doc: str) -> list[str]:
        calls.append(doc)
        return [doc]

    run = play(reading(read, retry=NOW, failures=None), ["a"], "sync")
    assert isinstance(run.error, NodeOutputError)
    assert calls == ["a"]


@MODES
def test_an_item_that_takes_too_long_is_a_failure(mode: str, time_is_over: TimeIsOver) -> None:
    release = threading.Event()

    def read(doc: str) -> str:
        if doc == "slow":
            time_is_over()
            release.wait(20)
        return doc

    async def aread(doc: str) -> str:
        if doc == "slow":
            time_is_over()
            await asyncio.Event().wait()
        return doc

    try:
        program = reading(read if mode == "sync" else aread, timeout=0.05, limit=1)  # the time of no other item is over
        run = play(program, ["a", "slow", "b"], mode)
    finally:
        release.set()
    assert run.state["notes"] == ["a", "b"]
    assert [(one.index, one.type, one.retryable) for one in run.state["unread"]] == [
        (1, "NodeTimeoutError", mode == "async")
    ]


def test_messages_of_failures_are_redacted_where_they_leave_the_run() -> None:
    def read(doc: str) -> str:
        raise ConnectionError("the key is 4711-0815")

    graph = Graph(Corpus, inputs=["docs"])
    graph.add_map("read", read, over="docs", item="doc", into="notes", failures="unread", retry=NOW)
    program = graph.add_path(START, "read", END).compile(redact=["unread.*.message"])
    run = program.run({"docs": ["a", "b"]})
    assert isinstance(run.error, MapError)
    assert "4711" not in f"{run.error} {[one.to_dict() for one in run.events]} {run.report()} {run.error.failures}"


@MODES
def test_steps_of_failed_items_are_lost(mode: str) -> None:
    """The trace that optimizers learn from has only the items that succeeded; their tokens count all the same."""

    class Strict(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("doc -> note")

        def forward(self, doc: str) -> dspy.Prediction:
            found: dspy.Prediction = self.ask(doc=doc)
            if found.note == "bad":
                raise ValueError(doc)
            return found

    notes = ["a", "bad", "c"]
    with ScriptedLM({f"doc {i}": {"note": note} for i, note in enumerate(notes)}):
        run = play(reading(Strict(), retry=None), [f"doc {i}" for i in range(3)], mode)
    assert run.state["notes"] == ["a", "c"]
    assert [outputs.note for _, _, outputs in run.trace] == ["a", "c"]
    assert Counter(step.status for step in run.trace_steps) == {"used": 2, "lost": 1}
    assert run.stats().nodes["read"].lm_calls == 3


@MODES
def test_a_module_that_gives_no_output_is_asked_again(mode: str) -> None:
    class Empty(dspy.Module):
        calls = 0

        def forward(self, doc: str) -> Any:
            type(self).calls += 1
            return None

        async def aforward(self, doc: str) -> Any:
            return self.forward(doc)

    run = play(reading(Empty(), writes=["note"], retry=NOW), ["a", "b"], mode)
    assert isinstance(run.error, MapError)
    assert [(one.type, one.attempt, one.retryable) for one in run.error.failures] == [("NodeOutputError", 3, True)] * 2
    assert Empty.calls == 6


@each(
    ("old", "new", "same"),
    [
        ({}, {"min_success": 0.5, "retry": 3, "timeout": 5.0}, True),
        ({"failures": None}, {"failures": None, "retry": 3}, True),
        ({}, {"failures": None}, False),
    ],
)
def test_a_thread_knows_a_graph_by_its_failures_and_not_by_its_policies(
    old: dict[str, Any], new: dict[str, Any], same: bool
) -> None:
    store = Memory()

    def read(doc: str, ctx: Context) -> str:
        return ctx.interrupt("ok", doc, answer=str)

    run = reading(read, store=store, **old).thread("t").run({"docs": ["a"]})
    later = reading(read, store=store, **new).thread("t")
    with nullcontext() if same else pytest.raises(ChangedGraphError):
        assert later.resume({run.questions[0].id: "yes"}).state["notes"] == ["yes"]


def test_explain_says_where_failures_go() -> None:
    text = reading(Reader().read, min_success=0.9, retry=2).graph.explain()
    assert "up to 2 attempts per item; failures of items into unread, at least 90 % must succeed" in text
