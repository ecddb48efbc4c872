"""How the cost of one operation grows with what is already there: history, threads, width. `python -m bench.growth`.

Each row measures the same operation beside 1, 10 and 100 times the work, in turn, and prints microseconds per
operation and the ratio of the largest size to the smallest. A ratio near 1 means that the cost does not grow;
near 100, that the whole is quadratic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.machine import calibrate, describe, spread


@dataclass(frozen=True)
class Growth:
    """An operation that is measured at several sizes.

    Args:
        title: what one operation is, and what grows.
        sizes: how much is there already, smallest first.
        measure: makes what one size needs, runs the operation and returns the seconds of one operation.
        goal: the largest allowed ratio of the last size to the first; None if the row only shows.
    """

    title: str
    sizes: tuple[int, ...]
    measure: Callable[[int], float]
    goal: float | None = None


ROWS: list[Growth] = []


def main(arguments: list[str] | None = None) -> int:
    """Prints a line per row."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth", description="Costs beside 1, 10 and 100 times the work."
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each size (3)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only rows with one of these in their title"
    )
    given = parser.parse_args(arguments)
    noise = [calibrate()]
    for row in ROWS:
        if given.only and not any(word in row.title for word in given.only):
            continue
        times: dict[int, list[float]] = {size: [] for size in row.sizes}
        for _ in range(max(1, given.rounds)):  # sizes take turns, so that a slow minute slows all of them
            for size in row.sizes:
                times[size].append(row.measure(size))
            noise.append(calibrate())
        middle = [median(times[size]) for size in row.sizes]
        ratio = middle[-1] / middle[0]
        verdict = "" if row.goal is None else f", goal {row.goal:g}: {'yes' if ratio <= row.goal else 'NO'}"
        shown = "  ".join(f"{size:,}: {1e6 * each:,.1f} µs" for size, each in zip(row.sizes, middle, strict=True))
        print(f"{row.title}\n  {shown}  ({ratio:.2f} x{verdict})", flush=True)
    print(f"{describe()}; noise ±{100 * spread(noise):.0f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
