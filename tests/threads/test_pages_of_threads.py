"""`program.threads(after=, limit=)`: pages of names, in every store."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START, Archive, CompiledGraph, Graph
from dspyer.errors import StoreError, ThreadError
from dspyer.stores import Memory, Store
from dspyer.stores.base import Change
from dspyer.stores.encrypted import Encrypted

GRAPH = Graph(name="Pages").add_node("a", lambda state: {"n": 1}, writes=["n"]).add_path(START, "a", END)


def program(store: Store | str, *names: str) -> CompiledGraph:
    compiled = GRAPH.compile(store=store)
    for name in names:
        compiled.thread(name).run({}).raise_error()
    return compiled


@pytest.mark.parametrize("make", [Memory, lambda: Encrypted(Memory())])
def test_pages_hold_every_name_once(make: Any) -> None:
    store = make()
    names = sorted(f"t-{number}" for number in range(11))
    for name in reversed(names):
        store.write(Change(name))
    compiled = GRAPH.compile(store=store)
    assert compiled.threads() == names
    pages, after = [], ""
    while page := compiled.threads(after=after, limit=3):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [3, 3, 3, 2]
    assert [name for page in pages for name in page] == names
    assert compiled.threads(after="t-5x") == ["t-6", "t-7", "t-8", "t-9"]
    assert compiled.threads(limit=10**30) == names


@given(
    names=st.sets(st.sampled_from([*"abcdefgh"])),
    changes=st.lists(st.tuples(st.booleans(), st.sampled_from([*"abcdefgh"]))),
    limit=st.integers(1, 4),
)
def test_changes_between_pages_move_no_other_name(names: set[str], changes: list[tuple[bool, str]], limit: int) -> None:
    store = Memory()
    for name in names:
        store.write(Change(name))
    compiled, found, after = GRAPH.compile(store=store), [], ""
    changed, waiting = set(), list(changes)
    while page := compiled.threads(after=after, limit=limit):
        found += page
        after = page[-1]
        if waiting:
            made, name = waiting.pop()
            changed.add(name)
            if made and store.thread(name) is None:
                store.write(Change(name))
            elif not made:
                store.delete([name])
    assert found == sorted(set(found)), "none comes twice, and the order stays"
    assert names - changed <= set(found), "none is left out"


def test_a_page_has_names_and_comes_after_a_text() -> None:
    compiled = program(Memory(), "t")
    limits: list[Any] = [0, -1, 1.5, "10"]
    for limit in limits:
        with pytest.raises(ValueError, match=re.escape(f"limit={limit!r}: a page has at least one name")):
            compiled.threads(limit=limit)
    names: list[Any] = [None, 7, b"t", "\ud800"]
    for after in names:
        with pytest.raises(ThreadError, match=r"is no name of a thread.*after='' for the first page"):
            compiled.threads(after=after)


def test_a_missing_thread_of_a_large_store_is_compared_with_few_names() -> None:
    store = Memory()
    for number in range(1_100):
        store.write(Change(f"order {number:04}"))
    store.write(Change("ticket 7"))
    with Archive(store) as archive:
        with pytest.raises(ThreadError, match=r"Did you mean 'ticket 7'\?$"):
            archive.thread("ticket 77")
        with pytest.raises(ThreadError, match=r"archive\.threads\(\) lists them\.$"):
            archive.thread("quite another name")
    with pytest.raises(ThreadError, match=r"archive\.threads\(\) lists them\.$"):
        Archive(Memory()).thread("t")


@pytest.mark.parametrize("deleted", ["run", "rows"])
def test_a_thread_that_is_deleted_while_it_is_read_is_said_to_be(deleted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job meets it that pages through the threads, when another one deletes them."""
    store = Memory()
    thread = program(store, "t").thread("t")
    monkeypatch.setattr(store, deleted, {"run": lambda _: None, "rows": lambda *_: []}[deleted])
    with pytest.raises(StoreError, match=r"another process has deleted.*read it again"):
        thread.history(count=1, newest=True)
