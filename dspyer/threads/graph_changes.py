"""Continue a thread with a graph that has changed since its runs were made.

Each run stores the fingerprint of its graph: all that its log relies on, which is the names and edges of nodes, what
they read and write, the types of the fields, reducers and merge policies. Code, prompts, demos and language models may
change between two runs of a thread. `GraphCompatibility` compares the stored fingerprint with that of the graph now. At
the end of a run another graph may continue if the values fit its schema, if need be after `migrate=`; an open run is
continued by another graph only if the caller allows it, and its log still fits. What makes a state fit is written into
the log as a patch, so that nothing here runs again when the history is read.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ValidationError

from dspyer.errors import ChangedGraphError, StateError, ThreadError, brief, list_names, suggestion
from dspyer.graph.spec import Exit, GraphSpec, drawing_facts
from dspyer.hints import UNIONS
from dspyer.log.reader import HistoryReader, RunRows
from dspyer.log.replay import update_commit
from dspyer.log.rows import (
    COMMITS,
    CommitRow,
    DraftRow,
    RowKind,
    StoredRow,
    content_names,
)
from dspyer.nodes.node import Node
from dspyer.patch import DELETE, Replace, diff_value
from dspyer.policies import Policies
from dspyer.reducers import Updates
from dspyer.runtime.request import RunStart
from dspyer.scheduler.schedule import active_branches, append_commit
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Row
from dspyer.stores.content import blob_id
from dspyer.values import json as encoding
from dspyer.values.freezing import Opaque, class_name, classes_in, freeze, held_classes, known_class, same
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList, thaw

# --- the fingerprint of a graph


FingerprintFacts = Mapping[str, Any]
"""Facts about a graph as JSON values: nodes, edges, fields, types, merge policies."""


class GraphFingerprint(NamedTuple):
    """All that the log of a run relies on of a graph and of the graphs inside it.

    Attributes:
        facts: these as plain JSON.
        id: their hash, the same in every process.
        drawing: the hash of what a drawing of the graph shows besides: a graph with another label is the same graph.
        blobs: facts and drawing as they are stored, by their hashes: each once, however many runs name it.
    """

    facts: FingerprintFacts
    id: str
    drawing: str
    blobs: Mapping[str, bytes]


_fingerprints: WeakKeyDictionary[Any, GraphFingerprint] = WeakKeyDictionary()
"""By program, each computed once. Weak, so that a fingerprint is freed with its program."""


def fingerprint_of(program: Any) -> GraphFingerprint:
    """The fingerprint of the graph of a program; the programs of the graphs inside are attributes of it."""
    found = _fingerprints.get(program)
    if found is None:
        facts = graph_facts(program)
        dumped = [
            json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
            for one in (facts, drawing_facts(program.graph))
        ]
        shape, drawing = map(blob_id, dumped)
        blobs = dict(zip((shape, drawing), dumped, strict=True))
        found = _fingerprints[program] = GraphFingerprint(facts, shape, drawing, blobs)
    return found


def graph_facts(program: Any) -> dict[str, Any]:
    """The facts of a graph; empty ones are left out, so that a new kind of fact leaves old fingerprints as they are.

    The order of edges is one of them: it numbers the branches of a fork, and the ids of their commits.
    """
    graph = program.graph
    topology = graph.topology
    facts = {
        "nodes": {name: _node_facts(node, program) for name, node in graph.nodes.items()},
        "edges": [[edge.source, edge.target] for edge in topology.edges if not edge.on_error],
        "errors": {
            source: [[edge.target, edge.condition, edge.into or ""] for edge in edges]
            for source, edges in graph.error_edges.items()
        },
        "routers": {source: found for source, ways in graph.exits.items() if (found := list(_router_writes(ways)))},
        **schema_facts(topology.schema),
        "merge": _policy_facts(topology.policies),
        "joins": {node: _policy_facts(found) for node, found in sorted(topology.join_policies.items())},
    }
    return {name: found for name, found in facts.items() if found}


def in_common(first: FingerprintFacts, second: FingerprintFacts) -> bool:
    """Return whether two graphs have a node or a field in common; true if the fields of one are unknown."""
    if first.get("nodes", {}).keys() & second.get("nodes", {}).keys():
        return True
    ours, theirs = _fields_of(first), _fields_of(second)
    return ours is None or theirs is None or not ours.isdisjoint(theirs)


def _fields_of(facts: FingerprintFacts) -> set[str] | None:
    """The fields of a graph; without a schema, those that its nodes name. None if a node may read or write any."""
    if not facts.get("open"):
        return set(facts.get("fields", {}))
    # Without a schema the nodes alone say which fields there are.
    used = [node.get(part) for node in facts.get("nodes", {}).values() for part in ("reads", "writes")]
    return None if None in used else {name for names in used for name in names}


def schema_facts(schema: Schema) -> dict[str, Any]:
    """The fields with their types and reducers, and the fields of the classes among the types."""
    if schema.accepts_any_key:
        return {"open": True}
    fields = {
        name: [
            ", ".join([type_text(field.annotation), *_constraints(field.info.metadata)]),
            field.reducer.name if field.reducer else "",
            *([[field.limit.kb, field.limit.full]] if field.limit else []),
        ]
        for name, field in schema.fields.items()
    }
    # The fields of classes are facts of their own: their text changes where the name of the class does not.
    own = [cls for cls in classes_in([schema.model]) if cls is not schema.model]
    return {"fields": fields, "types": {name_of(cls): found for cls in own if (found := _class_facts(cls)) is not None}}


def type_text(annotation: Any) -> str:
    """A type as text: the same for `Optional[str]` and `str | None`."""
    annotation = getattr(annotation, "__value__", annotation)  # of an alias, `type X = ...`
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "None"
    if origin is Annotated:
        return ", ".join([type_text(arguments[0]), *_constraints(arguments[1:])])
    if origin in UNIONS:
        return " | ".join(map(type_text, arguments))
    if origin is not None and isinstance(origin, type):
        return f"{name_of(origin)}[{', '.join(map(type_text, arguments))}]"
    if annotation is ...:
        return "..."
    if isinstance(annotation, type):
        return name_of(annotation)
    return str(annotation).replace("typing.", "")


def name_of(cls: type) -> str:
    """The name of a class, with its module unless that is of the standard library and well known."""
    known = cls.__module__ in ("builtins", "typing", "collections.abc", "collections", "datetime", "decimal", "uuid")
    return cls.__qualname__ if known else f"{cls.__module__}:{cls.__qualname__}"


def _constraints(metadata: Any) -> list[str]:
    """The metadata of `Annotated` that constrains values: by its text, pydantic's by the name of its class."""
    found = []
    for item in metadata:
        if type(item).__module__ == "annotated_types":
            found.append(repr(item))
        elif type(item).__module__.startswith("pydantic"):
            found.append(type(item).__name__)
    return found


