"""`python -m bench.stores`: what a store costs by itself, compared with the disk of this machine.

Median and mean of one append: a commit of a 94-byte message that moves the head of its thread. `flush` is to be
compared to a bare write and fsync of 4 KB in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dspyer.stores import Store, open_store
from dspyer.stores.base import Change, Owner, Point, Row, RunRow
from dspyer.stores.content import Content
from dspyer.values.freezing import freeze

RUN = "0123456789abcdef"
MESSAGE = {"role": "user", "content": "A message as people write them, of a length as they often have. 12345"}


def change(seq: int, flush: bool = False) -> Change:
    row = Row(seq, "commit", {"id": f"trunk:{seq}", "node": "chat"}, Content(freeze({"messages": {"+": [MESSAGE]}})))
    return Change("t", 1, head=Point(RUN, seq), rows_of=RUN, rows=(row,), flush=flush)


def begin(store: Store) -> None:
    run = RunRow(RUN, "t", (), {"nodes": ["chat"]})
    store.write(Change("t", owner=Owner("host", 1, "", "token"), lease=30.0, run=run))


def times(work: Callable[[Any], object], arguments: Iterator[Any]) -> list[float]:
    taken = []
    for argument in arguments:
        start = time.perf_counter()
        work(argument)
        taken.append((time.perf_counter() - start) * 1e6)
    return taken


def show(title: str, taken: list[float]) -> None:
    taken.sort()
    median, mean, worst = statistics.median(taken), statistics.mean(taken), taken[len(taken) * 99 // 100]
    print(f"{title:<44} {median:>9.1f} {mean:>9.1f} {worst:>9.0f}")


def bare(folder: Path, count: int) -> list[float]:
    """A write and fsync of 4 KB, nothing else."""
    number = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT)

    def work(data: bytes) -> None:
        os.write(number, data)
        os.fsync(number)

    taken = times(work, (bytes(4096) for _ in range(count)))
    os.close(number)
    return taken


def measure(title: str, store: Store, count: int) -> None:
    begin(store)
    flushes = count // 10
    show(f"{title}: append", times(store.write, (change(seq) for seq in range(count))))
    show(f"{title}: append, flush", times(store.write, (change(seq, True) for seq in range(count, count + flushes))))
    show(f"{title}: read all {count + flushes:,} rows, a row", [read(store, count + flushes) for _ in range(5)])
    store.close()


def read(store: Store, count: int) -> float:
    (taken,) = times(store.rows, iter([RUN]))
    return taken / count


def main(addresses: list[str], count: int = 5_000) -> int:
    """Measures the store in memory, one in a file, and those at the addresses, which get a thread `t`."""
    print(f"{'µs':<44} {'median':>9} {'mean':>9} {'p99':>9}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure("memory", open_store(":memory:"), count)
        measure("SQLite", open_store(folder / "runs.db"), count)
        size = (folder / "runs.db").stat().st_size
        show("write and fsync of 4 KB", bare(folder, count // 10))
        values = (count + count // 10) * len(Content(freeze(MESSAGE)).data)
    for address in addresses:
        measure(address.partition(":")[0], open_store(address), count)
    print(f"SQLite file: {size / values:.2f} x the bytes of the messages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
