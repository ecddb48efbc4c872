"""Threads whose graph has changed: the differences are named, allowed runs continue, and nothing is lost or called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from dspyer import END, START, CompiledGraph, Graph, reducers
from dspyer.errors import ChangedGraphError, InputError, OpenRunError
from dspyer.stores import Memory, SQLite


class Note(BaseModel):
    text: str


class State(BaseModel):
    q: str
    n: Annotated[int, reducers.increment] = 0
    log: Annotated[list[str], reducers.extend] = []
    note: Note | None = None
    things: list[str] = ["a", "b"]
    sizes: list[int] = []
    lengths: list[int] = []


class Calls:
    """Nodes that count their calls, and one that fails once."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fails = True

    def write(self, q: str) -> dict[str, Any]:
        self.made.append("write")
        return {"n": 2, "log": [q], "note": {"text": q}}

    def less(self, q: str) -> dict[str, Any]:
        return {name: value for name, value in self.write(q).items() if name != "log"}

    def look(self, q: str, n: int) -> dict[str, Any]:
        return self.write(q)

    def judge(self, n: int) -> dict[str, Any]:
        self.made.append("judge")
        if self.fails:
            raise RuntimeError("boom")
        return {"n": n}


Change = Callable[[Graph, Calls], None]


def nothing(graph: Graph, calls: Calls) -> None:
    pass


def build(
    calls: Calls,
    schema: type[BaseModel] | None = State,
    names: Mapping[str, str] | None = None,
    more: Change = nothing,
    write: str = "write",
    **options: Any,
) -> Graph:
    """START -> write -> judge -> END, with other names or more of it."""
    judge = (names or {}).get("judge", "judge")
    graph = Graph(schema, **{"keep": "all", **options})
    writes = ["n", "note"] if write == "less" else ["n", "log", "note"]
    graph.add_node("write", getattr(calls, write), writes=writes)
    graph.add_node(judge, calls.judge, writes=["n"])
    graph.add_edge(START, "write").add_edge("write", judge)
    more(graph, calls)
    return graph.add_edge(judge, END)


def fork(graph: Graph, calls: Calls) -> None:
    graph.add_node("side", lambda: {"n": 10}, writes=["n"]).add_edge("write", "side").add_edge("side", END)


def measured(obj: str) -> int:
    return len(obj)


def mapped(into: str) -> Change:
    def more(graph: Graph, calls: Calls) -> None:
        graph.add_map("measure", measured, over="things", item="obj", into=into)
        graph.add_edge("judge", "measure").add_edge("measure", END)

    return more


def asking(graph: Graph, calls: Calls) -> None:
    graph.add_interrupt("approve", question="go?", answer=None).add_edge("judge", "approve").add_edge("approve", END)


def inner(name: str) -> Change:
    def more(graph: Graph, calls: Calls) -> None:
        program = Graph(State).add_node(name, lambda: {"n": 1}, writes=["n"]).add_path(START, name, END).compile()
        graph.add_node("sub", program).add_edge("judge", "sub").add_edge("sub", END)

    return more


class WithoutLog(BaseModel):
    q: str
    n: Annotated[int, reducers.increment] = 0
    note: Note | None = None
    things: list[str] = []
    sizes: list[int] = []
    lengths: list[int] = []


class More(State):
    extra: int = 7


class Other(State):
    n: Annotated[float, reducers.max] = 0  # type: ignore[assignment]


class Limited(State):
    n: Annotated[int, reducers.increment, Field(ge=0)] = 0


def renamed_note() -> type[BaseModel]:
    class Note(BaseModel):
        text: str
        by: str = "nobody"

    Note.__qualname__ = "Note"

    class Changed(State):
        note: Note | None = None  # type: ignore[assignment]

    return Changed


