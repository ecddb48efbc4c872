"""One tool of an agent as a node: a function, a `dspy.Tool`, or a module that a model calls.

A turn of the model sends each of its calls to the node of the tool, as the value `call`. The node commits exactly one
message with the result, whatever happens: wrong arguments, an exception, a refusal. Only where other calls of the turn
may decide about the result, for a handoff or an update that they may conflict with, the message is left to the node
that joins the calls.

A call of the node goes through these steps (`ToolNode.script`):

1. The arguments are validated, as `dspy.Tool` does. A model that gave wrong ones is told at once: no retry helps it.
2. Someone is asked, if the tool needs approval.
3. The tool is called. Parameters that the model does not see are bound behind the validation.
4. What it returned is checked, if the tool has a check.

What these raise goes through the retries of the node like that of any other node. What the last attempt raised becomes
the result (`error_reply`): this is a layer of its own around the attempts, in `runtime/execution.py`. In the node it
would come too early, since the policy decides outside of it whether there is another attempt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, cast

import dspy
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from pydantic import AfterValidator, BaseModel, ConfigDict, StrictBool, TypeAdapter, ValidationError
from pydantic.config import JsonDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from dspyer import Command, Fill, Retry, View, register_value_type
from dspyer.agents.conversation import ARGS, HANDOFFS, MESSAGES, PROBLEMS, BoundFunction, plan_function, tool_message
from dspyer.agents.tool_action import (
    FunctionAction,
    ModuleAction,
    ProgramAction,
    ToolAction,
    ToolOutcome,
    by_dspy,
    plan_subagent,
    recorded,
    storable,
)
from dspyer.errors import (
    InputError,
    NodeOutputError,
    NodeTimeoutError,
    RouteError,
    always_raised,
    brief,
    list_names,
    noting,
    short_error,
)
from dspyer.events import AskedCall
from dspyer.extend import (
    Built,
    Call,
    Flaws,
    FunctionSignature,
    Look,
    Node,
    NodeOptions,
    Reply,
    Schema,
    Script,
    check_names,
    freeze,
    hidden_problems,
    is_async,
    is_program,
    is_whole_number,
    module_io,
    plan_binding,
    plan_templates,
    read_signature,
    thaw,
)
from dspyer.lm.source import modules_text, source_class
from dspyer.lm.tracing import reject_steps, step_count, steps_since
from dspyer.nodes.attempt import RESERVED_KEYS
from dspyer.nodes.callables import giving
from dspyer.nodes.check import asks_module, build_finder, found_problems, problem_texts
from dspyer.nodes.function import NodeModules, permitted, values_of
from dspyer.nodes.options import OfGraph
from dspyer.schema.fields import refusal_text
from dspyer.values.json import to_json

# The approval of a tool call: who asks, the question, and the answer.


_SCHEMA: JsonDict = {"description": "The answer to the question whether a tool may be called."}


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid", json_schema_extra=_SCHEMA))
class Approval:
    """The answer to the question whether a tool may be called. True and False are answers as well.

    As JSON it is an object: `{"ok": false, "reason": "too expensive"}`.

    Args:
        ok: whether the tool may be called.
        reason: why it may not, which the model is shown. With an approval, it is kept in the log alone.
        args: all arguments of the call, instead of those that the model gave; None for these. They are validated
            like them, and the question stays open if they are wrong.

    Example:
        >>> Approval(False, "too expensive")
        Approval(ok=False, reason='too expensive', args=None)
    """

    ok: StrictBool
    reason: str = ""
    args: dict[str, Any] | None = None


register_value_type(Approval)  # threads keep answers


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """The rule that says whether a call of a tool needs approval.

    Attributes:
        condition: says whether to ask, with its parameters that get fields; None for always.
        arguments: the parameters of the condition that get arguments of the call; None for all arguments.
        defaults: the arguments that a call may leave out, with their values.
    """

    condition: BoundFunction | None = None
    arguments: tuple[str, ...] | None = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def asks(self, call: Call, args: Mapping[str, Any]) -> bool:
        """Return whether to ask before a call with these validated arguments."""
        if self.condition is None:
            return True
        # A condition on an argument that the model left out must see what the tool will get.
        known = {**self.defaults, **args}
        given = known if self.arguments is None else {name: known.get(name) for name in self.arguments}
        return bool(self.condition(call._replace(overlay=None), **given))


def plan_approval(
    approve: Any, options: NodeOptions, arguments: Mapping[str, Any], who: str, problems: list[str]
) -> ApprovalRule | None:
    """The rule of a tool by its option `approve`; `arguments` are the JSON schemas of its arguments."""
    if approve is False:
        return None
    if options.name in RESERVED_KEYS:
        problems.append(
            f"{who}: its name is the key of its question, and Breakpoints({options.name}=) has this key: give it "
            "another name"
        )
    if approve is True:
        return ApprovalRule()
    name = f"approve of {who}"
    signature = read_signature(approve, name)
    own = tuple([one.name for one in signature.parameters if one.name in arguments])
    # What is named like an argument of the tool is one, also if a field has that name: approval is about the call.
    parameters = tuple([one for one in signature.parameters if one.name not in own])
    fields = replace(signature, parameters=parameters, takes_all=False)
    hint = f" Its arguments are {', '.join(arguments) or 'none'}."
    rule = plan_function(approve, fields, name, options, problems, whole=True, hint=hint)
    problems += hidden_problems(approve, name, "decide by arguments and fields, and ask a model in a `check`")
    defaults = {key: schema["default"] for key, schema in arguments.items() if "default" in schema}
    return ApprovalRule(rule, None if signature.takes_all else own, defaults)


def answer_type(validate: Callable[[Mapping[str, Any]], object]) -> Any:
    """The type of the answers: True, False or an `Approval`, whose arguments `validate` refuses by a `ValueError`."""

    def checked(answer: bool | Approval) -> bool | Approval:
        if isinstance(answer, Approval) and answer.ok and answer.args is not None:
            json.dumps(answer.args, allow_nan=False, default=str, skipkeys=True)  # NaN would be kept as null
            validate(answer.args)
            validate(storable(answer.args))  # as the call will have them: a Decimal is kept as a text
        return answer

    return Annotated[bool | Approval, AfterValidator(checked)]


# The check of a tool: it reads `tool`, `args`, `result` and fields; if it finds problems, the call is repeated, once.


CHECK = "check"
"""The attribute of a check's module in what the program holds for the tool: `program.mail.check`."""

