"""What a tool calls: a function or a module of the program, with validated arguments; and what the call gave.

Parameters that the model does not see (`ctx`, fields of `reads=`, resources) are bound here, behind the validation of
`dspy.Tool`, by the plan that nodes have for their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

import dspy
from dspy import Tool as ModelTool

from dspyer.errors import NodeOutputError, RouteError, short_error
from dspyer.lm.not_public import serialize_for_json
from dspyer.nodes.binding import Binding, filled
from dspyer.nodes.field_access import FieldNames
from dspyer.nodes.function import values_of
from dspyer.nodes.module import selected, values_of_prediction
from dspyer.nodes.node import NOTHING, Call, Command
from dspyer.nodes.steps import FunctionStep, ModuleStep, Script, arun_script, run_script
from dspyer.templates import NO_TEMPLATES, Templates
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw
from dspyer.values.json import to_json, with_valid_text


class ToolAction(Protocol):
    """What a tool calls. A call of it may ask questions, and may use what `call.context` offers."""

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call it with validated arguments."""

    def result(self, returned: object) -> object:
        """The result of a call, or its `Command`, from what it returned. It may raise: the call was made."""
        return returned


@dataclass(frozen=True, slots=True)
class FunctionAction(ToolAction):
    """A tool that is a function.

    Attributes:
        fn: the function.
        binding: what the parameters get that the model does not see.
        asynchronous: whether the function is async.
        takes: the arguments that it takes; None for all.
    """

    fn: Callable[..., Any]
    binding: Binding
    asynchronous: bool
    takes: frozenset[str] | None = None

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call the function."""
        shown = args if self.takes is None else {name: args[name] for name in args if name in self.takes}
        return (yield FunctionStep(self.fn, {**shown, **self.binding.bind(call)}, self.asynchronous), call)


@dataclass(frozen=True, slots=True)
class ModuleAction(ToolAction):
    """A tool that is a `dspy.Module`, an attribute of the program. Its outputs are the result, a single one by itself.

    Attributes:
        path: the attributes that lead from the program to the module.
        who: the name of the tool in errors.
        outputs: the outputs that the model is shown; None for all.
        writes: the outputs that go to fields as well.
        binding: what the inputs get that the model does not see.
        templates: the templates in the instructions of its predictors.
    """

    path: tuple[str, ...]
    who: str
    outputs: tuple[str, ...] | None
    writes: tuple[str, ...]
    binding: Binding
    templates: Templates

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call the module."""
        hidden = {name: thaw(value) for name, value in self.binding.bind(call).items()}
        step = ModuleStep(attrgetter(".".join(self.path))(call.program), {**args, **hidden})
        return (yield filled(step, self.templates), call)

    def result(self, returned: object) -> Command[Any]:
        """The outputs, and those that go to fields."""
        values = values_of_prediction(returned, self.who, self.outputs is not None)
        names = self.outputs
        shown = selected(values, None if names is None else {name: name for name in names}, self.who)
        written = selected(values, {name: name for name in self.writes}, self.who)
        found = next(iter(shown.values())) if len(shown) == 1 else shown
        return Command(dspy.Prediction(**written) if written else None, result=found)


class BuiltAction(NamedTuple):
    """What a tool calls, with what the graph must know of it.

    Attributes:
        action: what is called.
        module: the module of the program that it calls; None for none.
        reads: the fields that it reads, by its own names.
        optional: fields among them that may be unset.
        resources: the types of the resources that it needs, by parameter.
        templates: the templates in instructions of the module.
        problems: what is wrong with it.
        fields: the fields that it may write, by its own names; None for those of the options.
    """

    action: ToolAction
    module: dspy.Module | None = None
    reads: FieldNames = NOTHING
    optional: frozenset[str] = frozenset()
    resources: Mapping[str, type] = NOTHING
    templates: Templates = NO_TEMPLATES
    problems: tuple[str, ...] = ()
    fields: FieldNames | None = None


