"""What a thread has come to, and why nothing can go on from there."""

from __future__ import annotations

from typing import NamedTuple

from dspyer.errors import OpenRunError, StoreError
from dspyer.persistence.reader import RunRows
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, ThreadRow


class ThreadHead(NamedTuple):
    """What a thread has come to.

    Attributes:
        row: where it stands.
        last: its last run, as far as it was read; None if it has none.
        state: the last state that all branches of it shared.
        first: the version that the next commit gets.
        tail: how many rows there are since the last snapshot.
        forms: what is known of the forms of its states.
        broken: why a commit cannot be read; "" if all can. State and version are those before it.
        good: the row of the last commit that can be read, if one cannot.
    """

    row: ThreadRow
    last: RunRows | None
    state: ImmutableState
    first: int
    tail: int = 0
    forms: SnapshotEncoder | None = None
    broken: str = ""
    good: Point | None = None

    @property
    def open(self) -> bool:
        """Whether its last run was not finished."""
        return self.last is not None and self.last.status != "completed"

    def open_error(self) -> OpenRunError:
        """The error that the last run was not finished."""
        status = self.last.status if self.last else None
        what = {"failed": "failed", "interrupted": "waits for answers", "stopped": "was stopped"}.get(
            str(status), "crashed"
        )
        return OpenRunError(
            f"the last run of thread {self.row.name!r} {what}: go on with it, t.resume(), or leave it, "
            "t.run(..., abandon=True)"
        )

    def broken_error(self) -> StoreError:
        """The error that a thread has a commit that nobody can read."""
        last = self.first - 1
        way_on = (
            f". What came before it can be read, t.history() and t.at(...); go on from version {last} with "
            f"t.run(..., abandon=True), or on a copy, t.copy(to=..., at={last})"
        )
        return StoreError(f"thread {self.row.name!r}: {self.broken}{way_on if last >= 0 else ''}")