def _class_facts(cls: type) -> Any:
    """The fields of a model, dataclass, TypedDict or named tuple, or the members of an enum; None for other classes."""
    if issubclass(cls, BaseModel):
        return {name: type_text(field.annotation) for name, field in cls.model_fields.items()}
    if issubclass(cls, Enum):
        return sorted(cls.__members__)
    if dataclasses.is_dataclass(cls) or hasattr(cls, "__required_keys__") or hasattr(cls, "_fields"):
        try:
            return {name: type_text(hint) for name, hint in get_type_hints(cls).items()}
        except NameError:  # a name that is imported under TYPE_CHECKING only
            return {name: str(hint) for name, hint in cls.__annotations__.items()}
    return None


def _node_facts(node: Node, program: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "reads": None if node.reads is None else sorted(set(node.reads.values())),
        "writes": None if node.writes is None else sorted(set(node.writes.values())),
    }
    if (mapped := node.mapped) is not None:
        facts["map"] = [one for one in (mapped.over, mapped.item, mapped.into, mapped.failures) if one is not None]
    if node.runs_graph:
        facts["graph"] = graph_facts(getattr(program, node.name))
    if node.programs:
        bound = getattr(program, node.name)
        facts["calls"] = {name: graph_facts(getattr(bound, name)) for name in node.programs}
    for answer in node.answer_types.values():
        facts["asks"] = "nothing" if answer is None else type_text(answer)
    return facts


