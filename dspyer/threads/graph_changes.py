"""What is different between the graph that made a run and the one that is to go on with it, said by name."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from dspyer.errors import ChangedGraphError, StateError, ThreadError, brief, list_names, suggestion
from dspyer.graph.spec import GraphSpec, Migrate
from dspyer.patch import DELETE, Replace, diff_value
from dspyer.persistence.reader import HistoryReader, RunRows, rename_nodes
from dspyer.persistence.replay import update_commit
from dspyer.persistence.rows import CommitContent, NewRow, RowKind, manual_commit_row
from dspyer.reducers import Updates
from dspyer.runtime.request import RunStart
from dspyer.scheduler.run_state import active_branches
from dspyer.scheduler.schedule import append_commit
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.threads.graph_fingerprint import FingerprintFacts, GraphFingerprint, in_common
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList, thaw
from dspyer.values.types import Opaque

NodeNames = Mapping[str, str]
"""New names of nodes by their old ones."""

AllowChanged = bool | NodeNames
"""What `resume(allow_changed_graph=...)` takes."""


def changes(old: FingerprintFacts, new: FingerprintFacts) -> list[str]:
    """What is different, one sentence each.

    Args:
        old: the facts of the graph that made the run.
        new: those of the graph that is there now.
    """
    return list(_changes(old, new, ""))


def changed_graph(
    thread: str, made_by: GraphFingerprint | None, now: GraphFingerprint, names: NodeNames | None = None
) -> ChangedGraphError:
    """The error that the last run of a thread was made by another graph.

    Args:
        thread: the name of the thread.
        made_by: the shape of that graph; None if it is not there any more.
        now: the shape of the graph now.
        names: new names of nodes that were given already.
    """
    found = ["it is not known any more how"]
    if made_by is not None:
        found = changes(rename_in_facts(made_by.facts, names or {}), now.facts)
        found += [f"node renamed? pass allow_changed_graph={pair}" for pair in likely_names(made_by.facts, now.facts)]
    lines = "\n".join(f"  - {change}" for change in found)
    return ChangedGraphError(
        f"the graph has changed since the open run of thread {thread!r} was made:\n{lines}\n"
        "Nothing was called. Go on where the log still fits with t.resume(allow_changed_graph=True), or with a mapping "
        "{'old name': 'new name'} of nodes; or leave the run as it is with t.run(..., abandon=True)",
        found,
    )


def rename_in_facts(facts: FingerprintFacts, names: NodeNames) -> FingerprintFacts:
    """The facts of a graph whose nodes have other names."""
    if not names:
        return facts

    def now(name: str) -> str:
        return names.get(name, name)

    found = dict(facts)
    for part in ("nodes", "routers", "joins"):
        if part in facts:
            found[part] = {now(name): about for name, about in facts[part].items()}
    found["edges"] = [[now(source), now(target)] for source, target in facts.get("edges", ())]
    for part in ("before", "after"):
        if part in facts:
            found[part] = sorted(map(now, facts[part]))
    return found


def likely_names(old: FingerprintFacts, new: FingerprintFacts) -> list[dict[str, str]]:
    """Nodes that may have got another name: one is gone, one is new, and they look alike."""
    before, after = old.get("nodes", {}), new.get("nodes", {})
    gone = [name for name in before if name not in after]
    come = [name for name in after if name not in before]
    found = []
    for name in gone:
        alike = [other for other in come if after[other] == before[name]]
        if len(alike) == 1:
            come.remove(alike[0])
            found.append({name: alike[0]})
    return found


def changed_fields(old: FingerprintFacts, new: FingerprintFacts) -> set[str]:
    """The fields of both graphs whose values may not fit any more: their types, or classes among these, are others."""
    before, after = old.get("fields", {}), new.get("fields", {})
    types = {name for name in new.get("types", {}) if old.get("types", {}).get(name) != new["types"][name]}
    if new.get("open"):
        return set()
    if old.get("open"):
        return set(after)
    found = set()
    for name in before.keys() & after.keys():
        reached = _reached(after[name][0], new.get("types", {}))
        if before[name] != after[name] or reached & types:
            found.add(name)
    return found


def _reached(text: str, types: Mapping[str, Any]) -> set[str]:
    """The classes that a type names, and those that these name."""
    found: set[str] = set()
    waiting = [text]
    while waiting:
        text = waiting.pop()
        for name in types.keys() - found:
            if name in text:
                found.add(name)
                waiting.append(str(types[name]))
    return found


def _changes(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    yield from _node_changes(old.get("nodes", {}), new.get("nodes", {}), inside)
    yield from _edge_changes(old.get("edges", []), new.get("edges", []), inside)
    yield from _field_changes(old, new, inside)
    for name, were, are in _both(old.get("types", {}), new.get("types", {})):
        yield from _type_changes(name, were, are, inside)
    yield from _policy_changes(old.get("merge", []), new.get("merge", []), f"{inside}merge policy")
    for node, were, are in _both(old.get("joins", {}), new.get("joins", {})):
        yield from _policy_changes(were or [], are or [], f"{inside}merge policy of the join at {node!r}")
    for node, were, are in _both(old.get("routers", {}), new.get("routers", {})):
        yield f"{inside}the routers of {node!r} write {_said(were)} -> {_said(are)}"
    for when in ("before", "after"):
        were, are = old.get(when, []), new.get(when, [])
        yield from (f"{inside}interrupt {when} {node!r} is gone" for node in were if node not in are)
        yield from (f"{inside}interrupt {when} {node!r} is new" for node in are if node not in were)


def _node_changes(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    for name, were, are in _both(old, new):
        if are is None or were is None:
            yield f"{inside}node {name!r} is {'gone' if are is None else 'new'}"
            continue
        for verb in ("reads", "writes"):
            if were[verb] != are[verb]:
                yield f"{inside}node {name!r} {verb} {_said(were[verb])} -> {_said(are[verb])}"
        if were.get("map") != are.get("map"):
            yield f"{inside}node {name!r}: map {_map_said(were.get('map'))} -> {_map_said(are.get('map'))}"
        if were.get("asks") != are.get("asks"):
            yield f"{inside}node {name!r} asks for {were.get('asks', 'no answer')} -> {are.get('asks', 'no answer')}"
        if "graph" in were and "graph" in are:
            yield from _changes(were["graph"], are["graph"], f"{inside}in the graph of node {name!r}: ")
        elif "graph" in were or "graph" in are:
            yield f"{inside}node {name!r} is {'a graph now' if 'graph' in are else 'no graph any more'}"


def _edge_changes(old: list[list[str]], new: list[list[str]], inside: str) -> Iterator[str]:
    before, after = _targets(old), _targets(new)
    for source, were, are in _both(before, after):
        gone = [target for target in were or () if target not in (are or ())]
        come = [target for target in are or () if target not in (were or ())]
        yield from (f"{inside}edge {source!r} -> {target!r} is gone" for target in gone)
        yield from (f"{inside}edge {source!r} -> {target!r} is new" for target in come)
        if not gone and not come:
            yield f"{inside}the edges of {source!r} have another order: {_said(were)} -> {_said(are)}"


def _targets(edges: list[list[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for source, target in edges:
        found.setdefault(source, []).append(target)
    return found


def _field_changes(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    if old.get("open") or new.get("open"):
        if old.get("open") != new.get("open"):
            yield f"{inside}the state {'has a schema now' if old.get('open') else 'has no schema any more'}"
        return
    before, after = old.get("fields", {}), new.get("fields", {})
    for name, were, are in _both(before, after):
        if were is None or are is None:
            yield f"{inside}field {name!r} is {'gone' if are is None else 'new'}"
            continue
        if were[0] != are[0]:
            yield f"{inside}field {name!r}: {were[0]} -> {are[0]}"
        if were[1] != are[1]:
            yield f"{inside}field {name!r}: reducer {were[1] or 'none'} -> {are[1] or 'none'}"
        if were[2:] != are[2:]:
            yield f"{inside}field {name!r}: limit {_limit(were)} -> {_limit(are)}"


def _limit(facts: Sequence[Any]) -> str:
    return f"{facts[2][0]:g} KB, {facts[2][1]}" if len(facts) > 2 else "none"


def _type_changes(name: str, were: Any, are: Any, inside: str) -> Iterator[str]:
    short = name.rpartition(":")[2]
    if were is None or are is None:  # the fields that name it say so
        return
    if isinstance(were, list) or isinstance(are, list):
        yield f"{inside}{short}: members {_said(were)} -> {_said(are)}"
        return
    for part, before, after in _both(were, are):
        if before is None or after is None:
            yield f"{inside}{short}.{part} is {'gone' if after is None else 'new'}"
        else:
            yield f"{inside}{short}.{part}: {before} -> {after}"


def _policy_changes(old: list[list[str]], new: list[list[str]], what: str) -> Iterator[str]:
    found = False
    for path, were, are in _both(dict(map(tuple, old)), dict(map(tuple, new))):  # type: ignore[arg-type]
        found = True
        yield f"{what} of {path!r}: {were or 'none'} -> {are or 'none'}"
    if not found and old != new:
        yield f"{what}: the patterns have another order"


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What differs, by name: as it was and as it is, None for what is not there."""
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _said(names: Iterable[str] | None) -> str:
    if names is None:
        return "anything"
    return ", ".join(map(repr, names)) or "nothing"


