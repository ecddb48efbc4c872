"""The digest of what a run has written: the row of its end carries it, and `thread.replay()` compares it.

It is a hash over the rows of the run in order, as they are stored. So it costs what is written, whatever the size of
the state. The state at the end follows from the rows, by the folds that readers make.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b

from dspyer.stores.base import Row

_dump = json.JSONEncoder(separators=(",", ":")).encode


class RowDigest:
    """A hash of rows, to which later ones are added. It encodes their contents, unless that is done already."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._hash = blake2b(digest_size=16)
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Add the next rows."""
        for row in rows:
            data = b"" if row.content is None else row.content.data
            self._hash.update(f"{row.seq} {row.kind} {_dump(row.header)} {len(data)} ".encode())
            self._hash.update(data)

    def followed_by(self, rows: Iterable[Row]) -> str:
        """Return the digest of the rows so far and these."""
        copy = RowDigest()
        copy._hash = self._hash.copy()
        copy.add(rows)
        return copy._hash.hexdigest()
