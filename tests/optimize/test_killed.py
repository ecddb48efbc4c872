"""An optimization that is killed and started again ends as one that was not.

All places of all optimizers are killed by `python -m bench.killed`.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from dspyer import optimize
from dspyer.errors import StoreError
from dspyer.persistence.patch_cache import PatchCache
from tests.optimize.killable import BRANCHES, Outcome, Work, optimize_in, started_in
from tests.persistence.processes import end_of, fork

IN_FOLDER = Work("optimize.GEPA", requests="lost", results=True, small=True)
BOOTSTRAP = Work("BootstrapFewShot", requests="lost", results=True, small=True)


def check_equal(ended: Outcome, whole: Outcome, in_flight: int = BRANCHES) -> None:
    """5.6: the same candidates, scores and result; only what was under way is asked twice."""
    assert (ended.status, ended.result) == (0, whole.result)
    assert (ended.asked - whole.asked).total() <= in_flight
    assert not whole.asked - ended.asked


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Work], Outcome]:
    """What an optimization does that nothing interrupts; each is made once."""
    return cache(lambda work: optimize_in(tmp_path_factory.mktemp("whole"), work))


Whole = Callable[[Work], Outcome]
WORKS: list[tuple[Work, list[float]]] = [
    (IN_FOLDER, [0.2, 0.6, 1.0]),
    (replace(IN_FOLDER, threads=4, fickle=False), [0.5]),
    (BOOTSTRAP, [0.3, 0.7]),
    (Work("dspy.GEPA", results=True, small=True), [0.6]),
    (Work("MIPROv2", small=True), [0.6]),
]


@pytest.mark.parametrize(("work", "places"), WORKS, ids=lambda value: getattr(value, "optimizer", ""))
def test_a_killed_optimization_ends_as_one_that_was_not(
    tmp_path: Path, whole: Whole, work: Work, places: list[float]
) -> None:
    """5.5, 5.6: killed before a request, before its response is kept, in the middle of keeping it, and at the end."""
    assert whole(work).status == 0
    for place in places:
        folder = tmp_path / str(place)
        killed = optimize_in(folder, work, kill_at=round(place * whole(work).events))
        assert (killed.status, killed.result) == (-9, None)
        check_equal(optimize_in(folder, work), whole(work), BRANCHES * work.threads)


def test_without_anything_kept_a_killed_optimization_ends_differently(tmp_path: Path, whole: Whole) -> None:
    """The LM of these tests responds differently when it is asked again; so they would fail if anything was lost."""
    work, results = replace(BOOTSTRAP, results=False), []
    for place in (0.3, 0.5, 0.7):  # by chance, one of them may end equally
        folder = tmp_path / str(place)
        optimize_in(folder, work, kill_at=round(place * whole(work).events))
        ended = optimize_in(folder, work)
        assert (ended.asked - whole(work).asked).total() > BRANCHES
        results.append(ended.result)
    assert any(result != whole(work).result for result in results)


def test_an_optimization_is_killed_again_and_again(tmp_path: Path, whole: Whole) -> None:
    kills = 0
    while optimize_in(tmp_path / "killed", BOOTSTRAP, kill_at=30).status == -9:
        kills += 1
    check_equal(optimize_in(tmp_path / "killed", BOOTSTRAP), whole(BOOTSTRAP), BRANCHES * kills)
    assert kills >= 2


CHANGES: dict[str, tuple[Work, Work]] = {
    "the order of the trainset": (BOOTSTRAP, replace(BOOTSTRAP, reverse=True)),
    "the graph": (BOOTSTRAP, replace(BOOTSTRAP, instructions="Say which desk.")),
    "the seed": (IN_FOLDER, replace(IN_FOLDER, seed=7)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_only_misses(tmp_path: Path, whole: Whole, name: str) -> None:
    """5.6: a changed graph, trainset or seed has the result that it has in a folder of its own."""
    one, other = (replace(work, fickle=False) for work in CHANGES[name])
    fresh, before = whole(other), optimize_in(tmp_path, one)
    ended = optimize_in(tmp_path, other)
    assert (ended.status, ended.result) == (0, fresh.result)
    assert set(ended.asked - before.asked) <= set(fresh.asked)
    assert ended.asked.total() < fresh.asked.total() + before.asked.total()


def test_two_processes_use_one_folder(tmp_path: Path, whole: Whole) -> None:
    work = replace(BOOTSTRAP, fickle=False)
    ends = [started_in(tmp_path, work) for _ in range(2)]
    outcomes = [end() for end in ends]
    assert [(one.status, one.result) for one in outcomes] == [(0, whole(work).result)] * 2
    assert outcomes[-1].asked.total() <= 2 * whole(work).asked.total()


def moved(folder: Path) -> Path:
    return Path(shutil.move(folder, folder.parent / "moved"))


def on_a_full_disk(folder: Path) -> None:
    """Once the folder is open, no file grows by more than a few entries."""
    require = PatchCache.require_format

    def require_and_fill(self: PatchCache) -> None:
        require(self)
        limit = max(path.stat().st_size for path in folder.rglob("*")) + 40_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    PatchCache.require_format = require_and_fill  # type: ignore[method-assign] # of the process to come


def ten_years_earlier(folder: Path) -> None:
    del folder
    now = time.time
    time.time = lambda: now() - 10 * 365 * 86400


@pytest.mark.parametrize("change", [moved, on_a_full_disk, ten_years_earlier], ids=lambda change: change.__name__)
def test_circumstances_change_no_result(tmp_path: Path, whole: Whole, change: Any) -> None:
    folder = tmp_path / "killed"
    optimize_in(folder, BOOTSTRAP, kill_at=whole(BOOTSTRAP).events // 2)
    if change is moved:
        check_equal(optimize_in(moved(folder), BOOTSTRAP), whole(BOOTSTRAP))
    else:
        check_equal(optimize_in(folder, BOOTSTRAP, before=partial(change, folder)), whole(BOOTSTRAP))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_paid_for(tmp_path: Path) -> None:
    def use() -> None:
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(StoreError, match="cannot be used"), optimize.cache(folder):
            raise AssertionError("not refused")

    folder = tmp_path / "folder"
    with optimize.cache(folder):
        pass
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    assert end_of(fork(use)) == 0


@pytest.mark.parametrize("content", ["", "dspyer results 1\n"])
def test_a_process_that_was_killed_while_it_made_the_folder_leaves_one_that_can_be_used(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "format").write_text(content)
    for _ in range(2):
        with optimize.cache(tmp_path):
            assert (tmp_path / "format").read_text() == "dspyer results 1\n"


def test_the_oldest_entries_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node cache forgets what was not used for long; a folder of results does not."""
    monkeypatch.setattr("dspyer.persistence.patch_cache.SIZE_LIMIT", 1)
    first = optimize_in(tmp_path, BOOTSTRAP)
    check_equal(optimize_in(tmp_path, BOOTSTRAP), first, 0)