def _map_said(about: list[str] | None) -> str:
    return "none" if about is None else f"over {about[0]!r} as {about[1]!r} into {about[2]!r}"


# --------------------------------------------------------------------------------------------------------------------
# Whether a graph fits what a thread holds: it goes on with a run of another graph only where that is allowed.


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

    def __init__(self, thread: str, graph: GraphSpec, fingerprint: GraphFingerprint, reader: HistoryReader) -> None:
        self.thread = thread
        self.graph = graph
        self.fingerprint = fingerprint
        self.reader = reader

    @property
    def fingerprint_blob(self) -> Mapping[str, bytes]:
        """What a run that begins stores of its graph: once, however many runs there are."""
        return {self.fingerprint.id: self.fingerprint.data}

    def changed(self, last: RunRows | None) -> bool:
        """Whether the graph is another one than that of the last run."""
        return last is not None and last.fingerprint not in ("", self.fingerprint.id)

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
        graph, header = self.graph, last.run.header
        name, named = str(header.get("graph", graph.name)), bool(header.get("named"))
        if name in graph.shares_threads_with or (name == graph.name and (named or graph.named)):
            return
        other = f"graph {name!r}"
        if not (named and graph.named):
            made_by = self._made_by(last) if self.changed(last) else None
            if made_by is None or in_common(made_by.facts, self.fingerprint.facts):
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
        schema, made_by = self.graph.topology.schema, self._made_by(last)
        suspects = set(schema.fields) if made_by is None else changed_fields(made_by.facts, self.fingerprint.facts)
        return adapt(self.thread, state, schema, suspects, self.graph.migrate)

    def without_removed_fields(self, state: ImmutableState, last: RunRows | None) -> ImmutableState:
        """The state of a thread for people: without the fields that are gone. Nothing is validated."""
        schema = self.graph.topology.schema
        if schema.accepts_any_key or not self.changed(last) or state.keys() <= schema.fields.keys():
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
        unknown = [name for name in names.values() if name not in self.graph.nodes]
        if unknown:
            hints = "".join(suggestion(name, self.graph.nodes) for name in unknown)
            raise ThreadError(f"allow_changed_graph names {', '.join(map(repr, unknown))}, which is no node.{hints}")
        if not self.changed(last):
            return Renamed(last, None)
        made_by = self._made_by(last)
        if allow is False:
            raise changed_graph(self.thread, made_by, self.fingerprint)
        rows = tuple([rename_nodes(row, names) for row in last.rows]) if names else last.rows
        return Renamed(last._replace(rows=rows), names)

    def explained(self, error: ChangedGraphError, last: RunRows) -> ChangedGraphError:
        """Why the log of a run has no place in this graph: with all that has changed.

        Args:
            error: what the replay said.
            last: the run.
        """
        made_by = self._made_by(last) if self.changed(last) else None
        found = changes(made_by.facts, self.fingerprint.facts) if made_by is not None else []
        lines = "".join(f"\n  - {change}" for change in found)
        return ChangedGraphError(
            f"thread {self.thread!r} cannot go on with this graph: {error}.{lines}\nNothing was called. If a node has "
            "another name now, pass allow_changed_graph={'old name': 'new name'}; else leave the run as it is with "
            "t.run(..., abandon=True)",
            (*error.changes, *found),
        )

    def adapted_run(self, opening: RunStart, last: RunRows) -> tuple[RunStart, list[NewRow]]:
        """Where a run stands that this graph goes on with, its state made to fit; and the rows that say so.

        Args:
            opening: where it stands.
            last: the run.

        Raises:
            ChangedGraphError: if a value does not fit, or several branches are live and their states do not.
        """
        run, schema = opening.run, self.graph.topology.schema
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
        moved = append_commit(run, commit, schema.replay(branches[0].state, patches[0]))
        return opening._replace(run=moved), [manual_commit_row(RowKind.UPDATE, commit, CommitContent(patches[0]))]

    def _made_by(self, last: RunRows) -> GraphFingerprint | None:
        found = self.reader.fetch([last.fingerprint]).get(last.fingerprint)
        return None if found is None else GraphFingerprint.stored(found)


