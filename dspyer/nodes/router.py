"""Routers: functions, names of fields and modules that decide where a branch goes next.

`build_router` makes a `Router` of what `add_conditional_edges` was given. `Routes` resolves what a router returned, a
label, a name or a `Send`, to targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import dspy

from dspyer.errors import RouteError, annotate, brief, list_names, noting, suggestion
from dspyer.nodes.binding import Binding, BoundNode, FieldParameter, filled, plan_binding, plan_templates
from dspyer.nodes.callables import gives_literals_alone, hidden_problems, literals, members, mentions, read_signature
from dspyer.nodes.field_access import FieldNames, NamesSpec, check_names, name_map, unknown_field_text
from dspyer.nodes.function import check_target
from dspyer.nodes.module import module_io, plan_inputs, selected, values_of_prediction
from dspyer.nodes.node import Built, Call, Command, Decision, Flaws, Goto, Send
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import ModuleStep, Script, is_async
from dspyer.schema.schema import Schema

Route: TypeAlias = Callable[..., object] | str | dspy.Module
REASONS = ("reasoning", "rationale", "final_reasoning")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Router(BoundNode):
    """The choice of where a branch goes: of the name of the node that it follows, and with its targets as `goto`.

    Attributes:
        routes: its targets by label.
        writes: fields that it commits in the same transition, by its own names.
        module_name: the attribute of the program that holds its module; None if it has none.
    """

    routes: Routes
    writes: FieldNames = field(default_factory=dict)
    module_name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", self.binding.reader)
        object.__setattr__(self, "goto", self.routes.targets)

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that lead to each target, for pictures."""
        found: dict[str, list[str]] = {}
        for label, targets in self.routes.labels.items():
            for target in targets:
                found.setdefault(target, []).append(str(label))
        return {target: ", ".join(labels) for target, labels in found.items() if labels != [target]}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionRouter(Router):
    """A router that is a function."""

    fn: Callable[..., object]

    def script(self, call: Call) -> Script[Decision]:
        """The targets that the function returns, which is sync and cheap: it is called here, in no step."""
        yield from ()
        arguments = self.binding.bind(call)
        try:  # no block of `noting`, which costs something without an error too
            result = self.fn(**arguments)
        except Exception as error:
            annotate(error, f"in {self.who}")
            raise
        return Decision(self.resolve(result))

    def resolve(self, result: object) -> tuple[Goto, ...]:
        """The targets that a result of the function names."""
        if isinstance(result, Command) or (result is None and None not in self.routes.labels):
            raise RouteError(
                f"{self.who} returned {brief(result)}: a router returns a label, a name, a Send or a list of them; "
                f"its targets are {list_names(self.goto)}"
            )
        return self.routes.resolve(result, self.who)


def value_of_field(**fields: object) -> object:
    """The answer of a router that takes the value of a field as its label."""
    (value,) = fields.values()
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleRouter(Router):
    """A router that is a DSPy module with one `Literal` output. The module itself is an attribute of the program.

    Attributes:
        label: its output that names the label.
    """

    label: str

    def script(self, call: Call) -> Script[Decision]:
        """The targets of the module's output."""
        assert self.module_name is not None
        inputs = self.binding.bind(call)
        with noting(f"in {self.who}"):
            result = yield filled(ModuleStep(getattr(call.program, self.module_name), inputs), self.templates), call
        values = values_of_prediction(result, self.who, known=True)
        (label,) = selected(values, {self.label: self.label}, self.who).values()
        reason = next((str(values[name]) for name in REASONS if values.get(name)), None)
        return Decision(self.routes.resolve(label, self.who), selected(values, self.writes, self.who), reason)


# --- targets

PathMap: TypeAlias = Mapping[Any, str | Sequence[str]] | Iterable[str]


