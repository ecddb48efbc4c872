"""One tool of an agent as a node: a function, a `dspy.Tool`, or a module that a model calls.

A turn of the model sends each of its calls to the node of the tool, as the value `call`. The node commits exactly one
message with the result, whatever happens: wrong arguments, an exception, a refusal. Only a handoff is left to the node
that joins the calls of the turn.

A call of the node goes through these steps (`ToolNode._script`):

1. The arguments are validated, as `dspy.Tool` does. A model that gave wrong ones is told at once: no retry helps it.
2. Someone is asked, if the tool needs approval.
3. The tool is called. Parameters that the model does not see are bound behind the validation.
4. What it returned is checked, if the tool has a check.

What these raise goes through the retries of the node like that of any other node. What the last attempt raised becomes
the result (`error_reply`): this is a layer of its own around the attempts, in `runtime/execution.py`. In the node it
would come too early, since the policy decides outside of it whether there is another attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import dspy
from dspy.adapters.types.tool import Tool as ModelTool
from dspy.adapters.utils import serialize_for_json
from pydantic import ValidationError

from dspyer.errors import (
    NodeOutputError,
    RouteError,
    always_raised,
    list_names,
    short_error,
)
from dspyer.messages import tool_message
from dspyer.nodes.binding import Binding, plan_binding
from dspyer.nodes.callables import FunctionSignature
from dspyer.nodes.field_names import FieldNames, check_names
from dspyer.nodes.node import Built, Call, Command, Node, Reply
from dspyer.nodes.options import NodeOptions, OfGraph
from dspyer.nodes.outputs import permitted, values_of
from dspyer.nodes.steps import Script, arun_script, run_script
from dspyer.nodes.sync_async import acall_function, call_function, is_async
from dspyer.retry import Retry
from dspyer.templates import Fill
from dspyer.values.frozen import thaw
from dspyer.views import View

Reads: TypeAlias = Collection[str] | Mapping[str, str | View | Fill] | None
Writes: TypeAlias = Collection[str] | Mapping[str, str] | None

CALL = "call"
"""What a turn sends to the node of a tool: {"id": ..., "name": ..., "args": {...}}."""


@dataclass(frozen=True, eq=False)
class ToolSpec:
    """A tool of an agent with its options, as `agents.tool` makes it.

    Attributes:
        name: the name under which the model calls it, and of its node.
        tool: what the model is shown of it: name, description and arguments. It is not called itself.
        target: what is called: a function, a module or a program.
        hidden: the parameters of a function that the model does not see.
        required: the arguments that a call must have.
        reads: the fields for hidden parameters, as in `add_node`.
        writes: the fields that it may write, as in `add_node`; None for those of the agent's `schema=`.
        approve: whether to ask before a call; True, False, or a function of arguments and fields.
        effect: whether the result is recorded, so that no later attempt calls it again.
        render: how its results are shown to the model; None for as they are.
        check: finds problems in a result.
        raises: the exceptions that fail the node.
        retry: which failed attempts are followed by another one.
        timeout: the seconds of one attempt; None for no limit.
    """

    name: str
    tool: dspy.Tool
    target: Any
    hidden: FunctionSignature
    required: frozenset[str]
    reads: Reads = None
    writes: Writes = None
    approve: Any = False
    effect: bool = False
    render: Callable[[Any], Any] | None = None
    check: object = None
    raises: tuple[type[Exception], ...] = ()
    retry: Retry | int | OfGraph | None = OfGraph.RETRY
    timeout: float | None = None

    @property
    def desc(self) -> str:
        """The description that the model is shown."""
        return self.tool.desc or ""

    def __repr__(self) -> str:
        return f"tool({self.name}: {', '.join(self.tool.args or ())})"


class ToolOptions(NamedTuple):
    """What makes a node a tool.

    Attributes:
        spec: the tool.
        messages: the field for its results.
        handoffs: the field for its handoffs, each `{"message": the result, "goto": the mode}`; None if the agent has
            none.
    """

    spec: ToolSpec
    messages: str = "messages"
    handoffs: str | None = None


class ToolOutcome(NamedTuple):
    """What one call of a tool gave.

    Attributes:
        value: the result, as JSON values.
        update: the patch for the fields of the state, by the tool's own names.
        whole: whether the values of the patch replace what is there.
        goto: the mode that the tool hands off to; None for none.
    """

    value: Any
    update: Mapping[str, object]
    whole: bool = False
    goto: str | None = None

    @classmethod
    def of(cls, result: object, who: str) -> ToolOutcome:
        """The outcome of what a tool returned."""
        if not isinstance(result, Command):
            return cls(storable(result), {})
        update, whole = values_of(result.update, who)
        if result.goto is not None and not isinstance(result.goto, str):
            raise RouteError(f"{who} returned Command(goto={result.goto!r}): a tool hands off to one mode, by its name")
        return cls(storable(result.result), update, whole, result.goto)


def storable(value: object) -> Any:
    """A result as JSON values, in the form in which DSPy shows it to a model.

    Models and dataclasses become dicts, dates and numbers of other libraries text. Any other object becomes `str(it)`.
    """
    return serialize_for_json(value)


class BoundTool(ModelTool):
    """A tool whose arguments are validated already, and whose function gets the hidden parameters as well.

    It is called instead of the function, so that DSPy's callbacks see the call.
    """

    def _validate_and_parse_args(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolNode(Node):
    """A node that is a tool.

    Attributes:
        tool: what the model is shown.
        required: the arguments that a call must have.
        fn: the function.
        binding: what the hidden parameters get.
        asynchronous: whether the function is async.
        raises: the exceptions that fail the node.
        timeout: the seconds of one attempt, for the error.
        fields: the fields that it may write, by its own names; None for any.
        messages: the field for its results.
        handoffs: the field for its handoffs; None for none.
        lasting: its options that say that a call is not undone: `approve`, `effect`. No search may contain one.
    """

    kind: ClassVar[str] = "tool"

    tool: dspy.Tool
    required: frozenset[str]
    fn: Callable[..., Any]
    binding: Binding
    asynchronous: bool
    raises: tuple[type[Exception], ...]
    timeout: float | None
    fields: FieldNames | None
    messages: str
    handoffs: str | None
    lasting: tuple[str, ...] = ()
    who: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", f"tool {self.name!r}")

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to it may bring: its call."""
        return frozenset([CALL])

    @property
    def reports_errors(self) -> bool:
        """Whether what a call raises becomes a result: always."""
        return True

    def call(self, call: Call) -> Reply:
        """Make one call of the tool."""
        return run_script(self._script(call))

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        return await arun_script(self._script(call))

    def _script(self, call: Call) -> Script[Reply]:
        args = _call_of(call)["args"]
        try:
            parsed = self.parsed(args)
        except ValueError as error:
            return self._error(call, error)
        outcome = yield CallStep(self, parsed), call
        return self._reply(call, outcome)

    def parsed(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as values of their types; raises `ValueError` for wrong ones."""
        known = self.tool.args or {}
        missing = [name for name in known if name in self.required and name not in args]
        unknown = [] if self.tool.has_kwargs else [name for name in args if name not in known]
        if missing or unknown:
            wrong = [f"the argument {name!r} is missing" for name in missing]
            wrong += [f"there is no argument {name!r}" for name in unknown]
            raise ValueError(f"{'; '.join(wrong)}. The arguments are {list_names(known)}")
        found: dict[str, Any] = {}
        for name, value in args.items():
            try:
                found |= self.tool._validate_and_parse_args(**{name: value})
            except ValidationError as refusal:
                reason = refusal.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
                raise ValueError(f"the argument {name!r} is invalid: {reason}") from refusal
        return found

    def error_reply(self, call: Call, error: Exception) -> Reply | None:
        """The result that says what the last attempt raised; None if the node fails with it.

        It fails with what always propagates, with what the tool declares to raise, and if it returned what it may not
        write: the author of the tool mends that, and not the model.
        """
        of_author = isinstance(error, NodeOutputError) and not error.of_module
        if always_raised(error) or of_author or isinstance(error, self.raises):
            return None
        return self._error(call, error)

    def _error(self, call: Call, error: Exception) -> Reply:
        text = short_error(error, step=self.name)
        return Reply({self.messages: tool_message(_call_of(call)["id"], self.name, text, True)})

    def _reply(self, call: Call, outcome: ToolOutcome) -> Reply:
        message = tool_message(_call_of(call)["id"], self.name, outcome.value)
        updates = dict(permitted(outcome.update, self.fields, self.who))
        if outcome.goto is None:
            updates[self.messages] = message
        elif self.handoffs is None:
            raise RouteError(f"{self.who} returned Command(goto={outcome.goto!r}), and the agent has no other mode")
        else:
            updates[self.handoffs] = [{"message": message, "goto": outcome.goto}]
        return Reply(updates, None, outcome.whole)


def _call_of(call: Call) -> dict[str, Any]:
    assert call.overlay is not None  # a turn sends it
    return cast("dict[str, Any]", thaw(call.overlay.raw(CALL)))


class CallStep(NamedTuple):
    """The step that calls a tool with validated arguments."""

    node: ToolNode
    args: Mapping[str, Any]

    def call(self, call: Call) -> ToolOutcome:
        """Call it from sync code."""
        node, hidden = self.node, self._hidden(call)

        def fn(**args: Any) -> Any:
            return call_function(node.fn, {**args, **hidden}, node.asynchronous)

        return ToolOutcome.of(bound(node.tool, fn)(**self.args), node.who)

    async def acall(self, call: Call) -> ToolOutcome:
        """Call it from async code."""
        node, hidden = self.node, self._hidden(call)

        async def fn(**args: Any) -> Any:
            return await acall_function(node.fn, {**args, **hidden}, node.asynchronous)

        return ToolOutcome.of(await bound(node.tool, fn).acall(**self.args), node.who)

    def _hidden(self, call: Call) -> dict[str, Any]:
        return self.node.binding.bind(call._replace(overlay=None))


def bound(tool: dspy.Tool, fn: Callable[..., Any]) -> BoundTool:
    """A tool that calls a function with the validated arguments. Without pydantic: this is done for every call."""
    return cast("BoundTool", BoundTool.model_construct(**{**tool.__dict__, "func": fn}))


def build_tool(given: ToolOptions, options: NodeOptions) -> Built:
    """A node of a tool, and what is wrong with it."""
    spec = given.spec
    who = f"tool {options.name!r}"
    hidden_options = options if options.reads is not None else options._replace(reads={})
    plan = plan_binding(spec.hidden, hidden_options, who)
    problems = [*plan.problems, *plan.unknown]
    if options.writes is not None:
        problems += check_names(options.writes, "writes", who, own=None, schema=options.schema)
    reads, optional = plan.binding.facts()
    own = {name: name for name in (given.messages, given.handoffs) if name is not None}
    node = ToolNode(
        name=options.name,
        reads=reads,
        optional=optional,
        writes=None if options.writes is None else {**options.writes, **own},
        resources={resource.name: resource.kind for resource in plan.binding.resources if not resource.default},
        whole_state=plan.binding.whole_state,
        tool=spec.tool,
        required=spec.required,
        fn=spec.target,
        binding=plan.binding,
        asynchronous=is_async(spec.target),
        raises=spec.raises,
        timeout=spec.timeout,
        lasting=tuple(name for name in ("approve", "effect") if getattr(spec, name)),
        fields=options.writes,
        messages=given.messages,
        handoffs=given.handoffs,
    )
    return Built(node, None, tuple(problems))
