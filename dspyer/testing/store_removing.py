"""Tests of stores: what nothing reaches goes, what somebody reaches stays."""

from __future__ import annotations

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, DeletionReport, Point, RunRow, Snapshot, Store
from dspyer.stores.content import blob_id
from dspyer.testing.store_samples import (
    BLOB,
    OTHER_BLOB,
    append,
    begin,
    blobs_of,
    content,
    copy,
    owner,
    picture,
    refused,
    row,
    rows,
)


class Removing:
    """Removal of threads, of what they gave up, and of blobs."""

    def test_a_removed_thread_is_gone(self, store: Store) -> None:
        """With its runs, rows and snapshots; others are as they were."""
        store.write(begin("u", "other", 2))
        before = picture(store)
        store.write(begin("t", "r", 3))
        store.write(begin("t", "s", 2, Point("r", 2), epoch=1))
        store.write(Change("t", 2, snapshot=Snapshot(Point("s", 1), content({"v": 1}))))
        assert _swept(store.delete(["t", "nobody"])) == (("t",), 2, 5, {})
        assert picture(store, "r", "s") == {**before, "runs": {**before["runs"], "r": None, "s": None}}
        assert store.rows("r") == store.rows("s") == []
        assert store.snapshot(Point("s", 1)) is None
        assert _swept(store.delete(["t"])) == ((), 0, 0, {})

    def test_its_name_is_free_again(self, store: Store) -> None:
        """And nothing of the old thread is in the new one."""
        store.write(begin("t", "r", 3))
        store.delete(["t"])
        store.write(begin("t", "new", 1))
        thread = store.thread("t")
        assert thread is not None
        assert (thread.runs, thread.head, thread.root) == (1, Point("new", 0), None)
        assert [run.id for run in store.runs("t")] == ["new"]

    def test_a_thread_is_removed_under_its_epoch_alone(self, store: Store) -> None:
        """Of several, none is removed if one has another epoch; an epoch of a thread that is not there is no error."""
        store.write(begin("t", "r", 2))
        store.write(begin("u", "s", 1))
        store.write(Change("t", 1, 2, owner("second"), 30.0))
        before = picture(store)
        with refused(ConcurrentRunError, "a thread was removed under the epoch of an earlier owner"):
            store.delete(["u", "t"], {"t": 1, "u": 1})
        assert picture(store) == before
        assert store.delete(["t", "nobody"], {"t": 2, "nobody": 1}).threads == ("t",)
        assert store.threads() == ["u"]

    def test_what_a_copy_reaches_stays(self, store: Store) -> None:
        """The rows up to its head, of a run that belongs to nobody then; the rest goes with the last one."""
        store.write(begin("t", "r", 5))
        store.write(copy("copy", Point("r", 2)))
        assert _swept(store.delete(["t"])) == (("t",), 0, 2, {"copy": ("r",)})
        assert store.rows("r") == rows(3)
        run = store.run("r")
        assert run is not None
        assert run.thread == ""
        store.write(begin("copy", "s", 1, Point("r", 2), epoch=1))
        assert _swept(store.delete()) == ((), 0, 0, {})
        assert _swept(store.delete(["copy"])) == (("copy",), 2, 4, {})
        assert store.run("r") is None

    def test_both_parents_stay(self, store: Store) -> None:
        """A run that goes on from two threads keeps both histories."""
        store.write(begin("t", "left", 3))
        store.write(begin("u", "right", 3))
        store.write(begin("v", "both", 1, Point("left", 1), Point("right", 2)))
        swept = store.delete(["t", "u"])
        assert _swept(swept) == (("t", "u"), 0, 1, {"v": ("left", "right")})
        assert (store.rows("left"), store.rows("right")) == (rows(2), rows(3))

    def test_what_is_shared_by_copies_goes_with_the_last(self, store: Store) -> None:
        """Also when the thread that made it was removed first, and one of the copies begins its history later."""
        store.write(begin("t", "r", 4))
        store.write(begin("u", "s", 3, Point("r", 1)))
        store.write(begin("v", "w", 2, Point("s", 1), Point("r", 3)))
        store.write(copy("x", Point("w", 0)))
        store.write(Change("u", 1, root=Point("s", 0), snapshot=Snapshot(Point("s", 0), content({}))))
        store.delete_unreachable("u")
        assert _swept(store.delete(["t"])) == (("t",), 0, 0, {"v": ("r",), "x": ("r",)})
        assert _swept(store.delete(["v"])) == (("v",), 0, 1, {"x": ("w",)})
        assert _swept(store.delete(["x"])) == (("x",), 2, 5, {})
        assert (store.rows("s"), store.run("r"), store.run("w")) == (rows(3), None, None)
        assert _swept(store.delete()) == ((), 0, 0, {})

    def test_what_no_thread_reaches_goes(self, store: Store) -> None:
        """Runs that were begun for nobody."""
        store.write(begin("t", "r", 2))
        store.write(Change(run=RunRow("lost", "", (Point("r", 1),), {}), rows_of="lost", rows=rows(2)))
        assert _swept(store.delete()) == ((), 1, 2, {})
        assert store.run("lost") is None
        assert store.rows("r") == rows(2)

    def test_a_thread_gives_up_what_its_head_does_not_reach(self, store: Store) -> None:
        """Abandoned rows and runs go, but for what another thread reaches."""
        store.write(begin("t", "r", 5))
        store.write(begin("t", "abandoned", 2, Point("r", 4), epoch=1))
        store.write(begin("t", "kept", 2, Point("r", 3), epoch=2))
        store.write(copy("copy", Point("kept", 1)))
        store.write(begin("t", "again", 1, Point("r", 1), epoch=3))
        assert _swept(store.delete_unreachable("t")) == ((), 1, 3, {"copy": ("kept", "r")})
        assert store.rows("r") == rows(4)
        assert [run.id for run in store.runs("t")] == ["r", "again"]
        assert (store.run("abandoned"), store.rows("kept")) == (None, rows(2))
        assert _swept(store.delete_unreachable("nobody")) == ((), 0, 0, {})

    def test_older_history_goes_and_the_root_stays(self, store: Store) -> None:
        """Rows before the root go, with their snapshots; the root's row and snapshot stay, and the run goes on."""
        store.write(begin("t", "old", 2))
        store.write(begin("t", "r", 5, Point("old", 1), epoch=1))
        for seq in (1, 3):
            store.write(Change("t", 2, snapshot=Snapshot(Point("r", seq), content({"at": seq}))))
        store.write(Change("t", 2, root=Point("r", 3)))
        assert _swept(store.delete_unreachable("t")) == ((), 1, 5, {})
        assert store.rows("r") == rows(2, 3)
        assert store.run("old") is None
        assert store.snapshot(Point("r", 2)) is None
        store.drop_snapshots()
        kept = store.snapshot(Point("r", 4))
        assert kept is not None
        assert (kept.at, kept.content) == (Point("r", 3), content({"at": 3}))
        store.write(append("t", "r", 5, epoch=2))
        assert store.rows("r") == rows(3, 3)
        thread = store.thread("t")
        assert thread is not None
        assert (thread.root, thread.head) == (Point("r", 3), Point("r", 5))

    def test_blobs_stay_as_long_as_something_refers_to_them(self, store: Store) -> None:
        """Rows of any thread and snapshots."""
        text, data = blob_id(BLOB.encode()), blob_id(OTHER_BLOB)
        store.write(begin("t", "r", 1)._replace(rows=[row(0, [BLOB, OTHER_BLOB])]))
        store.write(begin("u", "s", 1)._replace(rows=[row(0, {"other": BLOB})]))
        store.write(Change("u", 1, snapshot=Snapshot(Point("s", 0), content({"v": OTHER_BLOB}))))
        store.delete(["t"])
        assert _readable(store, Point("s", 0)) == [{text}, {data}]
        store.drop_snapshots()
        assert _readable(store, Point("s", 0)) == [{text}]
        assert store.blobs([data]) == {}
        store.delete(["u"])
        assert store.blobs([text, data]) == {}
        store.write(begin("v", "w", 1)._replace(rows=[row(0, BLOB)]))
        assert _readable(store, Point("w", 0)) == [{text}]

    def test_removal_leaves_what_can_be_written_on(self, store: Store) -> None:
        """Also when the space was given back."""
        store.write(begin("t", "r", 50)._replace(rows=[row(seq, [BLOB, seq]) for seq in range(50)]))
        store.write(begin("u", "s", 1))
        store.delete(["t"])
        store.vacuum()
        store.write(append("u", "s", 1, value=BLOB))
        assert [entry.seq for entry in store.rows("s")] == [0, 1]


def _swept(swept: DeletionReport) -> tuple[object, ...]:
    kept = {name: tuple(sorted(runs)) for name, runs in swept.kept.items()}
    return tuple(sorted(swept.threads)), swept.runs, swept.rows, kept


def _readable(store: Store, at: Point) -> list[set[str]]:
    """The blobs of a row, and of the snapshot at it: all of them are there and whole."""
    snapshot = store.snapshot(at)
    contents = [store.rows(at.run, at.seq, at.seq)[0].content, snapshot and snapshot.content]
    found = [blobs_of(store, stored) for stored in contents if stored is not None]
    assert all(blob_id(data) == name for blobs in found for name, data in blobs.items())
    return [set(blobs) for blobs in found]