OLD: dict[str, Any] = {}
TABLE: list[Any] = [
    pytest.param(OLD, {}, None, id="the same"),
    pytest.param(OLD, {"keep": ["n"]}, None, id="what lasts over runs is no part of it"),
    pytest.param(OLD, {"names": {"judge": "critic"}}, ["node 'judge' is gone", "node 'critic' is new"], id="a name"),
    pytest.param(OLD, {"more": fork}, ["node 'side' is new", "edge 'write' -> 'side' is new"], id="a fork"),
    pytest.param({"more": fork}, {}, ["node 'side' is gone", "edge 'write' -> 'side' is gone"], id="a fork less"),
    pytest.param(OLD, {"schema": More}, ["field 'extra' is new"], id="a new field"),
    pytest.param(
        OLD,
        {"schema": Other},
        ["field 'n': int -> float", "field 'n': reducer increment -> max"],
        id="another type and reducer",
    ),
    pytest.param(OLD, {"schema": Limited}, ["field 'n': int -> int, Ge(ge=0)"], id="a constraint"),
    pytest.param(OLD, {"schema": renamed_note()}, ["Note.by is new"], id="a field of a class"),
    pytest.param(OLD, {"write": "look"}, ["node 'write' reads 'q' -> 'n', 'q'"], id="what a node reads"),
    pytest.param(OLD, {"merge": {"q": "last_write_wins"}}, ["merge policy of 'q' is new"], id="a merge policy"),
    pytest.param(
        {"more": mapped("sizes")},
        {"more": mapped("lengths")},
        ["node 'measure' writes 'sizes' -> 'lengths'", "into 'sizes' -> over 'things' as 'obj' into 'lengths'"],
        id="a map",
    ),
    pytest.param(OLD, {"more": asking}, ["node 'approve' is new"], id="a question"),
    pytest.param(
        {"more": inner("one")},
        {"more": inner("two")},
        ["node 'sub', in its graph: node 'one' is gone", "node 'sub', in its graph: node 'two' is new"],
        id="inside of a node",
    ),
    pytest.param(OLD, {"schema": None}, ["the schema of the state is gone"], id="no schema"),
]


@pytest.mark.parametrize(("before", "after", "words"), TABLE)
def test_resuming_an_open_run_names_every_change_of_the_graph(
    before: dict[str, Any], after: dict[str, Any], words: list[str] | None
) -> None:
    calls, store = Calls(), Memory()
    first = build(calls, **before).compile(store=store)
    assert first.thread("t").run({"q": "why"}).status == "failed"
    made = list(calls.made)
    second = build(calls, **after).compile(store=store)
    calls.fails = False
    t = second.thread("t")
    if words is None:
        assert t.resume().status == "completed"
        assert calls.made[len(made) :] == ["judge"]
        return
    with pytest.raises(ChangedGraphError) as caught:
        t.resume()
    for word in words:
        assert any(word in change for change in caught.value.changes), caught.value.changes
        assert word in str(caught.value)
    assert "allow_changed_graph=True" in str(caught.value)
    assert calls.made == made, "nothing was called"
    assert t.status == "failed"
    assert [commit.node for commit in t.history()][:2] == ["START", "write"], "and the history can be read"
    with pytest.raises(OpenRunError):
        t.run({"q": "again"})
    assert t.run({"q": "again"}, if_open="abandon").status in ("completed", "interrupted"), "no thread is bricked"


def opened(tmp_path: Path, calls: Calls, **options: Any) -> CompiledGraph:
    program = build(calls, **options).compile(store=tmp_path / "runs.db")
    assert program.thread("t").run({"q": "why"}).status == "failed"
    calls.fails = False
    return program


@pytest.mark.parametrize(
    ("after", "state", "made"),
    [
        pytest.param({"schema": More}, {"n": 4, "extra": 7}, ["judge"], id="a new field gets its default"),
        pytest.param(
            {"schema": WithoutLog, "write": "less"},
            {"n": 4, "log": None},
            ["judge"],
            id="a field that is gone leaves",
        ),
        pytest.param({"schema": Other}, {"n": 2.0}, ["judge"], id="another reducer folds what comes now"),
        pytest.param({"more": asking}, {"n": 4}, ["judge"], id="a node behind"),
        pytest.param({"schema": None}, {"n": 2, "log": ["why"]}, ["judge"], id="no schema"),
    ],
)
def test_allow_changed_graph_resumes_as_far_as_the_log_fits(
    tmp_path: Path, after: dict[str, Any], state: dict[str, Any], made: list[str]
) -> None:
    calls = Calls()
    first = opened(tmp_path, calls)
    before = first.thread("t").state
    t = build(calls, **after).compile(store=tmp_path / "runs.db").thread("t")
    run = t.resume(allow_changed_graph=True)
    assert run.status in ("completed", "interrupted"), run.error
    assert calls.made == ["write", "judge", *made]
    assert {name: run.state.get(name) for name in state} == state
    assert {name: t.state.get(name) for name in state} == state, "read again from the log"
    assert t.at(1).to_json() == before.to_json(), "the history stays as it was"
    if run.status == "completed":
        assert t.replay() == t.state
        assert t.run({"q": "next"}).status == "completed"
        assert t.replay() == t.state


