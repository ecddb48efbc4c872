"""What is measured of stored runs, with the design goals: `python -m bench --only stored`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

NAME = "Stored runs"
ABOUT = (
    'Runs on threads in a store. LangGraph uses its own savers, SQLite with `durability="sync"`; the row of the kill, '
    "its default. Each round begins with an empty file. In rows with the unit ×, the title names the ratio."
)


class Work(NamedTuple):
    """A row.

    Attributes:
        title: what is done.
        unit: of the figures.
        work: name of the workload.
        size: its arguments.
        rival: LangGraph's own arguments; None if it is not measured.
        goal: the design goal, in `unit`.
    """

    title: str
    unit: str
    work: str
    size: Mapping[str, Any]
    rival: Mapping[str, Any] | None
    goal: float


FILE = "runs.db"
FEW = {"steps": 200}
LOOP: dict[str, Any] = {"store": FILE, "steps": 2_000}
CHAT = {"messages": 2_000}
TEXT = {"size": 10_000_000, "steps": 20}
WORKS = (
    Work("stored: step of a loop, SQLite `sync`, async", "µs", "stored_loop", {**LOOP, "mode": "async"}, FEW, 100),
    Work(
        "stored: step of a loop, SQLite `flush`, above 1.5 × a bare write and fsync of 4 KB",
        "µs",
        "stored_loop",
        {**LOOP, "steps": 300, "durability": "flush"},
        None,
        60,
    ),
    Work("stored: step of a loop, SQLite, counted by metrics / not", "×", "metered", {"steps": 1_000}, None, 1.03),
    Work(
        "stored: 2,000 messages of 96 bytes, file / final value",
        "×",
        "message_bytes",
        {**CHAT, "when": "closed"},
        {"messages": 300},
        2.5,
    ),
    Work(
        "stored: the same, additional size while the store is open",
        "MiB",
        "message_bytes",
        {**CHAT, "when": "open"},
        None,
        4,
    ),
    Work("stored: 10 MB of text that no node touches, 20 steps, file / text", "×", "idle_bytes", TEXT, {}, 1.1),
    Work("stored: the median step with that text in the state / without it", "×", "idle_step", TEXT, None, 1.2),
    Work(
        "stored: a copy that changes one of 2,000 messages",
        "KiB",
        "fork_stored",
        {"items": 2_000, "forks": 100},
        {"forks": 5},
        1,
    ),
    Work("stored: head of 10,000 commits, 1,000 small keys", "ms", "head", {"commits": 10_000, "what": "n"}, None, 10),
    Work(
        "stored: head of 10,000 commits, 10,000 messages",
        "ms",
        "head",
        {"commits": 10_000, "what": "messages"},
        None,
        20,
    ),
    Work("archive: list of 1,000 threads", "ms", "archived", {"threads": 1_000, "what": "list"}, None, 200),
    Work("archive: a text in 1,000 runs", "ms", "archived", {"threads": 1_000, "what": "contains"}, None, 1_500),
    Work("archive: overview of 1,000 runs", "ms", "archived", {"threads": 1_000, "what": "overview"}, None, 300),
    *[
        Work(f"record of 10,000 steps: {what}", unit, "recorded", {"commits": 10_000, "what": what}, None, goal)
        for what, unit, goal in (("read", "ms", 1_700), ("JSON, gzip", "KiB", 150), ("compare", "ms", 1_000))
    ],
    *[
        Work(f"inspector: {what} of 10,000 steps", "ms", "inspected", {"commits": 10_000, "what": what}, None, goal)
        for what, goal in (("first page", 1_000), ("step", 300))
    ],
    Work("stored: kill -9 in step 11, steps lost of 10", "steps", "killed", {"steps": 10}, {}, 0),
)
