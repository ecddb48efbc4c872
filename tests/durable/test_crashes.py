"""A run that stops at any write comes to the same end, and calls nothing again that had finished."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from .equality import outcome
from .failing import Crash, crash
from .kinds import KINDS
from .places import FEWER, MODES, Place, go_on, start


@pytest.mark.parametrize("mode", [*FEWER, "async, sqlite"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_any_write_loses_nothing_and_calls_nothing_twice(kind: str, mode: str, tmp_path: Path) -> None:
    place = Place(KINDS[kind], MODES[mode], tmp_path)
    for after in (False, True):
        for at in count(1):
            place.arm(crash, at, after)
            name = f"t {at} {after}"
            try:
                with KINDS[kind].lm():
                    run = start(place.first.thread(name), place.colour)
            except Crash:
                place.check_the_rest(name)
                continue
            assert outcome(run) == place.whole.outcome
            assert at > 3
            break


@pytest.mark.parametrize("mode", FEWER)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_crashes_again_and_again_comes_to_its_end(kind: str, mode: str, tmp_path: Path) -> None:
    """Each life replaces the owner that was there, says that it goes on, and writes one thing more."""
    place = Place(KINDS[kind], MODES[mode], tmp_path)
    for life in count():
        place.arm(crash, 4 if life else 3, after=False)
        try:
            with KINDS[kind].lm():
                thread = place.first.thread("t")
                run = go_on(thread, place.colour) if life else start(thread, place.colour)
        except Crash:
            continue
        break
    assert life > 1
    assert outcome(run) == place.whole.outcome
