"""The declarations of a graph, as its methods were given them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import dspy


class NodeSpec(NamedTuple):
    """A node as the user declared it. `over`, `item` and `into` make it a map."""

    name: str
    node: object
    reads: Collection[str] | Mapping[str, str] | None = None
    writes: Collection[str] | Mapping[str, str] | None = None
    modules: Mapping[str, dspy.Module] | None = None
    frozen: bool | None = None
    goto: Sequence[str] = ()
    over: str | None = None
    item: str = ""
    into: str = ""
    max_concurrency: int | None = None


class EdgeSpec(NamedTuple):
    """One call of `add_edge`."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


class RouterSpec(NamedTuple):
    """One call of `add_conditional_edges`."""

    source: str
    route: Callable[..., object] | str | dspy.Module
    path_map: Mapping[Any, str | Sequence[str]] | Sequence[str] | None
    name: str | None
    writes: Collection[str] | Mapping[str, str] | None
