"""Every store of dspyer passes the conformance tests, and a store that breaks a promise fails one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from dspyer.errors import ConcurrentRunError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.postgres import Postgres
from dspyer.testing import StoreConformance
from tests.stores import broken
from tests.value_samples import SAMPLES, TYPES

pytestmark = pytest.mark.usefixtures("fork_server")


class EveryValue(StoreConformance):
    values: ClassVar = {**StoreConformance.values, **{name: make() for name, make in SAMPLES.items()}}
    types: ClassVar = TYPES


DEAR = "80 values of every kind, each written, read, and read by a second store"


class TestMemory(EveryValue):
    @pytest.fixture
    def store(self) -> Store:
        return Memory()

    @pytest.mark.slow(DEAR)
    def test_every_kind_of_value_is_read_back(self, store: Store) -> None:
        super().test_every_kind_of_value_is_read_back(store)


class TestSQLite(EveryValue):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SQLite(tmp_path / "runs.db") as store:
            yield store

    @pytest.mark.slow(DEAR)
    def test_every_kind_of_value_is_read_back(self, store: Store) -> None:
        super().test_every_kind_of_value_is_read_back(store)

    def opener(self, store: Store) -> Callable[[], Store]:
        return partial(SQLite, store.address)


class TestPostgres(EveryValue):
    @pytest.fixture
    def store(self, postgres: str) -> Iterator[Store]:
        with Postgres(postgres) as store:
            yield store

    @pytest.mark.slow("every query for a list, by pages of each size")
    def test_lists_of_runs(self, store: Store) -> None:
        super().test_lists_of_runs(store)

    @pytest.mark.slow(DEAR)
    def test_every_kind_of_value_is_read_back(self, store: Store) -> None:
        super().test_every_kind_of_value_is_read_back(store)

    def opener(self, store: Store) -> Callable[[], Store]:
        return partial(Postgres, store.address)


# The test that each broken store must fail.
BROKEN: list[tuple[type[Memory], str]] = [
    (broken.LosesTheLastOfManyRows, "test_a_run_is_read_back_as_written"),
    (broken.ChecksBeforeItLocks, "test_one_of_many_claims_of_an_epoch_succeeds"),
    (broken.ShowsPartOfAChange, "test_readers_never_see_a_part_of_a_change"),
    (broken.IgnoresEpochs, "test_a_replaced_owner_cannot_write"),
    (broken.CreatesAThreadTwice, "test_a_thread_is_created_once"),
    (broken.WritesRowByRow, "test_a_refused_change_writes_nothing"),
    (broken.KeepsBlobsOfRefusedChanges, "test_a_refused_change_writes_nothing"),
    (broken.ReturnsItsOwnLists, "test_no_mutable_data_is_shared_with_the_caller"),
    (broken.KeepsWhatItWasGiven, "test_no_mutable_data_is_shared_with_the_caller"),
    (broken.CountsARunTwice, "test_a_repeated_write_changes_nothing"),
    (broken.RefusesRepetition, "test_a_repeated_write_changes_nothing"),
    (broken.OverwritesRows, "test_a_refused_change_writes_nothing"),
    (broken.LeavesGaps, "test_a_refused_change_writes_nothing"),
    (broken.TurnsTuplesIntoLists, "test_every_kind_of_value_is_read_back"),
    (broken.LosesBlobs, "test_every_kind_of_value_is_read_back"),
    (broken.TruncatesNames, "test_any_text_names_a_thread"),
    (broken.SortsByCase, "test_any_text_names_a_thread"),
    (broken.RepeatsTheLastName, "test_any_text_names_a_thread"),
    (broken.NeedsThePageBefore, "test_any_text_names_a_thread"),
    (broken.ForgetsTheSecondParent, "test_both_parents_of_a_run_are_kept_in_order"),
    (broken.SortsRuns, "test_runs_are_listed_in_order_of_their_start"),
    (broken.OmitsTheLastRow, "test_row_ranges_include_both_ends"),
    (broken.FindsLaterSnapshots, "test_the_latest_snapshot_before_a_row_is_found"),
    (broken.DropsSnapshotsAtRoots, "test_the_latest_snapshot_before_a_row_is_found"),
    (broken.ListsResumedRunsAsEnded, "test_lists_of_runs"),
    (broken.ForgetsWhereAPageEnded, "test_lists_of_runs"),
    (broken.KeepsOwners, "test_leases_are_renewed_expire_and_are_released"),
    (broken.LeasesForEver, "test_leases_are_renewed_expire_and_are_released"),
    (broken.DeletesRowsOfCopies, "test_rows_that_a_copy_reaches_are_kept"),
    (broken.DeletesNoRows, "test_a_deleted_thread_is_gone"),
    (broken.DeletesNothingUnreachable, "test_delete_unreachable_deletes_abandoned_runs"),
    (broken.RestartsEpochs, "test_epochs_of_a_name_never_repeat"),
    (broken.DeletesBusyThreads, "test_busy_threads_are_not_deleted"),
    (broken.ReturnsTheEpochBefore, "test_write_returns_the_epoch"),
    (broken.IgnoresRunsElsewhere, "test_write_returns_the_epoch"),
    (broken.KeepsBlobs, "test_blobs_are_kept_while_something_refers_to_them"),
    (broken.DeletesBlobsInUse, "test_blobs_are_kept_while_something_refers_to_them"),
    (broken.ClaimsToHaveWritten, "test_write_now_writes_everything_or_returns_false"),
    (broken.WritesAndReturnsFalse, "test_write_now_writes_everything_or_returns_false"),
]


@pytest.mark.parametrize(("kind", "test"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_fails_its_test(kind: type[Memory], test: str) -> None:
    """`TestMemory` shows that the store passes which each of them breaks."""
    check: Callable[[Store], None] = getattr(StoreConformance(), test)
    with pytest.raises((AssertionError, ConcurrentRunError, LookupError)):
        check(kind())


def test_a_store_that_loses_reported_writes_fails_its_test(tmp_path: Path) -> None:
    class Suite(StoreConformance):
        def opener(self, store: Store) -> Callable[[], Store]:
            return partial(broken.LosesWhatIsNotFlushed, store.address)

    with SQLite(tmp_path / "runs.db") as store, pytest.raises(AssertionError, match="write 0"):
        Suite().test_a_process_killed_after_a_write_loses_nothing(store)
