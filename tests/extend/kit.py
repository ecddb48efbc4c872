"""Layers that tests share: one that notes what it surrounds, and one that does nothing, in two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from dspyer import END, START, CompiledGraph, Graph
from dspyer.extend import Call, Layer, Place

PLACES: tuple[Place, ...] = get_args(Place)

L = TypeVar("L", bound=Layer)


def at(place: Place, kind: type[L]) -> type[L]:
    """A class of layers in another place."""
    return type(kind.__name__, (kind,), {"place": place})


class Noted(Layer):
    """Notes what it surrounds, when it begins and when it ends."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def around(self, call: Call, inner: Any) -> Any:
        self.notes.append(f"{self.name} {call.node}")
        output = yield from inner(call)
        self.notes.append(f"/{self.name} {call.node}")
        return output


class Counted(Layer):
    """Counts executions by node."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def around(self, call: Call, inner: Any) -> Any:
        self.nodes.append(call.node)
        return (yield from inner(call))


class Passed(Layer):
    """Does nothing: gives the script that is inside of it."""

    def around(self, call: Call, inner: Any) -> Any:
        return inner(call)


class Followed(Layer):
    """Does nothing: follows the script that is inside of it."""

    def around(self, call: Call, inner: Any) -> Any:
        return (yield from inner(call))


def nothing() -> list[Layer]:
    """A layer of each kind that does nothing, at each place."""
    return [at(place, kind)() for place in PLACES for kind in (Passed, Followed)]


def twice(n: int) -> dict[str, int]:
    return {"doubled": 2 * n}


def graph_of(work: Callable[..., Any] = twice, name: str = "work", **options: Any) -> Graph:
    """A graph of one node."""
    return Graph(name="One").add_node(name, work, **options).add_path(START, name, END)


def program_of(*layers: Layer, work: Callable[..., Any] = twice, **options: Any) -> CompiledGraph:
    """A program of one node with layers."""
    return graph_of(work, layers=layers, **options).compile()