SEEN = ("tool", ARGS, "result")
"""What a check reads besides fields."""


Validate: TypeAlias = Callable[[Mapping[str, Any]], object]


class Verdict(NamedTuple):
    """The findings of a check.

    Attributes:
        problems: what is wrong; empty if the result is good.
        args: the arguments with which to repeat the call; None for the same ones.
    """

    problems: list[str]
    args: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """The check of a tool.

    Attributes:
        finder: the node of the check; `program.<tool>.check` is its module.
        who: the check in errors.
        tool: the name of the tool.
    """

    finder: Node
    who: str
    tool: str

    def script(self, call: Call, args: Mapping[str, Any], result: Any, validate: Validate | None) -> Script[Verdict]:
        """Check a result; `validate` refuses arguments that the tool does not take, None: no other call may follow.

        The verdict is recorded: a later attempt must not come to another one.
        """
        # Frozen: a check that changes what it sees would change the result that is recorded.
        seen: Any = freeze({"tool": self.tool, ARGS: args, "result": result})
        inner = call._replace(overlay=seen, program=getattr(call.program, self.tool, call.program))

        def find(_key: str) -> Script[list[Any]]:
            return list(self._verdict((yield from self.finder.script(inner)), inner, validate))

        return Verdict(*(yield recorded(f"{CHECK} of the call", find, call)))

    def _verdict(self, reply: Reply, call: Call, validate: Validate | None) -> Verdict:
        """The findings in the reply of the finder."""
        found, args = found_problems(self.finder, PROBLEMS, reply, call), reply.updates.get(ARGS)
        if isinstance(found, Mapping):  # of a function that gives arguments as well
            # A misspelt key would lose the arguments without a word.
            unknown = [name for name in found if name not in (PROBLEMS, ARGS)]
            if unknown:
                raise NodeOutputError(
                    f"{self.who} gave {list_names(unknown)}: it gives `problems`, and may give `args`"
                )
            found, args = found.get(PROBLEMS, ()), found.get(ARGS)
        problems = problem_texts(found, self.who, asks_module(self.finder))
        # A language model gives an empty dict for "the same arguments".
        if not problems or validate is None or args is None or args == {}:
            return Verdict(problems)
        try:
            if not isinstance(args, Mapping):
                raise TypeError(f"{brief(args)}: give a dict by name, or None")
            validate(args)
        except (TypeError, ValueError) as refusal:
            error = NodeOutputError(f"{self.who} gave arguments that the tool does not take: {refusal}")
            error.of_module = asks_module(self.finder)
            raise error from refusal
        return Verdict(problems, dict(args))