def _router_writes(ways: Iterable[Exit]) -> Iterator[list[str]]:
    for way in ways:
        if not isinstance(way, str) and way.writes:
            yield sorted(way.writes.values())


def _policy_facts(policies: Policies) -> list[list[str]]:
    return [[".".join(map(str, rule.pattern.segments)), rule.policy.name] for rule in policies.rules]


# --- may the graph continue the thread?

MIGRATION_AUTHOR = "migrate"
"""The author of a commit that fits the state of an open run to a changed graph."""

logger = logging.getLogger("dspyer")


Migrate = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Turns the values that another graph has left in a thread, a plain dict, into those that this graph starts from."""


class OtherGraphs(NamedTuple):
    """Facts that `program.thread` was told of other graphs that have run, or run, on the thread.

    Attributes:
        migrate: converts the state that another graph has left; None for the defaults.
        names: of other graphs whose threads it may continue.
    """

    migrate: Migrate | None = None
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, migrate: object, graphs: Iterable[str]) -> OtherGraphs:
        """The meaning of the options of `program.thread`."""
        if migrate is not None and not callable(migrate):
            raise ThreadError(
                f"migrate={brief(migrate)}: give a function of the earlier state, a dict, that returns it"
            )
        return cls(migrate, frozenset((graphs,) if isinstance(graphs, str) else graphs))


NO_OTHERS = OtherGraphs()


@dataclasses.dataclass(frozen=True)
class GraphCompatibility:
    """Compares the graph of a program with the graphs that made the runs of one thread."""

    thread: str
    graph: GraphSpec
    fingerprint: GraphFingerprint
    reader: HistoryReader
    others: OtherGraphs

    def changed(self, last: RunRows | None) -> bool:
        """Tell if the graph differs from that of the last run. Runs of old versions name no graph: they fit any."""
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
        if name in self.others.names or (name == graph.name and (named or graph.named)):
            return
        other = f"graph {name!r}"
        if not (named and graph.named):
            made_by = self._made_by(last) if self.changed(last) else None
            if made_by is None or in_common(made_by, self.fingerprint.facts):
                return
            other = f"a graph {name!r} that has no node and no field in common with it"
        raise ChangedGraphError(
            f"thread {self.thread!r} belongs to {other}, and this is graph {graph.name!r}. Nothing was called. Take "
            "another thread name; or, if the graph is meant to continue that thread, "
            f"program.thread({self.thread!r}, graphs=[{name!r}])",
            [f"graph {name!r} -> {graph.name!r}"],
        )

    def adapted(self, state: ImmutableState, last: RunRows | None) -> Adapted:
        """The state after the last run, fitted to the graph; raises `ChangedGraphError` for values that do not fit.

        With `migrate`, that function makes all values, and all are validated. Without it, fields that the schema does
        not have are dropped with a warning, and only those are validated again whose values may no longer fit.
        """
        if last is None or not self.changed(last):
            return Adapted(state, state)
        schema = self.graph.topology.schema
        if self.others.migrate is not None:
            values = self._migrated(state, self.others.migrate)
            unsure = set(values)
        else:
            made_by = self._made_by(last)
            unsure = set(schema.fields) if made_by is None else changed_fields(made_by, self.fingerprint.facts)
            values = {name: state.raw(name) for name in state if name in schema}
            gone = [name for name in state if name not in values]
            if gone:
                logger.warning(
                    "thread %r: the graph no longer has the field %s; it leaves the state and stays in the history",
                    self.thread,
                    ", ".join(map(repr, gone)),
                )
        problems = []
        for name in () if schema.accepts_any_key else unsure & values.keys():
            try:
                values[name] = _validated_again(schema, name, values[name])
            except (ValidationError, StateError, ValueError, TypeError) as error:
                shown = schema.show_value((name,), values[name])
                problems.append(f"field {name!r}: {shown} no longer fits: {_reason(error)}")
        if problems:
            raise ChangedGraphError(
                f"thread {self.thread!r} holds values that do not fit the graph:{_lines(sorted(problems))}\n"
                "Nothing was called, and the history can be read. Write "
                f"program.thread({self.thread!r}, migrate=...): a function of the plain dict of old values that "
                "returns the new ones",
                sorted(problems),
            )
        # The same object, if nothing has changed: then a run commits no patch that adapts the state.
        if list(values) == list(state) and all(same(values[name], state.raw(name)) for name in values):
            return Adapted(state, state)
        return Adapted(state, ImmutableState(values))

    def _migrated(self, state: ImmutableState, migrate: Migrate) -> dict[str, Any]:
        """The values that `migrate=` returns."""
        thread, schema, new = self.thread, self.graph.topology.schema, migrate(thaw(state))
        if not isinstance(new, Mapping):  # a function of the user
            raise ChangedGraphError(
                f"migrate= returned {brief(new)} for thread {thread!r}: it must return the values of the fields as a "
                "dict",
                ["migrate= returned no dict"],
            )
        unknown = [name for name in new if name not in schema]
        if unknown:
            hints = "".join(suggestion(name, schema.fields) for name in unknown)
            raise ChangedGraphError(
                f"migrate= returned {', '.join(map(repr, unknown))} for thread {thread!r}, which is not in the schema."
                f"{hints} Its fields are {list_names(schema.fields)}",
                [f"migrate= returned {name!r}, which is no field" for name in unknown],
            )
        return {name: freeze(value, (name,)) for name, value in new.items()}

    def without_removed_fields(self, state: ImmutableState, last: RunRows | None) -> ImmutableState:
        """A state as `thread.state` shows it: without fields that the graph no longer has. Nothing is validated."""
        schema = self.graph.topology.schema
        if schema.accepts_any_key or not self.changed(last) or state.keys() <= schema.fields.keys():
            return state
        return ImmutableState({name: state.raw(name) for name in state if name in schema.fields})

    def allows(self, last: RunRows, allow: bool) -> bool:
        """Return whether another graph has made an open run; raises `ChangedGraphError` if this one may not go on."""
        if not allow:
            self.check_graph(last)
        if allow or not self.changed(last):
            return self.changed(last)
        found = self._differences(last) or ["the graph that made the run is not stored, so the differences are unknown"]
        raise ChangedGraphError(
            f"the graph has changed since the open run of thread {self.thread!r} was made:{_lines(found)}\n"
            "Nothing was called. Continue as far as the log fits with thread.resume(allow_changed_graph=True), or "
            "abandon the run with thread.run(..., if_open='abandon')",
            found,
        )

    def explained(self, error: ChangedGraphError, last: RunRows) -> ChangedGraphError:
        """The error of a replay that does not fit the graph, with all that has changed since the run was made."""
        found = self._differences(last)
        return ChangedGraphError(
            f"thread {self.thread!r} cannot continue with this graph: {error}.{_lines(found)}\nNothing was called. "
            "Give renamed nodes their old names until the run has ended, or abandon it with "
            "thread.run(..., if_open='abandon')",
            (*error.changes, *found),
        )

    def _differences(self, last: RunRows) -> list[str]:
        made_by = self._made_by(last)
        return [] if made_by is None else differences(made_by, self.fingerprint.facts)

    def adapted_run(self, run_start: RunStart, last: RunRows) -> tuple[RunStart, list[DraftRow]]:
        """A rebuilt run with its state fitted to the graph, and the rows that store the change; none if it is the same.

        Raises `ChangedGraphError` if a value does not fit, or if several branches are active: the change would have to
        be a commit that all of them share.
        """
        if not self.changed(last):
            return run_start, []
        run, schema = run_start.run, self.graph.topology.schema
        branches = active_branches(run)
        patches = []
        for branch in branches:
            adapted = self.adapted(branch.state, last)
            patch = adapted.patch(schema, {})
            state = adapted.state
            # New fields get their defaults here, since only the first commit of a run gives defaults.
            for name, field in schema.fields.items():
                value = field.default(state) if name not in state else DELETE
                if value is not DELETE:
                    patch[name] = Replace(value)
                    state = state.set(name, value)
            patches.append(patch)
        if not any(patches):
            return run_start, []
        # A commit is made on one branch: what is done before a fork, or at its join, cannot be added afterwards.
        if len(branches) > 1 or branches[0].head < 0:
            fields = sorted({name for patch in patches for name in patch})
            where = f"{len(branches)} branches are active" if len(branches) > 1 else "nothing was committed yet"
            raise ChangedGraphError(
                f"in the open run of thread {self.thread!r} {where}, and fields have to change that all branches would "
                f"have to share: {', '.join(map(repr, fields))}. Finish the run with the graph that made it, or "
                "abandon it with thread.run(..., if_open='abandon')",
                [f"field {name!r} has changed" for name in fields],
            )
        commit = update_commit(branches[0], run.first + len(run.log), MIGRATION_AUTHOR, patches[0], time.time())
        before = branches[0].state
        after = schema.replay(before, patches[0])
        made = schema.made(before, after, patches[0])
        rows = [CommitRow.of_commit(commit, kind=RowKind.UPDATE, made=made).row()]
        return run_start._replace(run=append_commit(run, commit, after)), rows

    def _made_by(self, last: RunRows) -> FingerprintFacts | None:
        """The facts of the graph that made a run; None if they are not stored."""
        if not self.changed(last):
            return self.fingerprint.facts
        found = self.reader.fetch([last.fingerprint]).get(last.fingerprint)
        return None if found is None else json.loads(found)


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
            if schema.reducer(name) is None:  # whatever the two steps were: from the old value to the new
                old, new = self.before.raw(name, DELETE), after.raw(name, DELETE)
                if not same(old, new):
                    found[name] = diff_value(old, new)
            elif adapted:  # in one patch: what the field holds after the adaptation, then what is folded in
                value = self.state.raw(name, DELETE)
                updates = [DELETE if value is DELETE else Replace(value), *([patch[name]] if name in patch else [])]
                found[name] = updates[0] if len(updates) == 1 else Updates(*updates)
            elif name in patch:
                found[name] = patch[name]
        return found


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


def _lines(found: Iterable[str]) -> str:
    return "".join(f"\n  - {one}" for one in found)


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
    before, after = dict(_subjects(old)), dict(_subjects(new))
    found: list[str] = []
    whole: tuple[str, ...] = ()  # what is gone or new: of its parts nothing is said
    for subject in {**before, **after}:
        were, are = before.get(subject), after.get(subject)
        if isinstance(were or are, list):  # that other targets are there is said already
            if were and are and were != are and sorted(were) == sorted(are):
                found.append(f"{subject} have another order")
        elif subject.startswith(whole) or were == are:
            continue
        elif subject in before and subject in after:
            found.append(f"{subject} {were} -> {are}")
        else:
            whole = (*whole, subject + _PART)
            found.append(f"{subject} is {'gone' if subject in before else 'new'}")
    return [text.replace(_PART, "") for text in found]


Subject = tuple[str, str | list[str]]
"""A thing of a graph: its name in a sentence, and its value.