def test_a_run_resumed_with_a_changed_graph_can_crash_and_be_resumed(tmp_path: Path) -> None:
    calls = Calls()
    opened(tmp_path, calls)
    calls.fails = True
    second = build(calls, schema=More).compile(store=tmp_path / "runs.db")
    assert second.thread("t").resume(allow_changed_graph=True).status == "failed"
    calls.fails = False
    assert second.thread("t").resume(allow_changed_graph=True).status == "completed", "a second delivery"
    assert second.thread("t").state["extra"] == 7
    assert [commit.node for commit in second.thread("t").history()] == ["START", "write", "migrate", "judge"]


def test_a_log_that_does_not_fit_is_refused_with_all_changes(tmp_path: Path) -> None:
    calls = Calls()
    opened(tmp_path, calls)
    t = build(calls, names={"judge": "critic"}).compile(store=tmp_path / "runs.db").thread("t")
    with pytest.raises(ChangedGraphError) as caught:
        t.resume(allow_changed_graph=True)
    assert not [word for word in ("commit trunk:1 of node 'write'", "'judge' is gone") if word not in str(caught.value)]
    with pytest.raises(TypeError, match=r"allow_changed_graph=.*: give True or False"):
        t.resume(allow_changed_graph={"judge": "critic"})  # type: ignore[arg-type]
    assert calls.made == ["write", "judge"]
    assert t.run({"q": "again"}, if_open="abandon").status == "completed"


def test_inside_a_fork_the_state_cannot_be_fitted_to_new_fields(tmp_path: Path) -> None:
    calls = Calls()
    opened(tmp_path, calls, more=fork)
    t = build(calls, schema=More, more=fork).compile(store=tmp_path / "runs.db").thread("t")
    with pytest.raises(ChangedGraphError, match="branches are active"):
        t.resume(allow_changed_graph=True)
    t = build(calls, more=fork, merge={"q": "last_write_wins"}).compile(store=tmp_path / "runs.db").thread("t")
    assert t.resume(allow_changed_graph=True).state["n"] == 14
    assert t.replay() == t.state


# --- after a finished run


def rested_in(tmp_path: Path) -> Path:
    """The store of that."""
    rested(tmp_path)
    return tmp_path / "runs.db"


def rested(tmp_path: Path) -> CompiledGraph:
    calls = Calls()
    calls.fails = False
    program = build(calls).compile(store=tmp_path / "runs.db")
    assert program.thread("t").run({"q": "why"}).status == "completed"
    return program


def counting(schema: type[BaseModel] | None, store: Any, **options: Any) -> CompiledGraph:
    """Another graph, which counts."""
    graph = Graph(schema, keep="all").add_node("count", lambda q: {"n": 1}, writes=["n"]).add_path(START, "count", END)
    return graph.compile(store=store, **options)


class Texts(BaseModel):
    q: str = ""
    n: str = ""


class Unset(BaseModel):
    q: str = ""
    n: Annotated[int, reducers.increment] = 0
    must: str


def test_a_new_field_without_default_stays_unset(tmp_path: Path) -> None:
    class Wanted(State):
        must: str

    rested(tmp_path)
    graph = Graph(Wanted, inputs=["q"], keep="all").add_node("count", lambda q: {"n": 1}, writes=["n"])
    t = graph.add_path(START, "count", END).compile(store=tmp_path / "runs.db").thread("t")
    state = t.run({"q": "b"}).state
    assert (state["n"], "must" in state) == (5, False)


