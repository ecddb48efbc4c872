"""A model of a store in plain dicts, as simple as possible, which shares no code with the stores."""

from __future__ import annotations

import copy
from typing import Any

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point, Row, RunRow


class Model:
    """A store of plain dicts. Rows are pairs of kind and bytes."""

    def __init__(self) -> None:
        self.threads: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.fence = 0

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
        if not change.epoch:
            thread["epoch"] = self.fence + 1
        elif change.next_epoch is not None:
            if change.next_epoch <= change.epoch:
                raise ValueError(change.next_epoch)
            thread["epoch"] = change.next_epoch
        thread["runs"] += change.runs + self._begin(change.run)
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

    def _begin(self, run: RunRow | None) -> bool:
        """Create a run; return whether it is new."""
        if run is None or run.id in self.runs:
            if run is not None and self.runs[run.id]["parents"] != run.parents:
                raise ConcurrentRunError(run.id)
            return False
        self.runs[run.id] = {"thread": run.thread, "parents": run.parents, "rows": {}, "snapshots": set()}
        return True

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
        after = change.epoch and (change.next_epoch or change.epoch)
        owner = change.owner if change.lease else None
        rows = self.runs.get(change.rows_of, {"rows": {}})["rows"]
        return (
            (not after or there["epoch"] == after)
            and bool(change.rows or change.run or owner)
            and (owner is None or there["owner"] == owner)
            and (change.head is None or there["head"] == change.head)
            and (change.run is None or self.runs.get(change.run.id, {}).get("parents") == change.run.parents)
            and all(rows.get(row.seq) == _plain(row) for row in change.rows)
        )

    def delete(self, name: str | None) -> None:
        """Delete a thread and what only it reaches; without a name, all that no thread reaches."""
        near = set(self.runs) if name is None else self._near(name)
        thread = self.threads.get(name or "")
        if thread is not None:
            self.fence = max(self.fence, thread["epoch"])
            del self.threads[name or ""]
        for run in near:
            if name is not None and self.runs[run]["thread"] == name:
                self.runs[run]["thread"] = ""
        self._keep(self._reached(set()), near)

    def _near(self, name: str) -> set[str]:
        """The runs behind a thread, and those that continue one of them."""
        head = self.threads.get(name, {"head": None})["head"]
        near = {run for run, parts in self.runs.items() if parts["thread"] == name} | ({head.run} if head else set())
        near = {run for run in near if run in self.runs and not self._is_held(run, name)}
        while True:
            found = {parent.run for run in near for parent in self.runs[run]["parents"]} & self.runs.keys()
            found = {run for run in found if not self._is_held(run, name)} - near
            if not found:
                break
            near |= found
        while True:
            found = {
                run for run, parts in self.runs.items() if {parent.run for parent in parts["parents"]} & near
            } - near
            if not found:
                return near
            near |= found

    def _is_held(self, run: str, name: str) -> bool:
        thread = self.threads.get(self.runs[run]["thread"])
        return thread is not None and self.runs[run]["thread"] != name and thread["root"] is None

    def delete_unreachable(self, name: str) -> None:
        near = self._near(name)
        thread = self.threads.get(name, {"head": None, "root": None})
        inside = self._walk(thread["head"], thread["root"])
        own = {run for run, parts in self.runs.items() if name in self.threads and parts["thread"] == name}
        self._keep(self._reached(own), near)
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

    def _keep(self, reached: set[tuple[str, int | None]], near: set[str]) -> None:
        self.runs = {run: parts for run, parts in self.runs.items() if (run, None) in reached or run not in near}
        for run in near & self.runs.keys():
            parts = self.runs[run]
            for seq in [seq for seq in parts["rows"] if (run, seq) not in reached]:
                del parts["rows"][seq]
                parts["snapshots"].discard(seq)


def _plain(row: Row) -> tuple[str, bytes]:
    return row.kind, row.content.data if row.content else b""