def plan_tool_check(check: Any, options: NodeOptions, who: str, problems: list[str]) -> ToolCheck | None:
    """The check of a tool by its option `check`."""
    if check is None:
        return None
    name = f"check of {who}"
    is_module = isinstance(check, dspy.Module)
    is_model = isinstance(check, type) and issubclass(check, BaseModel)
    # What a module gives goes to no field of the agent: only what it reads is compared with these.
    schema = Schema.of(None) if is_module or is_model else options.schema
    own = NodeOptions(CHECK, schema, check, overlay=frozenset(SEEN))
    built = build_finder(
        check, own, PROBLEMS, {ARGS: ARGS} if is_module and ARGS in (module_io(check).outputs or ()) else {}
    )
    texts = (*built.problems, *(f"{text} A check of a tool is given {list_names(SEEN)}" for text in built.unknown))
    problems += [text.replace(own.who, name, 1) for text in texts]
    if built.node is None:
        return None
    known = (*SEEN, *built.node.optional, *options.schema.fields)
    if unknown := [field for field in (built.node.reads or {}).values() if field not in known]:
        given = f"and is given {list_names(SEEN)} and fields ({list_names(options.schema.fields)})"
        problems.append(f"{name}: it reads {list_names(unknown)}, {given}")
    return ToolCheck(built.node, name, options.name)


# The arguments of tool calls, validated and parsed as `dspy.Tool` does, with validators that are made once.
#
# `dspy.Tool` makes a pydantic model and a JSON schema validator for each argument of each call (measured: 320 µs).


def parsed_argument(schema: Any, adapter: TypeAdapter[Any] | None, name: str, value: Any) -> Any:
    """The value of an argument as one of its type; raises `ValueError`, of pydantic too, for a wrong one.

    Without a schema or an adapter it is not checked by it.
    """
    if schema is not None:
        plain = value.model_dump() if hasattr(value, "model_dump") else value
        error = best_match(schema.iter_errors(plain))
        if error is not None:
            raise ValueError(f"Arg {name} is invalid: {error.message}")
    return value if adapter is None else adapter.validate_python(value)


def argument_parsers(tool: dspy.Tool) -> dict[str, Callable[[Any], Any]]:
    """The parsers of a tool's arguments by name; an argument for which none can be made is left to the tool."""
    found: dict[str, Callable[[Any], Any]] = {}
    for name, schema in (tool.args or {}).items():
        kind = (tool.arg_types or {}).get(name, Any)
        try:
            validator = None
            if schema.get("type") not in (None, "Any"):
                made = validator_for(schema)
                made.check_schema(schema)
                validator = made(schema)
            found[name] = partial(parsed_argument, validator, None if kind is Any else TypeAdapter(kind), name)
        except Exception:  # noqa: BLE001 - of a schema or type that is none: the tool says at each call what is wrong
            continue
    return found