def test_a_removed_field_leaves_the_state_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rested(tmp_path)
    t = counting(WithoutLog, tmp_path / "runs.db").thread("t")
    assert "log" not in t.state
    with caplog.at_level(logging.WARNING, "dspyer"):
        assert t.run({"q": "b"}).state["n"] == 5
        assert t.run({"q": "c"}).state["n"] == 6
    assert [record.getMessage() for record in caplog.records if "leaves the state" in record.getMessage()] == [
        "thread 't': the graph no longer has the field 'log'; it leaves the state and stays in the history"
    ]
    assert t.at(2)["log"] == ["why"]
    assert t.history()[1].patch["log"] == ["why"]
    assert t.replay() == t.state


def test_a_value_that_does_not_fit_the_new_type_is_refused(tmp_path: Path) -> None:
    rested(tmp_path)
    graph = Graph(Texts, keep="all").add_node("count", lambda q: {"n": q}, writes=["n"]).add_path(START, "count", END)
    t = graph.compile(store=tmp_path / "runs.db").thread("t")
    with pytest.raises(ChangedGraphError, match=r"field 'n': 4 no longer fits: Input should be a valid string"):
        t.run({"q": "b"})
    assert t.state["n"] == 4
    assert t.at(1)["n"] == 2
    assert t.replay() == t.at(2)


def move(old: dict[str, Any]) -> dict[str, Any]:
    return {"q": old["q"], "n": str(old["n"])}


def test_migrate_makes_the_new_values(tmp_path: Path) -> None:
    rested(tmp_path)
    seen = []

    def migrate(old: dict[str, Any]) -> dict[str, Any]:
        seen.append(old)
        return move(old)

    graph = (
        Graph(Texts, keep="all").add_node("count", lambda n: {"n": n + "!"}, writes=["n"]).add_path(START, "count", END)
    )
    t = graph.compile(store=tmp_path / "runs.db").thread("t", migrate=migrate)
    assert t.run({"q": "b"}).state.to_dict() == {"q": "b", "n": "4!"}
    assert t.run({"q": "c"}).state["n"] == "4!!"
    assert [(old["n"], old["log"]) for old in seen] == [(4, ["why"])], "called once"
    assert t.state["n"] == "4!!"
    assert t.replay() == t.state
    assert t.at(2)["log"] == ["why"]


def test_migrate_in_the_middle_of_a_run(tmp_path: Path) -> None:
    calls = Calls()
    opened(tmp_path, calls)
    graph = Graph(Texts, keep="all").add_node("write", lambda q: {"n": q}, writes=["n"])
    graph.add_node("judge", lambda n: {"n": n + "!"}, writes=["n"]).add_path(START, "write", "judge", END)
    t = graph.compile(store=tmp_path / "runs.db").thread("t", migrate=move)
    assert t.resume(allow_changed_graph=True).state["n"] == "2!"
    assert t.replay() == t.state
    assert [commit.node for commit in t.history()] == ["START", "write", "migrate", "judge"]


@pytest.mark.parametrize(
    ("migrate", "words"),
    [
        pytest.param(lambda old: None, "returned None", id="no dict"),
        pytest.param(
            lambda old: {"nn": "4"}, "returned 'nn' for thread 't', which is not in the schema", id="no field"
        ),
        pytest.param(lambda old: {"n": 4}, "field 'n': 4 no longer fits", id="no value"),
    ],
)
def test_the_result_of_migrate_is_checked(tmp_path: Path, migrate: Any, words: str) -> None:
    rested(tmp_path)
    t = counting(Texts, tmp_path / "runs.db").thread("t", migrate=migrate)
    with pytest.raises(ChangedGraphError, match=words):
        t.run({"q": "b"})
    assert t.status == "completed"


