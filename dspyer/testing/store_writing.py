"""Tests of stores: a change is written whole or not at all, for the owner alone."""

from __future__ import annotations

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point, RunRow, Snapshot, Store
from dspyer.stores.content import blob_id
from dspyer.testing.store_reading import ReopenedData
from dspyer.testing.store_samples import (
    BLOB,
    OTHER_BLOB,
    append,
    begin,
    content,
    copy,
    owner,
    picture,
    refused,
    row,
    rows,
)


class Writing(ReopenedData):
    """A change is applied as a whole or not at all, and a second time it does nothing."""

    def test_a_refused_change_leaves_nothing(self, store: Store) -> None:
        """Whatever is wrong with it, also if that is its last row."""
        store.write(begin("t", "r", 3))
        store.write(begin("u", "other", 1))
        whole = Change(
            "t",
            1,
            2,
            owner("second"),
            60.0,
            Point("r", 4),
            Point("r", 1),
            RunRow("new", "t", (Point("r", 2),), {}),
            "r",
            [*rows(2, 3)],
            Snapshot(Point("r", 2), content({"v": BLOB})),
        )
        stolen, apart = row(2, "other"), [row(3, OTHER_BLOB), row(5)]
        wrong: dict[str, tuple[type[Exception], Change]] = {
            "another epoch": (ConcurrentRunError, whole._replace(epoch=2, next_epoch=3)),
            "an old epoch": (ConcurrentRunError, whole._replace(epoch=0, next_epoch=1)),
            "a thread that is there": (ConcurrentRunError, whole._replace(thread="u", epoch=0, next_epoch=None)),
            "a thread that is not there": (ConcurrentRunError, whole._replace(thread="nobody")),
            "a row that is another": (ConcurrentRunError, whole._replace(rows=[stolen, *rows(2, 3)])),
            "a run that is another": (ConcurrentRunError, whole._replace(run=RunRow("other", "t", (), {"x": 1}))),
            "a gap before": (ValueError, whole._replace(rows=[row(4)])),
            "a gap between": (ValueError, whole._replace(rows=apart)),
            "rows of no run": (ValueError, whole._replace(rows_of="none")),
            "a head in no run": (ValueError, whole._replace(head=Point("none", 0))),
            "a snapshot of no run": (ValueError, whole._replace(snapshot=Snapshot(Point("none", 0), content({})))),
        }
        before = picture(store, "new", "none")
        for name, (error, change) in wrong.items():
            with refused(error, name):
                store.write(change)
            assert picture(store, "new", "none") == before, f"{name}: a part of the change was written"
            assert store.blobs([blob_id(BLOB.encode()), blob_id(OTHER_BLOB)]) == {}, f"{name}: a blob was written"
        store.write(whole)
        assert [entry.seq for entry in store.rows("r")] == [0, 1, 2, 3, 4]

    def test_writing_again_does_nothing(self, store: Store) -> None:
        """An answer that got lost does no harm."""
        snapshot = Snapshot(Point("r", 4), content({"v": OTHER_BLOB}))
        changes = {
            "a new thread": begin("t", "r", 2),
            "rows": append("t", "r", 2, 2),
            "one row": append("t", "r", 4, value=BLOB),
            "a snapshot": Change("t", 1, snapshot=snapshot),
            "a renewed lease": Change("t", 1, owner=owner("r"), lease=90.0),
            "a root": Change("t", 1, root=Point("r", 1)),
            "a new owner": Change("t", 1, 2, owner("second"), 30.0),
            "a new run": begin("t", "next", 1, Point("r", 4), epoch=2),
            "rows for nobody": Change(rows_of="r", rows=rows(1, 5)),
            "a run for nobody": Change(run=RunRow("apart", "t", (Point("r", 2),), {}), rows_of="apart", rows=rows(1)),
            "the end": append("t", "next", 1, epoch=3)._replace(lease=0.0, flush=True),
        }
        for name, change in changes.items():
            store.write(change)
            before = picture(store, "apart")
            store.write(change)
            assert picture(store, "apart") == before, f"{name}: written twice, it is not the same"
        thread = store.thread("t")
        assert thread is not None
        assert thread.runs == 2

    def test_a_part_that_is_there_is_completed(self, store: Store) -> None:
        """Rows that are there and equal are no error, and those after them are added."""
        store.write(begin("t", "r", 2))
        store.write(append("t", "r", 0, 4))
        assert store.rows("r") == rows(4)

    def test_what_cannot_be_known_again_is_refused(self, store: Store) -> None:
        """A change of the epoch alone may be somebody else's."""
        store.write(begin("t", "r", 1))
        store.write(copy("copy", Point("r", 0)))
        store.write(Change("t", 1, 2))
        before = picture(store)
        for change in (Change("t", 1, 2), copy("copy", Point("r", 0))):
            with refused(ConcurrentRunError, "a change without rows, run and owner cannot be known again"):
                store.write(change)
        assert picture(store) == before

    def test_write_now_writes_all_or_says_so(self, store: Store) -> None:
        """A store that has to wait says False, and has written nothing."""
        change = begin("t", "r", 2)
        done = store.write_now(change)
        assert store.rows("r") == (rows(2) if done else [])
        store.write(change)
        assert store.rows("r") == rows(2)

    def test_close(self, store: Store) -> None:
        """What was written stays, and closing twice is no error."""
        store.write(begin("t", "r", 2))
        opener = self.opener(store)
        store.close()
        store.close()
        if opener is not None:
            with opener() as again:
                assert again.rows("r") == rows(2)


