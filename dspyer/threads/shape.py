"""The fingerprint of a graph: what the log of a run relies on, as plain JSON. No code, prompt or LM is in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from dspyer.graph.spec import GraphSpec
from dspyer.nodes.base import Node
from dspyer.nodes.interrupt import InterruptNode
from dspyer.nodes.map import MapNode
from dspyer.nodes.router import Router
from dspyer.nodes.subgraph import SubgraphNode
from dspyer.policies import Policies
from dspyer.reducers import UNIONS
from dspyer.schema.schema import Schema
from dspyer.stores.content import blob_id
from dspyer.threads.decoding import named_classes

if TYPE_CHECKING:
    from dspyer.runtime.program import CompiledGraph

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


_shapes: WeakKeyDictionary[CompiledGraph, GraphFingerprint] = WeakKeyDictionary()


def fingerprint_of(program: CompiledGraph) -> GraphFingerprint:
    """The shape of a program's graph."""
    shape = _shapes.get(program)
    if shape is None:
        shape = _shapes[program] = GraphFingerprint(graph_facts(program))
    return shape


def graph_facts(program: CompiledGraph) -> dict[str, Any]:
    """What the log of a run relies on."""
    graph: GraphSpec = program.graph
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
    if schema.open:
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


def _node_facts(node: Node, program: CompiledGraph) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "reads": None if node.reads is None else sorted(set(node.reads.values())),
        "writes": None if node.writes is None else sorted(set(node.writes.values())),
    }
    if isinstance(node, MapNode):
        inner = _node_facts(node.inner, program)
        facts["map"] = [node.over, node.item, node.into]
        facts |= {name: inner[name] for name in ("graph",) if name in inner}
    elif isinstance(node, SubgraphNode):
        facts["graph"] = graph_facts(getattr(program, node.name))
    elif isinstance(node, InterruptNode):
        facts["asks"] = "nothing" if node.answer is None else type_text(node.answer)
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
