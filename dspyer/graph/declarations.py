"""The declarations of a graph, as its methods were given them."""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from dspyer.errors import GraphError, list_names, suggestion
from dspyer.nodes.node import Node
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.templates import Fill
from dspyer.views import View

# Attributes that DSPy's optimizers set on a program, or that a program needs.
RESERVED = frozenset(
    {
        *(START, END, "state", "ctx", "thread", "threads", "forward", "aforward"),
        *("run", "arun", "stream", "astream", "graph", "with_resources", "run_inside", "arun_inside"),
        *("callbacks", "history"),
        *("score", "simba_idx", "candidate_programs", "trial_logs", "total_calls", "prompt_model_total_calls"),
        *(
            "mb_candidate_programs",
            "results_best",
            "results_latest",
            "detailed_results",
            "flag_compilation_error_occurred",
        ),
    }
)


class NodeSpec(NamedTuple):
    """A node as the user declared it. `over`, `item` and `into` make it a map."""

    name: str
    node: object
    reads: Collection[str] | Mapping[str, str | View | Fill] | None = None
    writes: Collection[str] | Mapping[str, str] | None = None
    modules: Mapping[str, dspy.Module] | None = None
    frozen: bool | None = None
    goto: Sequence[str] = ()
    over: str | None = None
    item: str = ""
    into: str = ""
    max_concurrency: int | None = None
    condense: Mapping[str, dspy.Module] | None = None


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


def fields_of(names: Iterable[str], schema: Schema) -> tuple[str, ...]:
    """Names of fields, checked."""
    found = (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in found if not schema.accepts_any_key and name not in schema.fields]
    if unknown:
        hints = "".join(suggestion(name, schema.fields) for name in unknown)
        raise GraphError(
            f"keep names {list_names(unknown)}, no field of the schema.{hints} Fields: {list_names(schema.fields)}"
        )
    return found


def listed(names: Iterable[str]) -> tuple[str, ...]:
    """Names, of which one may come alone."""
    return (names,) if isinstance(names, str) else tuple(names)


def names_of(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """The names that an edge was given, checked."""
    names = (nodes,) if isinstance(nodes, str) or not isinstance(nodes, Sequence) else tuple(nodes)
    given: tuple[Any, ...] = names
    for function in given:
        if callable(function) and hasattr(function, "__name__"):
            name = function.__name__
            raise GraphError(
                f"an edge goes between names of nodes: add the function with add_node({name}) and write {name!r} here"
            )
    if not names or not all(isinstance(name, str) for name in names):
        raise GraphError(
            f"an edge goes between names of nodes, not {nodes!r}; add the node with add_node and use its name"
        )
    return names


def check_name(name: str, known: Collection[str]) -> None:
    """Checks the name of a new node.

    Raises:
        GraphError: if it is no identifier, reserved or taken.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise GraphError(
            f"{name!r} is no name for a node: names are identifiers, since nodes become attributes of the program"
        )
    if name in RESERVED or name.startswith("_") or hasattr(dspy.Module, name):
        raise GraphError(
            f"{name!r} cannot name a node: DSPy or the program needs this attribute; choose another, like "
            f"{name + '_node'!r}"
        )
    if name in known:
        raise GraphError(f"there is a node {name!r} already: give this one another name")


def check_limits(**limits: object) -> None:
    """Checks limits of a program.

    Raises:
        GraphError: if one is no whole number of at least 1.
    """
    for name, limit in limits.items():
        if not isinstance(limit, int) or limit < 1:
            raise GraphError(f"{name}={limit!r}: it must be a whole number of at least 1")


def check_turns(nodes: Iterable[Node]) -> None:
    """Checks that a warning has a conversation to stand in.

    Raises:
        GraphError: if no node commits its turns.
    """
    if not any(node.conversations for node in nodes):
        raise GraphError(
            "warn_at: no node commits turns that a warning could stand in: give the schema a field of Messages and "
            'a module node writes=[..., "messages"], or show it {run.remaining}'
        )


def warn_of_shadowed(name: str, outputs: Iterable[str]) -> None:
    """Warns of outputs that `dspy.Prediction` hides behind its methods."""
    shadowed = sorted(set(outputs) & set(dir(dspy.Prediction)))
    if shadowed:
        warnings.warn(
            f"dspy.Prediction has methods called {', '.join(shadowed)}: read these outputs of graph {name!r} as "
            f"prediction[{shadowed[0]!r}], or rename the fields",
            stacklevel=3,
        )
