"""The fingerprint of a graph: what the log of a run relies on, as plain JSON. No code, prompt or LM is in it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from dspyer.errors import StateError
from dspyer.graph.spec import GraphSpec
from dspyer.hints import UNIONS
from dspyer.nodes.node import Node
from dspyer.nodes.router import Router
from dspyer.patch import Replace
from dspyer.persistence.rows import COMMITS, CommitContent, CommitHeader
from dspyer.policies import Policies
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.stores.base import Change, Row
from dspyer.stores.content import blob_id
from dspyer.values import json as encoding
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList
from dspyer.values.types import Opaque, class_name, known_class


class HasGraph(Protocol):
    """A compiled graph, as far as its fingerprint needs it; the programs of subgraphs are attributes of it."""

    @property
    def graph(self) -> GraphSpec: ...


FingerprintFacts = Mapping[str, Any]


class GraphFingerprint:
    """What a graph looks like.

    Attributes:
        facts: nodes, edges, fields, types, merge policies and interrupts; of graphs inside it too.
    """

    def __init__(self, facts: FingerprintFacts) -> None:
        self.facts = facts

    @cached_property
    def data(self) -> bytes:
        """The facts as JSON."""
        return json.dumps(self.facts, ensure_ascii=False, separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """The same for equal shapes, in every process."""
        return blob_id(self.data)

    @classmethod
    def stored(cls, data: bytes) -> GraphFingerprint:
        """The shape of what was stored as `data`."""
        return cls(json.loads(data))


_shapes: WeakKeyDictionary[HasGraph, GraphFingerprint] = WeakKeyDictionary()


def fingerprint_of(program: HasGraph) -> GraphFingerprint:
    """The shape of a program's graph."""
    shape = _shapes.get(program)
    if shape is None:
        shape = _shapes[program] = GraphFingerprint(graph_facts(program))
    return shape


def graph_facts(program: HasGraph) -> dict[str, Any]:
    """What the log of a run relies on."""
    graph = program.graph
    topology = graph.topology
    facts = {
        "nodes": {name: _node_facts(node, program) for name, node in graph.nodes.items()},
        "edges": [[edge.source, edge.target] for edge in topology.edges],
        "routers": {source: found for source, ways in graph.exits.items() if (found := list(_written(ways)))},
        **schema_facts(topology.schema),
        "merge": _policy_facts(topology.policies),
        "joins": {node: _policy_facts(found) for node, found in sorted(topology.join_policies.items())},
        "before": sorted(graph.interrupt_before),
        "after": sorted(graph.interrupt_after),
    }
    return {name: found for name, found in facts.items() if found}


def in_common(first: FingerprintFacts, second: FingerprintFacts) -> bool:
    """Whether two graphs have a node or a field in common, as far as it is known which fields they have."""
    if first.get("nodes", {}).keys() & second.get("nodes", {}).keys():
        return True
    ours, theirs = _fields_of(first), _fields_of(second)
    return ours is None or theirs is None or not ours.isdisjoint(theirs)


def _fields_of(facts: FingerprintFacts) -> set[str] | None:
    """The fields of a graph; without a schema, those that its nodes name. None if one takes any."""
    if not facts.get("open"):
        return set(facts.get("fields", {}))
    used = [node.get(part) for node in facts.get("nodes", {}).values() for part in ("reads", "writes")]
    return None if None in used else {name for names in used for name in names}


def schema_facts(schema: Schema) -> dict[str, Any]:
    """The fields with their types and reducers, and what the classes among the types are made of."""
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
    own = [cls for cls in named_classes(schema) if cls is not schema.model]
    return {"fields": fields, "types": {name_of(cls): found for cls in own if (found := _parts(cls)) is not None}}


def type_text(annotation: Any) -> str:
    """A type in short words: the same for `Optional[str]` and `str | None`."""
    annotation = getattr(annotation, "__value__", annotation)  # what `type X = ...` names
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
    """The name of a class, with its module unless everybody knows it."""
    known = cls.__module__ in ("builtins", "typing", "collections.abc", "collections", "datetime", "decimal", "uuid")
    return cls.__qualname__ if known else f"{cls.__module__}:{cls.__qualname__}"


def _constraints(metadata: Any) -> list[str]:
    """What `Annotated` says beside the type: constraints as they are written, anything else by its class."""
    found = []
    for item in metadata:
        if type(item).__module__ == "annotated_types":
            found.append(repr(item))
        elif type(item).__module__.startswith("pydantic"):
            found.append(type(item).__name__)
    return found


