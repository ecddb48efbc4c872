"""What a store does, said as simply as it can be: plain dicts, nothing shared with the stores."""

from __future__ import annotations

import copy
from typing import Any

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point, Row


class Model:
    """A store of plain dicts. Rows are pairs of kind and bytes."""

    def __init__(self) -> None:
        self.threads: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}

    def write(self, change: Change) -> None:
        before = copy.deepcopy((self.threads, self.runs))
        try:
            self._write(change)
        except (ConcurrentRunError, ValueError):
            self.threads, self.runs = before
            raise

    def _write(self, change: Change) -> None:
        if change.thread:
            there = self.threads.get(change.thread)
            if (there["epoch"] if there else 0) != change.epoch:
                if there is None or not self._is_written(change, there):
                    raise ConcurrentRunError(change.thread)
                return
        thread = self.threads.setdefault(
            change.thread, {"head": None, "root": None, "owner": None, "epoch": 0, "runs": 0}
        )
        thread["epoch"] = change.next_epoch if change.next_epoch is not None else max(thread["epoch"], 1)
        if change.run is not None:
            if change.run.id in self.runs:
                if self.runs[change.run.id]["parents"] != change.run.parents:
                    raise ConcurrentRunError(change.run.id)
            else:
                parts = {"thread": change.run.thread, "parents": change.run.parents, "rows": {}, "snapshots": set()}
                self.runs[change.run.id] = parts
                thread["runs"] += 1
        for row in change.rows:
            self._write_row(change.rows_of, row)
        for point in (change.head, change.root, change.snapshot and change.snapshot.at):
            if point is not None and point.run not in self.runs:
                raise ValueError(point)
        if change.snapshot is not None:
            self.runs[change.snapshot.at.run]["snapshots"].add(change.snapshot.at.seq)
        thread["head"] = change.head or thread["head"]
        thread["root"] = change.root or thread["root"]
        if change.lease is not None:
            thread["owner"] = (change.owner or thread["owner"]) if change.lease > 0 else None
        if not change.thread:
            del self.threads[""]

    def _write_row(self, run: str, row: Row) -> None:
        if run not in self.runs:
            raise ValueError(run)
        rows = self.runs[run]["rows"]
        if row.seq <= max(rows, default=-1):
            if rows.get(row.seq) != _plain(row):
                raise ConcurrentRunError(run)
        elif row.seq != max(rows, default=-1) + 1:
            raise ValueError(row.seq)
        rows[row.seq] = _plain(row)

    def _is_written(self, change: Change, there: dict[str, Any]) -> bool:
        after = change.next_epoch if change.next_epoch is not None else max(change.epoch, 1)
        owner = change.owner if change.lease else None
        rows = self.runs.get(change.rows_of, {"rows": {}})["rows"]
        return (
            there["epoch"] == after
            and bool(change.rows or change.run or owner)
            and (owner is None or there["owner"] == owner)
            and (change.head is None or there["head"] == change.head)
            and (change.run is None or self.runs.get(change.run.id, {}).get("parents") == change.run.parents)
            and all(rows.get(row.seq) == _plain(row) for row in change.rows)
        )

    def remove(self, name: str) -> None:
        self.threads.pop(name, None)
        for run in self.runs.values():
            if run["thread"] == name:
                run["thread"] = ""
        self._keep(self._reached(set()))

    def disown(self, name: str) -> None:
        thread = self.threads.get(name, {"head": None, "root": None})
        inside = self._walk(thread["head"], thread["root"])
        own = {run for run, parts in self.runs.items() if name in self.threads and parts["thread"] == name}
        self._keep(self._reached(own))
        for run in own & self.runs.keys():
            if (run, None) not in inside:
                self.runs[run]["thread"] = ""

    def drop_snapshots(self) -> None:
        roots = {thread["root"] for thread in self.threads.values()}
        for run, parts in self.runs.items():
            parts["snapshots"] = {seq for seq in parts["snapshots"] if Point(run, seq) in roots}

    def _reached(self, without: set[str]) -> set[tuple[str, int | None]]:
        """Rows that threads reach, and runs as rows without number; runs in `without` do not count as made."""
        found: set[tuple[str, int | None]] = set()
        for name, thread in self.threads.items():
            found |= self._walk(thread["head"], thread["root"])
            for run, parts in self.runs.items():
                if parts["thread"] == name and run not in without:
                    found |= self._walk(Point(run, max(parts["rows"], default=-1)), thread["root"])
        return found

    def _walk(self, at: Point | None, root: Point | None) -> set[tuple[str, int | None]]:
        """From a row back to the root, or to the first."""
        if at is None or at.run not in self.runs:
            return set()
        found: set[tuple[str, int | None]] = {(at.run, None)}
        for seq in range(at.seq, -1, -1):
            found.add((at.run, seq))
            if root == Point(at.run, seq):
                return found
        for parent in self.runs[at.run]["parents"]:
            found |= self._walk(parent, root)
        return found

    def _keep(self, reached: set[tuple[str, int | None]]) -> None:
        self.runs = {run: parts for run, parts in self.runs.items() if (run, None) in reached}
        for run, parts in self.runs.items():
            for seq in [seq for seq in parts["rows"] if (run, seq) not in reached]:
                del parts["rows"][seq]
                parts["snapshots"].discard(seq)


def _plain(row: Row) -> tuple[str, bytes]:
    return row.kind, row.content.data if row.content else b""
