"""From what a user gave to `add_conditional_edges` to a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import NamedTuple, TypeAlias

import dspy

from dspyer.errors import brief
from dspyer.nodes.base import Send
from dspyer.nodes.callables import describe, gives_literals_alone, literals, members
from dspyer.nodes.color import is_async
from dspyer.nodes.hidden import hidden_problems, mentions
from dspyer.nodes.module import plan_inputs
from dspyer.nodes.module_io import module_io
from dspyer.nodes.names import FieldNames, NamesSpec, as_map, check_names, listed, no_field
from dspyer.nodes.plan import plan_binding
from dspyer.nodes.routers import FieldRouter, FunctionRouter, ModuleRouter, Router
from dspyer.nodes.routes import PathMap, routes_of
from dspyer.nodes.spec import NodeOptions
from dspyer.nodes.templating import plan_templates
from dspyer.schema.schema import Schema

Route: TypeAlias = Callable[..., object] | str | dspy.Module


class BuiltRouter(NamedTuple):
    """A router that was built, or the reasons why not.

    Attributes:
        router: None if there is no telling where it goes.
        module: what the program holds under `router.module_name`; None for nothing.
        problems: what is wrong with it, each with its fix.
    """

    router: Router | None
    module: dspy.Module | None = None
    problems: tuple[str, ...] = ()


def build_router(
    source: str,
    route: Route,
    path_map: PathMap | None = None,
    *,
    schema: Schema,
    name: str | None = None,
    writes: str | NamesSpec | None = None,
) -> BuiltRouter:
    """Make a router.

    Args:
        source: the node that it follows, or `START`.
        route: a pure function, the name of a field, or a module with one `Literal` output.
        path_map: targets by label, or a list of names.
        schema: the fields of the state.
        name: the name of a module router among the graph's predictors; `SOURCE_router` if not given.
        writes: where a module router commits its label: a field, or its outputs as for a node.

    Returns:
        The router with its module, and what is wrong with it.
    """
    who = f"the router of {source!r}"
    if isinstance(route, dspy.Module):
        return _build_module_router(source, route, path_map, schema, name or f"{source}_router", writes)
    problems = []
    if name is not None or writes is not None:
        problems.append(f"{who}: name= and writes= are for routers that are modules; this one is {brief(route)}")
    if isinstance(route, str):
        built = _build_field_router(source, route, path_map, schema)
    elif callable(route):
        built = _build_function_router(source, route, path_map, schema)
    else:
        fix = "give a function, the name of a field, or a dspy.Module with one Literal output"
        built = BuiltRouter(None, None, (f"{who} is {brief(route)}, of type {type(route).__name__}: {fix}",))
    return built._replace(problems=(*problems, *built.problems))


def lost_ways(route: Route, path_map: PathMap | None) -> tuple[tuple[str, ...], bool]:
    """Of a router that could not be built, the targets that its path map names, and whether it may return `Send`s."""
    parts = path_map.values() if isinstance(path_map, Mapping) else () if path_map is None else (path_map,)
    found = [name for part in parts for name in _names(part)]
    sends = callable(route) and not isinstance(route, dspy.Module) and mentions(route, Send)
    return tuple(name for name in found if isinstance(name, str)), sends


def _names(part: object) -> Iterable[object]:
    return (part,) if isinstance(part, str) or not isinstance(part, Iterable) else part


def _promises(kind: object) -> tuple[bool, bool]:
    """Whether a type is made of `Literal`s alone, but for `None`, and whether it has `None`."""
    given = members(kind)
    return all(gives_literals_alone(each) for each in given if each is not NoneType), NoneType in given


def _build_field_router(source: str, field: str, path_map: PathMap | None, schema: Schema) -> BuiltRouter:
    who = f"the router of {source!r}"
    if not schema.open and field not in schema.fields:
        return BuiltRouter(
            None, None, (f"{who}: {field!r} {no_field(field, schema)} A router that is a string is a field.",)
        )
    kind = None if schema.open else schema.fields[field].annotation
    by = f"{who} by the field {field!r}"
    complete, unset = _promises(kind)
    routes, problems = routes_of(path_map, literals(kind), by, complete, unset)
    if routes is None:
        return BuiltRouter(None, None, tuple(problems))
    return BuiltRouter(
        FieldRouter(name=source, routes=routes, reads={field: field}, field=field), None, tuple(problems)
    )


def _build_function_router(
    source: str, fn: Callable[..., object], path_map: PathMap | None, schema: Schema
) -> BuiltRouter:
    who = f"the router of {source!r}"
    problems = []
    if is_async(fn):
        problems.append(
            f"{who} is async: a router is a plain, pure function; await in a node, and route by what it wrote"
        )
    described = describe(fn, who)
    plan = plan_binding(described, who, schema)
    promised = literals(described.returns)
    routes, more = routes_of(path_map, promised, who, complete=gives_literals_alone(described.returns))
    problems += [*plan.problems, *plan.unknown, *more]
    fix = (
        "route with the module itself, add_conditional_edges({source!r}, {{name}}, ...), or call it in a node and "
        "route by the field that it wrote"
    )
    problems += hidden_problems(fn, who, fix.format(source=source))
    if routes is None:
        return BuiltRouter(None, None, tuple(problems))
    reads, optional = plan.binding.facts()
    router = FunctionRouter(
        name=source,
        routes=routes,
        reads=reads,
        optional=optional,
        sends=mentions(fn, Send),
        resources={resource.name: resource.kind for resource in plan.binding.resources if not resource.default},
        fn=fn,
        binding=plan.binding,
    )
    return BuiltRouter(router, None, tuple(problems))


def _build_module_router(
    source: str,
    module: dspy.Module,
    path_map: PathMap | None,
    schema: Schema,
    name: str,
    writes: str | NamesSpec | None,
) -> BuiltRouter:
    who = f"the router of {source!r}"
    found = module_io(module)
    flaws = [f"{who}: {problem}" for problem in found.problems]
    choices = {output: literals(kind) for output, kind in (found.outputs or {}).items() if literals(kind)}
    if len(choices) != 1:
        have = f"{len(choices)} Literal outputs ({listed(choices)})" if choices else "no Literal output"
        problem = (
            f"{who} is a {type(module).__name__} with {have}: a router has exactly one, "
            "as in dspy.Predict(\"question -> next: Literal['search', 'done']\")"
        )
        return BuiltRouter(None, None, (*flaws, problem))
    ((label, promised),) = choices.items()
    known = () if found.own_code and path_map is not None else promised
    complete, unset = _promises((found.outputs or {})[label])
    routes, problems = routes_of(path_map, known, who, complete, unset)
    written, more = _router_writes(writes, label, who)
    own = (*(found.outputs or {}), *found.by_products)
    problems += [*more, *check_names(written, "writes", who, own=own, schema=schema)]
    planned = plan_inputs(found, NodeOptions(name, schema), who)
    reads, optional = planned.facts()
    templates, wrong, missing = plan_templates([module], NodeOptions(name, schema), reads.values(), who)
    problems += [*flaws, *planned.problems, *planned.unknown, *wrong, *missing]
    if routes is None:
        return BuiltRouter(None, module, tuple(problems))
    router = ModuleRouter(
        name=source,
        routes=routes,
        reads=templates.read(reads),
        optional=templates.unset(reads, optional),
        templates=templates,
        writes=written,
        module_name=name,
        inputs=planned.inputs,
        label=label,
    )
    return BuiltRouter(router, module, tuple(problems))


def _router_writes(writes: str | NamesSpec | None, label: str, who: str) -> tuple[FieldNames, list[str]]:
    if isinstance(writes, str):
        return {label: writes}, []
    written, problems = as_map(writes, "writes", who)
    return written or {}, problems