# --------------------------------------------------------------------------------------------------------------------
# The state of a thread under a graph that has changed: what is gone, what no longer fits, what `migrate=` makes of it.
#
# What changes is part of a patch in the log. So nothing here runs again when the history is read.

logger = logging.getLogger("dspyer")


class Adapted(NamedTuple):
    """A state that fits the schema.

    Attributes:
        before: the state as it was.
        state: the state that fits.
    """

    before: ImmutableState
    state: ImmutableState

    def patch(self, schema: Schema, patch: Mapping[str, Any]) -> dict[str, Any]:
        """A patch of the adapted state as one of the state as it was.

        Args:
            schema: the schema.
            patch: what changes the adapted state.
        """
        if self.state is self.before:
            return dict(patch)
        after = schema.replay(self.state, patch)
        found: dict[str, Any] = {}
        for name in dict.fromkeys((*self.before, *self.state, *patch)):
            moved = not same(self.before.raw(name, DELETE), self.state.raw(name, DELETE))
            if schema.reducer(name) is None:
                old, new = self.before.raw(name, DELETE), after.raw(name, DELETE)
                if not same(old, new):
                    found[name] = diff_value(old, new)
            elif moved:
                value = self.state.raw(name, DELETE)
                parts = [DELETE if value is DELETE else Replace(value), *([patch[name]] if name in patch else [])]
                found[name] = parts[0] if len(parts) == 1 else Updates(*parts)
            elif name in patch:
                found[name] = patch[name]
        return found


