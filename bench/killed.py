"""`python -m bench.killed`: optimizations are killed at many points and started again; prints what that has cost.

Each optimization runs in processes of its own. At a point it is killed without warning (SIGKILL): while a request is
under way, when its response has arrived and nothing has kept it, or in a metric. Then it is started again with the same
arguments. The LM responds differently each time that it is asked the same, unless several threads call it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.killable import OPTIMIZERS, Work, optimize_in

LINE = "{:18} {:>7} {:22} {:>6} {:>6} {:>9} {:>7} {:>9}"


@dataclass(frozen=True)
class Survey:
    """What became of an optimization that was killed at several points.

    Attributes:
        points: how often it was killed.
        equal: how often it had the result of the uninterrupted one in the end.
        calls: LM calls of the uninterrupted one.
        repeated: the most calls that were made twice, at any of the points with an equal result; None without such.
        before: the calls that were made before the kills, at all points together.
    """

    points: int
    equal: int
    calls: int
    repeated: int | None
    before: int


def survey(work: Work, points: int, folder: Path) -> Survey:
    """Kills an optimization at points spread over its events, each time in a folder of its own."""
    whole = optimize_in(folder / "whole", work)
    places = sorted({1 + (whole.events - 1) * number // max(1, points - 1) for number in range(points)})
    repeated, before = [], 0
    for place in places:
        killed = optimize_in(folder / str(place), work, kill_at=place)
        ended = optimize_in(folder / str(place), work)
        if (whole.status, killed.status, ended.status) != (0, -9, 0):
            raise RuntimeError(f"{work}: killed at {place}: {whole.status}, {killed.status}, {ended.status}")
        before += killed.asked.total()
        if ended.result == whole.result:
            repeated.append((ended.asked - whole.asked).total())
    return Survey(len(places), len(repeated), whole.asked.total(), max(repeated, default=None), before)


def works(names: list[str], threads: list[int]) -> Iterator[Work]:
    """The optimizations, with what keeps responses."""
    for name in names:
        for count in threads:
            yield Work(name, count, "kept", fickle=count == 1)
            yield Work(name, count, "lost", fickle=count == 1)


def main() -> int:
    """Prints a line for each optimization."""
    parser = argparse.ArgumentParser(prog="python -m bench.killed", description=__doc__)
    parser.add_argument("--points", type=int, default=20, help="how often each optimization is killed")
    parser.add_argument("--optimizers", nargs="*", default=sorted(OPTIMIZERS), choices=sorted(OPTIMIZERS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 4])
    chosen = parser.parse_args()
    print(LINE.format("optimizer", "threads", "what keeps calls", "kills", "equal", "LM calls", "before", "repeated"))
    with tempfile.TemporaryDirectory() as folder:
        for number, work in enumerate(works(chosen.optimizers, chosen.threads)):
            found = survey(work, chosen.points, Path(folder) / str(number))
            kept = "DSPy's request cache" if work.requests == "kept" else "nothing"
            repeated = "-" if found.repeated is None else found.repeated
            counts = (found.points, found.equal, found.calls, found.before // found.points, repeated)
            print(LINE.format(work.optimizer, work.threads, kept, *counts), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
