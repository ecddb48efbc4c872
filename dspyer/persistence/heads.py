"""Remembered heads: the ends of histories that this process has written, so that its next turn reads none of them.

A store object carries what this process has written to it. A remembered head counts only if the row of the thread still
names it, under the fencing token with which it was written: so what another process has written is always read. Any
failure of the store forgets all of them, as does a deletion.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from dspyer.persistence.snapshots import SinceSnapshot
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Store, ThreadRow

if TYPE_CHECKING:  # journals import this module, and nodes import journals
    from dspyer.persistence.reader import RunRows

MOST = 1_000
"""Heads that are remembered for a store; of more, those that were written longest ago are forgotten."""


class Head(NamedTuple):
    """The end of a thread's history, as a completed run has left it.

    Attributes:
        at: its last row.
        epoch: the fencing token under which that was written.
        model: the class of the states of the graph that wrote it: another graph may read the values as other classes.
        last_run: the run, with its last row alone.
        state: the state.
        next_version: the version of the next commit.
        tail: what was written since the last snapshot.
    """

    at: Point
    epoch: int
    model: type | None
    last_run: RunRows
    state: ImmutableState
    next_version: int
    tail: SinceSnapshot


class Heads:
    """The heads of the threads of one store, to which it does not refer. A pickle and a forked process have none."""

    def __init__(self) -> None:
        self.forget()

    @classmethod
    def of(cls, store: Store) -> Heads:
        """Return those of a store object."""
        kept = vars(store)
        found: Heads = kept.get("_dspyer_heads") or kept.setdefault("_dspyer_heads", cls())
        return found

    def get(self, row: ThreadRow, model: type | None) -> Head | None:
        """Return the head of a thread, if this process has written what its row names."""
        found = self._heads.get(row.name) if self._process == os.getpid() else None
        if found is None or (found.at, found.epoch) != (row.head, row.epoch) or found.model is not model:
            return None
        return found

    def put(self, thread: str, head: Head) -> None:
        """Remember the head of a thread."""
        if self._process != os.getpid():
            self.forget()
        with self._lock:
            self._heads[thread] = head
            self._heads.move_to_end(thread)
            if len(self._heads) > MOST:
                self._heads.popitem(last=False)

    def forget(self) -> None:
        """Forget all heads."""
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._lock = Lock()  # after a fork the old one may be held for good
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[Heads], tuple[()]]:
        return Heads, ()
