"""Functions as nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import dspy
from pydantic import BaseModel
from typing_extensions import is_typeddict

from dspyer.errors import NodeOutputError, RouteError, brief, list_names, suggestion
from dspyer.hints import typed_dict_keys
from dspyer.lm.not_public import COMPILED
from dspyer.lm.source import modules_text, reduce_program, source_class
from dspyer.nodes.binding import BoundNode, filled, plan_binding, plan_templates
from dspyer.nodes.callables import hidden_problems, literals, members, mentions, read_signature
from dspyer.nodes.field_access import FieldNames, check_names, unknown_outputs_text
from dspyer.nodes.node import Built, Call, Command, Flaws, Goto, Node, Reply, Send
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import FunctionStep, OpenCalls, Script, Step, is_async, is_program, questions_in
from dspyer.patch import Replace, seal
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState

# --- what a node returns, as updates of the state and targets

Values: TypeAlias = Mapping[str, object]
RESULT = ""  # among the values of an item of a map: a result that is one value, not values by name (see `is_bare`)
RETURNS = "return a dict of what changed, a model, a dspy.Prediction, None, or Command(update=..., goto=...)"


def values_of(result: object, who: str, schema: Schema | None, writes: Mapping[str, str] | None) -> tuple[Values, bool]:
    """A node's result as values by name, and whether they are whole.

    A patch is merged into what is there, and so is a model. The values of a `dspy.Prediction` are whole: they replace
    it. `schema` is that of the state (None for an item of a map), `writes` the fields by the node's own names.
    """
    if result is None:
        return {}, False
    # The usual result, told by its exact type: no check of abstract classes.
    if type(result) is dict:
        return _patch(result, who), False
    if isinstance(result, dspy.Prediction):
        return dict(result.items()), True
    if isinstance(result, BaseModel) and not isinstance(result, Mapping):
        return _values_of_model(result, schema, writes), False
    if isinstance(result, ImmutableState):
        raise NodeOutputError(
            f"{who} returned the whole state, of {len(result)} fields: return only what changed, "
            "as a dict, or `state.diff(new)`"
        )
    if isinstance(result, Mapping):
        return _patch(result, who), False
    hint = "; to go somewhere, return Command(goto=...)" if _holds_send(result) else ""
    # LangGraph has a `Command` too, and the wrong import is the likely mistake.
    if type(result).__name__ == Command.__name__:
        hint = f" of dspyer: this one is of {type(result).__module__}"
    raise NodeOutputError(f"{who} returned {brief(result)}, of type {type(result).__name__}: {RETURNS}{hint}")


def _values_of_model(result: BaseModel, schema: Schema | None, writes: Mapping[str, str] | None) -> Values:
    """The values that `model_dump` would give by name, each as it is: an image stays one."""
    names, is_set = _names_of_model(type(result)), result.model_fields_set
    if schema is not None:
        # The defaults of a state would reset all of it; that of a field with a reducer would be added to what is there.
        is_state = schema.model is not None and isinstance(result, schema.model)
        folded = [name for name in names if schema.reducer((writes or {}).get(name, name)) is not None]
        names = [name for name in names if name in is_set or not (is_state or name in folded)]
    values = {**{name: getattr(result, name) for name in names}, **(result.model_extra or {})}
    if schema is None or not schema.accepts_any_key:
        return values
    # Without a schema the None of a patch deletes; that of a model is one of its values.
    return {name: Replace(None) if value is None else value for name, value in values.items()}


def _names_of_model(kind: type[BaseModel]) -> list[str]:
    """The names of what `model_dump` gives."""
    return [*(name for name, info in kind.model_fields.items() if not info.exclude), *kind.model_computed_fields]


def _patch(patch: Mapping[Any, object], who: str) -> Values:
    for key in patch:
        if type(key) is not str:
            raise NodeOutputError(f"{who} returned a patch with the key {brief(key)}: the keys are names of fields")
    return patch


def is_bare(result: object) -> bool:
    """Return whether the result of an item is one value, and not values by name like a dict or a prediction."""
    by_name = result is None or isinstance(result, (Mapping, dspy.Prediction))
    return not by_name and not _holds_send(result)


def _holds_send(result: object) -> bool:
    items = result if isinstance(result, (list, tuple)) else (result,)
    return any(isinstance(item, Send) for item in items)


def permitted(values: Values, writes: FieldNames | None, who: str) -> Values:
    """The values by field of the state, if the node may write all of them; `writes` None permits any."""
    if writes is None:
        return values
    for name in values:
        if name not in writes:
            raise NodeOutputError(
                f"{who} returned {name!r}, which it does not write: its writes are {list_names(writes)}. "
                f"Add it to them, or do not return it.{suggestion(name, writes)}"
            )
    # Only after the loop: a patch is taken as a whole or not at all.
    return {writes[name]: value for name, value in values.items()}


def declared_result(annotation: Any, schema: Schema) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The names that a return annotation says are written, None for unknown, and the targets of its `Command`."""
    writes: dict[str, None] | None = {}
    goto: list[str] = []
    for member in members(annotation):
        kind = get_origin(member) or member
        if kind is Command:
            goto += [str(target) for argument in get_args(member) for target in literals(argument)]
            writes = None
        elif writes is None or member in (None, type(None)):
            continue
        elif is_typeddict(kind):
            writes.update(dict.fromkeys(typed_dict_keys(kind)))
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not schema.model:
            writes.update(dict.fromkeys(_names_of_model(kind)))
        else:
            writes = None
    return None if writes is None else tuple(writes), tuple(dict.fromkeys(goto))


