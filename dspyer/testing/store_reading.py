"""Tests of stores: what is written is there, as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import setitem
from typing import Any, ClassVar, cast

from dspyer.stores.base import Change, Point, Row, RunRow, Snapshot, Store
from dspyer.stores.content import Content, blob_id
from dspyer.testing.store_samples import (
    NAMES,
    VALUES,
    attempt,
    begin,
    blobs_of,
    content,
    owner,
    picture,
    row,
    rows,
)
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze, same

OpenStore = Callable[[], Store]


class ReopenedData:
    """Data that may be opened once more."""

    def opener(self, store: Store) -> OpenStore | None:
        """What opens the same data once more, in this process and, pickled, in others; None if nothing can."""
        del store
        return None


class Reading(ReopenedData):
    """What is written is there, as it was written.

    Attributes:
        values: what is written and read again, by name.
        types: classes that the values may name beside the registered ones.
    """

    values: ClassVar[Mapping[str, Any]] = VALUES
    types: ClassVar[Iterable[type]] = ()

    def test_an_empty_store(self, store: Store) -> None:
        """Nothing is there, and what is not there is no error."""
        assert store.threads() == []
        assert store.thread("nobody") is None
        assert store.run("none") is None
        assert store.runs("nobody") == []
        assert store.runs("") == []
        assert store.rows("none") == []
        assert store.blobs(()) == {}
        assert store.blobs(["none"]) == {}
        assert store.snapshot(Point("none", 3)) is None
        for swept in (store.delete(), store.delete(["nobody"]), store.delete_unreachable("nobody")):
            assert (tuple(swept.threads), swept.runs, swept.rows, dict(swept.kept)) == ((), 0, 0, {})
        store.drop_snapshots()
        store.vacuum()
        assert store.threads() == []

    def test_a_run_is_read_as_it_was_written(self, store: Store) -> None:
        """Thread, run, rows and their parts."""
        change = begin("t", "r", 3)
        store.write(change)
        thread, run = store.thread("t"), store.run("r")
        assert thread is not None
        assert (thread.name, thread.head, thread.epoch, thread.owner) == ("t", Point("r", 2), 1, owner("r"))
        assert (thread.root, thread.runs) == (None, 1)
        assert run is not None
        assert change.run is not None
        assert (run.id, run.thread, tuple(run.parents)) == ("r", "t", ())
        assert dict(run.header) == change.run.header
        assert [other.id for other in store.runs("t")] == ["r"]
        assert store.rows("r") == list(change.rows)

    def test_rows_without_content_and_head(self, store: Store) -> None:
        """What a row does not have, it does not get."""
        bare = [Row(0, "ask", ()), Row(1, "end", (None, "\x00", "\U0001f600", [], {}, 2**70, -0.5))]
        store.write(begin("t", "r", 0)._replace(rows=bare))
        assert store.rows("r") == bare
        assert [type(entry.header) for entry in store.rows("r")] == [tuple, tuple]

    def test_values_of_every_kind(self, store: Store) -> None:
        """Each value is the same afterwards, in a row and in a snapshot, for whoever opens the store again."""
        store.write(begin("t", "r", 0))
        frozen = {name: freeze(value) for name, value in self.values.items()}
        for seq, value in enumerate(frozen.values()):
            at = Point("r", seq)
            snapshot = Snapshot(at, Content(value))
            entry = Row(seq, "commit", (), Content(value))
            store.write(Change("t", 1, head=at, rows_of="r", rows=[entry], snapshot=snapshot))
        for reader in self._readers(store):
            for seq, (name, value) in enumerate(frozen.items()):
                found = reader.snapshot(Point("r", seq))
                assert found is not None
                assert found.at == Point("r", seq)
                for stored in (reader.rows("r", seq, seq)[0].content, found.content):
                    assert stored is not None
                    self._check(name, value, stored, reader)

    def _check(self, name: str, value: Any, stored: Content, reader: Store) -> None:
        assert stored.data == Content(value).data, f"{name}: other bytes"
        blobs = blobs_of(reader, stored)
        assert {blob_id(blobs[ref]) for ref in stored.refs} == set(stored.refs), f"{name}: other blobs"
        read = stored.value(reader.blobs, lambda plain: encoding.decode(plain, self.types))
        assert same(read, value), f"{name}: another value"

    def test_ranges_of_rows(self, store: Store) -> None:
        """Both ends are included, and may lie outside."""
        store.write(begin("t", "r", 5))
        store.write(begin("u", "other", 9))
        for first, last, seqs in [
            (0, None, [0, 1, 2, 3, 4]),
            (2, None, [2, 3, 4]),
            (0, 0, [0]),
            (1, 3, [1, 2, 3]),
            (3, 99, [3, 4]),
            (4, 4, [4]),
            (5, None, []),
            (3, 2, []),
            (0, -1, []),
        ]:
            assert [entry.seq for entry in store.rows("r", first, last)] == seqs, (first, last)

    def test_a_long_run_keeps_its_order(self, store: Store) -> None:
        """By number, not by text."""
        store.write(begin("t", "r", 1_200))
        assert [entry.seq for entry in store.rows("r")] == list(range(1_200))

    def test_names_of_threads(self, store: Store) -> None:
        """Any text is a name of its own, and names are sorted by their characters."""
        for number, name in enumerate(NAMES):
            store.write(begin(name, f"r{number}", 1))
        for reader in self._readers(store):
            assert reader.threads() == sorted(NAMES)
            for number, name in enumerate(NAMES):
                thread = reader.thread(name)
                assert thread is not None, name
                assert (thread.name, thread.head) == (name, Point(f"r{number}", 0))
                assert [(run.id, run.thread) for run in reader.runs(name)] == [(f"r{number}", name)]

    def test_runs_in_the_order_in_which_they_were_begun(self, store: Store) -> None:
        """Whatever their ids are; each is counted once."""
        ids = ["m", "z", "a", "10", "9"]
        for epoch, run in enumerate(ids):
            store.write(begin("t", run, 1, epoch=epoch))
        store.write(begin("u", "b", 1))
        assert [run.id for run in store.runs("t")] == ids
        thread = store.thread("t")
        assert thread is not None
        assert (thread.runs, thread.epoch, thread.head) == (5, 5, Point("9", 0))

    def test_a_run_with_two_parents(self, store: Store) -> None:
        """Both are kept, in their order."""
        store.write(begin("t", "left", 2))
        store.write(begin("u", "right", 3))
        store.write(begin("t", "both", 1, Point("right", 2), Point("left", 1), epoch=1))
        run = store.run("both")
        assert run is not None
        assert tuple(run.parents) == (Point("right", 2), Point("left", 1))

    def test_a_run_without_thread(self, store: Store) -> None:
        """Rows can be written for a run that no thread stands at; a thread can go there later."""
        store.write(Change(run=RunRow("r", "t", (), {}), rows_of="r", rows=rows(2)))
        store.write(Change(rows_of="r", rows=rows(2, 2)))
        assert store.threads() == []
        assert [entry.seq for entry in store.rows("r")] == [0, 1, 2, 3]
        store.write(Change("t", head=Point("r", 3)))
        thread = store.thread("t")
        assert thread is not None
        assert (thread.head, thread.epoch, thread.owner, thread.runs) == (Point("r", 3), 1, None, 0)

    def test_snapshots(self, store: Store) -> None:
        """The latest at or before a row; dropped, but at the roots of threads."""
        store.write(begin("t", "r", 6))
        for seq in (1, 3):
            store.write(Change("t", 1, snapshot=Snapshot(Point("r", seq), content({"at": seq}))))
        store.write(begin("u", "other", 6))
        for seq, found in [(0, None), (1, 1), (2, 1), (3, 3), (5, 3), (99, 3)]:
            snapshot = store.snapshot(Point("r", seq))
            assert (snapshot and snapshot.at.seq) == found, seq
            assert snapshot is None or snapshot.content == content({"at": found})
        assert store.snapshot(Point("other", 5)) is None
        store.write(Change("t", 1, root=Point("r", 1)))
        store.drop_snapshots()
        kept = store.snapshot(Point("r", 5))
        assert kept is not None, "the snapshot at a root was dropped"
        assert kept.at == Point("r", 1)

    def test_what_is_changed_later_is_not_changed_in_the_store(self, store: Store) -> None:
        """Neither what was given nor what was read is shared with whoever gave or reads it."""
        nested: list[Any] = ["x"]
        header: dict[str, Any] = {"nodes": ["a"]}
        blobs = {blob_id(b"large"): b"large"}
        stored = Content.stored(b'{"v":1}', tuple(blobs), blobs)
        given = [Row(0, "commit", ("id", nested), stored)]
        store.write(begin("t", "r", 1)._replace(run=RunRow("r", "t", (), header), rows=given))
        before = picture(store)
        nested.append("spoilt")
        header["nodes"].append("spoilt")
        header["spoilt"] = True
        given.append(row(1))
        blobs.clear()
        assert picture(store) == before, "what was given can still be changed"
        read, run = store.rows("r"), store.run("r")
        assert run is not None
        attempt(lambda: read[0].header[1].append("spoilt"))
        attempt(lambda: run.header["nodes"].append("spoilt"))
        attempt(lambda: setitem(cast("Any", run.header), "spoilt", True))
        attempt(lambda: store.runs("t")[0].header["nodes"].append("spoilt"))
        attempt(store.blobs(stored.refs).clear)
        attempt(read.clear)
        attempt(store.threads().clear)
        attempt(store.runs("t").clear)
        assert picture(store) == before, "what was read can be changed"

    def _readers(self, store: Store) -> Iterator[Store]:
        """The store, and the same data opened again."""
        yield store
        opener = self.opener(store)
        if opener is not None:
            with opener() as again:
                yield again
