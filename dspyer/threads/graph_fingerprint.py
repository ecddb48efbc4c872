"""The fingerprint of a graph: all that the log of a run relies on, as plain JSON, and its hash.

In it are the names and edges of nodes, what they read and write, the types of the fields, reducers and merge policies.
Not in it are code, prompts, demos and language models: these may change between two runs of a thread. Each run stores
the id of its graph's fingerprint; `graph_changes` compares fingerprints.

The second part of this file decides which classes stored values may have: those of the schema and the registered ones.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from dspyer.errors import StateError
from dspyer.graph.spec import Exit, GraphSpec
from dspyer.graph.text import edge_labels, explain
from dspyer.hints import UNIONS
from dspyer.nodes.map import map_fields_of
from dspyer.nodes.node import Node
from dspyer.patch import Replace
from dspyer.persistence.row_codec import StoredRow, content_names
from dspyer.persistence.rows import COMMITS, CommitRow
from dspyer.policies import Policies
from dspyer.reducers import Updates
from dspyer.runtime.run_stats import counted_parts
from dspyer.schema.schema import Schema
from dspyer.stores.base import Change, Row
from dspyer.stores.content import blob_id
from dspyer.values import json as encoding
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList
from dspyer.values.named_classes import classes_in, held_classes
from dspyer.values.types import Opaque, class_name, known_class


class HasGraph(Protocol):
    """A compiled graph, as far as its fingerprint needs it; the programs of subgraphs are attributes of it."""

    @property
    def graph(self) -> GraphSpec: ...


NOT_DRAWN: Mapping[str, Any] = MappingProxyType({})

FingerprintFacts = Mapping[str, Any]
"""Facts about a graph as JSON values: nodes, edges, fields, types, merge policies, interrupts."""


class GraphFingerprint:
    """The facts of a graph, and of the graphs inside it, with the id that equal facts have in every process.

    Args:
        facts: what the log of a run relies on.
        drawing: what a drawing of the graph shows besides. It is stored under an id of its own: a graph with another
            label is the same graph.
    """

    def __init__(self, facts: FingerprintFacts, drawing: Mapping[str, Any] = NOT_DRAWN) -> None:
        self.facts = facts
        self._drawing = drawing

    @cached_property
    def data(self) -> bytes:
        """The facts as JSON."""
        return json.dumps(self.facts, ensure_ascii=False, separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """The hash of the facts, under which they are stored as a blob."""
        return blob_id(self.data)

    @cached_property
    def drawing(self) -> bytes:
        """What a drawing shows, as JSON."""
        return json.dumps(self._drawing, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @cached_property
    def drawing_id(self) -> str:
        """The hash of what a drawing shows, under which it is stored as a blob."""
        return blob_id(self.drawing)

    @classmethod
    def stored(cls, data: bytes) -> GraphFingerprint:
        """The fingerprint that was stored as `data`."""
        return cls(json.loads(data))


_fingerprints: WeakKeyDictionary[HasGraph, GraphFingerprint] = WeakKeyDictionary()
"""By program, each computed once. Weak, so that a fingerprint is freed with its program."""


def fingerprint_of(program: HasGraph) -> GraphFingerprint:
    """The fingerprint of a program's graph."""
    fingerprint = _fingerprints.get(program)
    if fingerprint is None:
        fingerprint = _fingerprints[program] = GraphFingerprint(graph_facts(program), drawing_facts(program.graph))
    return fingerprint


def graph_facts(program: HasGraph) -> dict[str, Any]:
    """The facts of a graph; empty ones are left out, so that a new kind of fact leaves old fingerprints as they are."""
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
        "before": sorted(graph.interrupt_before),
        "after": sorted(graph.interrupt_after),
    }
    return {name: found for name, found in facts.items() if found}


def drawing_facts(graph: GraphSpec) -> dict[str, Any]:
    """What a drawing of a graph and its figures show, and its fingerprint does not have."""
    parts = counted_parts(graph.nodes, graph.topology.schema)
    return {
        "looks": {name: node.look[:2] for name, node in graph.nodes.items()},
        "labels": [[source, target, label] for (source, target), label in edge_labels(graph).items()],
        "conditional": [[edge.source, edge.target] for edge in graph.topology.edges if edge.conditional],
        "fields": [shape.to_dict() for shape in graph.topology.schema.field_shapes],
        "text": explain(graph),
        "checks": {name: [one.fix, one.into, sorted(one.modes)] for name, one in parts["checks"].items()},
        "maps": {name: [one.into, one.failures, sorted(one.folded)] for name, one in parts["maps"].items()},
    }


def in_common(first: FingerprintFacts, second: FingerprintFacts) -> bool:
    """Whether two graphs have a node or a field in common; true if the fields of one are unknown."""
    if first.get("nodes", {}).keys() & second.get("nodes", {}).keys():
        return True
    ours, theirs = _fields_of(first), _fields_of(second)
    return ours is None or theirs is None or not ours.isdisjoint(theirs)


def _fields_of(facts: FingerprintFacts) -> set[str] | None:
    """The fields of a graph; without a schema, those that its nodes name. None if a node may read or write any."""
    if not facts.get("open"):
        return set(facts.get("fields", {}))
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


def _node_facts(node: Node, program: HasGraph) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "reads": None if node.reads is None else sorted(set(node.reads.values())),
        "writes": None if node.writes is None else sorted(set(node.writes.values())),
    }
    if (mapped := map_fields_of(node)) is not None:
        facts["map"] = [one for one in (mapped.over, mapped.item, mapped.into, mapped.failures) if one is not None]
    if node.look.inner:
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
    found = [[".".join(map(str, rule.pattern.segments)), rule.policy.name] for rule in policies.rules]
    if policies.otherwise is not None:
        return found + _policy_facts(policies.otherwise)
    return [*found, ["**", policies.default.name]] if policies.given else found


# --- which classes may stored values have?
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
    """Whether a value is, or has in it, a value of a class; what is in an opaque value does not count."""
    if isinstance(value, CopyOnRead):
        return not isinstance(value.content, Opaque) and (class_name(value.cls) == name or _holds(value.content, name))
    if class_name(type(value)) == name:
        return True
    if isinstance(value, FrozenDict):
        return any(_holds(part, name) for pair in value.raw_items() for part in pair)
    if isinstance(value, FrozenList):
        return any(_holds(part, name) for part in value.raw_items())
    if isinstance(value, Replace):
        return _holds(value.value, name)
    if isinstance(value, StoredRow):
        return any(_holds(getattr(value, one), name) for one in content_names(type(value)))
    if isinstance(value, Updates):
        return any(_holds(part, name) for part in value.updates)
    if isinstance(value, Mapping):
        return any(_holds(part, name) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds(part, name) for part in value)
    return False