def _parts(cls: type) -> Any:
    """What values of a class are made of; None where the class says nothing about it."""
    if issubclass(cls, BaseModel):
        return {name: type_text(field.annotation) for name, field in cls.model_fields.items()}
    if issubclass(cls, Enum):
        return sorted(cls.__members__)
    if dataclasses.is_dataclass(cls) or hasattr(cls, "__required_keys__") or hasattr(cls, "_fields"):
        try:
            return {name: type_text(hint) for name, hint in get_type_hints(cls).items()}
        except NameError:  # it names what only type checkers import
            return {name: str(hint) for name, hint in cls.__annotations__.items()}
    return None


def _node_facts(node: Node, program: HasGraph) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "reads": None if node.reads is None else sorted(set(node.reads.values())),
        "writes": None if node.writes is None else sorted(set(node.writes.values())),
    }
    if node.map_fields is not None:
        facts["map"] = [*node.map_fields]
    if node.is_subgraph:
        facts["graph"] = graph_facts(getattr(program, node.name))
    for answer in node.answer_types.values():
        facts["asks"] = "nothing" if answer is None else type_text(answer)
    return facts


def _written(ways: Any) -> Iterator[list[str]]:
    for way in ways:
        if isinstance(way, Router) and way.writes:
            yield sorted(way.writes.values())


def _policy_facts(policies: Policies) -> list[list[str]]:
    found = [[_pattern_text(rule.pattern.segments), rule.policy.name] for rule in policies.rules]
    if policies.otherwise is not None:
        return found + _policy_facts(policies.otherwise)
    return [*found, ["**", policies.default.name]] if policies.given else found


def _pattern_text(segments: tuple[Any, ...]) -> str:
    return ".".join(map(str, segments))


# --------------------------------------------------------------------------------------------------------------------
# Which classes the rows of a graph may name: those of its schema, and the registered ones.
#
# Whatever else they name becomes an opaque value: nothing is imported, and no class is called that nobody has named.

NAMED = (Enum, tuple, str, int, float, bytes)
"""Bases of classes that JSON names, beside models and dataclasses."""


def decoder(schema: Schema) -> Callable[[Any], Any]:
    """What makes frozen values of the JSON form in which rows of a graph hold them."""
    return encoding.decoder(named_classes(schema), Opaque.of)


def named_classes(schema: Schema) -> tuple[type, ...]:
    """The classes that the types of the fields name, and those that these name in their turn."""
    found: dict[type, None] = {}
    if schema.model is not None:
        _collect(schema.model, found)
    return tuple(found)


class StorableCheck:
    """Refuses to write what no later process could read back, since nothing names its class.

    What was read from the store already, as an opaque value, is written again as it is.

    Args:
        graph: the name of the graph.
        schema: its schema.
    """

    def __init__(self, graph: str, schema: Schema) -> None:
        self._graph = graph
        self._named = {class_name(cls) for cls in named_classes(schema)}

    def __call__(self, change: Change) -> None:
        """Looks at what is to be written.

        Raises:
            StateError: if it holds a value of a class that nothing names.
        """
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
        patch = value.patch if isinstance(value, CommitContent) else None
        field = next((field for field, update in (patch or {}).items() if _holds(update, name)), None)
        node = CommitHeader.parse(row.header).node if row.kind in COMMITS else row.kind
        short = name.rpartition(":")[2]
        where = f"{node!r}" if field is None else f"{node!r}, field {field!r}"
        raise StateError(
            f"graph {self._graph!r}, {where}: a {name} cannot be stored, "
            "since no other process could read it back: name its class in the type of a field of the schema, or call "
            f"register_value_type({short}) wherever the thread is used. Nothing was written"
        )


def _holds(value: Any, name: str) -> bool:
    """Whether a value has a part of a class; what an opaque value holds is no part of it."""
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
    if isinstance(value, Updates):
        return any(_holds(part, name) for part in value.updates)
    if isinstance(value, Mapping):
        return any(_holds(part, name) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds(part, name) for part in value)
    return False


_CLASS = b'","class":"'
_CLASSES = re.compile(rb'"\$type":"\w+","class":"([^"\\]+)"')


def _collect(annotation: Any, found: dict[type, None]) -> None:
    annotation = getattr(annotation, "__value__", annotation)  # what `type X = ...` names
    for argument in get_args(annotation):
        _collect(argument, found)
    if not isinstance(annotation, type) or annotation in found:
        return
    if issubclass(annotation, BaseModel):
        found[annotation] = None
        for field in annotation.model_fields.values():
            _collect(field.annotation, found)
    elif dataclasses.is_dataclass(annotation) or hasattr(annotation, "__required_keys__"):
        found[annotation] = None
        _collect_hints(annotation, found)
    elif issubclass(annotation, NAMED) and annotation not in NAMED:
        found[annotation] = None
        if hasattr(annotation, "_fields"):
            _collect_hints(annotation, found)


def _collect_hints(cls: type, found: dict[type, None]) -> None:
    try:
        hints = get_type_hints(cls)
    except NameError:  # it names what only type checkers import
        return
    for hint in hints.values():
        _collect(hint, found)
