"""Functions as nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import dspy

from dspyer.dspy_module.not_public import COMPILED
from dspyer.dspy_module.source import modules_text, reduce_program, source_class
from dspyer.errors import NodeOutputError
from dspyer.nodes.binding import BoundNode, plan_binding
from dspyer.nodes.callables import read_signature
from dspyer.nodes.field_names import FieldNames, check_names, unknown_outputs_text
from dspyer.nodes.hidden_modules import hidden_problems, mentions
from dspyer.nodes.node import Built, Call, Command, Node, Reply, Send
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.outputs import RESULT, declared_result, goto_of, is_bare, permitted, values_of
from dspyer.nodes.program_calls import OpenCalls, is_program, questions_in
from dspyer.nodes.steps import FunctionStep, Script, Step
from dspyer.nodes.sync_async import is_async
from dspyer.nodes.template_plans import filled, plan_templates

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionNode(BoundNode):
    """A node that is a function.

    Attributes:
        fn: the function.
        asynchronous: whether it is an async function.
        per_item: whether it runs inside a map, where a result that is no patch is the result of the item.
    """

    fn: Callable[..., Any]
    asynchronous: bool = False
    per_item: bool = False

    def permitted_fields(self, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """The fields that its code may read or write through `ctx`; None for all.

        `self.reads` lists the parameters of a function that declares no reads; through `ctx` it may read any field.
        """
        names = self.binding.reads if option == "reads" else self.writes
        return None if names is None else frozenset(names.values())

    def script(self, call: Call) -> Script[Reply]:
        """Bind the parameters and call the function."""
        step: Step = FunctionStep(self.fn, self.binding.bind(call), self.asynchronous)
        if self.programs:
            step = UntilCallsEnd(step, self.asynchronous)
        return self.reply((yield filled(step, self.templates), call))

    def reply(self, result: object) -> Reply:
        """The function's result as updates of the state."""
        who = self.who
        goto = None
        if isinstance(result, Command):
            goto = goto_of(result, self.goto, who)
            result = result.update
        if self.per_item and is_bare(result):
            return Reply({RESULT: result}, goto, True)
        values, whole = values_of(result, who)
        if whole and values and self.writes is None and not self.per_item:
            self._check_model(result, values)
        return Reply(permitted(values, self.writes, who), goto, whole)

    def _check_model(self, result: object, values: Mapping[str, object]) -> None:
        schema = self.binding.schema
        if schema and not schema.accepts_any_key and not values.keys() & schema.fields.keys():
            raise NodeOutputError(
                f"{self.who} returned a {type(result).__name__}, which {unknown_outputs_text(values, schema)}"
            )


class UntilCallsEnd(NamedTuple):
    """The step that calls the function of a node: it ends when all programs that the function called have ended."""

    step: Step
    asynchronous: bool

    def call(self, call: Call) -> Any:
        """Make it in sync code."""
        calls = call.context.delegate.open_calls()
        try:
            return self.step.call(call)
        except BaseException as error:
            if not questions_in(error):
                calls.stop()
            raise
        finally:
            calls.close()
            calls.raise_if_cut_off()

    async def acall(self, call: Call) -> Any:
        """Make it in async code."""
        attempt = call.context.delegate
        calls = attempt.open_calls()
        try:
            made = self.step.acall(call)
            return await (made if self.asynchronous else _stop_if_cancelled(calls, made))
        except BaseException as error:
            if not questions_in(error):
                calls.stop()
            raise
        finally:
            if not attempt.left_running:
                await calls.aclose()
            calls.raise_if_cut_off()


async def _stop_if_cancelled(calls: OpenCalls, code: Coroutine[Any, Any, T]) -> T:
    """The result of a sync function of a node, which runs in a thread and so is finished if its task is cancelled.

    But the programs that it calls are stopped then.
    """
    task = asyncio.ensure_future(code)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # the driver sees it in `cancellation_count()`
            calls.stop()
            task.cancel()
    return task.result()


