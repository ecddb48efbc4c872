"""Snapshots: the state of a run at one of its rows, so that recovery folds only the log behind it.

A snapshot is one body: the JSON of the state, with long texts and bytes as blobs. It is taken when a single branch is
active and enough was written since the last one (`SinceSnapshot`). It is a cache: a missing or unreadable one costs
time, and nothing else. `recovery` reads the log from the last snapshot on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from dspyer.errors import StateError, StoreError
from dspyer.persistence.rows import RowKind
from dspyer.record_codec import DecodeValue
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, Store
from dspyer.stores.content import Content, Fetch, ReadBudget, extract_blobs, insert_blobs
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict
from dspyer.values.json import TAG
from dspyer.values.scalars import SCALARS

EVERY = 480
"""Rows since the last snapshot from which on a run takes one as soon as a single branch is active."""

AT_END = 100
"""Rows since the last snapshot from which on a run takes one when it ends."""

TIMES, TIMES_AT_END = 4, 1
"""How many times the bytes of the last snapshot the rows since then must have, in a run and at its end.

So all snapshots of a thread together take a share of its log, however large the state grows; and what a reader folds
behind a snapshot is fewer than `EVERY` rows, or in proportion to the snapshot, which it reads anyway.
"""

ROW = 64
"""Bytes that a row counts for beside its content."""

logger = logging.getLogger("dspyer")

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, StateError)


class SinceSnapshot(NamedTuple):
    """What was written since the last snapshot: it decides whether the next one is due.

    Attributes:
        rows: how many rows, without those of LM calls, which no state is computed of.
        size: about how many bytes they have as JSON. A store in memory encodes no row: there a snapshot costs nothing.
        snapshot: how many bytes of JSON the last snapshot has; 0 without one.
    """

    rows: int = 0
    size: int = 0
    snapshot: int = 0

    def with_rows(self, rows: Sequence[Row]) -> SinceSnapshot:
        """Return it with some rows more."""
        count, size, snapshot = self
        for row in rows:
            if row.kind != RowKind.LM_CALL:
                content = row.content
                count += 1
                size += ROW if content is None or not content.is_encoded else ROW + len(content.data)
        return SinceSnapshot(count, size, snapshot)

    def snapshot_is_due(self, more: int, ended: bool = False) -> bool:
        """Return whether to take a snapshot with so many rows more, which may end the run."""
        least, times = (AT_END, TIMES_AT_END) if ended else (EVERY, TIMES)
        return self.rows + more >= least and self.size >= times * self.snapshot


class SnapshotState(NamedTuple):
    """The state of a run at a row at which a single branch was active.

    Attributes:
        state: the state.
        commit_index: the index of the last commit among those of the run.
        commit: the global id of that commit.
    """

    state: ImmutableState
    commit_index: int
    commit: str = ""


class LoadedSnapshot(NamedTuple):
    """A snapshot that was read: its row, its state, and how many bytes of JSON it has."""

    at: Point
    content: SnapshotState
    size: int


class SnapshotContent(Content):
    """The content of a snapshot: it is encoded when a store asks for its bytes."""

    __slots__ = ()

    @property
    def data(self) -> bytes:
        """The bytes: JSON, which a store compresses with the body."""
        if self._data is None:
            blobs: dict[str, bytes] = {}
            state, index, commit = self._value
            self._data = _dump([index, commit, extract_blobs(encoding.encode(state), blobs)]).encode()
            self._refs, self._blobs = tuple(blobs), blobs
        return self._data


def latest_snapshot(store: Store, at: Point, decode: DecodeValue) -> LoadedSnapshot | None:
    """Return the last readable snapshot of a run at or before a row."""
    while at.seq >= 0:
        found = store.snapshot(at)
        if found is None:
            return None
        try:
            return LoadedSnapshot(found.at, *_read(found.content, store.blobs, decode))
        except _UNREADABLE as error:
            logger.warning("the snapshot at row %d of run %s is skipped: %s", found.at.seq, at.run, error)
        at = Point(at.run, found.at.seq - 1)
    return None


def check_snapshot(content: Content, fetch: Fetch, decode: DecodeValue) -> None:
    """Raise `StoreError` if a snapshot cannot be read: pruning deletes the log that it replaces."""
    try:
        _read(Content.stored(content.data, content.refs), fetch, decode)
    except _UNREADABLE as error:
        raise StoreError(f"the snapshot at which the pruned history begins cannot be read: {error}") from error


def _read(content: Content, fetch: Fetch, decode: DecodeValue) -> tuple[SnapshotState, int]:
    if not content.is_encoded:  # of a store in memory: the state itself
        kept: SnapshotState = content.value(fetch)
        return kept, 0
    budget = ReadBudget()
    text = budget.spend(content.data)
    try:
        commit_index, commit, encoded = json.loads(text)
        if content.refs:
            encoded = insert_blobs(encoded, fetch(content.refs), budget)
        state = ImmutableState(_load(encoded, decode))
    except RecursionError:
        raise StateError("its JSON is nested too deep") from None
    return SnapshotState(state, commit_index, commit), len(text)


def _load(encoded: Any, decode: DecodeValue) -> Any:
    """Decode a value. Mappings and lists of mappings mostly hold scalars, which are frozen as they are."""
    if type(encoded) is list:
        return decode([_freeze_flat(item) for item in encoded])
    if type(encoded) is dict and TAG not in encoded:
        return freeze({key: _load(item, decode) for key, item in encoded.items()})
    return decode(encoded)


def _freeze_flat(encoded: Any) -> Any:
    """Freeze a mapping of scalars without decoding it: long lists mostly hold such mappings."""
    if type(encoded) is dict and TAG not in encoded and SCALARS.issuperset(map(type, encoded.values())):
        return FrozenDict.from_scalars(encoded)
    return encoded
