"""Continue a thread with a graph that has changed since its runs were made.

Each run stores the fingerprint of its graph (`graph_fingerprint`). `GraphCompatibility` compares it with that of the
graph now. At the end of a run another graph may continue if the values fit its schema, if need be after `migrate=`; an
open run is continued by another graph only if the caller allows it, and its log still fits. What makes a state fit is
written into the log as a patch, so that nothing here runs again when the history is read.
"""

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
from dspyer.persistence.row_codec import DraftRow
from dspyer.persistence.rows import CommitContent, RowKind, manual_commit_row
from dspyer.reducers import Updates
from dspyer.runtime.run_start import RunStart
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
"""The type of `resume(allow_changed_graph=...)`."""

MIGRATION_AUTHOR = "migrate"
"""The author of a commit that fits the state of an open run to a changed graph."""

logger = logging.getLogger("dspyer")


# --- may the graph continue the thread?


class AllowedRun(NamedTuple):
    """An open run that the graph may continue.

    Attributes:
        run: the run, with the names that nodes have now.
        names: new names of nodes by old ones; None if the graph has not changed.
    """

    run: RunRows
    names: NodeNames | None


class GraphCompatibility:
    """Compares the graph of a program with the graphs that made the runs of one thread."""

    def __init__(self, thread: str, graph: GraphSpec, fingerprint: GraphFingerprint, reader: HistoryReader) -> None:
        self.thread = thread
        self.graph = graph
        self.fingerprint = fingerprint
        self.reader = reader

    @property
    def graph_blobs(self) -> Mapping[str, bytes]:
        """What is stored of the graph as blobs, by their ids: each once, however many runs name it."""
        made_by = self.fingerprint
        return {made_by.id: made_by.data, made_by.drawing_id: made_by.drawing}

    def changed(self, last: RunRows | None) -> bool:
        """Whether the graph differs from that of the last run. Runs of old versions name no graph: they fit any."""
        return last is not None and last.fingerprint not in ("", self.fingerprint.id)

    def check_graph(self, last: RunRows | None) -> None:
        """Raise `ChangedGraphError` if another graph, and not an earlier version of this one, made the last run.

        A name that the user gave identifies a graph. A default name does not: it comes from the class of the schema,
        which may be renamed, and two graphs may have the same. Without given names, graphs without a common node and
        field are different graphs.
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
            "another thread name; or, if the graph is meant to continue that thread, "
            f"compile(shares_threads_with=[{name!r}])",
            [f"graph {name!r} -> {graph.name!r}"],
        )

    def adapted(self, state: ImmutableState, last: RunRows | None) -> Adapted:
        """The state after the last run, fitted to the graph; raises `ChangedGraphError` if a value does not fit."""
        if last is None or not self.changed(last):
            return Adapted(state, state)
        schema, made_by = self.graph.topology.schema, self._made_by(last)
        unsure = set(schema.fields) if made_by is None else changed_fields(made_by.facts, self.fingerprint.facts)
        return adapt(self.thread, state, schema, unsure, self.graph.migrate)

    def without_removed_fields(self, state: ImmutableState, last: RunRows | None) -> ImmutableState:
        """A state as `thread.state` shows it: without fields that the graph no longer has. Nothing is validated."""
        schema = self.graph.topology.schema
        if schema.accepts_any_key or not self.changed(last) or state.keys() <= schema.fields.keys():
            return state
        return ImmutableState({name: state.raw(name) for name in state if name in schema.fields})

    def allowed(self, last: RunRows, allow: AllowChanged) -> AllowedRun:
        """An open run, if the graph may continue it; else raises `ChangedGraphError` with the differences."""
        if allow is False:
            self.check_graph(last)
        names: NodeNames = {} if isinstance(allow, bool) else allow
        self._check_names(names, last)
        if not self.changed(last):
            return AllowedRun(last, None)
        made_by = self._made_by(last)
        if allow is False:
            raise changed_graph(self.thread, made_by, self.fingerprint)
        rows = tuple([rename_nodes(row, names) for row in last.rows]) if names else last.rows
        return AllowedRun(last._replace(rows=rows), names)

    def _check_names(self, names: NodeNames, last: RunRows) -> None:
        """Raise `ThreadError` for a name that no node had when the open run was made, or that none has now.

        A pair that renamed nodes of this run before renames nothing more: the call may come again.
        """
        names = {old: new for old, new in names.items() if last.run.header.get("names", {}).get(old) != new}
        made_by = self._made_by(last) if self.changed(last) else self.fingerprint
        before = names if made_by is None else made_by.facts["nodes"]
        wrong = [(old, "of the graph that made the open run", before) for old in names if old not in before]
        wrong += [(new, "of this graph", self.graph.nodes) for new in names.values() if new not in self.graph.nodes]
        if wrong:
            name, where, known = wrong[0]
            raise ThreadError(
                f"allow_changed_graph={dict(names)}: {name!r} is no node {where}.{suggestion(name, known)} Its nodes "
                f"are {list_names(known)}; the mapping is {{'old name': 'new name'}}. Nothing was called"
            )

    def explained(self, error: ChangedGraphError, last: RunRows) -> ChangedGraphError:
        """The error of a replay that does not fit the graph, with all that has changed since the run was made."""
        made_by = self._made_by(last) if self.changed(last) else None
        found = differences(made_by.facts, self.fingerprint.facts) if made_by is not None else []
        lines = "".join(f"\n  - {change}" for change in found)
        return ChangedGraphError(
            f"thread {self.thread!r} cannot continue with this graph: {error}.{lines}\nNothing was called. If a node "
            "has another name now, pass allow_changed_graph={'old name': 'new name'}; else abandon the run with "
            "thread.run(..., abandon=True)",
            (*error.changes, *found),
        )

    def adapted_run(self, run_start: RunStart, last: RunRows) -> tuple[RunStart, list[DraftRow]]:
        """A rebuilt run with its state fitted to the graph, and the rows that store the change.

        Raises `ChangedGraphError` if a value does not fit, or if several branches are active: the change would have to
        be a commit that all of them share.
        """
        run, schema = run_start.run, self.graph.topology.schema
        branches = active_branches(run)
        patches = []
        for branch in branches:
            adapted = self.adapted(branch.state, last)
            patch = adapted.patch(schema, {})
            state = adapted.state
            for name, field in schema.fields.items():
                value = field.default(state) if name not in state else DELETE
                if value is not DELETE:
                    patch[name] = Replace(value)
                    state = state.set(name, value)
            patches.append(patch)
        if not any(patches):
            return run_start, []
        if len(branches) > 1 or branches[0].head < 0:
            fields = sorted({name for patch in patches for name in patch})
            where = f"{len(branches)} branches are active" if len(branches) > 1 else "nothing was committed yet"
            raise ChangedGraphError(
                f"in the open run of thread {self.thread!r} {where}, and fields have to change that all branches would "
                f"have to share: {', '.join(map(repr, fields))}. Finish the run with the graph that made it, or "
                "abandon it with thread.run(..., abandon=True)",
                [f"field {name!r} has changed" for name in fields],
            )
        commit = update_commit(branches[0], run.first + len(run.log), MIGRATION_AUTHOR, patches[0], time.time())
        before = branches[0].state
        after = schema.replay(before, patches[0])
        content = CommitContent(patches[0], made=schema.made(before, after, patches[0]))
        rows = [manual_commit_row(RowKind.UPDATE, commit, content)]
        return run_start._replace(run=append_commit(run, commit, after)), rows

    def _made_by(self, last: RunRows) -> GraphFingerprint | None:
        """The fingerprint of the graph that made a run; None if it is not stored."""
        found = self.reader.fetch([last.fingerprint]).get(last.fingerprint)
        return None if found is None else GraphFingerprint.stored(found)


# --- fit a state to the schema


class Adapted(NamedTuple):
    """A state before and after it was fitted to the schema; the same object if it fitted already."""

    before: ImmutableState
    state: ImmutableState

    def patch(self, schema: Schema, patch: Mapping[str, Any]) -> dict[str, Any]:
        """A patch of the adapted state as a patch of the state before: the adaptation and the patch in one."""
        if self.state is self.before:
            return dict(patch)
        after = schema.replay(self.state, patch)
        found: dict[str, Any] = {}
        for name in dict.fromkeys((*self.before, *self.state, *patch)):
            adapted = not same(self.before.raw(name, DELETE), self.state.raw(name, DELETE))
            if schema.reducer(name) is None:
                old, new = self.before.raw(name, DELETE), after.raw(name, DELETE)
                if not same(old, new):
                    found[name] = diff_value(old, new)
            elif adapted:
                value = self.state.raw(name, DELETE)
                updates = [DELETE if value is DELETE else Replace(value), *([patch[name]] if name in patch else [])]
                found[name] = updates[0] if len(updates) == 1 else Updates(*updates)
            elif name in patch:
                found[name] = patch[name]
        return found


def adapt(
    thread: str,
    state: ImmutableState,
    schema: Schema,
    unsure: set[str],
    migrate: Migrate | None = None,
) -> Adapted:
    """A state that another graph has left, fitted to the schema of the current graph.

    With `migrate`, that function makes all values, and all are validated. Without it, fields that the schema does not
    have are dropped with a warning, and only the fields in `unsure` are validated, whose values may no longer fit.
    Raises `ChangedGraphError` with each field whose value does not fit, and the reason.
    """
    if migrate is not None:
        values, unsure = _migrated(thread, state, schema, migrate)
    else:
        values = {name: state.raw(name) for name in state if schema.accepts_any_key or name in schema.fields}
        gone = [name for name in state if name not in values]
        if gone:
            logger.warning(
                "thread %r: the graph no longer has the field %s; it leaves the state and stays in the history",
                thread,
                ", ".join(map(repr, gone)),
            )
    if schema.accepts_any_key:
        return Adapted(state, _state_of(state, values))
    problems = []
    for name in unsure & values.keys():
        try:
            values[name] = _validated_again(schema, name, values[name])
        except (ValidationError, StateError, ValueError, TypeError) as error:
            shown = schema.show_value((name,), values[name])
            problems.append(f"field {name!r}: {shown} no longer fits: {_reason(error)}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in sorted(problems))
        raise ChangedGraphError(
            f"thread {thread!r} holds values that do not fit the graph:\n{lines}\nNothing was called, and the history "
            "can be read. Compile the graph with migrate=..., a function of the plain dict of old values that returns "
            "the new ones",
            sorted(problems),
        )
    return Adapted(state, _state_of(state, values))


def _state_of(state: ImmutableState, values: Mapping[str, Any]) -> ImmutableState:
    """The state with these values; the same object if nothing has changed."""
    if list(values) == list(state) and all(same(values[name], state.raw(name)) for name in values):
        return state
    return ImmutableState(values)


def _migrated(thread: str, state: ImmutableState, schema: Schema, migrate: Migrate) -> tuple[dict[str, Any], set[str]]:
    """The values that `migrate=` returns, and the names of their fields."""
    new = migrate(thaw(state))
    if not isinstance(new, Mapping):
        raise ChangedGraphError(
            f"migrate= returned {brief(new)} for thread {thread!r}: it must return the values of the fields as a dict",
            ["migrate= returned no dict"],
        )
    unknown = [name for name in new if not schema.accepts_any_key and name not in schema.fields]
    if unknown:
        hints = "".join(suggestion(name, schema.fields) for name in unknown)
        raise ChangedGraphError(
            f"migrate= returned {', '.join(map(repr, unknown))} for thread {thread!r}, which is not in the schema."
            f"{hints} Its fields are {list_names(schema.fields)}",
            [f"migrate= returned {name!r}, which is no field" for name in unknown],
        )
    return {name: freeze(value, (name,)) for name, value in new.items()}, set(new)


def _validated_again(schema: Schema, name: str, value: Any) -> Any:
    """A value validated from its plain form, as if it came from JSON; the same object if that changes nothing."""
    frozen = freeze(schema.fields[name].validate(_plain(value), {}), (name,))
    return value if same(frozen, value) else frozen


def _plain(value: Any) -> Any:
    """A frozen value as plain ones: models and dataclasses as dicts, so that their fields are validated again."""
    if isinstance(value, CopyOnRead):
        if value.kind.freezes_content and isinstance(value.content, FrozenDict):
            parts = {key: _plain(part) for key, part in value.content.raw_items() if not str(key).startswith("$")}
            extra = value.content.raw("$extra", None)
            return {**parts, **(_plain(extra) if extra is not None else {})}
        opened = value.read()
        if isinstance(opened, Opaque):
            raise StateError(opened.explanation)
        return opened
    if isinstance(value, FrozenDict):
        return {key: _plain(part) for key, part in value.raw_items()}
    if isinstance(value, FrozenList):
        return [_plain(part) for part in value.raw_items()]
    return thaw(value)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem["loc"] else problem["msg"]
        for problem in found
    )


# --- differences between two graphs, in words


def differences(old: FingerprintFacts, new: FingerprintFacts) -> list[str]:
    """The differences between two graphs, one sentence each."""
    return list(_differences(old, new, ""))


def changed_graph(thread: str, made_by: GraphFingerprint | None, now: GraphFingerprint) -> ChangedGraphError:
    """The error for an open run that was made by another graph, whose fingerprint is None if it is not stored."""
    found = ["the graph that made the run is not stored, so the differences are unknown"]
    if made_by is not None:
        found = differences(made_by.facts, now.facts)
        found += [f"node renamed? pass allow_changed_graph={pair}" for pair in likely_renames(made_by.facts, now.facts)]
    lines = "\n".join(f"  - {change}" for change in found)
    return ChangedGraphError(
        f"the graph has changed since the open run of thread {thread!r} was made:\n{lines}\n"
        "Nothing was called. Continue as far as the log fits with thread.resume(allow_changed_graph=True), or with a "
        "mapping {'old name': 'new name'} of nodes; or abandon the run with thread.run(..., abandon=True)",
        found,
    )


def likely_renames(old: FingerprintFacts, new: FingerprintFacts) -> list[dict[str, str]]:
    """Pairs of a removed and a new node with equal facts: the node may have been renamed."""
    before, after = old.get("nodes", {}), new.get("nodes", {})
    removed = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    found = []
    for name in removed:
        alike = [other for other in added if after[other] == before[name]]
        if len(alike) == 1:
            added.remove(alike[0])
            found.append({name: alike[0]})
    return found


def changed_fields(old: FingerprintFacts, new: FingerprintFacts) -> set[str]:
    """The fields of both graphs whose values may no longer fit: their type, or a class in it, has changed."""
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
    """The classes that a type names, directly or through the fields of other classes."""
    found: set[str] = set()
    waiting = [text]
    while waiting:
        text = waiting.pop()
        for name in types.keys() - found:
            if name in text:
                found.add(name)
                waiting.append(str(types[name]))
    return found


def _differences(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    yield from _node_changes(old.get("nodes", {}), new.get("nodes", {}), inside)
    yield from _edge_changes(old.get("edges", []), new.get("edges", []), inside)
    for node, were, are in _both(old.get("errors", {}), new.get("errors", {})):
        yield from _error_edge_changes(node, were or [], are or [], inside)
    yield from _field_changes(old, new, inside)
    for name, were, are in _both(old.get("types", {}), new.get("types", {})):
        yield from _type_changes(name, were, are, inside)
    yield from _policy_changes(old.get("merge", []), new.get("merge", []), f"{inside}merge policy")
    for node, were, are in _both(old.get("joins", {}), new.get("joins", {})):
        yield from _policy_changes(were or [], are or [], f"{inside}merge policy of the join at {node!r}")
    for node, were, are in _both(old.get("routers", {}), new.get("routers", {})):
        yield f"{inside}the routers of {node!r} write {_listed(were)} -> {_listed(are)}"
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
                yield f"{inside}node {name!r} {verb} {_listed(were[verb])} -> {_listed(are[verb])}"
        if were.get("map") != are.get("map"):
            yield f"{inside}node {name!r}: map {_map_text(were.get('map'))} -> {_map_text(are.get('map'))}"
        if were.get("asks") != are.get("asks"):
            yield f"{inside}node {name!r} asks for {were.get('asks', 'no answer')} -> {are.get('asks', 'no answer')}"
        if "graph" in were and "graph" in are:
            yield from _differences(were["graph"], are["graph"], f"{inside}in the graph of node {name!r}: ")
        elif "graph" in were or "graph" in are:
            yield f"{inside}node {name!r} is {'a graph now' if 'graph' in are else 'no graph any more'}"
        for called, before, after in _both(were.get("calls", {}), are.get("calls", {})):
            if before is None or after is None:
                yield f"{inside}node {name!r} {'calls' if before is None else 'no longer calls'} the graph {called!r}"
            else:
                yield from _differences(before, after, f"{inside}in the graph {called!r} of node {name!r}: ")


def _edge_changes(old: list[list[str]], new: list[list[str]], inside: str) -> Iterator[str]:
    before, after = _targets(old), _targets(new)
    for source, were, are in _both(before, after):
        removed = [target for target in were or () if target not in (are or ())]
        added = [target for target in are or () if target not in (were or ())]
        yield from (f"{inside}edge {source!r} -> {target!r} is gone" for target in removed)
        yield from (f"{inside}edge {source!r} -> {target!r} is new" for target in added)
        if not removed and not added:
            yield f"{inside}the edges of {source!r} have another order: {_listed(were)} -> {_listed(are)}"


def _error_edge_changes(node: str, old: list[list[str]], new: list[list[str]], inside: str) -> Iterator[str]:
    for ways, others, what in ((old, new, "gone"), (new, old, "new")):
        for target, condition, into in ways:
            if [target, condition, into] not in others:
                field = f" into {into!r}" if into else ""
                yield f"{inside}error edge {node!r} -> {target!r} on {condition}{field} is {what}"
    if sorted(old) == sorted(new):
        yield f"{inside}the error edges of {node!r} have another order"


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
            yield f"{inside}field {name!r}: limit {_limit_text(were)} -> {_limit_text(are)}"


def _limit_text(facts: Sequence[Any]) -> str:
    return f"{facts[2][0]:g} KB, {facts[2][1]}" if len(facts) > 2 else "none"


def _type_changes(name: str, were: Any, are: Any, inside: str) -> Iterator[str]:
    short = name.rpartition(":")[2]
    if were is None or are is None:  # the fields that name the class are listed themselves
        return
    if isinstance(were, list) or isinstance(are, list):
        yield f"{inside}{short}: members {_listed(were)} -> {_listed(are)}"
        return
    for part, before, after in _both(were, are):
        if before is None or after is None:
            yield f"{inside}{short}.{part} is {'gone' if after is None else 'new'}"
        else:
            yield f"{inside}{short}.{part}: {before} -> {after}"


def _policy_changes(old: list[list[str]], new: list[list[str]], what: str) -> Iterator[str]:
    found = False
    for path, were, are in _both(dict(map(tuple, old)), dict(map(tuple, new))):  # type: ignore[arg-type]  # a list of two: mypy takes a tuple of any length
        found = True
        yield f"{what} of {path!r}: {were or 'none'} -> {are or 'none'}"
    if not found and old != new:
        yield f"{what}: the patterns have another order"


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The entries that differ: name, old and new value; None for one that is missing."""
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _listed(names: Iterable[str] | None) -> str:
    if names is None:
        return "anything"
    return ", ".join(map(repr, names)) or "nothing"


def _map_text(about: list[str] | None) -> str:
    return "none" if about is None else f"over {about[0]!r} as {about[1]!r} into {about[2]!r}"