@dataclass(frozen=True, slots=True)
class Routes:
    """The targets of a router.

    Attributes:
        labels: targets by label; empty if the router names its targets itself.
        targets: the names of all targets, in order.
        by_text: targets by a text that a router may return: a label, or a name.
    """

    labels: Mapping[Any, tuple[str, ...]]
    targets: tuple[str, ...]
    by_text: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        texts = {label: names for label, names in self.labels.items() if isinstance(label, str)}
        object.__setattr__(self, "by_text", {**{name: (name,) for name in self.targets}, **texts})

    def resolve(self, result: object, who: str) -> tuple[Goto, ...]:
        """The targets of a label, a name, a `Send` or a list of these: at least one, all of them known."""
        # The usual result is found by one look; labels of other types, `Send`s and lists take longer.
        if type(result) is str and result in self.by_text:
            return self.by_text[result]
        if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
            found = tuple(target for part in result for target in self._one(part, who))
            if not found:
                raise RouteError(f"{who} returned an empty list: name a target, or END to finish the branch")
            return found
        return self._one(result, who)

    def _one(self, part: object, who: str) -> tuple[Goto, ...]:
        if isinstance(part, Send):
            check_target(part, self.targets, who, _HOW_TO_DECLARE)
            return (part,)
        label = self._label(part)
        if label is not None:
            return label
        if not self.labels:
            check_target(part, self.targets, who, _HOW_TO_DECLARE)
        hint = suggestion(part, dict.fromkeys([*self.labels, *self.targets]))
        if type(part).__name__ == Send.__name__:
            hint = f" This Send is of {type(part).__module__}: import the one of dspyer"
        raise RouteError(
            f"{who} returned {brief(part)}; its labels are {list_names(self.labels)} and its targets "
            f"{list_names(self.targets)}: {_HOW_TO_DECLARE}.{hint}"
        )

    def _label(self, part: object) -> tuple[str, ...] | None:
        if isinstance(part, str) and part in self.by_text:
            return self.by_text[part]
        try:
            if part in self.labels:
                return self.labels[part]
        except TypeError:  # an unhashable value cannot be a label
            return None
        return self.labels.get(part.value) if isinstance(part, Enum) else None


_HOW_TO_DECLARE = "add it to the path map"


def routes_of(
    path_map: PathMap | None, declared: Sequence[object], found: Flaws, complete: bool = True, unset: bool = False
) -> Routes | None:
    """The targets of a router, None if they are unknown.

    `path_map` has targets by label, or is a list of names. `declared` are the labels in the type of what the router
    returns, empty for unknown; `complete` says that it can return nothing else, `unset` that it may also return None,
    which needs no target.
    """
    who = found.who
    if path_map is None:
        names = tuple(name for name in declared if isinstance(name, str))
        if names and len(names) == len(declared):
            return Routes({}, tuple(dict.fromkeys(names)))
        labels = f" for {list_names(declared)}" if declared else ""
        fix = "a dict from label to node, a list of nodes, or a return annotation `-> Literal['a', 'b']`"
        found.problems.append(f"{who} does not say where it may go: give it a path map{labels}: {fix}")
        return None
    if isinstance(path_map, str):
        found.problems.append(f"{who}: the path map {path_map!r} is one name: write [{path_map!r}]")
        return None
    if not isinstance(path_map, Mapping):
        path_map = {name: name for name in path_map}
    labels_of: dict[Any, tuple[str, ...]] = {}
    for label, target in path_map.items():
        given: Sequence[Any] = target if isinstance(target, (list, tuple)) else (target,)
        names = tuple([name for name in given if isinstance(name, str)])
        if not names or len(names) < len(given):
            found.problems.append(
                f"{who}: the path map sends {label!r} to {brief(target)}: give the name of a node, or a list of names"
            )
        labels_of[label] = names
    targets = tuple(dict.fromkeys(name for names in labels_of.values() for name in names))
    if not labels_of:
        found.problems.append(f"{who}: the path map is empty: give it at least one target")
    certain = [label for label in labels_of if label is not None or not unset]
    if declared:  # labels without a target, and entries of the path map that no label can reach
        found.problems += [
            f"{who} may give {label!r}, which the path map does not have: add {{{label!r}: 'a node'}}."
            f"{suggestion(label, certain)}"
            for label in declared
            if label not in certain and label not in targets
        ]
        found.problems += [
            f"{who} never gives {label!r}, which the path map has; it gives {list_names(declared)}: remove it."
            f"{suggestion(label, declared)}"
            for label in certain
            if complete and label not in declared
        ]
    return Routes(labels_of, targets)


# --- building


class RouterOptions(NamedTuple):
    """The options of a router: what `Graph.add_conditional_edges` was given.

    Attributes:
        source: the node that it follows, or `START`.
        route: a pure function, the name of a field, or a module with one `Literal` output.
        path_map: targets by label, or a list of names.
        name: the name of a module router among the graph's predictors; None for `SOURCE_router`.
        writes: where a module router commits its label: a field, or its outputs as for a node.
    """

    source: str
    route: Route
    path_map: PathMap | None = None
    name: str | None = None
    writes: str | NamesSpec | None = None

    @property
    def who(self) -> str:
        """The name of the router in problems and errors."""
        return f"the router of {self.source!r}"

    @property
    def known_targets(self) -> tuple[str, ...]:
        """The targets that the path map names, for a router that cannot be built."""
        path_map = self.path_map
        parts = path_map.values() if isinstance(path_map, Mapping) else () if path_map is None else (path_map,)
        found = [name for part in parts for name in _names(part)]
        return tuple(name for name in found if isinstance(name, str))

    @property
    def may_send(self) -> bool:
        """Return whether its function may return `Send`s."""
        return callable(self.route) and not isinstance(self.route, dspy.Module) and mentions(self.route, Send)