def invalid_argument(name: str, refusal: ValidationError, *, of_dspy: bool) -> ValueError:
    """The words that tell a model of an argument that pydantic refuses: which one, and where in it.

    DSPy validates each argument as the field `value` of a model of its own (`of_dspy`).
    """
    return ValueError(f"the argument {name!r} is invalid: {refusal_text(refusal, 'value' if of_dspy else '')}")


def refused_by_dspy(tool: dspy.Tool, args: Mapping[str, Any], refusal: ValidationError) -> Exception:
    """The error of a call with arguments that DSPy has refused by pydantic, with the name of the first of them."""
    for name, value in args.items():
        try:
            tool._validate_and_parse_args(**{name: value})
        except ValidationError as found:
            return invalid_argument(name, found, of_dspy=True)
    return refusal


OF_AGENT: Final = "of the agent"
"""The default of an option of a tool that means that of the agent."""


def max_result_problem(given: Any) -> str | None:
    """The problem with the option `max_result`; None if there is none."""
    if given in (None, OF_AGENT) or (is_whole_number(given) and given > 0):
        return None
    return f"max_result={brief(given)}: give the most characters of a result that are shown whole, or None for all"


Reads: TypeAlias = Collection[str] | Mapping[str, str | View | Fill] | None
Writes: TypeAlias = Collection[str] | Mapping[str, str] | None

EFFECT = "the call"
"""The key under which the outcome of a call is recorded."""

CALL = "call"
"""What a turn sends to the node of a tool: {"id": ..., "name": ..., "args": {...}, "alone": is it the only call}."""


@dataclass(frozen=True, eq=False)
class ToolSpec:
    """A tool of an agent with its options, as `agents.tool` makes it.

    Attributes:
        name: the name under which the model calls it, and of its node.
        tool: what the model is shown of it: name, description and arguments. It is not called itself.
        target: what is called: a function or a module.
        hidden: the parameters of a function, or inputs of a module, that the model does not see.
        required: the arguments that a call must have.
        takes_key: whether the function takes the idempotency key of its effect.
        reads: the fields for hidden parameters, as in `add_node`.
        writes: the fields that it may write, as in `add_node`; None for those of the agent's `schema=`.
        approve: whether to ask before a call; True, False, or a function of arguments and fields.
        effect: whether the result is recorded, so that no later attempt calls it again.
        render: how its results are shown to the model; None for as they are.
        check: finds problems in a result.
        raises: the exceptions that fail the node.
        retry: which failed attempts are followed by another one.
        timeout: the seconds of one attempt; None for no limit.
        max_result: the most characters of a result that a model is shown whole; None for no limit.
    """

    name: str
    tool: dspy.Tool
    target: Any
    hidden: FunctionSignature = FunctionSignature()  # noqa: RUF009 - frozen
    required: frozenset[str] = frozenset()
    takes_key: bool = False
    reads: Reads = None
    writes: Writes = None
    approve: Any = False
    effect: bool = False
    render: Callable[[Any], Any] | None = None
    check: object = None
    raises: tuple[type[Exception], ...] = ()
    retry: Retry | int | OfGraph | None = OfGraph.RETRY
    timeout: float | None = None
    max_result: int | Literal["of the agent"] | None = OF_AGENT

    def __repr__(self) -> str:
        return f"tool({self.name}: {', '.join(self.tool.args or ())})"