def adapt(
    thread: str,
    state: ImmutableState,
    schema: Schema,
    suspects: set[str],
    migrate: Migrate | None = None,
) -> Adapted:
    """A state that another graph has left, as one that fits the schema.

    Args:
        thread: the name of the thread, for errors.
        state: the state.
        schema: the schema of the graph now.
        suspects: the fields whose values may not fit any more.
        migrate: decides about all values; without it what the schema does not know is left out with a warning.

    Raises:
        ChangedGraphError: if a value does not fit, naming each such field with the reason.
    """
    if migrate is not None:
        values, suspects = _migrated(thread, state, schema, migrate)
    else:
        values = {name: state.raw(name) for name in state if schema.accepts_any_key or name in schema.fields}
        gone = [name for name in state if name not in values]
        if gone:
            logger.warning(
                "thread %r: the graph has no field %s any more; it leaves the state and stays in the history",
                thread,
                ", ".join(map(repr, gone)),
            )
    if schema.accepts_any_key:
        return Adapted(state, _state_of(state, values))
    problems = []
    for name in suspects & values.keys():
        try:
            values[name] = _fitting(schema, name, values[name])
        except (ValidationError, StateError, ValueError, TypeError) as error:
            shown = schema.show_value((name,), values[name])
            problems.append(f"field {name!r}: {shown} does not fit any more: {_reason(error)}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in sorted(problems))
        raise ChangedGraphError(
            f"thread {thread!r} holds values that do not fit the graph:\n{lines}\nNothing was called, and the history "
            "can be read. Compile the graph with migrate=..., a function of the plain dict of old values that gives "
            "the new ones",
            sorted(problems),
        )
    return Adapted(state, _state_of(state, values))


def _state_of(state: ImmutableState, values: Mapping[str, Any]) -> ImmutableState:
    if list(values) == list(state) and all(same(values[name], state.raw(name)) for name in values):
        return state
    return ImmutableState(values)


def _migrated(thread: str, state: ImmutableState, schema: Schema, migrate: Migrate) -> tuple[dict[str, Any], set[str]]:
    new = migrate(thaw(state))
    if not isinstance(new, Mapping):
        raise ChangedGraphError(
            f"migrate= gave {brief(new)} for thread {thread!r}: it gives the values of the fields as a dict",
            ["migrate= gave no dict"],
        )
    unknown = [name for name in new if not schema.accepts_any_key and name not in schema.fields]
    if unknown:
        hints = "".join(suggestion(name, schema.fields) for name in unknown)
        raise ChangedGraphError(
            f"migrate= gave {', '.join(map(repr, unknown))} for thread {thread!r}, which the schema has not.{hints} "
            f"Its fields are {list_names(schema.fields)}",
            [f"migrate= gave {name!r}, which is no field" for name in unknown],
        )
    return {name: freeze(value, (name,)) for name, value in new.items()}, set(new)


def _fitting(schema: Schema, name: str, value: Any) -> Any:
    """The value as the field's type has it: read anew, as if somebody had written it down."""
    frozen = freeze(schema.fields[name].validate(_plainest(value), {}), (name,))
    return value if same(frozen, value) else frozen


def _plainest(value: Any) -> Any:
    """A frozen value in plain ones: models and dataclasses as dicts, so that they are validated again."""
    if isinstance(value, CopyOnRead):
        if value.kind.freezes_content and isinstance(value.content, FrozenDict):
            parts = {key: _plainest(part) for key, part in value.content.raw_items() if not str(key).startswith("$")}
            extra = value.content.raw("$extra", None)
            return {**parts, **(_plainest(extra) if extra is not None else {})}
        opened = value.read()
        if isinstance(opened, Opaque):
            raise StateError(opened.explanation)
        return opened
    if isinstance(value, FrozenDict):
        return {key: _plainest(part) for key, part in value.raw_items()}
    if isinstance(value, FrozenList):
        return [_plainest(part) for part in value.raw_items()]
    return thaw(value)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem["loc"] else problem["msg"]
        for problem in found
    )