class Owning:
    """One owner writes; who was replaced does not."""

    def test_a_thread_begins_once(self, store: Store) -> None:
        """The second that makes it is refused."""
        store.write(begin("t", "first", 1))
        with refused(ConcurrentRunError, "two runs made one thread"):
            store.write(begin("t", "second", 1))
        thread = store.thread("t")
        assert thread is not None
        assert (thread.epoch, thread.head, store.run("second")) == (1, Point("first", 0), None)

    def test_leases(self, store: Store) -> None:
        """Claimed, renewed, run out, released: by the clock of the store."""
        store.write(begin("t", "r", 1)._replace(lease=1_000.0))
        assert 0 < self._lease(store) <= 1_000
        store.write(Change("t", 1, owner=owner("r"), lease=5_000.0))
        assert 1_000 < self._lease(store) <= 5_000
        store.write(append("t", "r", 1))
        assert 1_000 < self._lease(store) <= 5_000, "an append has changed the lease"
        store.write(Change("t", 1, owner=owner("r"), lease=1e-9))
        assert self._lease(store) <= 0
        thread = store.thread("t")
        assert thread is not None
        assert (thread.owner, thread.epoch) == (owner("r"), 1), "who has let it run out is not known"
        store.write(append("t", "r", 2)._replace(lease=0.0))
        thread = store.thread("t")
        assert thread is not None
        assert (thread.owner, thread.epoch, thread.head) == (None, 1, Point("r", 2))
        assert thread.lease <= 0

    def test_an_owner_that_was_replaced_writes_nothing_more(self, store: Store) -> None:
        """Neither rows nor lease, head, root, runs and snapshots; whoever replaced it writes on."""
        store.write(begin("t", "r", 2))
        store.write(Change("t", 1, 2, owner("second"), 1_000.0))
        before = picture(store)
        for change in (
            append("t", "r", 2),
            append("t", "r", 2)._replace(rows=()),
            Change("t", 1, owner=owner("r"), lease=5_000.0),
            Change("t", 1, lease=0.0),
            Change("t", 1, head=Point("r", 0)),
            Change("t", 1, root=Point("r", 0)),
            Change("t", 1, run=RunRow("x", "t", (), {})),
            Change("t", 1, snapshot=Snapshot(Point("r", 1), content({}))),
            Change("t", 1, 2, owner("third"), 30.0),
            begin("t", "x", 1, epoch=1),
        ):
            with refused(ConcurrentRunError, f"an owner that was replaced has written {change}"):
                store.write(change)
            assert picture(store) == before
        assert store.run("x") is None
        store.write(append("t", "r", 2, epoch=2))
        assert store.rows("r") == rows(3)

    def test_an_owner_whose_thread_was_removed(self, store: Store) -> None:
        """Learns that it owns nothing any more, whether the name is taken again or not."""
        store.write(begin("t", "r", 2))
        store.delete(["t"])
        for change in (append("t", "r", 2), Change("t", 1, lease=0.0), begin("t", "s", 1, Point("r", 1), epoch=1)):
            with refused(ConcurrentRunError, "the owner of a thread that was removed has written"):
                store.write(change)
        store.write(begin("t", "new", 1))
        for change in (append("t", "r", 2), append("t", "new", 1), Change("t", 1, lease=0.0)):
            with refused(ConcurrentRunError, "the owner of a removed thread has written to its successor"):
                store.write(change)
        assert (store.run("r"), store.rows("new")) == (None, rows(1))

    def test_epochs_of_a_name_never_repeat(self, store: Store) -> None:
        """The owner of an earlier thread of the name writes nothing to this one: no row, no lease, no release."""
        known: set[int] = set()
        for turn in range(4):
            epoch = store.write(begin("t", f"r{turn}", 2))
            assert epoch not in known, f"epoch {epoch} of a thread that was removed is given again"
            known.add(epoch)
            store.write(begin("other", f"other {turn}", 1))
            store.write(copy("keeps the rows", Point(f"r{turn}", 1)))
            for _ in range(turn):
                epoch = store.write(Change("t", epoch, epoch + 1, owner(f"{turn}"), 30.0))
                assert epoch not in known, f"epoch {epoch} of a thread that was removed is given again"
                known.add(epoch)
            before = picture(store)
            for old in known - {epoch}:
                for change in (
                    append("t", f"r{turn}", 2, epoch=old),
                    Change("t", old, owner=owner("stale"), lease=5_000.0),
                    Change("t", old, lease=0.0),
                    Change("t", old, old + 1, owner("stale"), 30.0),
                ):
                    with refused(ConcurrentRunError, "the owner of a removed thread has written to its successor"):
                        store.write(change)
            assert picture(store) == before
            store.delete(["t"])
            store.delete(["other", "keeps the rows"])

    def test_a_write_says_the_epoch(self, store: Store) -> None:
        """That of the thread afterwards, also when it was written before; 0 without a thread."""
        changes = [
            (begin("t", "r", 1), 1),
            (append("t", "r", 1), 1),
            (Change("t", 1, 5, owner("second"), 30.0), 5),
            (Change(rows_of="r", rows=rows(1, 2)), 0),
            (Change("t", 5, run=RunRow("s", "t", (), {}), runs=3), 5),
        ]
        for change, epoch in changes:
            assert store.write(change) == epoch
            assert store.write(change._replace(runs=0)) == epoch
        thread = store.thread("t")
        assert thread is not None
        assert (thread.epoch, thread.runs) == (5, 5), "runs that are not here are not counted"
        with refused(ValueError, "an epoch that is not larger"):
            store.write(Change("t", 5, 5, owner("third"), 30.0))

    def test_threads_have_epochs_of_their_own(self, store: Store) -> None:
        """What happens to one changes no other."""
        store.write(begin("t", "r", 1))
        store.write(begin("u", "s", 1))
        store.write(Change("t", 1, 2, owner("second"), 30.0))
        store.write(append("u", "s", 1))
        assert [entry.seq for entry in store.rows("s")] == [0, 1]

    def _lease(self, store: Store) -> float:
        thread = store.thread("t")
        assert thread is not None
        return thread.lease
