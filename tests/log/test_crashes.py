"""A run that crashes at any write ends as one without a crash, and calls no finished node again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from dspyer import Run
from dspyer.errors import StoreError
from tests.log.equality import Outcome, outcome
from tests.log.failing import Crash, crash
from tests.log.kinds import KINDS
from tests.log.places import FAULTS, FEWER, MODES, Place, go_on, modes_of, start
from tests.rows import in_turn


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_any_write_loses_nothing_and_calls_nothing_twice(kind: str, tmp_path: Path) -> None:
    places = [Place(KINDS[kind], MODES[mode], tmp_path) for mode in modes_of(kind)]
    for number, after, first in FAULTS:
        check_crashes(kind, places[number], count(first, 4), after)


def check_crashes(kind: str, place: Place, writes: Iterator[int], after: bool) -> None:
    """Crashes at each of the writes, in runs of their own, until one has fewer."""
    for at in writes:
        place.arm(crash, at, after)
        name = f"t {at} {after}"
        try:
            with KINDS[kind].lm():
                run = start(place.first.thread(name), place.call_mode)
        except Crash:
            place.check_the_rest(name)
            continue
        if _lost_its_store(run):
            place.check_the_rest(name)
            continue
        assert outcome(run) == place.whole.outcome
        assert at > 3
        break


def _lost_its_store(run: Run) -> bool:
    """Whether the run has failed since its store is gone: of writes that tasks of one node make, one alone crashes."""
    return run.status == "failed" and isinstance(run.error, StoreError)


@pytest.mark.parametrize(("kind", "mode"), in_turn(KINDS, FEWER))
def test_a_run_that_crashes_repeatedly_completes(kind: str, mode: str, tmp_path: Path) -> None:
    """Each process takes the thread over, writes a resume row, and then one more row before it crashes."""
    place = Place(KINDS[kind], MODES[mode], tmp_path)
    for life in count():
        place.arm(crash, 4 if life else 3, after=False)
        try:
            with KINDS[kind].lm():
                thread = place.first.thread("t")
                run = go_on(thread, place.call_mode) if life else start(thread, place.call_mode)
        except Crash:
            continue
        if _lost_its_store(run):
            continue
        break
    assert life > 1
    assert outcome(run) == place.whole.outcome


@pytest.mark.parametrize("kind", ["chain", "fork", "policy", "subgraph"])
def test_a_crash_in_the_second_run_of_a_thread(kind: str, tmp_path: Path) -> None:
    places = [Place(KINDS[kind], MODES[mode], tmp_path) for mode in modes_of(kind)]
    expected = [outcome(start(place.first.thread("whole"), place.call_mode)) for place in places]
    for number, after, first in FAULTS[::2]:  # half of the lengths: the writes are those of a first run
        check_the_second_run(places[number], expected[number], count(first, 4), after)


def check_the_second_run(place: Place, expected: Outcome, writes: Iterator[int], after: bool) -> None:
    """It continues from the first one: its state, its versions, its ids."""
    place.store.rest()
    whole = place.first.thread("whole")
    for at in writes:
        name = f"t {at} {after}"
        place.store.rest()
        start(place.first.thread(name), place.call_mode)
        place.arm(crash, at, after)
        try:
            run = start(place.first.thread(name), place.call_mode)
        except Crash:
            place.store.rest()
            thread = place.second.thread(name)
            row = place.store.thread(name)
            assert row is not None
            if thread.status != "completed":
                assert outcome(go_on(thread, place.call_mode)) == expected
            elif row.runs == 1:
                assert outcome(start(thread, place.call_mode)) == expected
            assert thread.state == whole.state
            assert [commit.version for commit in thread.history()] == [commit.version for commit in whole.history()]
            continue
        assert outcome(run) == expected
        break
    assert at > 3