def may_return_command(node: Node) -> bool:
    """Whether a node is a function whose code mentions `Command`."""
    return isinstance(node, FunctionNode) and mentions(node.fn, Command)


class NodeModules(dspy.Module):
    """The modules that are bound to a function, by parameter: an attribute of the program, which is never called."""

    def __init__(self, **modules: dspy.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if type(self) is NodeModules else reduce_program(self)


# Attributes that DSPy gives to instances of modules.
_DSPY_ATTRIBUTES = {"forward", "aforward", "history", "callbacks", COMPILED}


def build_function(fn: Callable[..., Any], options: NodeOptions) -> Built:
    """A node of a function, method, partial or callable object, sync or async, and what is wrong with it."""
    signature = read_signature(fn, options.who)
    plan = plan_binding(signature, options, options.who)
    declared = declared_result(signature.returns, options.schema)
    writes, problems = _writes(options, declared.writes, bool(plan.binding.contexts))
    problems = [*plan.problems, *problems, *module_problems(options.modules, options.who)]
    given = ", ".join([f"{options.name!r}", getattr(fn, "__name__", "fn"), "modules={{{local!r}: {name}}}"])
    fix = "bind it, add_node(" + given + "), and take it as the parameter `{local}`"
    problems += hidden_problems(fn, options.who, fix)
    reads, _ = plan.binding.reading()
    templates, wrong, missing = plan_templates(options.modules.values(), options, reads, options.who)
    problems += wrong
    goto = tuple(dict.fromkeys((*options.goto, *declared.goto)))
    node = FunctionNode(
        name=options.name,
        **plan.binding.facts(templates),
        writes=writes,
        goto=goto,
        sends=bool(goto) and mentions(fn, Send),
        fn=fn,
        asynchronous=is_async(fn),
        per_item=options.map is not None,
        programs=tuple(
            [name for name, module in options.modules.items() if plan.binding.contexts and is_program(module)]
        ),
    )
    return Built(node, bound_modules(options) if options.modules else None, tuple(problems), (*plan.unknown, *missing))


def bound_modules(options: NodeOptions) -> NodeModules | None:
    """What the program holds for the modules that are bound to a node."""
    if not all(isinstance(module, dspy.Module) for module in options.modules.values()):
        return None
    kind = source_class(options.name, NodeModules, modules_text(options.name, options.modules))
    return kind(**options.modules)


def _writes(options: NodeOptions, declared: tuple[str, ...] | None, posts: bool) -> tuple[FieldNames | None, list[str]]:
    """The fields that a function writes, by `writes=` or else its return annotation; and what is wrong with them.

    A function with a parameter `ctx` may post more than it returns, so `writes` may name more than its annotation.
    """
    if options.writes is not None:
        own = None if posts else declared
        return options.writes, check_names(options.writes, "writes", options.who, own=own, schema=options.output_schema)
    if declared is None:
        return None, []
    if declared and not options.output_schema.accepts_any_key and not set(declared) & set(options.output_schema.fields):
        return None, [f"{options.who}: its return annotation {unknown_outputs_text(declared, options.output_schema)}"]
    writes = {name: name for name in declared}
    who = f"{options.who}, by its return annotation"
    return writes, check_names(writes, "writes", who, own=None, schema=options.output_schema)


def module_problems(modules: Mapping[str, Any], who: str) -> list[str]:
    """What is wrong with the modules that are bound to a node."""
    problems = []
    for name, module in modules.items():
        if not isinstance(module, dspy.Module):
            problems.append(
                f"{who}: modules binds {name!r} to an object of type {type(module).__name__}: only a dspy.Module is "
                "bound so; give anything else by functools.partial or as a resource of the run"
            )
        elif not name.isidentifier() or hasattr(NodeModules, name) or name in _DSPY_ATTRIBUTES:
            problems.append(
                f"{who}: a module cannot be bound as {name!r}, a name that dspy.Module uses: choose another"
            )
    return problems
