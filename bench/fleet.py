"""`python -m bench.fleet`: what a fleet on one PostgreSQL carries, undisturbed and with workers that are killed.

Three workers run the tasks of `examples/fleet_tasks.py`; their program has four nodes that sleep. All requests
come at once, each on a thread of its own; the latency of one is from there to the end of its last node.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.forkserver import set_forkserver_preload
from pathlib import Path
from typing import Any

from tests.fleet.fleet import Fleet, fleet
from tests.stores import postgres_server

WORKERS = 3
NODES = 4
COLUMNS = ("", "runs/s", "latency median", "max", "kills", "called again", "deliveries")
LINE = "{:<44} {:>7} {:>15} {:>7} {:>6} {:>13} {:>11}"


@dataclass(frozen=True)
class Load:
    """What a fleet is given, and what is done to it.

    Attributes:
        title: the row of the table.
        seconds: how long a node takes.
        kills: how many workers are killed.
        at_once: the jobs that a worker runs at once.
        lease: the seconds of a lease, with a host name for each worker; None for one host.
    """

    title: str
    seconds: float
    kills: int = 0
    at_once: int = 8
    lease: float | None = None


LOADS = [
    Load("nodes of 20 ms, 8 runs at once in a worker", 0.02),
    Load("nodes of 250 ms, 8 at once", 0.25),
    Load("nodes of 250 ms, 32 at once", 0.25, at_once=32),
    Load("nodes of 250 ms, workers killed", 0.25, kills=12),
    Load("the same, each worker on a host of its own", 0.25, kills=8, lease=30.0),
]


def measure(load: Load, server: str, runs: int) -> str:
    """A row: every request must have become one completed run."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"seconds": load.seconds, "lease": load.lease, "at_once": load.at_once, "ask": False}
        with fleet(server, Path(folder), silence=10.0 if load.lease else 2.0, wait=5, **options) as made:
            made.start(WORKERS)
            made.defer("advance", "first", key="-", inputs={"number": -1})
            made.wait_for_jobs(600)  # the workers have started
            names = [f"order-{number}" for number in range(runs)]
            jobs = [{"thread": name, "key": "-", "inputs": {"number": number}} for number, name in enumerate(names)]
            begun = time.time()
            made.queue.configure_task("fleet_tasks.advance").batch_defer(*jobs)
            kill_some(made, load.kills, runs)
            made.wait_for_jobs(600)
            return row(load, made, names, begun)


def kill_some(made: Fleet, kills: int, runs: int) -> None:
    """Kills workers at calls that are spread over the runs, and starts others."""
    chance = random.Random(0)
    for number in range(kills):
        made.wait_for(lambda calls=NODES * runs * number // (kills + 2) + 20: len(made.calls()) >= calls)
        made.kill(chance.choice(made.workers))
        made.start()


def row(load: Load, made: Fleet, names: list[str], begun: float) -> str:
    ends, nodes = {}, 0
    for name in names:
        commits = made.program.thread(name).history()
        if [commit.node for commit in commits] != ["START", "read", "check", "pay", "send"]:
            raise RuntimeError(f"{name}: {[commit.node for commit in commits]}")
        ends[name] = commits[-1].ended
        nodes += len(commits) - 1
    calls = Counter(note.thread for note in made.calls() if note.what != "transfer")
    calls.pop("first")
    latencies = sorted(end - begun for end in ends.values())
    jobs = list(made.queue.job_manager.list_jobs(task="fleet_tasks.advance"))
    if {job.status for job in jobs} != {"succeeded"}:
        raise RuntimeError(str(Counter(job.status for job in jobs)))
    return LINE.format(
        load.title,
        f"{len(names) / latencies[-1]:.0f}",
        f"{statistics.median(latencies):.2f} s",
        f"{latencies[-1]:.1f} s",
        load.kills,
        f"{calls.total() - nodes} of {nodes}",
        max(job.attempts for job in jobs),
    )


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="requests of each row")
    parser.add_argument("--rows", nargs="*", type=int, default=list(range(len(LOADS))), help="which rows")
    chosen = parser.parse_args()
    set_forkserver_preload(["dspyer.testing", "tests.fleet.fleet"])
    print(LINE.format(*COLUMNS), flush=True)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        postgres_server.server(Path(folder) / "postgres") as server,
    ):
        for number in chosen.rows:
            print(measure(LOADS[number], server, chosen.runs), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
