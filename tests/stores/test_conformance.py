"""Every store of dspyer keeps what stores promise, and a store that breaks a promise is found out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Store
from dspyer.stores.memory import Memory
from dspyer.stores.postgres import Postgres
from dspyer.stores.sqlite import SQLite
from dspyer.testing import StoreConformance
from dspyer.testing.store_samples import VALUES
from tests.stores import broken
from tests.value_samples import SAMPLES, TYPES


class EveryValue(StoreConformance):
    values: ClassVar = {**VALUES, **{name: make() for name, make in SAMPLES.items()}}
    types: ClassVar = TYPES


class TestMemory(EveryValue):
    @pytest.fixture
    def store(self) -> Store:
        return Memory()


class TestSQLite(EveryValue):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SQLite(tmp_path / "runs.db") as store:
            yield store

    def opener(self, store: Store) -> Callable[[], Store]:
        return partial(SQLite, store.address)


class TestPostgres(EveryValue):
    @pytest.fixture
    def store(self, postgres: str) -> Iterator[Store]:
        with Postgres(postgres) as store:
            yield store

    def opener(self, store: Store) -> Callable[[], Store]:
        return partial(Postgres, store.address)


# Which test finds a broken store out.
BROKEN: list[tuple[type[Memory], str]] = [
    (broken.LosesTheLastOfManyRows, "test_a_run_is_read_as_it_was_written"),
    (broken.ChecksBeforeItLocks, "test_one_of_many_threads_gets_an_epoch"),
    (broken.ShowsHalfAChange, "test_nobody_sees_the_half_of_a_change"),
    (broken.IgnoresEpochs, "test_an_owner_that_was_replaced_writes_nothing_more"),
    (broken.LetsTwoBegin, "test_a_thread_begins_once"),
    (broken.WritesRowByRow, "test_a_refused_change_leaves_nothing"),
    (broken.KeepsTheBlobsOfWhatIsRefused, "test_a_refused_change_leaves_nothing"),
    (broken.ShowsItsOwnLists, "test_what_is_changed_later_is_not_changed_in_the_store"),
    (broken.KeepsWhatItWasGiven, "test_what_is_changed_later_is_not_changed_in_the_store"),
    (broken.WritesTwice, "test_writing_again_does_nothing"),
    (broken.RefusesRepetition, "test_writing_again_does_nothing"),
    (broken.OverwritesRows, "test_a_refused_change_leaves_nothing"),
    (broken.LeavesGaps, "test_a_refused_change_leaves_nothing"),
    (broken.EncodesWithLosses, "test_values_of_every_kind"),
    (broken.LosesBlobs, "test_values_of_every_kind"),
    (broken.CutsNames, "test_names_of_threads"),
    (broken.SortsByCase, "test_names_of_threads"),
    (broken.ForgetsTheSecondParent, "test_a_run_with_two_parents"),
    (broken.SortsRuns, "test_runs_in_the_order_in_which_they_were_begun"),
    (broken.LeavesTheLastRowOut, "test_ranges_of_rows"),
    (broken.FindsLaterSnapshots, "test_snapshots"),
    (broken.DropsSnapshotsAtRoots, "test_snapshots"),
    (broken.KeepsOwners, "test_leases"),
    (broken.LeasesForEver, "test_leases"),
    (broken.RemovesWhatCopiesNeed, "test_what_a_copy_reaches_stays"),
    (broken.RemovesNothing, "test_a_removed_thread_is_gone"),
    (broken.DisownsNothing, "test_a_thread_gives_up_what_its_head_does_not_reach"),
    (broken.BeginsEpochsAgain, "test_epochs_of_a_name_never_repeat"),
    (broken.RemovesUnderAnyEpoch, "test_a_thread_is_removed_under_its_epoch_alone"),
    (broken.SaysTheEpochBefore, "test_a_write_says_the_epoch"),
    (broken.ForgetsRunsElsewhere, "test_a_write_says_the_epoch"),
    (broken.KeepsBlobs, "test_blobs_stay_as_long_as_something_refers_to_them"),
    (broken.RemovesBlobsOfOthers, "test_blobs_stay_as_long_as_something_refers_to_them"),
    (broken.SaysThatItWrote, "test_write_now_writes_all_or_says_so"),
    (broken.WritesAndSaysNo, "test_write_now_writes_all_or_says_so"),
]


@pytest.mark.parametrize(("kind", "test"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_is_found_out(kind: type[Memory], test: str) -> None:
    check: Callable[[Store], None] = getattr(StoreConformance(), test)
    check(Memory())
    with pytest.raises((AssertionError, ConcurrentRunError, LookupError)):
        check(kind())


def test_a_store_that_loses_what_it_reported_is_found_out(tmp_path: Path) -> None:
    class Suite(StoreConformance):
        def opener(self, store: Store) -> Callable[[], Store]:
            return partial(broken.LosesWhatIsNotFlushed, store.address)

    with SQLite(tmp_path / "runs.db") as store, pytest.raises(AssertionError, match="write 0"):
        Suite().test_a_process_that_is_killed_after_each_write(store)


def test_the_suite_imports_no_test_runner() -> None:
    code = "import sys, dspyer.testing; sys.exit('pytest' in sys.modules or 'psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
