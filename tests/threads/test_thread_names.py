"""Names of threads may hold any character: ids of commits are compared by prefix and never split."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspyer import END, START, CompiledGraph, Graph
from tests.threads.owned_runs import failing_rows

NAMES = [
    "plain",
    "user/42",
    "a.1/trunk:0",
    "trunk:1",
    "/",
    "a//",
    "0.1:2",
    "t.1/pruned",
    "  ",
    "a\nb",
    "\x00",
    "é☃",
    "%s{0}",
]


def program(path: Path) -> CompiledGraph:
    inner = Graph().add_node("a", lambda x: {"y": x + 1}, writes=["y"]).add_path(START, "a", END)
    graph = Graph().add_node("inn", inner.compile()).add_node("b", lambda y: {"z": y + 1}, writes=["z"])
    return graph.add_path(START, "inn", "b", END).compile(store=path / "names.db")


def test_a_thread_may_have_any_name(tmp_path: Path) -> None:
    made = program(tmp_path)
    assert not failing_rows({name: name for name in NAMES}, lambda name: check_name(made, name))


def check_name(made: CompiledGraph, name: str) -> None:
    t = made.thread(name)
    t.run({"x": 1})
    old = t.history()[-1].id
    assert old == f"{name}.1/trunk:2"
    assert [commit.node for commit in t.history(inside=1)] == ["START", "a"]
    assert t.history(inside=f"{name}.1/trunk:1") == t.history(inside=1)
    t.rerun(from_version=1)
    for handle in (t, made.thread(name)):
        assert handle.at(old)["z"] == handle.at("trunk:2")["z"] == 3
        assert handle.at(f"{name}.2/trunk:2")["z"] == 3
        with pytest.raises(LookupError):
            handle.at(f"{name}.1/trunk:9")
    assert t.copy(to=f"{name}/copy", at=old).state["z"] == 3
    assert t.copy(to=f"{name}/copy/2").at("trunk:2")["z"] == 3


def test_threads_whose_names_begin_alike_are_not_confused(tmp_path: Path) -> None:
    made = program(tmp_path)
    for name in ("a", "a.1/trunk:0", "b/a"):
        made.thread(name).run({"x": len(name)})
    t = made.thread("a").copy(to="a.1/trunk:0.1")
    assert t.at("a.1/trunk:2")["z"] == 3
    for name in ("a.1/trunk:0", "b/a"):
        with pytest.raises(LookupError):
            made.thread(name).at("a.1/trunk:2")
