"""The options and edges that a `Graph` was given, and the checks that can be made before it is compiled."""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import dspy

from dspyer.dspy_module.predictors import modules_in
from dspyer.errors import GraphError, brief, list_names, suggestion
from dspyer.nodes.callables import class_of
from dspyer.nodes.node import Node
from dspyer.nodes.program_calls import is_program
from dspyer.policies import Pattern, Policies
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.schema.value_paths import merge_problem, path_problem
from dspyer.values.scalars import is_whole_number

# No module of a node may have these names besides those of `dspy.Module`: it becomes an attribute of the program, which
# needs them itself, or DSPy's optimizers set them on it. `save` writes its own entry "metadata" beside the predictors.
_ATTRIBUTES = (
    *("thread", "threads", "forward", "aforward", "metadata", "callbacks", "history"),
    *("run", "arun", "stream", "astream", "graph", "with_resources", "with_executor"),
    *("score", "simba_idx", "candidate_programs", "trial_logs", "total_calls", "prompt_model_total_calls"),
    *("mb_candidate_programs", "results_best", "results_latest", "detailed_results", "flag_compilation_error_occurred"),
)


class _Needed(tuple[str, ...]):
    """The class of `NEEDED`."""

    __slots__ = ()


NEEDED = _Needed()
"""In place of required inputs: those that a node reads before another node can have written them."""


class GraphOptions(NamedTuple):
    """The options of `Graph(...)`.

    Attributes:
        name: name of the graph.
        named: whether the user gave that name.
        schema: the fields of the state.
        inputs: the fields that a run is given; None to infer them.
        required: the inputs that a run must be given; None for those without a default, `NEEDED` for those that a node
            reads before another node can have written them.
        outputs: the fields that the program returns; None to infer them.
        policies: what a join does with a conflict, by path.
        keep: the fields that last over the runs of a thread; None for all.
        also: further fields that a run may be given. A graph around this one gives it those that `reads=` names.
    """

    name: str
    named: bool
    schema: Schema
    inputs: tuple[str, ...] | None
    required: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    policies: Policies
    keep: frozenset[str] | None
    also: frozenset[str] = frozenset()


class EdgeDeclaration(NamedTuple):
    """One call of `add_edge`."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


def as_names(names: Iterable[str]) -> tuple[str, ...]:
    """A tuple of names; a single text is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def checked_keep(names: Iterable[str], schema: Schema) -> frozenset[str]:
    """The fields of `Graph(keep=...)`, which must be fields of the schema."""
    found = as_names(names)
    _check_fields("keep", found, [schema])
    return frozenset(found)


def checked_policies(option: str, spec: object, schema: Schema, otherwise: object = "raise") -> Policies:
    """The merge policies that `option` was given; each pattern must name a field, and what can be a conflict in it."""
    policies = Policies.of(spec, otherwise)
    _check_fields(option, _fields_named(rule.pattern for rule in policies.rules), [schema])
    for pattern, _ in policies.rules:
        field = schema.fields.get(pattern.field)
        fold: Any = field and field.reducer and (dict[str, str] if field.reducer.keyed else str)  # its conflicts
        if field and (problem := merge_problem(pattern, fold or field.annotation)):
            raise GraphError(f"{option}: {problem}")
    return policies


def inner_schemas(modules: Iterable[dspy.Module]) -> list[Schema]:
    """The schemas of the graphs among the modules of a graph."""
    parts: dict[int, Any] = {id(part): part for module in modules for _, part in modules_in(module)}
    return [part.graph.topology.schema for part in parts.values() if is_program(part)]


def check_redacted_paths(patterns: Iterable[Pattern], schemas: Sequence[Schema]) -> None:
    """Refuse patterns of `compile(redact=...)` that can match nothing in the graph, or in a graph inside it."""
    given = tuple(patterns)
    hint = ". To hide what runs with another schema left in a thread, write '**.' before the name"
    _check_fields("redact", _fields_named(given), schemas, hint)
    if any(schema.accepts_any_key for schema in schemas):
        return
    items = fields_of_items(schemas)
    for pattern in given:
        name = pattern.field
        kinds = [schema.fields[name].annotation for schema in schemas if name in schema.fields]
        problems = [path_problem(pattern, kind, name in items) for kind in kinds]
        if problems and all(problems):
            shown = pattern.segments if pattern.literal else ".".join(pattern.segments)
            raise GraphError(f"redact={shown!r} hides nothing: {problems[0]}")


