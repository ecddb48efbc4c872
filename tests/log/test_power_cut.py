"""A copy of an SQLite file with its log cut at any length after the last flush: a power cut."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dspyer.stores import SQLite
from dspyer.stores.base import Change
from tests.log.equality import outcome
from tests.log.failing import Crash
from tests.log.kinds import CALLS, KINDS
from tests.log.places import Whole, check_the_rest, start

HEADER, FRAME = 32, 4096 + 24


class Flushing(SQLite):
    """Notes how long its log was after the last write that was flushed, and may stop before a run says how it ended.

    How many writes there are until then differs: branches that end at once are written together.
    """

    flushed = 0
    stops = False

    def write(self, change: Change) -> int:
        if self.stops and change.lease == 0.0:
            raise Crash
        epoch = super().write(change)
        if change.flush:
            self.flushed = Path(f"{self.address}-wal").stat().st_size
        return epoch


@pytest.mark.parametrize("kind", ["fork", "subgraph", "Send", "map"])
def test_a_log_cut_at_any_length_is_a_prefix_and_resumes_to_the_same_end(kind: str, tmp_path: Path) -> None:
    store = Flushing(tmp_path / "runs.db")
    program = KINDS[kind].compile("sync", store)
    CALLS.take()
    whole = Whole(outcome(start(program.thread("whole"), "sync")), CALLS.take())
    store.stops = True
    with pytest.raises(Crash):
        start(program.thread("t"), "sync")
    base, log = (tmp_path / "runs.db").read_bytes(), (tmp_path / "runs.db-wal").read_bytes()
    store.close()
    rng = random.Random(kind)
    edges = range(HEADER + (store.flushed - HEADER) // FRAME * FRAME, len(log) + 1, FRAME)
    some = rng.sample(edges, min(len(edges), 10))
    cuts = {store.flushed, len(log), *some, *(rng.randrange(store.flushed, len(log)) for _ in range(4))}
    assert store.flushed < len(log)
    lengths = set()
    for cut in sorted(cuts):
        if cut < store.flushed:
            continue
        path = tmp_path / f"cut{cut}.db"
        path.write_bytes(base)
        Path(f"{path}-wal").write_bytes(log[:cut])
        with SQLite(path) as copied:
            row = copied.thread("t")
            assert row is not None
            assert row.head is not None
            lengths.add(row.head.seq)
            check_the_rest(KINDS[kind].compile("sync", copied), copied, "t", whole, "sync")
    assert len(lengths) > 3
