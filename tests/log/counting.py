"""A store that counts what is read."""

from __future__ import annotations

from dspyer.stores import Memory
from dspyer.stores.base import Point, Row, Snapshot


class Counting(Memory):
    """Counts the rows and snapshots that are read."""

    read = 0

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        self.read += len(found)
        return found

    def snapshot(self, at: Point) -> Snapshot | None:
        self.read += 1
        return super().snapshot(at)