class BoundTool(ModelTool):
    """A tool whose arguments are validated already. It is called instead of its function, for DSPy's callbacks."""

    def _validate_and_parse_args(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs


def bound(tool: ModelTool, fn: Callable[..., Any]) -> BoundTool:
    """A tool that calls a function with validated arguments. Without pydantic: one is made for every call."""
    return cast("BoundTool", BoundTool.model_construct(**{**tool.__dict__, "func": fn}))


class ToolOutcome(NamedTuple):
    """What one call of a tool gave.

    Attributes:
        value: the result, as JSON values.
        update: the patch for the fields of the state, by the tool's own names.
        whole: whether the values of the patch replace what is there.
        goto: the mode that the tool hands off to; None for none.
        error: whether the value says why there is no result.
    """

    value: Any
    update: Mapping[str, object]
    whole: bool = False
    goto: str | None = None
    error: bool = False

    @classmethod
    def of(cls, returned: object, step: ToolInvocation) -> ToolOutcome:
        """The outcome of what a tool returned. If that cannot be kept, no other call is made for a result.

        Without an effect, a `Command` that is none fails the node: nothing needs a record, and the author mends it.
        """
        found = cls(None, {})
        try:
            result = step.action.result(returned)
            command = result if isinstance(result, Command) else Command(result=result)
            update, whole = values_of(command.update, step.who)
            if command.goto is not None and not isinstance(command.goto, str):
                text = f"{step.who} returned Command(goto={command.goto!r}): a tool hands off to one mode, by its name"
                raise RouteError(text)
            if step.effect is not None:
                to_json(freeze(dict(update)))  # an update that no store can hold could not be recorded
            found = cls(None, update, whole)
            value = storable(command.result)
            freeze(value)
        except Exception as error:
            if step.effect is None and isinstance(error, (NodeOutputError, RouteError)):
                raise
            action = "the call was made, and only its result is lost: find out what it did before you make it again"
            return found._replace(value=short_error(error, step=step.tool.name or "", action=action), error=True)
        return found._replace(value=value, goto=command.goto)


def storable(value: object) -> Any:
    """A result as JSON values, in the form in which DSPy shows it to a model.

    Models and dataclasses become dicts, dates and numbers of other libraries text. Any other object becomes `str(it)`.
    What no request can hold, half of a surrogate pair, becomes U+FFFD.
    """
    return with_valid_text(serialize_for_json(with_valid_text(value)))


class ToolInvocation(NamedTuple):
    """One call of a tool.

    Attributes:
        tool: what the model is shown of it.
        who: the name of the tool in errors.
        action: what it calls.
        args: the validated arguments.
        effect: the name of the effect under which the outcome is recorded; None for no effect.
        takes_key: whether the function gets the idempotency key of the effect.
    """

    tool: ModelTool
    who: str
    action: ToolAction
    args: Mapping[str, Any]
    effect: str | None = None
    takes_key: bool = False

    def script(self, call: Call) -> Script[ToolOutcome]:
        """Make it."""
        call = call._replace(overlay=None)  # what a turn sends must not hide a field
        if self.effect is None:
            return (yield from self._made(call, {}))

        def effect(key: str) -> Script[list[Any]]:
            return list((yield from self._made(call, {"key": key} if self.takes_key else {})))

        return ToolOutcome(*(yield Recorded(self.effect, effect), call))

    def _made(self, call: Call, key: Mapping[str, str]) -> Script[ToolOutcome]:
        return ToolOutcome.of((yield _BoundCall(self, key), call), self)


class _BoundCall(NamedTuple):
    """The step that calls a tool by DSPy's own class, for its callbacks; these do not see the key of the effect."""

    made: ToolInvocation
    key: Mapping[str, str]

    def call(self, call: Call) -> object:
        def fn(**args: Any) -> object:
            return run_script(self.made.action.script(call, {**args, **self.key}))

        return bound(self.made.tool, fn)(**self.made.args)

    async def acall(self, call: Call) -> object:
        async def fn(**args: Any) -> object:
            return await arun_script(self.made.action.script(call, {**args, **self.key}))

        return await bound(self.made.tool, fn).acall(**self.made.args)


class Recorded(NamedTuple):
    """The step that runs a script as an effect: its result is recorded, so that no later attempt runs it again.

    Attributes:
        key: the name of the effect.
        script: makes the script, given the idempotency key of the effect.
    """

    key: str
    script: Callable[[str], Script[Any]]

    def call(self, call: Call) -> Any:
        """Run it in sync code."""

        def effect(key: str) -> Any:
            return run_script(self.script(key))

        return call.context.delegate.once(self.key, effect)

    async def acall(self, call: Call) -> Any:
        """Run it in async code."""

        async def effect(key: str) -> Any:
            return await arun_script(self.script(key))

        return await call.context.delegate.once(self.key, effect)