def goto_of(command: Command[Any], declared: tuple[str, ...], who: str) -> tuple[Goto, ...] | None:
    """The targets of a `Command` of a node that is no tool, all declared; None if it takes the node's edges."""
    if command.result is not None:
        raise NodeOutputError(
            f"{who} returned Command(result={brief(command.result)}), which is what a model is shown of the call of a "
            "tool, and the node is no tool: return the value in update={...}, or give the function to an agent, "
            "agents.tool_loop(signature, tools=[...])"
        )
    if command.goto is None:
        return None
    goto = (command.goto,) if isinstance(command.goto, (str, Send)) else tuple(command.goto)
    if not goto:
        raise RouteError(f"{who} returned Command(goto=[]): name a target, END, or leave goto out to take its edges")
    for target in goto:
        check_target(target, declared, who, "declare it with `-> Command[Literal[...]]` or add_node(goto=[...])")
    return goto


def check_target(target: object, declared: tuple[str, ...], who: str, fix: str) -> None:
    """Refuse a target that is not declared; `fix` says how to declare it."""
    name = target.node if isinstance(target, Send) else target
    if not isinstance(name, str):
        raise RouteError(
            f"{who} went to {brief(target)}, of type {type(target).__name__}: give a name, a Send or a list"
        )
    if name not in declared:
        raise RouteError(
            f"{who} went to {name!r}; its targets are {list_names(declared)}: {fix}.{suggestion(name, declared)}"
        )


def given(call: Call, updates: Mapping[str, object], schema: Schema) -> Mapping[str, object]:
    """The values that a node has posted and then returned, merged by field; from here on it may do nothing more.

    A field without a reducer keeps its last value.
    """
    attempt = call.context.delegate
    # First: a thread of the node that goes on must find it over before its posts are counted.
    attempt.over = True
    if (live := attempt.host.together.posts) is not None:
        updates = {name: one for name, one in updates.items() if not live.post(attempt, name, one, returned=True)}
    if attempt.posts is None:
        return updates
    merged: dict[str, list[object]] = {}
    for field, value in (*attempt.posts, *updates.items()):
        found = merged.setdefault(field, [])
        # A field without a reducer holds one value: the last.
        if schema.reducer(field) is None:
            found.clear()
        found.append(value)
    return {field: Updates(*found) if len(found) > 1 else found[0] for field, found in merged.items()}


