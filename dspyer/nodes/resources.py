"""Resources of a run: clients and the like that are no values of a state, given to parameters by their type."""

from __future__ import annotations

import datetime
import enum
import pathlib
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import dspy
from pydantic import BaseModel

from dspyer.errors import InputError
from dspyer.nodes.base import NOTHING
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.types import registered

if TYPE_CHECKING:
    from dspyer.nodes.base import Call

_SCALARS = (
    str, int, float, complex, bytes, bytearray, list, tuple, dict, set, frozenset, type(None), type, enum.Enum,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, pathlib.PurePath, uuid.UUID, Decimal,
    FrozenDict, FrozenList, dspy.Example,
)  # fmt: skip
_NO_CLIENTS = {"builtins", "collections.abc", "typing", "numpy", "types"}


class NeedsResources(Protocol):
    """A node or a router."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def who(self) -> str:
        """What errors call it."""

    @property
    def send_targets(self) -> tuple[str, ...]:
        """The nodes that it may start by a `Send`."""

    @property
    def resources(self) -> Mapping[str, type]:
        """The types of the resources that it needs, by parameter."""


def is_record(kind: type) -> bool:
    """Whether a class is a model or a dataclass: a value of a state, or a resource, as the graph has it."""
    return issubclass(kind, BaseModel) or is_dataclass(kind)


def is_value_class(kind: type) -> bool:
    """Whether objects of a class are values of a state for sure."""
    if issubclass(kind, _SCALARS) or kind.__module__ in _NO_CLIENTS:
        return True
    try:
        registered(kind)
    except LookupError:
        return False
    return True


def resources_of(resources: Mapping[type, object] | Iterable[object] | None) -> Mapping[type, object]:
    """The resources of a run by type.

    Args:
        resources: a map from type to object, or the objects alone.

    Returns:
        The map.

    Raises:
        InputError: if a key is no type, or two objects have one type.

    Example:
        >>> resources_of([print])
        mappingproxy({<class 'builtin_function_or_method'>: <built-in function print>})
    """
    if resources is None:
        return NOTHING
    if isinstance(resources, Mapping):
        wrong = [repr(key) for key in resources if not isinstance(key, type)]
        if wrong:
            raise InputError(f"resources are given by type, as {{Client: client}}: {', '.join(wrong)} is no type")
        return MappingProxyType(dict(resources))
    if not hasattr(resources, "__iter__") or isinstance(resources, str):
        name = type(resources).__name__
        raise InputError(f"resources are given as a list or by type, not as one {name}: write resources=[...]")
    found: dict[type, object] = {}
    for resource in resources:
        if isinstance(resource, type):
            raise InputError(f"the resource {resource.__name__} is a class: give an object of it")
        if type(resource) in found:
            raise InputError(f"two resources are of type {type(resource).__name__}: give them as {{Type: object}}")
        found[type(resource)] = resource
    return MappingProxyType(found)


def find_resource(kind: type, resources: Mapping[type, object]) -> tuple[bool, Any]:
    """Whether there is a resource of a type, and which: of the type itself, else of the first one that extends it."""
    if kind in resources:
        return True, resources[kind]
    for given, resource in resources.items():
        if kind in given.__mro__ or (type(kind) is not type and _extends(given, kind)):
            return True, resource
    return False, None


def _extends(given: type, kind: type) -> bool:
    try:
        return issubclass(given, kind)
    except TypeError:  # a protocol that cannot be asked
        return False


def missing_resource(reader: str, parameter: str, kind: type) -> InputError:
    """The error for a resource that the run was not given."""
    name = kind.__name__
    return InputError(
        f"{reader} needs a resource of type {name} for its parameter {parameter!r}: give the run "
        f"resources={{{name}: ...}}, or take program.with_resources({{{name}: ...}})"
    )


def check_resources(nodes: Collection[NeedsResources], resources: Mapping[type, object]) -> None:
    """Check at the start of a run that every resource is there.

    A model or dataclass that a node asks for may also come with a `Send`, and is looked for when the node is called.

    Args:
        nodes: the nodes and routers of the graph.
        resources: the run's resources by type.

    Raises:
        InputError: naming every missing resource with its node, parameter and type.
    """
    sent = {target for node in nodes for target in node.send_targets}
    missing = [
        str(missing_resource(node.who, parameter, kind))
        for node in nodes
        for parameter, kind in node.resources.items()
        if not find_resource(kind, resources)[0] and not (node.name in sent and is_record(kind))
    ]
    if missing:
        raise InputError("; ".join(missing))


def resource_for(call: Call, reader: str, parameter: str, kind: type, default: bool) -> tuple[bool, Any]:
    """The value of a parameter that asks for a resource; an overlay that holds its name comes first."""
    if call.overlay is not None and parameter in call.overlay:
        return True, call.overlay[parameter]
    found, resource = find_resource(kind, call.resources)
    if not found and not default:
        raise missing_resource(reader, parameter, kind)
    return found, resource
