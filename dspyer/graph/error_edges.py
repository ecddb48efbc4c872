"""Error edges: where a branch goes after a node has failed. Their declaration, and the checks of `compile()`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from dspyer.errors import (
    GraphError,
    NodeOutputError,
    StateError,
    is_always_raised,
    list_names,
    suggestion,
)
from dspyer.failure import Failure
from dspyer.graph.declarations import checked_edge_ends
from dspyer.layers.handlers import ErrorEdge
from dspyer.layers.retry import check_on
from dspyer.nodes.field_names import unknown_field_text
from dspyer.nodes.node import Node
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.schema.type_fit import shown_type
from dspyer.state import ImmutableState

_SAMPLE = Failure(node="node", execution="trunk:1", type="Exception")
_PAIR = ("node", _SAMPLE.node)
"""In what pydantic makes of a `Failure` for a list or set of anything: of its names and values."""


def error_edges(source: object, target: object, on: object, into: object) -> list[ErrorEdge]:
    """The edges of one call of `add_error_edge`, one for each source; a wrong form is a `GraphError`."""
    given: Any = source
    sources = checked_edge_ends(given)
    wanted: Any = target
    targets = checked_edge_ends(wanted)
    if len(targets) != 1:
        raise GraphError(
            f"an error edge leads to one handler, and {list_names(targets)} are {len(targets)}: fork after the handler"
        )
    for name in sources:
        if name in (START, END):
            raise GraphError(
                f"the error edge {name!r} -> {targets[0]!r} begins at no node: {name} runs nothing that could fail. "
                "Name the node whose failures it takes"
            )
    try:
        check_on(on, "add_error_edge")
    except TypeError as error:
        raise GraphError(str(error)) from None
    if into is not None and not isinstance(into, str):
        raise GraphError(f"add_error_edge(into={into!r}): give the name of the field that gets the failure, or None")
    accepted: Any = on
    for kind in on if isinstance(on, tuple) else (on,):
        if isinstance(kind, type) and is_always_raised(kind):
            raise GraphError(
                f"the error edge {sources[0]!r} -> {targets[0]!r} on {kind.__name__} is never taken: this error passes "
                "every error edge, since no step of the graph can mend it. Handle it where the program is run"
            )
    return [ErrorEdge(name, targets[0], accepted, into) for name in sources]


def by_source(edges: Sequence[ErrorEdge]) -> dict[str, tuple[ErrorEdge, ...]]:
    """The error edges of each node, in the order of declaration, in which the first match wins."""
    found: dict[str, list[ErrorEdge]] = {}
    for edge in edges:
        found.setdefault(edge.source, []).append(edge)
    return {source: tuple(ways) for source, ways in found.items()}


def error_edge_problems(
    edges: Mapping[str, Sequence[ErrorEdge]],
    schema: Schema,
    sent: Collection[str],
    joins: Callable[[str], bool],
) -> Iterator[str]:
    """What is wrong with error edges: fields that cannot hold a failure, and edges that are never taken.

    `sent` are the nodes that `Send`s may start, `joins` says whether parallel writes of a field can be joined.
    """
    for ways in edges.values():
        for number, edge in enumerate(ways):
            yield from _field_problems(edge, schema)
            yield from _never_taken(edge, ways[:number])
            if edge.into is not None and edge.source in sent and not joins(edge.into):
                yield (
                    f"{edge.who}: several Sends may start {edge.source!r}, and each that fails writes {edge.into!r}: "
                    f"declare {edge.into}: Annotated[list[Failure], reducers.append]"
                )


def unfilled_problems(
    edges: Mapping[str, Sequence[ErrorEdge]], schema: Schema, nodes: Mapping[str, Node], given: Collection[str]
) -> Iterator[str]:
    """Handlers that read a field for failures which nothing fills, since their error edge does not say `into`.

    `given` are the fields that some node or error edge may write, or that the graph declares as inputs.
    """
    for edge in (edge for ways in edges.values() for edge in ways if edge.into is None and edge.target in nodes):
        for name in dict.fromkeys((nodes[edge.target].reads or {}).values()):
            if name in schema.fields and name not in given and _holds_failures(schema.fields[name].annotation):
                yield (
                    f"{edge.who} gives the failure to no field, and {edge.target!r} reads {name!r}, which nothing "
                    f"writes: add_error_edge({edge.source!r}, {edge.target!r}, into={name!r})"
                )


def _holds_failures(annotation: Any) -> bool:
    return annotation is Failure or any(map(_holds_failures, get_args(annotation)))


def _field_problems(edge: ErrorEdge, schema: Schema) -> Iterator[str]:
    name = edge.into
    if name is None or schema.accepts_any_key:
        return
    field = schema.fields.get(name)
    if field is None:
        yield f"{edge.who}: into={name!r} {unknown_field_text(name, schema)}"
        return
    if name in schema.live_fields:
        yield f"{edge.who}: into={name!r} is a live field, to which only nodes post: name a field of its own"
        return
    if field.reads_other_fields or (field.reducer is not None and field.reducer.update_type is None):
        return  # only a value with the whole state around it could be checked
    try:
        _, after = schema.commit(ImmutableState(), {name: _SAMPLE}, node=edge.source, commit_id="", whole_values=True)
        found: Any = after[name]
        fits = not isinstance(found, Collection) or isinstance(found, str) or _PAIR not in found
    except (NodeOutputError, StateError):
        fits = False
    if not fits:
        kind = f"is {shown_type(field.annotation)}"
        if field.reducer is not None:
            kind += f" with the reducer {field.reducer.name!r}"
        yield (
            f"{edge.who}: into={name!r} {kind}, which takes no dspyer.Failure: declare {name}: Failure | None = None, "
            f"or {name}: Annotated[list[Failure], reducers.append] = [] for several failures"
        )


def _never_taken(edge: ErrorEdge, before: Sequence[ErrorEdge]) -> Iterator[str]:
    """An edge all of whose types an earlier edge takes. What predicates take is not known."""
    own = edge.on if isinstance(edge.on, tuple) else (edge.on,)
    for other in before:
        types = tuple([on for on in (other.on if isinstance(other.on, tuple) else (other.on,)) if isinstance(on, type)])
        if all(isinstance(on, type) and issubclass(on, types) for on in own):
            yield (
                f"{edge.who} on {edge.condition} is never taken: before it {other.who} on {other.condition} is "
                "declared, which takes all of these. Declare the narrower one first"
            )
            return


def no_node_hints(names: Mapping[str, str], nodes: Collection[str]) -> dict[str, str]:
    """What to say if an edge names a part of the graph that is no node; `names` are its kinds by name."""
    return {
        name: f" It is {kind}, whose errors no error edge takes.{suggestion(name, nodes)}"
        for name, kind in names.items()
        if name not in nodes
    }
