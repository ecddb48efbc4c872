"""Data of the store tests: values beyond plain JSON, changes that write them, and dumps to compare stores by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from types import MappingProxyType
from typing import Any

from dspyer.errors import ConcurrentRunError
from dspyer.extend import freeze
from dspyer.stores import Memory, Store
from dspyer.stores.base import Change, DeletionReport, Owner, Point, Row, RunRow, ThreadRow
from dspyer.stores.content import MAX_INLINE, Content

BLOB = "blob \x00 \u2603 " * MAX_INLINE
"""A text that is too long for its row."""

OTHER_BLOB = bytes(range(256)) * MAX_INLINE
"""Bytes that are too long for their row."""

NAMES = (
    "thread",
    "Thread",
    "thread ",
    "a/b\\c?d#e",
    "100%_*[x]",
    "'; DROP TABLE thread; --",
    '"quoted"',
    "line\nline\ttab\r",
    "\x00zero\x00",
    "é",
    "e\u0301",
    "\u05e9\u05dc\u05d5\u05dd",
    "日本語",
    "\U0001f600\U0010ffff",
    "n" * 1_000,
)
"""Names of threads that careless encoding, collation or quoting would mix up."""


def _nested(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = {"below": value} if level % 2 else [value]
    return value


# By what a store may do to the bytes of a content: a value of any other class is an object with a tag, as a set is.
VALUES: Mapping[str, Any] = MappingProxyType(
    {
        "None": [None, True, False],
        "integers": [0, -1, 2**31, 2**63, -(2**64), 3**9_000],
        "floats": [0.1, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")],
        "text": 'text "quoted" \\ \u2603 \U0001f600 \x00 \u2028',
        "empty": ["", b"", [], {}, (), set()],
        "lone surrogates": ["\ud800", "\udc00\ud800", {"\udfff": "\ud800x"}],
        "mapping in its order": {"b": 1, "a": 2, "": 3},
        "keys that are no text": {1: "a", None: "b", (1, b"x"): "c", 1.5: "d"},
        "looks encoded": {"$type": "set", "value": [{"$type": "blob text", "value": "0" * 32}]},
        "tuples and sets": (1, ([2], {"a": (3,)}), {1, "a", (2, "b")}, frozenset({1})),
        "many": {f"key {n}": [n, str(n)] for n in range(2_000)},
        "deep": _nested(90),
        "long text": BLOB,
        "long bytes": OTHER_BLOB,
        "long text of surrogates": "\ud800" * (MAX_INLINE + 1),
        "long ones inside": {"a": [BLOB, {"b": OTHER_BLOB}], "c": BLOB, "d": "short"},
    }
)
"""Values by name."""


def owner(token: str = "first") -> Owner:
    """An owner; two with the same token are equal."""
    return Owner("host.example", 4711, "2026-01-02T03:04:05", token)


def content(value: Any) -> Content:
    """A content, made as a run makes it."""
    return Content(freeze(value))


def row(seq: int, value: Any = None) -> Row:
    """A row whose header has JSON values of every type."""
    return Row(
        seq, "commit", {"id": f"trunk:{seq}", "x": [None, True, 0.5], "y": {"k": "\u2603"}}, content({"v": value})
    )


def rows(count: int, first: int = 0) -> list[Row]:
    """Rows with consecutive numbers."""
    return [row(seq, seq) for seq in range(first, first + count)]


def begin(thread: str, run: str, count: int, *parents: Point, epoch: int = 0) -> Change:
    """The first change of a run with `count` rows: it creates the thread, or claims it if `epoch` is given."""
    return Change(
        thread,
        epoch,
        epoch + 1 if epoch else None,
        owner(run),
        30.0,
        Point(run, count - 1) if count else None,
        run=RunRow(
            run, thread, parents, {"nodes": ["a", "b"], "graph": {"fields": {"x": "\u2603"}}, "started": float(epoch)}
        ),
        rows_of=run,
        rows=rows(count),
    )


def append(thread: str, run: str, first: int, count: int = 1, epoch: int = 1, value: Any = None) -> Change:
    """Further rows of a run; the thread's head moves to the last of them."""
    new = [row(seq, seq if value is None else value) for seq in range(first, first + count)]
    return Change(thread, epoch, head=Point(run, first + count - 1), rows_of=run, rows=new)


