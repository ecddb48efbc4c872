"""The promises of a store as tests: plain methods that any test runner can call with a `store`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from operator import setitem
from typing import Any, ClassVar, cast

from dspyer.errors import ConcurrentRunError
from dspyer.extend import freeze, same
from dspyer.stores import Store
from dspyer.stores.base import Change, Point, Row, RunRow, Snapshot, ThreadRow
from dspyer.stores.content import Content, blob_id
from dspyer.testing.store_lists import check_lists, check_names
from dspyer.testing.store_processes import (
    PROCESSES,
    ROUNDS,
    THREADS,
    Job,
    OpenStore,
    changes_of_every_kind,
    child_processes,
    count_up,
    expected_after,
    has_all_blobs,
    read_back,
    run_in_threads,
    write_concurrently,
    write_then_die,
    write_until_killed,
)
from dspyer.testing.store_samples import (
    BLOB,
    DROP_SNAPSHOTS,
    NAMES,
    OTHER_BLOB,
    VACUUM,
    VALUES,
    append,
    begin,
    blobs_of,
    content,
    deleting,
    dump,
    outcome,
    owner,
    play,
    pruning,
    row,
    rows,
    thread_of,
    try_to,
)
from dspyer.values import json as encoding


class StoreConformance:
    """The promises of a store, as tests.

    A subclass with a fixture named `store` is all that pytest needs; each test gets an empty store. A subclass that
    also defines `opener` is tested through a second store object and from other processes, some of which are killed
    while they write.

    Attributes:
        values: the values to write and read back, by name; add what your users store.
        types: classes of these values, besides the registered ones.

    Example:
        >>> from dspyer.stores import Memory
        >>> StoreConformance().test_write_returns_the_epoch(Memory())

        With pytest:

        ```python
        class TestMyStore(StoreConformance):
            @pytest.fixture
            def store(self, tmp_path):
                with MyStore(tmp_path / "runs") as store:
                    yield store

            def opener(self, store):
                return partial(MyStore, store.address)  # it must be picklable
        ```
    """

    values: ClassVar[Mapping[str, Any]] = VALUES
    types: ClassVar[Iterable[type]] = ()

    def opener(self, store: Store) -> OpenStore | None:
        """A picklable callable that opens the data of a store again; None for a store that only one object can see.

        Args:
            store: the store of a test.

        Example:
            >>> from dspyer.stores import Memory
            >>> StoreConformance().opener(Memory()) is None
            True
        """
        del store
        return None

    # --- reading

    def test_an_empty_store_returns_nothing(self, store: Store) -> None:
        """Nothing is found, and asking for what does not exist is no error."""
        assert store.threads() == []
        assert store.thread("missing") is None
        assert store.run("none") is None
        assert store.runs("missing") == []
        assert store.runs("") == []
        assert store.rows("none") == []
        assert store.blobs(()) == {}
        assert store.blobs(["none"]) == {}
        assert store.snapshot(Point("none", 3)) is None
        for report in (store.delete(), store.delete(["missing"]), store.delete_unreachable("missing")):
            assert (tuple(report.threads), report.runs, report.rows, dict(report.kept)) == ((), 0, 0, {})
        store.drop_snapshots()
        store.vacuum()
        assert store.threads() == []

    def test_a_run_is_read_back_as_written(self, store: Store) -> None:
        """Thread, run and rows, with all their fields. Empty parts stay empty; a header holds any JSON value."""
        change = begin("t", "r", 3)
        bare = [Row(0, "ask", {}), Row(1, "end", {"": None, "\x00": "\U0001f600", "x": [[], {}, 2**70, -0.5]})]
        play(store, change, begin("u", "bare", 0)._replace(rows=bare))
        assert (store.rows("r"), store.rows("bare")) == (list(change.rows), bare)

    def test_every_kind_of_value_is_read_back(self, store: Store) -> None:
        """Each value is equal afterwards, in a row and in a snapshot, also after opening the store again."""
        store.write(begin("t", "r", 0))
        frozen = {name: freeze(value) for name, value in self.values.items()}
        # A row for each value: one of a thousand values that is read back wrong is named by its row.
        for seq, value in enumerate(frozen.values()):
            at = Point("r", seq)
            snapshot = Snapshot(at, Content(value))
            entry = Row(seq, "commit", {}, Content(value))
            store.write(Change("t", 1, head=at, rows_of="r", rows=[entry], snapshot=snapshot))
        for reader in self._readers(store):
            for seq, (name, value) in enumerate(frozen.items()):
                found = reader.snapshot(Point("r", seq))
                assert found is not None
                assert found.at == Point("r", seq)
                for stored in (reader.rows("r", seq, seq)[0].content, found.content):
                    assert stored is not None
                    self._check(name, value, stored, reader)

    def test_lists_of_runs(self, store: Store) -> None:
        """Runs are listed newest first with how they ended, and each is on one page."""
        check_lists(store)

    def test_row_ranges_include_both_ends(self, store: Store) -> None:
        """In order of their numbers: row 10 follows row 9. The bounds of a range may lie outside the run."""
        store.write(begin("t", "r", 12))
        # Rows of another run: a range that forgets the run would find them.
        store.write(begin("u", "other", 19))
        for first, last in product((0, 2, 11, 12), (None, -1, 0, 1, 9, 11, 99)):
            found = [entry.seq for entry in store.rows("r", first, last)]
            assert found == list(range(first, min(12, 12 if last is None else last + 1))), (first, last)

    def test_any_text_names_a_thread(self, store: Store) -> None:
        """Any two texts name two threads; names are sorted by code point, and have pages in this order."""
        for number, name in enumerate(NAMES):
            store.write(begin(name, f"r{number}", 1))
        for reader in self._readers(store):
            assert reader.threads() == sorted(NAMES)
            check_names(reader, NAMES)
            for number, name in enumerate(NAMES):
                thread = thread_of(reader, name)
                assert (thread.name, thread.head) == (name, Point(f"r{number}", 0))
                assert [(run.id, run.thread) for run in reader.runs(name)] == [(f"r{number}", name)]

    def test_runs_are_listed_in_order_of_their_start(self, store: Store) -> None:
        """Whatever their ids are; each is counted once."""
        ids = ["m", "z", "a", "10", "9"]
        play(store, *[begin("t", run, 1, epoch=epoch) for epoch, run in enumerate(ids)], begin("u", "b", 1))
        assert [run.id for run in store.runs("t")] == ids

    def test_both_parents_of_a_run_are_kept_in_order(self, store: Store) -> None:
        """Merged threads have runs with two parents."""
        both = begin("t", "both", 1, Point("right", 2), Point("left", 1), epoch=1)
        play(store, begin("t", "left", 2), begin("u", "right", 3), both)

    def test_a_run_is_written_without_a_thread(self, store: Store) -> None:
        """Rows can be written for a run that no thread refers to; a thread can be created on it later."""
        run = Change(run=RunRow("r", "t", (), {}), rows_of="r", rows=rows(2))
        play(store, run, Change(rows_of="r", rows=rows(2, 2)), Change("t", head=Point("r", 3)))

    def test_the_latest_snapshot_before_a_row_is_found(self, store: Store) -> None:
        """Dropping snapshots keeps those at the roots of threads."""
        taken = [Change("t", 1, snapshot=Snapshot(Point("r", seq), content({"at": seq}))) for seq in (1, 3)]
        root = Change("t", 1, root=Point("r", 1))
        play(store, begin("t", "r", 6), *taken, begin("u", "other", 6), root, DROP_SNAPSHOTS)
        kept = store.snapshot(Point("r", 99))
        assert kept is not None, "the snapshot at a root was dropped"

    def test_no_mutable_data_is_shared_with_the_caller(self, store: Store) -> None:
        """Changing what was written, or what was read, changes nothing in the store."""
        nested: list[Any] = ["x"]
        header: dict[str, Any] = {"nodes": ["a"]}
        blobs = {blob_id(b"large"): b"large"}
        stored = Content.stored(b'{"v":1}', tuple(blobs), blobs)
        given = [Row(0, "commit", {"id": nested}, stored)]
        store.write(begin("t", "r", 1)._replace(run=RunRow("r", "t", (), header), rows=given))
        # All that can be read, and not only what was written: a list that the store gives out may be shared with
        # another one.
        before = dump(store)
        nested.append("spoilt")
        header["nodes"].append("spoilt")
        header["spoilt"] = True
        given.append(row(1))
        blobs.clear()
        assert dump(store) == before, "what was given can still be changed"
        read, run = store.rows("r"), store.run("r")
        assert run is not None
        try_to(lambda: read[0].header["id"].append("spoilt"))
        try_to(lambda: run.header["nodes"].append("spoilt"))
        try_to(lambda: setitem(cast("Any", run.header), "spoilt", True))
        try_to(lambda: store.runs("t")[0].header["nodes"].append("spoilt"))
        try_to(store.blobs(stored.refs).clear)
        try_to(read.clear)
        try_to(store.threads().clear)
        try_to(store.runs("t").clear)
        assert dump(store) == before, "what was read can be changed"

    # --- writing

    def test_a_refused_change_writes_nothing(self, store: Store) -> None:
        """Whatever is wrong with it, even if that is its last row."""
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
        wrong = [
            whole._replace(epoch=2, next_epoch=3),
            whole._replace(epoch=0, next_epoch=1),
            whole._replace(thread="u", epoch=0, next_epoch=None),
            whole._replace(thread="missing"),
            whole._replace(rows=[row(2, "other"), *rows(2, 3)]),
            whole._replace(run=RunRow("other", "t", (), {"x": 1})),
            whole._replace(rows=[row(4)]),
            whole._replace(rows=[row(3, OTHER_BLOB), row(5)]),
            whole._replace(rows_of="none"),
            whole._replace(head=Point("none", 0)),
            whole._replace(snapshot=Snapshot(Point("none", 0), content({}))),
        ]
        play(store, begin("t", "r", 3), begin("u", "other", 1), *wrong, whole)
        assert store.rows("r") == rows(5)

    def test_a_repeated_write_changes_nothing(self, store: Store) -> None:
        """A caller that lost the answer may send the same change again."""
        # One of every kind, each twice in a row: the answer to the first may have been lost on the way.
        changes = [
            begin("t", "r", 2),
            append("t", "r", 2, 2),
            append("t", "r", 4, value=BLOB),
            Change("t", 1, snapshot=Snapshot(Point("r", 4), content({"v": OTHER_BLOB}))),
            Change("t", 1, owner=owner("r"), lease=90.0),
            Change("t", 1, root=Point("r", 1)),
            Change("t", 1, 2, owner("second"), 30.0),
            begin("t", "next", 1, Point("r", 4), epoch=2),
            Change(rows_of="r", rows=rows(1, 5)),
            Change(run=RunRow("apart", "t", (Point("r", 2),), {}), rows_of="apart", rows=rows(1)),
            append("t", "next", 1, epoch=3)._replace(lease=0.0, flush=True),
        ]
        play(store, *[change for change in changes for _ in range(2)])

    def test_a_partly_written_change_is_completed(self, store: Store) -> None:
        """Existing equal rows are no error. Without rows, a repeat is refused: it could come from another owner."""
        twice = Change("t", 1, 2), Change("copy", head=Point("r", 0))
        play(store, begin("t", "r", 2), append("t", "r", 0, 4), *twice, *twice)

    def test_write_now_writes_everything_or_returns_false(self, store: Store) -> None:
        """A store that would have to wait returns False and has written nothing."""
        change = begin("t", "r", 2)
        done = store.write_now(change)
        assert store.rows("r") == (rows(2) if done else [])
        store.write(change)
        assert store.rows("r") == rows(2)

    def test_closing_keeps_the_data(self, store: Store) -> None:
        """Closing a second time is no error."""
        store.write(begin("t", "r", 2))
        opener = self.opener(store)
        store.close()
        store.close()
        if opener is not None:
            with opener() as again:
                assert again.rows("r") == rows(2)

    # --- ownership: epochs and leases

    def test_a_thread_is_created_once(self, store: Store) -> None:
        """The second creation is refused."""
        play(store, begin("t", "first", 1), begin("t", "second", 1))

    def test_leases_are_renewed_expire_and_are_released(self, store: Store) -> None:
        """By the clock of the store."""
        store.write(begin("t", "r", 1)._replace(lease=1_000.0))
        assert 0 < thread_of(store, "t").lease <= 1_000
        store.write(Change("t", 1, owner=owner("r"), lease=5_000.0))
        assert 1_000 < thread_of(store, "t").lease <= 5_000
        store.write(append("t", "r", 1))
        assert 1_000 < thread_of(store, "t").lease <= 5_000, "an append has changed the lease"
        store.write(Change("t", 1, owner=owner("r"), lease=1e-9))
        assert thread_of(store, "t").lease <= 0
        thread = thread_of(store, "t")
        assert (thread.owner, thread.epoch) == (owner("r"), 1), "the owner of an expired lease was forgotten"
        store.write(append("t", "r", 2)._replace(lease=0.0))
        thread = thread_of(store, "t")
        assert (thread.owner, thread.epoch, thread.head) == (None, 1, Point("r", 2))
        assert thread.lease <= 0

    def test_a_replaced_owner_cannot_write(self, store: Store) -> None:
        """Neither rows nor lease, head, root, runs or snapshots; the new owner can, and the owner of another thread."""
        late = [
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
        ]
        # The lease of the first owner has not ended: fencing must not depend on clocks.
        claim = Change("t", 1, 2, owner("second"), 1_000.0)
        both = append("t", "r", 2, epoch=2), append("u", "s", 1)
        play(store, begin("t", "r", 2), begin("u", "s", 1), claim, *late, *both)

    def test_the_owner_of_a_deleted_thread_cannot_write(self, store: Store) -> None:
        """Nothing of the name is there then; of a thread that has the name since, the next test says it."""
        late = [append("t", "r", 2), Change("t", 1, lease=0.0), begin("t", "s", 1, Point("r", 1), epoch=1)]
        play(store, begin("t", "r", 2), deleting("t"), *late)

    def test_epochs_of_a_name_never_repeat(self, store: Store) -> None:
        """The owner of an earlier thread of the same name can write no row, lease or release to this one."""
        known: set[int] = set()
        for turn in range(4):
            epoch = store.write(begin("t", f"r{turn}", 2))
            assert epoch not in known, f"epoch {epoch} of a deleted thread is given again"
            known.add(epoch)
            store.write(begin("other", f"other {turn}", 1))
            # Rows of the deleted thread stay in the store, so that a late writer would find its run.
            store.write(Change("keeps the rows", head=Point(f"r{turn}", 1)))
            for _ in range(turn):
                epoch = store.write(Change("t", epoch, epoch + 1, owner(f"{turn}"), 30.0))
                assert epoch not in known, f"epoch {epoch} of a deleted thread is given again"
                known.add(epoch)
            before = dump(store)
            for old in known - {epoch}:
                for change in (
                    append("t", f"r{turn}", 2, epoch=old),
                    Change("t", old, owner=owner("stale"), lease=5_000.0),
                    Change("t", old, lease=0.0),
                    Change("t", old, old + 1, owner("stale"), 30.0),
                ):
                    refusal = outcome(store, change)
                    assert refusal is ConcurrentRunError, "the owner of a deleted thread has written to its successor"
            assert dump(store) == before
            store.delete(["t"])
            store.delete(["other", "keeps the rows"])

    def test_write_returns_the_epoch(self, store: Store) -> None:
        """The epoch of the thread afterwards, also for a repeated write; 0 without a thread."""
        changes = [
            begin("t", "r", 1),
            append("t", "r", 1),
            Change("t", 1, 5, owner("second"), 30.0),
            Change(rows_of="r", rows=rows(1, 2)),
            Change("t", 5, run=RunRow("s", "t", (), {}), runs=3),
        ]
        repeated = [one for change in changes for one in (change, change._replace(runs=0))]
        play(store, *repeated, Change("t", 5, 5, owner("third"), 30.0))

    # --- deletion

    def test_a_deleted_thread_is_gone(self, store: Store) -> None:
        """With its runs, rows and snapshots; another one of its name has nothing of them, and others are unchanged."""
        second = begin("t", "s", 2, Point("r", 2), epoch=1)
        taken = Change("t", 2, snapshot=Snapshot(Point("s", 1), content({"v": 1})))
        gone = deleting("t", "missing"), deleting("t"), begin("t", "new", 1)
        play(store, begin("u", "other", 2), begin("t", "r", 3), second, taken, *gone)
        assert store.snapshot(Point("s", 1)) is None

    def test_busy_threads_are_not_deleted(self, store: Store) -> None:
        """With what they reach; the others are, and the report names both. A thread is judged as it is stored."""
        shared = begin("v", "w", 2, Point("r", 1)), Change("x", head=Point("w", 0))
        play(store, begin("t", "r", 3), begin("u", "s", 1), *shared, deleting("u", "t", "v", "missing", busy="v"))
        seen: set[tuple[str, int, object]] = set()

        def owned(thread: ThreadRow) -> bool:
            seen.add((thread.name, thread.epoch, thread.owner))
            return thread.lease > 0

        assert store.delete(["x", "v", "t"], owned).busy == ("v",)
        assert seen == {("x", 1, None), ("v", 1, owner("w"))}

    def test_idle_threads_are_listed(self, store: Store) -> None:
        """Those without owner, or whose lease has expired, for so long; by the clock of the store."""
        ended = {"made": None, "released": 0.0, "expired": 1e-6}
        for name, lease in {**ended, "owned": 60.0}.items():
            store.write(Change(name, owner=owner(), lease=60.0 if name == "released" else lease))
        store.write(Change("released", 1, lease=0.0))
        start = time.monotonic()
        while (found := store.threads(idle=0.05)) != sorted(ended):
            assert time.monotonic() < start + 9, found
        assert store.threads("expired", 1, idle=0.05) == ["made"]
        assert store.threads(idle=60.0) == []
        store.write(Change("made", 1, lease=0.0))
        made, *others = [thread_of(store, name).lease for name in ended]
        assert 0 >= made > max(others), "a release is the last use of a thread"

    def test_rows_that_a_copy_reaches_are_kept(self, store: Store) -> None:
        """The rows up to the copy's head stay, in a run without a thread, until the last copy is deleted."""
        more = begin("copy", "s", 1, Point("r", 2), epoch=1)
        copied = Change("copy", head=Point("r", 2))
        play(store, begin("t", "r", 5), copied, deleting("t"), more, deleting(), deleting("copy"))

    def test_both_histories_of_a_merged_thread_are_kept(self, store: Store) -> None:
        """A run with two parents keeps both of them."""
        both = begin("v", "both", 1, Point("left", 1), Point("right", 2))
        play(store, begin("t", "left", 3), begin("u", "right", 3), both, deleting("t", "u"))

    def test_shared_rows_are_deleted_with_the_last_thread(self, store: Store) -> None:
        """Also if the thread that made them is deleted first, and one copy has a later root."""
        shared = [begin("u", "s", 3, Point("r", 1)), begin("v", "w", 2, Point("s", 1), Point("r", 3))]
        pruned = Change("u", 1, root=Point("s", 0), snapshot=Snapshot(Point("s", 0), content({})))
        deletions = deleting("t"), deleting("v"), deleting("x"), deleting()
        play(store, begin("t", "r", 4), *shared, Change("x", head=Point("w", 0)), pruned, pruning("u"), *deletions)

    def test_unreachable_runs_are_deleted(self, store: Store) -> None:
        """Runs that were written for no thread."""
        lost = Change(run=RunRow("lost", "", (Point("r", 1),), {}), rows_of="lost", rows=rows(2))
        play(store, begin("t", "r", 2), lost, deleting())

    def test_delete_unreachable_deletes_abandoned_runs(self, store: Store) -> None:
        """Except for the rows that another thread reaches."""
        runs = [
            begin("t", "r", 5),
            begin("t", "abandoned", 2, Point("r", 4), epoch=1),
            begin("t", "kept", 2, Point("r", 3), epoch=2),
            Change("copy", head=Point("kept", 1)),
            begin("t", "again", 1, Point("r", 1), epoch=3),
        ]
        play(store, *runs, pruning("t"), pruning("missing"))
        assert (store.run("abandoned"), store.rows("r")) == (None, rows(4))

    def test_delete_unreachable_deletes_history_before_the_root(self, store: Store) -> None:
        """The row and the snapshot at the root stay, and the run can be appended to."""
        runs = begin("t", "old", 2), begin("t", "r", 5, Point("old", 1), epoch=1)
        taken = [Change("t", 2, snapshot=Snapshot(Point("r", seq), content({"at": seq}))) for seq in (1, 3)]
        root = Change("t", 2, root=Point("r", 3))
        play(store, *runs, *taken, root, pruning("t"), DROP_SNAPSHOTS, append("t", "r", 5, epoch=2))
        assert store.rows("r") == rows(3, 3)

    def test_blobs_are_kept_while_something_refers_to_them(self, store: Store) -> None:
        """Rows of any thread, or snapshots; also after the space of others was given back."""
        both = begin("t", "r", 1)._replace(rows=[row(0, [BLOB, OTHER_BLOB])])
        other = begin("u", "s", 1)._replace(rows=[row(0, {"other": BLOB})])
        taken = Change("u", 1, snapshot=Snapshot(Point("s", 0), content({"v": OTHER_BLOB})))
        gone = deleting("t"), VACUUM, append("u", "s", 1, value=BLOB)
        play(store, both, other, taken, *gone, DROP_SNAPSHOTS, deleting("u"))
        store.write(begin("v", "w", 1)._replace(rows=[row(0, BLOB)]))
        assert has_all_blobs(store, "w")

    # --- concurrency: threads, processes, and processes that are killed

    def test_one_of_many_claims_of_an_epoch_succeeds(self, store: Store) -> None:
        """The others are refused, and leave nothing behind."""
        store.write(begin("t", "start", 1))
        for epoch in range(1, ROUNDS + 1):
            won = write_concurrently(store, [begin("t", f"{epoch}-{n}", 2, epoch=epoch) for n in range(THREADS)])
            assert sum(won) == 1, f"epoch {epoch} was given to {sum(won)} owners"
            winner = f"{epoch}-{won.index(True)}"
            thread = thread_of(store, "t")
            assert (thread.epoch, thread.head, thread.owner) == (epoch + 1, Point(winner, 1), owner(winner))
            assert thread.runs == epoch + 1
            # A change is one transaction: the runs of those that lost must not be there either.
            there = [n for n in range(THREADS) if store.run(f"{epoch}-{n}") is not None]
            assert there == [won.index(True)], "a run that lost was begun"

    def test_one_of_many_creations_of_a_thread_succeeds(self, store: Store) -> None:
        """The same for a free name."""
        for number in range(ROUNDS):
            won = write_concurrently(store, [begin(f"t{number}", f"{number}-{n}", 1) for n in range(THREADS)])
            assert sum(won) == 1
            assert [run.id for run in store.runs(f"t{number}")] == [f"{number}-{won.index(True)}"]

    def test_one_of_many_writes_of_a_row_succeeds(self, store: Store) -> None:
        """Rows with one number and other contents: the first one stays."""
        store.write(begin("t", "r", 1))
        for seq in range(1, ROUNDS + 1):
            won = write_concurrently(store, [append("t", "r", seq, value=f"{seq}-{n}") for n in range(THREADS)])
            assert sum(won) == 1, f"row {seq} was written {sum(won)} times"
            assert store.rows("r", seq) == [row(seq, f"{seq}-{won.index(True)}")]

    def test_concurrent_writers_lose_no_row(self, store: Store) -> None:
        """Each writes to its own thread: nothing is lost or mixed."""

        def work(number: int) -> None:
            store.write(begin(f"t{number}", f"r{number}", 1))
            for seq in range(1, 30):
                store.write(append(f"t{number}", f"r{number}", seq, value=[number, BLOB] if seq % 10 == 0 else number))

        run_in_threads(work)
        for number in range(THREADS):
            found = store.rows(f"r{number}")
            wanted = [row(seq, [number, BLOB] if seq % 10 == 0 else number) for seq in range(1, 30)]
            assert found == rows(1) + wanted
            assert has_all_blobs(store, f"r{number}")

    def test_concurrent_writes_of_the_same_blobs_do_not_deadlock(self, store: Store) -> None:
        """The writers send them in opposite orders; all can be read afterwards."""
        texts = [BLOB + str(number) for number in range(6)]

        def work(number: int) -> None:
            for turn in range(4):
                # Locks that two writers take in opposite orders deadlock, unless the store orders them.
                values = [f"{turn} {text}" for text in (texts if number % 2 else reversed(texts))]
                store.write(begin(f"t{turn}-{number}", f"r{turn}-{number}", 1)._replace(rows=[row(0, values)]))

        run_in_threads(work)
        assert all(has_all_blobs(store, f"r{turn}-{number}") for turn in range(4) for number in range(THREADS))

    def test_readers_never_see_a_part_of_a_change(self, store: Store) -> None:
        """Rows that are written together become visible together."""
        store.write(begin("t", "r", 2))

        def work(number: int) -> list[int]:
            if number:
                return [len(store.rows("r")) for _ in range(60)]
            # Two rows at a time: a reader that counts an odd number has seen the half of a change.
            for seq in range(2, 62, 2):
                store.write(append("t", "r", seq, 2))
            return []

        counts = [count for seen in run_in_threads(work, 3) for count in seen]
        assert not [count for count in counts if count % 2], "a change was seen when the half of it was written"

    def test_a_thread_is_copied_while_it_is_deleted(self, store: Store) -> None:
        """Either the copy comes first and keeps its rows, or it is refused."""
        for number in range(ROUNDS):
            name, run = f"t{number}", f"r{number}"
            store.write(begin(name, run, 3)._replace(rows=[row(seq, [seq, BLOB]) for seq in range(3)]))

            def work(who: int, name: str = name, run: str = run) -> bool:
                if who:
                    store.delete([name])
                    return True
                return outcome(store, Change(f"copy of {name}", head=Point(run, 1))) is not ValueError

            copied = run_in_threads(work, 2)[0]
            thread = store.thread(f"copy of {name}")
            assert (thread is not None) == copied
            assert len(store.rows(run)) == (2 if copied else 0)
            assert has_all_blobs(store, run)

    def test_a_blob_is_written_while_its_last_use_is_deleted(self, store: Store) -> None:
        """The row that refers to it can be read."""
        store.write(begin("keeps", "k", 1))
        for number in range(1, ROUNDS + 1):
            store.write(begin("goes", f"g{number}", 1)._replace(rows=[row(0, BLOB + str(number))]))
            change = append("keeps", "k", number, value=BLOB + str(number))

            def work(who: int, change: Change = change) -> None:
                if who:
                    store.delete(["goes"])
                else:
                    store.write(change)

            run_in_threads(work, 2)
            assert has_all_blobs(store, "k"), "a row refers to a blob that was deleted"

    def test_concurrent_processes_lose_no_write(self, store: Store) -> None:
        """Several processes count in one thread, each from the last number."""
        opener = self.opener(store)
        if opener is None:
            return
        store.write(begin("t", "start", 1))
        with child_processes(opener, count_up, [(str(number),) for number in range(PROCESSES)]) as children:
            wins = [run for pipe, _ in children for run in pipe.recv()]
        assert len(wins) == len(set(wins)) == PROCESSES * ROUNDS
        thread = thread_of(store, "t")
        assert (thread.epoch, thread.runs) == (1 + len(wins), 1 + len(wins))
        at, chain = thread.head, []
        while at is not None and at.run != "start":
            chain.append(at.run)
            run = store.run(at.run)
            assert run is not None
            assert store.rows(at.run) == [row(0, f"{len(wins) - len(chain)}")]
            at = run.parents[0]
        assert sorted(chain) == sorted(wins), "a run was lost"

    def test_a_process_killed_after_a_write_loses_nothing(self, store: Store) -> None:
        """All reported writes are stored, and nothing else is."""
        self._kill(store, write_then_die)

    def test_a_process_killed_during_a_write_leaves_all_or_nothing(self, store: Store) -> None:
        """All reported writes are stored; the write in progress is stored whole, or not at all."""
        self._kill(store, write_until_killed)

    # --- helpers

    def _readers(self, store: Store) -> Iterator[Store]:
        """The store, and the same data opened again."""
        yield store
        opener = self.opener(store)
        if opener is not None:
            with opener() as again:
                yield again

    def _check(self, name: str, value: Any, stored: Content, reader: Store) -> None:
        assert stored.data == Content(value).data, f"{name}: other bytes"
        blobs = blobs_of(reader, stored)
        assert {blob_id(blobs[ref]) for ref in stored.refs} == set(stored.refs), f"{name}: other blobs"
        read = stored.value(reader.blobs, lambda plain: encoding.decode(plain, self.types))
        assert same(read, value), f"{name}: another value"

    def _kill(self, store: Store, job: Job) -> None:
        opener = self.opener(store)
        if opener is None or not hasattr(signal, "SIGKILL"):
            return
        numbers = range(len(changes_of_every_kind("x")))
        with child_processes(opener, job, [(f"t{number}", number) for number in numbers]) as children:
            for number, (pipe, child) in zip(numbers, children, strict=True):
                assert pipe.recv() == number
                # Before the store is read: until the process has ended, its transaction may still be committed.
                child.kill()
                child.join()
        with opener() as again:
            for reader in (store, again):
                for number in numbers:
                    before, after = (expected_after(f"t{number}", count) for count in (number, number + 1))
                    seen = read_back(reader, f"t{number}")
                    assert seen == after or (seen == before and job is write_until_killed), f"write {number}"
