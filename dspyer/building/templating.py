"""The templates of a graph: whether what they name can be there, and the predictors that are filled in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import dspy

from dspyer.building.blueprint import GraphSpec
from dspyer.dspy_module.prompt_templates import fill_in, let_warn, shorten_demos
from dspyer.errors import GraphError
from dspyer.nodes.base import Node
from dspyer.nodes.module import ModuleNode
from dspyer.nodes.router import Router
from dspyer.patch import DELETE
from dspyer.scheduler.run_values import OF_NODE, OF_RUN, is_counted, run_value_problem
from dspyer.scheduler.validation import GraphFacts, WritesBefore, unwritten
from dspyer.schema.schema import Schema
from dspyer.templates import RUN


def template_problems(
    parts: Iterable[tuple[str, Node | Router]], facts: GraphFacts, schema: Schema, inputs: Collection[str]
) -> Iterator[str]:
    """What templates and run values name that cannot be there, each with its fix.

    Args:
        parts: nodes and routers, with the node at which they stand.
        facts: what is known of the graph.
        schema: the fields.
        inputs: the fields that a run may be given.
    """
    earlier: WritesBefore | None = None
    for place, part in parts:
        for name in part.templates.names:
            if name.startswith(RUN):
                problem = run_value_problem(name, facts.nodes)
                if problem is not None:
                    yield f"{part.who}: {name!r} {problem}"
            elif not schema.open and name in schema.fields:
                field = schema.fields[name]
                given = name in inputs and name not in facts.left_out
                if given or field.info.default_factory is not None or field.fixed_default not in (None, DELETE):
                    continue
                earlier = earlier or WritesBefore(facts.edges, facts.writes)
                own = isinstance(part, Router) and name in (facts.writes.get(place) or ())
                if place in facts.reads and not own and not earlier.unknown(place) and not earlier.wrote(place, name):
                    yield f"{part.who} is filled with {{{name}}}, {unwritten(facts, place, name)}"


def fill_templates(blueprint: GraphSpec, modules: Mapping[str, dspy.Module]) -> None:
    """Lets predictors fill in the fields that their instructions name, and shorten the histories in their demos.

    Args:
        blueprint: the graph.
        modules: the program's own modules by attribute; changed in place.

    Raises:
        GraphError: if a predictor that is to be warned, or whose demos are to be shortened, has a `forward` of its own.
    """
    named = [(name, node.templates) for name, node in blueprint.nodes.items()]
    named += [(router.module_name or "", router.templates) for router in blueprint.routers()]
    named += [(part.name, part.templates) for parts in blueprint.condensers.values() for part in parts.values()]
    run_values = [f"{RUN}{name}" for name in OF_RUN]
    run_values += [f"{RUN}{node}.{name}" for node in blueprint.nodes for name in OF_NODE]
    run_values = [name for name in run_values if blueprint.counts or not is_counted(name)]
    for attribute, templates in named:
        if templates.inside and attribute in modules:
            may = None if templates.may is None else templates.may.union(run_values)
            fill_in(attribute, modules[attribute], may)
    if blueprint.warn_at is not None:
        problems = [
            f"warn_at: node {name!r}: nothing can be added to the instructions of {path!r}, since its class has a "
            "`forward` of its own: use dspy.Predict"
            for name, node in blueprint.nodes.items()
            if isinstance(node, ModuleNode) and node.turns.fields and name in modules
            for path in let_warn(modules[name])
        ]
        if problems:
            raise GraphError(problems)
    if blueprint.max_demo_turns is not None:
        problems = [
            f"max_demo_turns: the demos of {name!r} in node {attribute!r} cannot be shortened, since its class has a "
            "`forward` of its own: use dspy.Predict"
            for attribute, module in modules.items()
            for name in shorten_demos(module, blueprint.max_demo_turns)
        ]
        if problems:
            raise GraphError(problems)
