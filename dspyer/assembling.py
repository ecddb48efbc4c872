"""From a blueprint to the program that runs it."""

from __future__ import annotations

from collections.abc import Mapping

import dspy

from dspyer.dspy_module.parameters import copy_tree
from dspyer.dspy_module.signatures import own_signatures
from dspyer.dspy_module.source import source_class
from dspyer.graph.compile import fill_templates
from dspyer.graph.spec import GraphSpec
from dspyer.program import CompiledGraph
from dspyer.stores import Store


def assemble(
    blueprint: GraphSpec, modules: Mapping[str, dspy.Module], text: str, store: Store | None = None
) -> CompiledGraph:
    """Makes the program of a blueprint, with copies of the modules; modules that share a part go on sharing it.

    Args:
        blueprint: the graph.
        modules: the user's modules by attribute.
        text: the graph as source text.
        store: where its threads are kept.

    Returns:
        The program.
    """
    copies = copy_tree(dict(modules), {})
    for name, module in copies.items():
        if name in blueprint.frozen and not getattr(module, "_dspyer_program", False):
            module._compiled = True
        if name in blueprint.thawed:
            for _, inner in module.named_sub_modules():
                inner._compiled = False
    fill_templates(blueprint, copies)
    program = source_class(blueprint.name, CompiledGraph, text)(blueprint, copies)
    own_signatures(program, retag=True)
    program._store = store
    return program