def thread_of(store: Store, name: str) -> ThreadRow:
    """The row of a thread, which must exist."""
    found = store.thread(name)
    assert found is not None, f"no thread {name!r}"
    return found


def dump(store: Store, *runs: str) -> dict[str, Any]:
    """All that can be read from a store, as plain values to compare: `runs` names runs that may belong to no thread."""
    threads = {name: store.thread(name) for name in store.threads()}
    found = {run.id for name in threads for run in store.runs(name)} | {
        point.run for thread in threads.values() if thread for point in (thread.head, thread.root) if point
    }
    seen: dict[str, Any] = {}
    waiting = sorted(found | set(runs))
    while waiting:
        name = waiting.pop()
        run = store.run(name)
        if name in seen:
            continue
        seen[name] = None
        if run is not None:
            entries = [
                (entry.seq, entry.kind, entry.header, readable(store, entry.content)) for entry in store.rows(name)
            ]
            found_at = {seq: store.snapshot(Point(name, seq)) for seq, *_ in entries}
            shots = {seq: (one.at, readable(store, one.content)) for seq, one in found_at.items() if one is not None}
            seen[name] = (run.thread, run.parents, dict(run.header), entries, shots)
            waiting.extend(point.run for point in run.parents)
    return {
        "threads": {name: thread and thread._replace(lease=thread.lease > 0) for name, thread in threads.items()},
        "runs": seen,
        "runs of threads": {name: sorted([run.id for run in store.runs(name)]) for name in threads},
    }


def readable(store: Store, stored: Content | None) -> Any:
    """The bytes of a content and of its blobs."""
    if stored is None:
        return None
    blobs = blobs_of(store, stored)
    return stored.data, [blobs[name] for name in stored.refs]


def blobs_of(store: Store, stored: Content) -> dict[str, bytes]:
    """The blobs of a content by id: its own, and those in the store."""
    return {**stored.blobs, **store.blobs(stored.refs)}


def try_to(change: Callable[[], object]) -> None:
    """Change something in place, unless it is immutable."""
    try:
        change()
    except (TypeError, AttributeError):
        return


def counts_of(report: DeletionReport) -> tuple[object, ...]:
    """A report as a tuple with its names in order."""
    kept = {name: tuple(sorted(runs)) for name, runs in report.kept.items()}
    return tuple(sorted(report.threads)), report.runs, report.rows, kept, tuple(sorted(report.busy))


Step = Change | Callable[[Store], object]
"""A change to write, or another call of a store, with what it returns of its answer."""


def deleting(*names: str, busy: str = "") -> Step:
    """A deletion of threads, but the one that `busy` names."""
    return lambda store: counts_of(store.delete(names, lambda thread: thread.name == busy))


def pruning(name: str) -> Step:
    """A deletion of what a thread does not reach."""
    return lambda store: counts_of(store.delete_unreachable(name))


DROP_SNAPSHOTS: Step = methodcaller("drop_snapshots")
VACUUM: Step = methodcaller("vacuum")


def play(store: Store, *steps: Step) -> None:
    """Do steps with an empty store and with one in memory: each has one outcome in both, and leaves the same behind.

    `Memory` is tested against a model of its own.
    """
    reference, runs, ids = Memory(), set[str](), set[str]()
    for number, step in enumerate(steps):
        if isinstance(step, Change):
            runs |= {step.rows_of} | ({step.run.id} if step.run else set())
            contents = [entry.content for entry in step.rows] + ([step.snapshot.content] if step.snapshot else [])
            ids |= {name for stored in contents if stored for name in stored.refs}
        # After each step, and not at the end: what one step has broken another may hide.
        wanted, found = outcome(reference, step), outcome(store, step)
        assert found == wanted, f"step {number}, {step}: {found}, where a store in memory says {wanted}"
        there, left = (({*one.blobs(ids)}, dump(one, *runs)) for one in (store, reference))
        assert there == left, f"step {number}, {step}, has left something else behind"


def outcome(store: Store, step: Step) -> object:
    """Return what a call of a store returns, or the kind of error with which it is refused."""
    try:
        return store.write(step) if isinstance(step, Change) else step(store)
    except (ConcurrentRunError, ValueError) as error:
        return ConcurrentRunError if isinstance(error, ConcurrentRunError) else ValueError
