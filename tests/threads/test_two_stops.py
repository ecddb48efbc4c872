"""Two calls of `t.stop()` at once, and one that is cut short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dspyer.errors import ThreadError
from dspyer.persistence.journal import STOPPING
from dspyer.persistence.leases import leases
from dspyer.stores import Memory
from dspyer.stores.base import Change
from tests.threads.test_stop import Stage


class Interrupted(Memory):
    """Calls a function once, before a write: of the new owner of a thread, or of the end of its run."""

    before: Callable[[], None] | None = None
    at = ""
    calls = 0

    def write(self, change: Change) -> int:
        """Writes a change."""
        found = (
            "fence" if change.owner is not None else "end" if [row for row in change.rows if row.kind == "end"] else ""
        )
        if self.before is not None and found == self.at:
            call, self.before = self.before, None
            self.calls += 1
            call()
        return super().write(change)


@pytest.mark.parametrize("at", ["fence", "end"])
def test_two_stops_at_once(at: str) -> None:
    """The run is stopped once; the call that finds nothing more to do says so, as it would after the other one."""
    store: Any = Interrupted()
    stage = Stage("sync", store)
    running = stage.start()
    t = stage.program.thread("t")
    store.at, store.before = at, stage.program.thread("t").stop
    if at == "fence":  # the other call is faster from the beginning
        with pytest.raises(ThreadError, match="nothing to stop"):
            t.stop()
    else:
        t.stop()
    assert t.status == "stopped"
    assert store.calls == 1
    assert not [token for token in leases._tokens if token.startswith(STOPPING)]
    stage.go_on.set()
    running.join(20)
    assert stage.runs[0].status == "stopped"
    assert t.resume().state["log"] == ["first", "slow", "late"]


def test_a_stop_that_is_cut_short_has_fenced_the_run() -> None:
    """By Ctrl-C, before the end of the run is written: the run commits nothing more, and nobody owns the thread."""
    store: Any = Interrupted()
    stage = Stage("sync", store)
    running = stage.start()

    def crash() -> None:
        raise KeyboardInterrupt

    t = stage.program.thread("t")
    store.at, store.before = "end", crash
    with pytest.raises(KeyboardInterrupt):
        t.stop()
    stage.go_on.set()
    running.join(20)
    assert (stage.runs[0].status, stage.calls, t.status) == ("failed", ["first", "slow"], "crashed")
    assert t.resume().state["log"] == ["first", "slow", "late"]
