"""How a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any, NamedTuple

from dspyer.patch import DELETE, Replace, diff_value
from dspyer.running.sight import EarlierCommits
from dspyer.scheduler.run_state import RunState
from dspyer.scheduler.schedule import start
from dspyer.scheduler.topology import Topology
from dspyer.state import ImmutableState


class RunStart(NamedTuple):
    """How a run begins.

    Attributes:
        run: the run before its first commit; one that is taken up again has its commits already.
        patch: the patch of its first commit.
        state: the state after that.
        run_id: its id.
        label: a name of the run that is the same however often it is taken up; in front of what is named after its
            commits. Empty for a run that is not stored.
        earlier: what lies behind it; None for nothing.
        taken: what stands before the ids of the commits that it has already, which are named after the part of the run
            that has made them; with the place at which the next part begins.
    """

    run: RunState
    patch: Mapping[str, Any]
    state: ImmutableState
    run_id: str
    label: tuple[str, ...] = ()
    earlier: EarlierCommits | None = None
    taken: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, topology: Topology, state: ImmutableState) -> RunStart:
        """A run of its own, with the state that its inputs make."""
        patch = {name: diff_value(DELETE, value) for name, value in state.raw_items()}
        return cls(start(topology), patch, state, token_hex(16))

    def to_replay(self) -> RunStart:
        """The same with a patch that can be folded again: the whole values of fields with a reducer are no updates."""
        reducer = self.run.topology.schema.reducer
        patch = {
            name: update if reducer(name) is None else Replace(self.state.raw(name))
            for name, update in self.patch.items()
        }
        return self._replace(patch=patch)