"" is the value of what is there or not; of a list it is said whether its parts have another order.
"""

_PART = "\0"
"""Follows the name of a whole in that of a part of it, which comes after it."""


def _subjects(facts: FingerprintFacts, inside: str = "") -> Iterator[Subject]:
    """Yield all things of a graph; of one in a node, `inside` begins their names."""
    for name, node in facts.get("nodes", {}).items():
        yield from _of_node(f"{inside}node {name!r}", node)
    ways = [("edge", source, f"-> {target!r}") for source, target in facts.get("edges", [])]
    ways += [
        ("error edge", source, f"-> {target!r} on {error}" + (f" into {into!r}" if into else ""))
        for source, failing in facts.get("errors", {}).items()
        for target, error, into in failing
    ]
    orders: dict[str, list[str]] = {}
    for what, source, text in ways:
        yield f"{inside}{what} {source!r} {text}", ""
        orders.setdefault(f"{inside}the {what}s of {source!r}", []).append(text)
    yield from orders.items()
    for source, written in facts.get("routers", {}).items():
        for names in written:
            yield f"{inside}router of {source!r} that writes {_listed(names)}", ""
    if not facts.get("open"):
        yield f"{inside}the schema of the state", ""
    for name, (kind, reducer, *limits) in facts.get("fields", {}).items():
        field = f"{inside}field {name!r}"
        yield field, ""
        yield f"{field}{_PART}:", kind
        yield f"{field}{_PART}: reducer", reducer or "none"
        yield f"{field}{_PART}: limit", "".join(f"{kb:g} KB, {full}" for kb, full in limits) or "none"
    for name, parts in facts.get("types", {}).items():
        short = f"{inside}{name.rpartition(':')[2]}"
        yield short, ""
        for part in parts:  # of an enum its members, of other classes their fields with their types
            yield f"{short}{_PART}.{part}", ""
            yield f"{short}{_PART}.{part}{_PART}:", parts[part] if isinstance(parts, dict) else ""
    joins = {f" of the join at {node!r}": found for node, found in facts.get("joins", {}).items()}
    for where, rules in {"": facts.get("merge", []), **joins}.items():
        for path, policy in rules:
            yield f"{inside}merge policy of {path!r}{where}", ""
            yield f"{inside}merge policy of {path!r}{where}{_PART}:", policy
        yield f"{inside}the merge policies{where}", [path for path, _ in rules]


def _of_node(subject: str, node: FingerprintFacts) -> Iterator[Subject]:
    yield subject, ""
    for verb in ("reads", "writes"):
        yield f"{subject}{_PART} {verb}", _listed(node[verb])
    over, item, into = [*node.get("map", ()), None, None, None][:3]
    yield f"{subject}{_PART}: map", f"over {over!r} as {item!r} into {into!r}" if over else "none"
    yield f"{subject}{_PART} asks for", node.get("asks", "no answer")
    for called, found in {**node.get("calls", {}), **({"": node["graph"]} if "graph" in node else {})}.items():
        graph = f"{subject}{_PART}, in its graph{f' {called!r}' if called else ''}"
        yield graph, ""
        yield from _subjects(found, f"{graph}{_PART}: ")


def changed_fields(old: FingerprintFacts, new: FingerprintFacts) -> set[str]:
    """The fields of both graphs whose values may no longer fit: their type, or a class in it, has changed."""
    before, after = old.get("fields", {}), new.get("fields", {})
    types, earlier = new.get("types", {}), old.get("types", {})
    if new.get("open"):
        return set()
    if old.get("open"):
        return set(after)
    found = set()
    # Fields that are new have no value, and those that are gone leave the state: only common ones can misfit.
    for name in before.keys() & after.keys():
        # The classes that its type names, directly or through the fields of other classes.
        reached: set[str] = set()
        waiting = [str(after[name][0])]
        while waiting:
            text = waiting.pop()
            new_ones = [cls for cls in types if cls not in reached and cls in text]
            reached.update(new_ones)
            waiting += [str(types[cls]) for cls in new_ones]
        if before[name] != after[name] or any(earlier.get(cls) != types[cls] for cls in reached):
            found.add(name)
    return found


def _listed(names: Iterable[str] | None) -> str:
    if names is None:
        return "anything"
    return ", ".join(map(repr, names)) or "nothing"


# --- the classes that stored values may have: those of the schema and the registered ones
#
# A value of any other class is read as an opaque value: nothing is imported, and no class is called, because a row
# names it.

# How the JSON of a row names a class: {"$type":"model","class":"module:Name","value":...}
_CLASS = b'","class":"'
_CLASSES = re.compile(rb'"\$type":"\w+","class":"([^"\\]+)"')


def decoder(schema: Schema) -> Callable[[Any], Any]:
    """The function that makes frozen values from the JSON of rows."""
    return encoding.decoder(named_classes(schema), Opaque.of)


def named_classes(schema: Schema) -> tuple[type, ...]:
    """The classes that the types of the fields name, directly or through the fields of other classes.

    Those that a field may hold though its type does not say so are among them, and are no part of a fingerprint.
    """
    return () if schema.model is None else held_classes(schema.model)


class StorableCheck:
    """Refuses to write a value that no other process could read, since neither schema nor registry names its class.

    An opaque value, which was read from the store, is written again as it is. `graph` is a name for errors.
    """

    def __init__(self, graph: str, schema: Schema) -> None:
        self._graph = graph
        self._named = {class_name(cls) for cls in named_classes(schema)}

    def __call__(self, change: Change) -> None:
        """Raise `StateError` if a change holds such a value. Only rows whose JSON names a class are searched."""
        # By its bytes, which the store needs anyhow: few rows name a class, and only these are walked.
        for row in change.rows:
            content = row.content
            value = None if content is None else content.original
            if content is None or value is None or _CLASS not in content.data:
                continue
            for name in dict.fromkeys(_CLASSES.findall(content.data)):
                self._check(name.decode(), row, value)

    def _check(self, name: str, row: Row, value: Any) -> None:
        if name in self._named or known_class(name) is not None or not _holds(value, name):
            return
        patch = getattr(value, "patch", None)
        field = next((field for field, update in (patch or {}).items() if _holds(update, name)), None)
        node = CommitRow.of(row).node if row.kind in COMMITS else row.kind
        short = name.rpartition(":")[2]
        where = f"{node!r}" if field is None else f"{node!r}, field {field!r}"
        raise StateError(
            f"graph {self._graph!r}, {where}: a {name} cannot be stored, "
            "since no other process could read it back: name its class in the type of a field of the schema, or call "
            f"register_value_type({short}) wherever the thread is used. Nothing was written"
        )


def _holds(value: Any, name: str) -> bool:
    """Return whether a value is, or has in it, a value of a class; what is in an opaque value does not count."""
    parts: Iterable[Any] = ()
    cls = type(value)
    if isinstance(value, CopyOnRead):
        if isinstance(value.content, Opaque):  # its bytes came from the store, and go back as they are
            return False
        cls, parts = value.cls, (value.content,)
    elif isinstance(value, FrozenDict):
        parts = chain.from_iterable(value.raw_items())
    elif isinstance(value, FrozenList):
        parts = value.raw_items()
    elif isinstance(value, Replace):
        parts = (value.value,)
    elif isinstance(value, StoredRow):
        parts = (getattr(value, one) for one in content_names(cls))
    elif isinstance(value, Updates):
        parts = value.updates
    elif isinstance(value, Mapping):
        parts = chain.from_iterable(value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    return class_name(cls) == name or any(_holds(part, name) for part in parts)
