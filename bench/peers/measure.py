"""How a workload is timed. Standard library only: the environments of the other libraries import this too."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import tracemalloc
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

Round = Callable[[], float]  # one measurement: seconds or bytes per unit of work, after the result was checked
Work = Callable[..., Round]  # prepares everything that is not measured

clock = perf_counter  # tells the seconds; `bench.overhead` takes those of the processor

MIB = 1024 * 1024


class WrongResultError(AssertionError):
    """A workload gave a result that is not the right one: its time means nothing."""


class UnsupportedError(Exception):
    """The library has nothing that does this work."""


class Watch:
    """When the first node of a run started: what comes before it (reading the inputs) is a row of its own."""

    __slots__ = ("started",)

    def __init__(self) -> None:
        self.started = 0.0

    def start(self) -> None:
        """Starts the clock now."""
        self.started = clock()

    def per(self, units: int) -> float:
        """Seconds since the start, for each of `units`."""
        return (clock() - self.started) / units


def expect(got: object, wanted: object) -> None:
    """Raises `WrongResultError` where a result is not the wanted one."""
    if got != wanted:
        raise WrongResultError(f"got {str(got)[:200]}, wanted {str(wanted)[:200]}")


def timed(work: Callable[[], T], units: int = 1, check: Callable[[T], None] | None = None) -> float:
    """Seconds of `work` for each of its `units`; the garbage collector is on, and starts from a clean heap."""
    gc.collect()
    start = clock()
    result = work()
    elapsed = clock() - start
    if check is not None:
        check(result)
    return elapsed / units


def at_once(
    one: Callable[[int], T], aone: Callable[[int], Awaitable[T]], runs: int, mode: str
) -> Callable[[], list[T]]:
    """So many calls at the same time, in a thread each or as tasks of one event loop; their results in order."""

    def in_threads() -> list[T]:
        with ThreadPoolExecutor(runs) as threads:
            return list(threads.map(one, range(runs)))

    async def as_tasks() -> list[T]:
        return await asyncio.gather(*(aone(number) for number in range(runs)))

    return in_threads if mode == "sync" else lambda: asyncio.run(as_tasks())


def allocated(work: Callable[[], object]) -> float:
    """Bytes that the result of `work` keeps alive."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = work()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        del kept
    finally:
        tracemalloc.stop()
    return float(after - before)


def filler(keys: int) -> dict[str, int]:
    """The keys of a state that no node of the workload touches, one less than `keys`."""
    return {f"k{i}": i for i in range(keys - 1)}


def message(i: int) -> dict[str, str]:
    """One message of a conversation, about 100 bytes."""
    return {"role": "user", "content": f"message {i}: " + "lorem ipsum " * 5}


def nested(depth: int, width: int = 10) -> dict[str, Any]:
    """A leaf below `depth` dicts of `width` keys each."""
    value: Any = 0
    for level in range(depth):
        value = {**{f"k{i}": i for i in range(width - 1)}, "leaf" if level == 0 else "down": value}
    return dict(value)


def leaf_of(state: Any, depth: int) -> object:
    """The leaf of `nested(depth)`."""
    for _ in range(depth - 1):
        state = state["down"]
    return state["leaf"]


def versions_alive(base: T, change: Callable[[T, int], T], check: Callable[[T], None], alive: int, ops: int) -> Round:
    """Times `change`, `ops` times from `base` on, while the last `alive` versions are kept."""
    kept: deque[T] = deque(maxlen=alive)
    version = base
    for i in range(alive):
        version = change(version, i)
        kept.append(version)

    def run() -> T:
        current = base
        for i in range(ops):
            current = change(current, i)
            kept.append(current)
        return current

    return lambda: timed(run, ops, check)


def said(i: int) -> dict[str, str]:
    """One message of a conversation, 96 bytes as JSON; no two are alike, and they compress as prose does."""
    chosen = Random(i)
    text = " ".join("".join(chosen.choices("etaoinshrdlu", k=chosen.randint(2, 8))) for _ in range(20))
    return {"role": "user", "content": text[:68]}


def stored_bytes(path: str) -> int:
    """Bytes of a SQLite file with its log."""
    files = [Path(path + end) for end in ("", "-wal", "-shm")]
    return sum(file.stat().st_size for file in files if file.exists())


def flushed_write() -> float:
    """Seconds of a bare write and fsync of 4 KB."""
    with tempfile.TemporaryFile() as file:

        def write() -> None:
            for _ in range(200):
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())

        return timed(write, 200)
