"""Whether a graph fits what a thread holds: it goes on with a run of another graph only where that is allowed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from dspyer.errors import ChangedGraphError, ThreadError, suggestion
from dspyer.graph.spec import GraphSpec
from dspyer.patch import DELETE, Replace
from dspyer.persistence.reader import HistoryReader, RunRows, rename_nodes
from dspyer.persistence.replay import update_commit
from dspyer.persistence.rows import CommitContent, NewRow, RowKind, manual_commit_row
from dspyer.runtime.session import RunStart
from dspyer.scheduler.run_state import active_branches
from dspyer.scheduler.schedule import amend
from dspyer.state import ImmutableState
from dspyer.threads.changes import AllowChanged, NodeNames, changed_fields, changed_graph, changes
from dspyer.threads.migrating import Adapted, adapt
from dspyer.threads.shape import GraphFingerprint, in_common

AUTHOR = "migrate"
"""The author of the commit with which a state is made to fit."""


class Renamed(NamedTuple):
    """A run that another graph goes on with.

    Attributes:
        run: the run, with the names that nodes have now.
        names: new names by old ones; None if it is the same graph.
    """

    run: RunRows
    names: NodeNames | None


class GraphCompatibility:
    """Compares the graph with those that made the runs of one thread.

    Args:
        thread: the name of the thread.
        blueprint: the graph.
        shape: its shape.
        reader: reads the thread.
    """

    def __init__(self, thread: str, blueprint: GraphSpec, shape: GraphFingerprint, reader: HistoryReader) -> None:
        self.thread = thread
        self.blueprint = blueprint
        self.shape = shape
        self.reader = reader

    @property
    def beside(self) -> Mapping[str, bytes]:
        """What a run that begins stores of its graph: once, however many runs there are."""
        return {self.shape.id: self.shape.data}

    def changed(self, last: RunRows | None) -> bool:
        """Whether the graph is another one than that of the last run."""
        return last is not None and last.shape not in ("", self.shape.id)

    def check_graph(self, last: RunRows | None) -> None:
        """Refuses a thread whose last run was made by a graph of another name.

        A name that was given tells graphs apart. One that comes from the schema, or none, does not: it changes when a
        class is renamed, and two graphs may have the same. There they are different graphs if they have nothing in
        common, no node and no field: whatever a graph becomes over time, it is not that.

        Args:
            last: the last run; None if there is none.

        Raises:
            ChangedGraphError: if it was another graph, with both names.
        """
        if last is None:
            return
        graph, header = self.blueprint, last.run.header
        name, named = str(header.get("graph", graph.name)), bool(header.get("named"))
        if name in graph.shares_threads_with or (name == graph.name and (named or graph.named)):
            return
        other = f"graph {name!r}"
        if not (named and graph.named):
            made_by = self._made_by(last) if self.changed(last) else None
            if made_by is None or in_common(made_by.facts, self.shape.facts):
                return
            other = f"a graph {name!r} that has no node and no field in common with it"
        raise ChangedGraphError(
            f"thread {self.thread!r} belongs to {other}, and this is graph {graph.name!r}. Nothing was called. Take "
            "another thread name; or, if the graph is meant to go on with that thread, "
            f"compile(shares_threads_with=[{name!r}])",
            [f"graph {name!r} -> {graph.name!r}"],
        )

    def adapted(self, state: ImmutableState, last: RunRows | None) -> Adapted:
        """The state of a thread at rest, as one that fits the graph.

        Args:
            state: the state.
            last: the last run; None if there is none.

        Raises:
            ChangedGraphError: if a value does not fit.
        """
        if last is None or not self.changed(last):
            return Adapted(state, state)
        schema, made_by = self.blueprint.topology.schema, self._made_by(last)
        suspects = set(schema.fields) if made_by is None else changed_fields(made_by.facts, self.shape.facts)
        return adapt(self.thread, state, schema, suspects, self.blueprint.migrate)

    def shown(self, state: ImmutableState, last: RunRows | None) -> ImmutableState:
        """The state of a thread for people: without the fields that are gone. Nothing is validated."""
        schema = self.blueprint.topology.schema
        if schema.open or not self.changed(last) or state.keys() <= schema.fields.keys():
            return state
        return ImmutableState({name: state.raw(name) for name in state if name in schema.fields})

    def allowed(self, last: RunRows, allow: AllowChanged) -> Renamed:
        """An open run, if this graph may go on with it.

        Args:
            last: the run.
            allow: whether it may be another graph, or new names of nodes by their old ones.

        Raises:
            ChangedGraphError: if not, with what has changed.
        """
        if allow is False:
            self.check_graph(last)
        names: NodeNames = {} if isinstance(allow, bool) else allow
        unknown = [name for name in names.values() if name not in self.blueprint.nodes]
        if unknown:
            hints = "".join(suggestion(name, self.blueprint.nodes) for name in unknown)
            raise ThreadError(f"allow_changed_graph names {', '.join(map(repr, unknown))}, which is no node.{hints}")
        if not self.changed(last):
            return Renamed(last, None)
        made_by = self._made_by(last)
        if allow is False:
            raise changed_graph(self.thread, made_by, self.shape)
        rows = tuple([rename_nodes(row, names) for row in last.rows]) if names else last.rows
        return Renamed(last._replace(rows=rows), names)

    def explained(self, error: ChangedGraphError, last: RunRows) -> ChangedGraphError:
        """Why the log of a run has no place in this graph: with all that has changed.

        Args:
            error: what the replay said.
            last: the run.
        """
        made_by = self._made_by(last) if self.changed(last) else None
        found = changes(made_by.facts, self.shape.facts) if made_by is not None else []
        lines = "".join(f"\n  - {change}" for change in found)
        return ChangedGraphError(
            f"thread {self.thread!r} cannot go on with this graph: {error}.{lines}\nNothing was called. If a node has "
            "another name now, pass allow_changed_graph={'old name': 'new name'}; else leave the run as it is with "
            "t.run(..., abandon=True)",
            (*error.changes, *found),
        )

    def going_on(self, opening: RunStart, last: RunRows) -> tuple[RunStart, list[NewRow]]:
        """Where a run stands that this graph goes on with, its state made to fit; and the rows that say so.

        Args:
            opening: where it stands.
            last: the run.

        Raises:
            ChangedGraphError: if a value does not fit, or several branches are live and their states do not.
        """
        run, schema = opening.run, self.blueprint.topology.schema
        branches = active_branches(run)
        patches = []
        for branch in branches:
            fitted = self.adapted(branch.state, last)
            patch = fitted.patch(schema, {})
            state = fitted.state
            for name, field in schema.fields.items():
                value = field.default(state) if name not in state else DELETE
                if value is not DELETE:
                    patch[name] = Replace(value)
                    state = state.set(name, value)
            patches.append(patch)
        if not any(patches):
            return opening, []
        if len(branches) > 1 or branches[0].head < 0:
            fields = sorted({name for patch in patches for name in patch})
            where = f"{len(branches)} branches are live" if len(branches) > 1 else "nothing was committed yet"
            raise ChangedGraphError(
                f"the open run of thread {self.thread!r} stands where {where}, and fields have to change there that "
                f"all would have to share: {', '.join(map(repr, fields))}. Finish the run with the graph that made it, "
                "or leave it with t.run(..., abandon=True)",
                [f"field {name!r} has changed" for name in fields],
            )
        commit = update_commit(branches[0], run.first + len(run.log), AUTHOR, patches[0], time.time())
        moved = amend(run, commit, schema.replay(branches[0].state, patches[0]))
        return opening._replace(run=moved), [manual_commit_row(RowKind.UPDATE, commit, CommitContent(patches[0]))]

    def _made_by(self, last: RunRows) -> GraphFingerprint | None:
        found = self.reader.fetch([last.shape]).get(last.shape)
        return None if found is None else GraphFingerprint.stored(found)
