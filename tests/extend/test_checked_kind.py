"""A kind that is checked when the graph is built, by public names alone: it calls a function and asks a module."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Graph
from dspyer.errors import GraphError
from dspyer.extend import (
    Binding,
    Built,
    Call,
    Flaws,
    FunctionStep,
    KindOptions,
    ModuleStep,
    Node,
    NodeOptions,
    Reply,
    Script,
    check_names,
    filled,
    module_io,
    plan_binding,
    plan_templates,
    read_signature,
)
from dspyer.testing import ScriptedLM


@dataclass(frozen=True)
class Guarded(KindOptions):
    """Asks a module if a function of fields lets it."""

    rule: Callable[..., bool]
    module: dspy.Module

    def build(self, options: NodeOptions) -> Built:
        found = Flaws(options.who)
        binding = plan_binding(read_signature(self.rule, options.who), options, found)
        io = module_io(self.module)
        reads = {**(binding.reading()[0] or {}), **{name: name for name in io.inputs}}
        writes = {name: name for name in io.outputs or ()}
        found.problems += check_names(writes, "writes", options.who, own=None, schema=options.output_schema)
        templates = plan_templates([self.module], options, reads, found)
        node = GuardedNode(
            name=options.name,
            **templates.facts(reads, binding.reading()[1]),
            writes=writes,
            rule=self.rule,
            binding=binding,
            inputs=tuple(io.inputs),
        )
        return found.built(node, self.module)

    def text(self, name: str, show: Callable[[object], str]) -> str:
        return f"graph.add_node({name!r}, Guarded({show(self.rule)}, {show(self.module)}))"


@dataclass(frozen=True, kw_only=True, eq=False)
class GuardedNode(Node):
    kind = "guarded"
    rule: Callable[..., bool]
    binding: Binding
    inputs: tuple[str, ...]

    def script(self, call: Call) -> Script[Reply]:
        if not (yield FunctionStep(self.rule, self.binding.bind(call)), call):
            return Reply({})
        step = ModuleStep(getattr(call.program, self.name), {name: call.read(name) for name in self.inputs})
        found = yield filled(step, self.templates), call
        return Reply({name: found[name] for name in self.writes or ()})


def program_of(rule: Callable[..., bool], instructions: str = "Name it.", **options: Any) -> CompiledGraph:
    module = dspy.Predict(dspy.Signature("text -> label", instructions))
    graph = Graph(inputs=["text", "amount", "language"], **options).add_node("guarded", Guarded(rule, module))
    return graph.add_path(START, "guarded", END).compile()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_it_calls_what_it_was_given(mode: str) -> None:
    program = program_of(lambda amount: amount < 100, "Name it in {language}.")
    with ScriptedLM([{"label": "bees"}]) as lm:
        for amount, label in ((400, None), (40, "bees")):
            inputs = {"text": "hum", "amount": amount, "language": "Dutch"}
            run = program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))
            assert run.error is None
            assert run.state.get("label") == label
    (asked,) = lm.calls
    assert "Name it in Dutch." in str(asked)


def test_what_is_wrong_is_said_when_the_graph_is_built() -> None:
    with pytest.raises(GraphError, match=r"node 'guarded' takes \*fields: name the fields that it reads"):
        program_of(lambda *fields: True)


def test_the_program_shows_it_as_its_kind_says() -> None:
    assert "graph.add_node('guarded', Guarded(" in inspect.getsource(type(program_of(lambda amount: True)))