def test_values_of_a_changed_class_are_validated_again(tmp_path: Path) -> None:
    rested(tmp_path)

    def show(note: Any) -> dict[str, Any]:
        return {"q": f"{note.text} by {note.by}"}

    graph = Graph(renamed_note(), inputs=["things"], keep="all").add_node("show", show, reads=["note"], writes=["q"])
    t = graph.add_path(START, "show", END).compile(store=tmp_path / "runs.db").thread("t")
    run = t.run({})
    assert run.error is None
    assert run.state["q"] == "why by nobody"


def test_a_missing_input_is_still_an_error(tmp_path: Path) -> None:
    t = counting(Unset, rested_in(tmp_path)).thread("t")
    with pytest.raises(InputError, match="must"):
        t.run({"q": "b"})


# --- manual commits, copies, reruns


def test_a_manual_commit_fits_the_state_to_the_graph(tmp_path: Path) -> None:
    rested(tmp_path)
    t = counting(WithoutLog, tmp_path / "runs.db").thread("t")
    t.update({"sizes": [1]})
    assert "log" not in t.at(3)
    assert t.run({"q": "b"}).state.to_dict().keys() == {"q", "n", "things", "sizes", "lengths"} | {"note"}
    assert t.replay() == t.state


def test_a_copy_of_a_thread_of_another_graph(tmp_path: Path) -> None:
    first = rested(tmp_path)
    t = counting(WithoutLog, tmp_path / "runs.db").thread("t").copy("twin")
    assert t.at(2)["log"] == ["why"]
    assert t.run({"q": "b"}).state["n"] == 5
    assert first.thread("t").state["n"] == 4


@pytest.mark.parametrize(
    ("after", "state"),
    [
        pytest.param({"schema": More}, {"n": 4, "extra": 7}, id="a new field"),
        pytest.param({"schema": Other}, {"n": 2.0}, id="another reducer"),
        pytest.param({"more": asking}, {"n": 4}, id="a new node"),
    ],
)
def test_a_rerun_uses_the_graph_as_it_is_now(tmp_path: Path, after: dict[str, Any], state: dict[str, Any]) -> None:
    rested(tmp_path)
    calls = Calls()
    calls.fails = False
    t = build(calls, **after).compile(store=tmp_path / "runs.db").thread("t")
    run = t.rerun(from_version=0)
    assert run.error is None
    assert calls.made == ["write", "judge"]
    assert {name: run.state[name] for name in state} == state
    assert t.state == run.state
    if run.status == "interrupted":
        assert t.resume({"approve": None}).status == "completed"
    assert t.replay() == t.state


def test_a_rerun_from_a_commit_that_does_not_fit_the_graph_is_refused(tmp_path: Path) -> None:
    rested(tmp_path)
    t = build(Calls(), names={"judge": "critic"}).compile(store=tmp_path / "runs.db").thread("t")
    with pytest.raises(ChangedGraphError, match=r"commit trunk:1 of node 'write'.*'judge'"):
        t.rerun(from_version=1)
    assert t.status == "completed"


# --- the fingerprint


def test_equal_graphs_have_equal_fingerprints_whatever_their_code() -> None:
    class Again(Calls):
        def write(self, q: str) -> dict[str, Any]:
            return {"n": len(q) * 2}

    store = Memory()
    for number, calls in enumerate((Calls(), Calls(), Again())):
        build(calls).compile(store=store).thread(f"t{number}").run({"q": "b"})
    build(Calls(), schema=More).compile(store=store).thread("other").run({"q": "b"})
    shapes = [run.header["shape"] for name in store.threads() for run in store.runs(name)]
    assert len(set(shapes)) == 2 == len(shapes) - 2


def test_a_fingerprint_is_stored_once_and_costs_a_run_little(tmp_path: Path) -> None:
    first = rested(tmp_path)
    t = first.thread("t")
    for _ in range(3):
        t.run({"q": "b"})
    store = SQLite(tmp_path / "runs.db")
    (shape,) = {run.header["shape"] for run in store.runs("t")}
    assert len(shape) == 32
    (opening,) = [row for row in store.rows(store.runs("t")[2].id) if row.kind == "open"]
    assert opening.content is not None
    (drawing,) = {run.header["drawing"] for run in store.runs("t")}
    assert list(opening.content.refs) == [shape, drawing]
    assert set(store.blobs([shape])) == {shape}
