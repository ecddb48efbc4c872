"""What functions of users have folded is read as it was made, whatever became of the functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, create_model

from dspyer import END, START, Archive, CompiledGraph, Graph
from dspyer.errors import StoreError
from dspyer.stores import Memory


def add(old: Any, new: Any) -> Any:
    return old + new


def total(old: Any, new: Any) -> Any:
    return old + new


class Adds:
    def __call__(self, old: Any, new: Any) -> Any:
        return old + new


def refuses(old: Any, new: Any) -> Any:
    raise ValueError("no more")


def doubles(old: Any, new: Any) -> Any:
    return old + new + new


def named(function: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """Another function under a known name: the code of a reducer has changed."""

    def again(old: Any, new: Any) -> Any:
        return function(old, new)

    again.__name__ = name
    return again


def write(name: str, q: str) -> dict[str, Any]:
    return {"n": 1, "xs": [name + q]}


def nothing() -> dict[str, Any]:
    return {}


def forked(store: Any, reducer: Any, **options: Any) -> CompiledGraph:
    """Two branches write a sum and a list, which functions fold; `reducer` None deletes the fields."""
    kinds: dict[str, Any] = {"q": (str, ""), "done": (str, "")}
    if reducer is not None:
        kinds["n"] = (Annotated[int, reducer], 0)
        kinds["xs"] = (Annotated[list[str], reducer], [])
    schema: type[BaseModel] = create_model("State", **kinds)
    writes = [] if reducer is None else ["n", "xs"]
    graph = Graph(schema, name="G", inputs=["q"], keep="all")
    for name in ("l", "r"):
        graph.add_node(name, partial(write, name) if writes else nothing, writes=writes)
    graph.add_node("end", lambda q: {"done": q}, writes=["done"])
    return (
        graph.add_edge(START, ["l", "r"])
        .add_edge(["l", "r"], "end")
        .add_edge("end", END)
        .compile(store=store, **options)
    )


AFTER: dict[str, Any] = {
    "renamed": total,
    "a lambda": lambda old, new: old + new,
    "a partial": partial(add),
    "an object": Adds(),
    "now refuses": named(refuses, "add"),
    "now doubles": named(doubles, "add"),
    "deleted": None,
}


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_values_stay_as_they_were_made(after: Any, tmp_path: Path) -> None:
    store = Memory()
    wrote = forked(store, add).thread("t")
    for q in "ab":
        wrote.run({"q": q})
    wrote.update({"n": 5})
    states = [wrote.at(version).to_dict() for version in range(len(wrote.history()))]
    assert states[-1] == {"q": "b", "done": "b", "n": 9, "xs": ["la", "ra", "lb", "rb"]}
    commits = [commit.id for commit in wrote.history()]
    wrote.export(tmp_path / "t.jsonl")
    seen: list[dict[str, Any]] = []

    def migrate(old: dict[str, Any]) -> dict[str, Any]:
        seen.append(old)
        return {name: value for name, value in old.items() if after or name in ("q", "done")}

    program = forked(store, after)
    program.thread("loaded").load(tmp_path / "t.jsonl")
    for reader in (program.thread("t"), program.thread("loaded"), Archive(store).thread("t")):
        assert [reader.at(version).to_dict() for version in range(len(states))] == states
        assert [reader.at(commit).to_dict() for commit in commits[-3:]] == states[-3:]
    state = program.thread("t").state.to_dict()
    assert state == {name: value for name, value in states[-1].items() if after or name in ("q", "done")}
    if AFTER["now refuses"] is not after:
        run = program.thread("t", migrate=migrate).run({"q": "c"})
        assert after is None or run.state["n"] == (13 if after is AFTER["now doubles"] else 11)
        assert all(old == states[-1] for old in seen)
        assert bool(seen) == (after is not AFTER["now doubles"])


def test_replay_calls_the_reducers_again_and_names_what_they_no_longer_make() -> None:
    store = Memory()
    forked(store, add).thread("t").run({"q": "a"})
    assert forked(store, add).thread("t").replay()["n"] == 2
    assert forked(store, total).thread("t").replay()["n"] == 2  # the old one is not there: nothing can differ
    for changed in (refuses, doubles):
        with pytest.raises(StoreError, match=r"after version 1 .*that the reducer of field '.*' makes"):
            forked(store, named(changed, "add")).thread("t").replay()


@pytest.mark.parametrize("changed", [add, doubles, refuses])
def test_an_open_run_goes_on_from_what_was_made(changed: Any) -> None:
    store, broken = Memory(), [True]

    def built(reducer: Any) -> CompiledGraph:
        kinds: dict[str, Any] = {"n": (Annotated[int, named(reducer, "add")], 0), "end": (int, 0)}
        schema: type[BaseModel] = create_model("S", **kinds)
        graph = Graph(schema, name="G").add_node("one", lambda: {"n": 1}, writes=["n"])
        inner = Graph(schema, name="I").add_node("deep", lambda: {"n": 3}, writes=["n"]).add_path(START, "deep", END)
        graph.add_node("inside", inner, writes={"n": "end"})
        graph.add_node("last", lambda n: {"end": 1 // (not broken[0]) + n}, writes=["end"])
        return graph.add_path(START, "one", "inside", "last", END).compile(store=store)

    assert built(add).thread("t").run({}).status == "failed"
    broken[0] = False
    thread = built(changed).thread("t")
    assert (thread.state["n"], thread.resume().state.to_dict()) == (1, {"n": 1, "end": 2})


def either(old: Any, new: Any) -> Any:
    return old | new


@pytest.mark.parametrize(("kind", "reducer"), [(list, add), (set, either)])
def test_a_growing_container_is_stored_once(kind: Any, reducer: Any) -> None:
    store, written = Memory(), iter(range(20))
    schema = create_model("S", xs=(Annotated[kind[str], reducer], kind()))
    graph = Graph(schema).add_node("n", lambda: {"xs": kind([f"{next(written):0100}"])}, writes=["xs"])
    thread = graph.add_path(START, "n", END).compile(store=store).thread("t")
    for _ in range(20):
        thread.run({})
    rows = [row for run in store.runs("t") for row in store.rows(run.id) if row.kind == "commit"]
    sizes = [len(row.content.data) for row in rows if row.content is not None]
    assert max(sizes) < 2 * min(size for size in sizes if size > 60)