def fields_of_items(schemas: Iterable[Schema]) -> frozenset[str]:
    """The fields of which an update may be one item of a list, as with the reducers `append` and `add_messages`."""
    folded = [(name, field) for schema in schemas for name, field in schema.fields.items() if field.reducer is not None]
    classes = [(name, class_of(field.annotation)) for name, field in folded]
    return frozenset(name for name, cls in classes if cls is not None and issubclass(cls, list))


def _fields_named(patterns: Iterable[Pattern]) -> list[Any]:
    return list(dict.fromkeys(pattern.field for pattern in patterns if pattern.field is not None))


def _check_fields(option: str, names: Iterable[Any], schemas: Sequence[Schema], hint: str = "") -> None:
    """Refuse names that are a field of none of the schemas, unless one accepts any key."""
    if any(schema.accepts_any_key for schema in schemas):
        return
    known = dict.fromkeys(name for schema in schemas for name in schema.fields)
    unknown = [name for name in names if name not in known]
    if unknown:
        inside = " or of a graph inside it" if len(schemas) > 1 else ""
        near = "".join(suggestion(name, known) for name in unknown)
        raise GraphError(
            f"{option} names {list_names(unknown)}, no field of the schema{inside}.{near} Fields: {list_names(known)}"
            f"{hint}"
        )


def checked_edge_ends(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """The names at one end of an edge; functions and anything else that is no name are refused."""
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
    """Refuse a name of a new node that is no identifier, reserved or taken."""
    given: Any = name
    if not isinstance(given, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise GraphError(
            f"{brief(given)} is no name for a node: names are identifiers, since nodes become attributes of the program"
        )
    if name in (START, END) or name.startswith("_"):
        own = "the ends of a graph, and the program's own attributes with a leading underscore, have such names"
        raise GraphError(f"{name!r} cannot name a node: {own}; choose another, like {name.strip('_') + '_node'!r}")
    if name in known:
        raise GraphError(f"there is a node {name!r} already: give this one another name")


def attribute_problems(names: Iterable[str]) -> list[str]:
    """The names of modules of a program that cannot be its attributes."""
    return [
        f"no module of the graph can be called {name!r}: it becomes program.{name}, which DSPy or the program needs "
        f"itself. Give its node or router another name, like {name + '_node'!r}"
        for name in names
        if name in _ATTRIBUTES or hasattr(dspy.Module, name)
    ]


def check_one_name(**options: object) -> None:
    """Refuse options that take one name and got something else, such as a list of names or a function."""
    for option, given in options.items():
        if not isinstance(given, str):
            raise GraphError(f"{option}={brief(given)}: give one name, {option}='...'")


def check_limits(**limits: object) -> None:
    """Refuse limits that are no whole number of at least 1."""
    for name, limit in limits.items():
        if not is_whole_number(limit) or limit < 1:
            raise GraphError(f"{name}={limit!r}: it must be a whole number of at least 1")


def check_conversations(nodes: Iterable[Node]) -> None:
    """Refuse `warn_at` if no node has a conversation in which the warning could be a message."""
    if not any(node.conversations for node in nodes):
        raise GraphError(
            "warn_at: no node commits turns that a warning could stand in: give the schema a field of Messages and "
            'a module node writes=[..., "messages"], or show it {run.remaining}'
        )


def warn_of_shadowed(name: str, outputs: Iterable[str]) -> None:
    """Warn of outputs that methods of `dspy.Prediction` hide. To be called by `Graph.compile` itself."""
    shadowed = sorted(set(outputs) & set(dir(dspy.Prediction)))
    if shadowed:
        warnings.warn(
            f"dspy.Prediction has methods called {', '.join(shadowed)}: read these outputs of graph {name!r} as "
            f"prediction[{shadowed[0]!r}], or rename the fields",
            stacklevel=3,  # the line of the user that calls `compile`
        )