def build_tool(spec: ToolSpec, options: NodeOptions) -> Built:
    """The node of a tool."""
    who = f"tool {options.name!r}"
    built = build_action(spec, options, who)
    action, problems = cast("ToolAction", built.node), [*built.problems, *built.unknown]
    approval = plan_approval(spec.approve, options, spec.tool.args or {}, who, problems)
    check = plan_tool_check(spec.check, options, who, problems)
    fields, templates = action.writes or {}, action.templates
    reads, optional = dict(action.reads or {}), action.optional
    further = [] if check is None else [(check.finder.reads, check.finder.optional)]
    if approval is not None and approval.condition is not None:
        further.insert(0, approval.condition.binding.reading())
    for more, unset in further:
        # A module may have inputs that are no fields. The name of a field may be the tool's own for another one.
        new = [one for one in (more or {}).values() if one in options.schema.fields and one not in reads.values()]
        reads |= {one if one not in reads else f"field {one}": one for one in new}
        optional |= unset
    # The result is a message, or waits among the handoffs until the turn has ended.
    own = {MESSAGES: MESSAGES, HANDOFFS: HANDOFFS}
    lasting = {"approve": approval is not None, "effect": spec.effect}
    node = ToolNode(
        name=options.name,
        takes=frozenset([CALL]),
        **templates.facts(reads, optional),
        writes={**fields, **own},
        resources=action.resources,
        reports_in=(MESSAGES,),
        programs=action.path[1:] if isinstance(action, ProgramAction) else (),  # with a check as well
        lasting=tuple([option for option, is_set in lasting.items() if is_set]),
        spec=spec,
        parsers=argument_parsers(spec.tool),
        action=action,
        approval=approval,
        check=check,
        readable=frozenset((options.reads or {}).values()),
        fields=fields,
        contested=frozenset((options.writes or {}).values()),
    )
    if approval is not None:
        node = replace(node, answer_types={options.name: answer_type(node.parsed)})
    problems += _write_problems(fields, own, spec, options, who)
    return Built(node, _held(options.name, built.module, spec.check), tuple(problems))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolNode(Node):
    """A node that is a tool.

    Attributes:
        spec: the tool.
        parsers: the parsers of the arguments.
        action: what is called.
        approval: whether to ask before a call; None for never.
        check: finds problems in a result; None for none.
        readable: the fields that its code may read through `ctx`.
        fields: the fields that it may write, by its own names.
        contested: the fields on which calls of one turn may conflict: those that it may write, without its sessions.
    """

    kind: ClassVar[str] = "tool"
    bounded: bool = True
    look = Look("tool", "tool")

    spec: ToolSpec
    parsers: Mapping[str, Callable[[Any], Any]]
    action: ToolAction
    approval: ApprovalRule | None
    check: ToolCheck | None
    readable: frozenset[str]
    fields: Mapping[str, str]
    contested: frozenset[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", f"tool {self.name!r}")

    @property
    def runs_graph(self) -> bool:
        """Tell if what the program holds for it is a compiled graph."""
        return isinstance(self.action, ProgramAction) and len(self.action.path) == 1

    @property
    def sources(self) -> Mapping[str, str]:
        """The fields of its hidden parameters."""
        return self.action.sources

    def permitted_fields(self, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """The fields that its code may read or write through `ctx`: not those of its node."""
        return frozenset(self.fields.values()) if option == "writes" else self.readable

    def with_fake(self, fake: object, schema: Schema) -> Built:
        """The node of the same tool that calls another function, or gives a result: what `testing.stub` puts there.

        The function takes what it names of the arguments and of the hidden parameters.
        """
        fn = fake if callable(fake) else giving(fake)
        signature, given = read_signature(fn, self.who), self.spec.tool.args or {}
        shown = tuple(one.name for one in signature.parameters if one.name in given)
        others = tuple(one for one in signature.parameters if one.name not in shown)
        known = {name: field for name, field in (self.reads or {}).items() if field in self.readable}
        reads = {one.name: known[one.name] for one in others if one.name in known}
        found = Flaws(self.who, signature.problems)
        binding = plan_binding(FunctionSignature(others), NodeOptions(self.name, schema, reads=reads), found)
        taken = None if signature.takes_all or self.spec.tool.has_kwargs else frozenset(shown)
        action = FunctionAction(**binding.facts(), fn=fn, asynchronous=is_async(fn), taken=taken)
        spec = replace(self.spec, takes_key=False)
        node = replace(self, action=action, resources=action.resources, programs=(), spec=spec)
        found.without_sends()
        return found.built(node)

    def script(self, call: Call) -> Script[Reply]:
        """Make one call of the tool."""
        # Before anything is asked or called: a person should not be asked about a call that cannot be made.
        args = _call_of(call)["args"]
        try:
            parsed = self._ready(call, args)
        except ValueError as error:
            return self._error(call, error)
        made, verdict = yield from self._checked(call, args, parsed, self.parsed)
        if isinstance(made, str):
            return Reply({MESSAGES: self._message(call, made, True)})
        # An effect is made again only as another call: nothing says that the same one would do better.
        if verdict.problems and not (self.spec.effect and verdict.args is None):
            made, verdict = yield from self._repeated(call, args, made, verdict)
        return self._reply(call, made, verdict.problems)

    def _checked(
        self, call: Call, args: Mapping[str, Any], parsed: Mapping[str, Any], validate: Validate | None
    ) -> Script[tuple[ToolOutcome | str, Verdict]]:
        """Make the call, and check its result; `validate` as in `ToolCheck.script`."""
        before = 0 if self.check is None else step_count()
        made = yield from self._made(call, args, parsed)
        if self.check is None or isinstance(made, str) or made.error:
            return made, Verdict([])
        steps, edited = steps_since(before), call.context.delegate.edited
        with noting(f"in the {self.check.who}"):  # see `error_reply`
            verdict = yield from self.check.script(call, args if edited is None else edited, made.value, validate)
        if verdict.problems:
            # What gave the refused result is no example for an optimizer.
            reject_steps(steps)
        return made, verdict

    def _made(self, call: Call, args: Mapping[str, Any], parsed: Mapping[str, Any]) -> Script[ToolOutcome | str]:
        """Ask, if the call needs approval, and make it; a text says that it was refused."""
        if self.approval is not None and self.approval.asks(call, parsed):
            known = self.spec.tool.args or {}
            required = [one for one in known if one in self.spec.required]
            schema = {"type": "object", "properties": known, "required": required}
            asked = AskedCall(self.name, args, _call_of(call)["id"], schema)
            given = call.context.delegate.interrupt(self.name, asked.text(), self.answer_types[self.name], asked)
            answer = given if isinstance(given, Approval) else Approval(given)
            if not answer.ok:
                reason = " ".join(answer.reason.split())
                return f"The call was refused: {reason}" if reason else "The call was refused."
            if answer.args is not None and (edited := storable(answer.args)) != args:
                call.context.delegate.edited, parsed = edited, self._ready(call, edited)
        # The outcome of a call that is checked is recorded, too: a later attempt must not make it a third time. The run
        # of a program has records of its own.
        records = (self.spec.effect or self.check is not None) and not isinstance(self.action, ProgramAction)
        call = call._replace(overlay=None)  # what a turn sends must not hide a field

        def outcome(key: Mapping[str, str]) -> Script[ToolOutcome]:
            # DSPy's callbacks do not see the key of the effect.
            made = by_dspy(self.spec.tool, lambda **given: self.action.made(call, {**given, **key}), parsed)
            return self._outcome((yield made, call), call, records)

        def effect(key: str) -> Script[list[Any]]:
            return list((yield from outcome({"key": key} if self.spec.takes_key else {})))

        if not records:
            return (yield from outcome({}))
        return ToolOutcome(*(yield recorded(EFFECT, effect, call)))

    def _outcome(self, returned: object, call: Call, records: bool) -> ToolOutcome:
        """The outcome of what the tool returned. If that cannot be kept, no other call is made for a result.

        Without a record, a `Command` that is none fails the node: nothing is lost, and the author mends it.
        """
        # What is known so far: if a later step fails, the update is kept, since the call has been made.
        found = ToolOutcome(None, {})
        try:
            result = self.action.command(returned) if isinstance(self.action, ModuleAction) else returned
            # A bare result is a command that writes nothing.
            command = result if isinstance(result, Command) else Command(result=result)
            update, whole = values_of(command.update, self.who, call.program.graph.topology.schema, self.fields)
            if command.goto is not None and not isinstance(command.goto, str):
                text = f"{self.who} returned Command(goto={command.goto!r}): a tool hands off to one mode, by its name"
                raise RouteError(text)
            if records:
                to_json(freeze(dict(update)))  # an update that no store can hold could not be recorded
            found = ToolOutcome(None, update, whole)
            value = storable(command.result)
            freeze(value)
        except Exception as error:
            if not records and isinstance(error, (NodeOutputError, RouteError)):
                raise
            action = "the call was made, and only its result is lost: find out what it did before you make it again"
            return found._replace(value=short_error(error, step=self.name, action=action), error=True)
        return found._replace(value=value, goto=command.goto)

    def _repeated(
        self, call: Call, args: Mapping[str, Any], first: ToolOutcome, found: Verdict
    ) -> Script[tuple[ToolOutcome, Verdict]]:
        """Make the call again, as an effect of its own. If that is refused, the first outcome stays."""
        outer = call.context.delegate
        args = found.args or (args if outer.edited is None else outer.edited)
        parsed = self._ready(call, args)
        inner = outer.repeated()
        made: ToolOutcome | str | None = None
        # Arguments that a person has edited stay in the conversation as those of the call, also when it is repeated.
        inner.edited = None if outer.edited is None else args
        try:
            # It is asked for again: approval of one call is none of another with other arguments.
            again = call._replace(context=replace(call.context, delegate=inner))
            made, verdict = yield from self._checked(again, args, parsed, None)
        finally:
            inner.over = True
            inner.finish()
            outer.edited = outer.edited if isinstance(made, str) else inner.edited
        if not isinstance(made, ToolOutcome):
            return first, found
        outer.posts = inner.posts
        return made, verdict

    def _ready(self, call: Call, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, of a sub-agent with its session; raises `ValueError` for wrong ones."""
        parsed = self.parsed(args)
        if not isinstance(self.action, ProgramAction):
            return parsed
        return self.action.with_session(call, parsed, _call_of(call)["id"])

    def parsed(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as values of their types; raises `ValueError` for wrong ones."""
        tool = self.spec.tool
        known = tool.args or {}
        missing = [name for name in known if name in self.spec.required and name not in args]
        unknown = [] if tool.has_kwargs else [name for name in args if name not in known]
        if missing or unknown:
            wrong = [f"the argument {name!r} is missing" for name in missing]
            wrong += [f"there is no argument {name!r}" for name in unknown]
            raise ValueError(f"{'; '.join(wrong)}. The arguments are {list_names(known)}")
        found: dict[str, Any] = {}
        for name, value in args.items():
            try:
                parser = self.parsers.get(name)
                if parser is None:
                    found |= tool._validate_and_parse_args(**{name: value})
                else:
                    found[name] = parser(value)
            except ValidationError as refusal:
                raise invalid_argument(name, refusal, of_dspy=name not in self.parsers) from refusal
        return found

    def error_reply(self, call: Call, error: Exception) -> Reply | None:
        """The result that says what the last attempt raised; None if the node fails with it.

        It fails with what always propagates, with what the tool declares to raise, and if it returned what it may not
        write: the author of the tool mends that, and not the model. So it does if its check raised: the call was made.
        """
        of_author = isinstance(error, NodeOutputError) and not error.of_module
        if self.check is not None:
            of_author = of_author or f"in the {self.check.who}" in getattr(error, "__notes__", ())
        if always_raised(error) or of_author or isinstance(error, self.spec.raises):
            return None
        return self._error(call, error)

    def _error(self, call: Call, error: Exception) -> Reply:
        timeout = self.spec.timeout
        if isinstance(error, NodeTimeoutError) and call.context.delegate.timed_out and timeout is not None:
            error = TimeoutError(f"no result within {timeout:g} s")
        # The request may have arrived though no answer came.
        unsure = self.spec.effect and isinstance(error, (TimeoutError, ConnectionError))
        action = "it may have happened: find out before you try again" if unsure else ""
        return Reply({MESSAGES: self._message(call, short_error(error, step=self.name, action=action), True)})

    def _message(self, call: Call, value: Any, error: bool, problems: Sequence[str] = ()) -> dict[str, Any]:
        edited = call.context.delegate.edited
        return tool_message(_call_of(call)["id"], self.name, value, error, edited, problems)

    def _reply(self, call: Call, outcome: ToolOutcome, problems: Sequence[str]) -> Reply:
        updates = dict(permitted(outcome.update, self.fields, self.who))
        message = self._message(call, outcome.value, outcome.error, problems)
        posted = [field for field, _ in call.context.delegate.posts or ()]
        # Only where another call of the turn may write the same field does the end of the turn decide about the result.
        alone = _call_of(call).get("alone", True) or self.contested.isdisjoint([*posted, *updates])
        if outcome.goto is None and alone:
            updates[MESSAGES] = message
        else:
            updates[HANDOFFS] = [{"message": message, "goto": outcome.goto}]
        return Reply(updates, None, outcome.whole)


def _call_of(call: Call) -> dict[str, Any]:
    if call.overlay is None or CALL not in call.overlay:
        raise InputError(f"{call.context.node!r} is a tool: a turn of a model calls it, by a Send with its arguments")
    return cast("dict[str, Any]", thaw(call.overlay.raw(CALL)))


# --- building


def build_action(spec: ToolSpec, options: NodeOptions, who: str) -> Built:
    """The target of a tool."""
    # With a module as its check, what the program holds for the tool has two parts.
    path = (options.name, MODULE) if isinstance(spec.check, dspy.Module) else (options.name,)
    if is_program(spec.target):
        inner = options if spec.writes is not None else options._replace(writes={})  # it writes no other field
        built = plan_subagent(spec.target, inner, path, who)
        if not spec.effect:
            return built
        advice = "Leave it out here, and give it to the tools of the program"
        problem = f"{who}: effect=True records a call, and a program has the records of its nodes. {advice}"
        return built._replace(problems=(*built.problems, problem))
    found = Flaws(who)
    binding = plan_binding(spec.hidden, options if options.reads is not None else options._replace(reads={}), found)
    writes, facts = options.writes or {}, binding.facts()
    if not isinstance(spec.target, dspy.Module):
        fix = "make the module itself a tool, agents.tool({name}, name='...')"
        found.problems += hidden_problems(spec.target, who, fix)
        fn = spec.target
        return found.built(FunctionAction(**facts, writes=writes, fn=fn, asynchronous=is_async(fn)))
    outputs = module_io(spec.target).outputs
    facts["templates"] = plan_templates([spec.target], options, facts["reads"], found)
    action = ModuleAction(
        **facts,
        writes={} if spec.writes is None else writes,
        path=path,
        outputs=None if outputs is None else tuple(outputs),
    )
    return found.built(action, spec.target)


MODULE = "module"
"""The attribute of a module in what the program holds for a tool that is a module and has a module as its check."""


def _held(name: str, module: dspy.Module | None, check: object) -> dspy.Module | None:
    """The module that the program holds for a tool: `program.<tool>`."""
    if not isinstance(check, dspy.Module):
        return module
    modules = {CHECK: check} if module is None else {MODULE: module, CHECK: check}
    return source_class(name, NodeModules, modules_text(name, modules))(**modules)


def _write_problems(
    fields: Mapping[str, str], own: Mapping[str, str], spec: ToolSpec, options: NodeOptions, who: str
) -> Iterator[str]:
    """Problems with the fields that a tool may write."""
    names = None
    if isinstance(spec.target, dspy.Module) and spec.writes is not None and not is_program(spec.target):
        found = module_io(spec.target)
        names = None if found.outputs is None else (*found.outputs, *found.by_products)
    yield from check_names(fields, "writes", who, own=names, schema=options.schema)
    for name in fields.values():
        if name in own:
            yield f"{who}: writes names {name!r}, which its node writes itself: leave it out"
