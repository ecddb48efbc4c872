"""Which machine it was, and how noisy."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter


def calibrate(clock: Callable[[], float] = perf_counter) -> float:
    """Seconds of a fixed piece of pure Python, about ten milliseconds: how its times differ is the machine's noise."""
    start = clock()
    table: dict[int, int] = {}
    for i in range(180_000):
        table[i & 1023] = i ^ (i >> 3)
    return clock() - start


def spread(values: list[float]) -> float:
    """Half the distance between the quartiles, as a fraction of the median."""
    if len(values) < 2 or not median(values):
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / median(values)


def cpu() -> str:
    """The processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe() -> str:
    """One line: processor, cores, system, Python."""
    cores = os.cpu_count() or 1
    return f"{cpu()}, {cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