def build_router(options: RouterOptions, schema: Schema) -> Built:
    """A router with its module, and what is wrong with it; no router if its targets are not known."""
    route, found = options.route, Flaws(options.who)
    if isinstance(route, dspy.Module):
        return _build_module_router(route, options, schema, found)
    if options.name is not None or options.writes is not None:
        found.problems.append(
            f"{options.who}: name= and writes= are for routers that are modules; this one is {brief(route)}"
        )
    if isinstance(route, str):
        return found.built(_build_field_router(route, options, schema, found))
    if callable(route):
        return found.built(_build_function_router(route, options, schema, found))
    fix = "give a function, the name of a field, or a dspy.Module with one Literal output"
    found.problems.append(f"{options.who} is {brief(route)}, of type {type(route).__name__}: {fix}")
    return found.built(None)


def _names(part: object) -> Iterable[object]:
    return (part,) if isinstance(part, str) or not isinstance(part, Iterable) else part


def _declares_literals(kind: object) -> tuple[bool, bool]:
    """Return whether a type is made of `Literal`s alone, apart from `None`, and whether `None` is among them."""
    given = members(kind)
    return all(gives_literals_alone(each) for each in given if each is not NoneType), NoneType in given


def _build_field_router(field: str, options: RouterOptions, schema: Schema, found: Flaws) -> Router | None:
    if field not in schema:
        text = f"{field!r} {unknown_field_text(field, schema)} A router that is a string is a field."
        found.problems.append(f"{found.who}: {text}")
        return None
    kind = None if schema.accepts_any_key else schema.fields[field].annotation
    found.who = f"{options.who} by the field {field!r}"
    complete, unset = _declares_literals(kind)
    routes = routes_of(options.path_map, literals(kind), found, complete, unset)
    if routes is None:
        return None
    facts = Binding(found.who, (FieldParameter(field, field, copy=False, default=False),)).facts()
    return FunctionRouter(name=options.source, **facts, routes=routes, fn=value_of_field)


def _build_function_router(
    fn: Callable[..., object], options: RouterOptions, schema: Schema, found: Flaws
) -> Router | None:
    who = options.who
    if is_async(fn):
        found.problems.append(
            f"{who} is async: a router is a plain, pure function; await in a node, and route by what it wrote"
        )
    signature = read_signature(fn, who)
    binding = plan_binding(signature, NodeOptions(options.source, schema), found)
    # A router is no target of a `Send`: what nothing has written by then is missing.
    found.without_sends()
    complete = gives_literals_alone(signature.returns)
    routes = routes_of(options.path_map, literals(signature.returns), found, complete)
    fix = (
        "route with the module itself, add_conditional_edges({source!r}, {{name}}, ...), or call it in a node and "
        "route by the field that it wrote"
    )
    found.problems += hidden_problems(fn, who, fix.format(source=options.source))
    if routes is None:
        return None
    return FunctionRouter(name=options.source, **binding.facts(), routes=routes, sends=mentions(fn, Send), fn=fn)


def _build_module_router(module: dspy.Module, options: RouterOptions, schema: Schema, found: Flaws) -> Built:
    who, name = options.who, options.name or f"{options.source}_router"
    io = module_io(module)
    outputs = io.outputs or {}
    found.problems += [f"{who}: {problem}" for problem in io.problems]
    choices = {output: literals(kind) for output, kind in outputs.items() if literals(kind)}
    if len(choices) != 1:
        have = f"{len(choices)} Literal outputs ({list_names(choices)})" if choices else "no Literal output"
        found.problems.append(
            f"{who} is a {type(module).__name__} with {have}: a router has exactly one, "
            "as in dspy.Predict(\"question -> next: Literal['search', 'done']\")"
        )
        return found.built(None)
    ((label, declared),) = choices.items()
    # Code of the user's may give other labels than its signature declares: then the path map decides.
    known = () if io.own_code and options.path_map is not None else declared
    routes = routes_of(options.path_map, known, found, *_declares_literals(outputs[label]))
    written: FieldNames = {label: options.writes} if isinstance(options.writes, str) else {}
    if not written:
        names, problems = name_map(options.writes, "writes", who)
        written, found.problems = names or {}, [*found.problems, *problems]
    found.problems += check_names(written, "writes", who, own=(*outputs, *io.by_products), schema=schema)
    own = NodeOptions(name, schema)
    binding = plan_inputs(io, own, found)
    templates = plan_templates([module], own, binding.reading()[0], found)
    found.without_sends()
    if routes is None:
        return found.built(None, module)
    facts = binding.facts(templates)
    router = ModuleRouter(name=options.source, **facts, routes=routes, writes=written, module_name=name, label=label)
    return found.built(router, module)