def folded(
    call: Call, updates: Mapping[str, object], schema: Schema, whole: bool = False
) -> tuple[Mapping[str, Any], ImmutableState]:
    """The validated patch of some updates, with all that the execution has posted, and the state after it."""
    patch, after = schema.commit(call.state, updates, node=call.node, commit_id=call.execution, whole_values=whole)
    attempt = call.context.delegate
    if (live := attempt.host.together.posts) is not None:
        patch, after = live.with_posts(attempt, patch, after)
    return seal(patch), after


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionNode(BoundNode):
    """A node that is a function.

    Attributes:
        fn: the function.
        asynchronous: whether it is an async function.
        per_item: whether it runs inside a map, where a result that is no patch is the result of the item.
        into: the name that its result gets in the reply, whatever it is; None if the result is a patch.
    """

    fn: Callable[..., Any]
    asynchronous: bool = False
    per_item: bool = False
    into: str | None = None

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
        who, goto = self.who, None
        if self.into is not None:
            return Reply({self.into: result})
        if isinstance(result, Command):
            goto = goto_of(result, self.goto, who)
            result = result.update
        if self.per_item and is_bare(result):
            return Reply({RESULT: result}, goto, True)
        schema = None if self.per_item else self.binding.schema
        values, whole = values_of(result, who, schema, self.writes)
        declares_nothing = isinstance(result, (BaseModel, dspy.Prediction)) and values and self.writes is None
        if declares_nothing and schema and not (schema.accepts_any_key or values.keys() & schema.fields.keys()):
            kind = type(result).__name__
            raise NodeOutputError(f"{who} returned a {kind}, which {unknown_outputs_text(values, schema)}")
        return Reply(permitted(values, self.writes, who), goto, whole)


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
            # A question leaves the other calls at work: they finish, and all questions of the node come together.
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
            # A sync function that has timed out goes on in its thread and may call programs: those are not waited for.
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
    """Return whether a node is a function whose code mentions `Command`."""
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
    found = Flaws(options.who)
    signature = read_signature(fn, options.who)
    binding = plan_binding(signature, options, found)
    declared, targets = declared_result(signature.returns, options.schema)
    writes = _writes(options, declared, bool(binding.contexts), found)
    found.problems += module_problems(options.modules, options.who)
    given = ", ".join([f"{options.name!r}", getattr(fn, "__name__", "fn"), "modules={{{local!r}: {name}}}"])
    fix = "bind it, add_node(" + given + "), and take it as the parameter `{local}`"
    found.problems += hidden_problems(fn, options.who, fix)
    templates = plan_templates(options.modules.values(), options, binding.reading()[0], found)
    goto = tuple(dict.fromkeys((*options.goto, *targets)))
    node = FunctionNode(
        name=options.name,
        **binding.facts(templates),
        writes=writes,
        goto=goto,
        sends=bool(goto) and mentions(fn, Send),
        fn=fn,
        asynchronous=is_async(fn),
        per_item=options.map is not None,
        programs=tuple([name for name, module in options.modules.items() if binding.contexts and is_program(module)]),
    )
    return found.built(node, bound_modules(options) if options.modules else None)


def bound_modules(options: NodeOptions) -> NodeModules | None:
    """The modules that the program holds for the modules that are bound to a node."""
    if not all(isinstance(module, dspy.Module) for module in options.modules.values()):
        return None
    kind = source_class(options.name, NodeModules, modules_text(options.name, options.modules))
    return kind(**options.modules)


def _writes(options: NodeOptions, declared: tuple[str, ...] | None, posts: bool, found: Flaws) -> FieldNames | None:
    """The fields that a function writes, by `writes=` or else its return annotation.

    A function with a parameter `ctx` may post more than it returns, so `writes` may name more than its annotation.
    """
    writes, own, who, schema = options.writes, None if posts else declared, found.who, options.output_schema
    if writes is None:
        if declared is None:
            return None
        if declared and not schema.accepts_any_key and not set(declared) & set(schema.fields):
            found.problems.append(f"{who}: its return annotation {unknown_outputs_text(declared, schema)}")
            return None
        writes, own, who = {name: name for name in declared}, None, f"{who}, by its return annotation"
    found.problems += check_names(writes, "writes", who, own=own, schema=schema)
    return writes


def module_problems(modules: Mapping[str, Any], who: str) -> list[str]:
    """Problems with the modules that are bound to a node."""
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
