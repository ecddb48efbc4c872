"""The approval of a tool call: who asks, the question, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, StrictBool
from pydantic.config import JsonDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from dspyer.nodes.attempt import RESERVED_KEYS
from dspyer.nodes.binding import Binding, plan_binding
from dspyer.nodes.callables import hidden_problems, read_signature
from dspyer.nodes.node import NOTHING, Call
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.sync_async import is_async
from dspyer.values.freezing import register_value_type

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
    """Whether a call of a tool needs approval.

    Attributes:
        condition: says whether to ask; None for always.
        arguments: the parameters of the condition that get arguments of the call.
        takes_all: whether it gets all arguments.
        binding: its parameters that get fields.
        defaults: the arguments that a call may leave out, with their values.
    """

    condition: Callable[..., object] | None = None
    arguments: tuple[str, ...] = ()
    takes_all: bool = False
    binding: Binding = Binding("")  # noqa: RUF009 - frozen
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def asks(self, call: Call, args: Mapping[str, Any]) -> bool:
        """Whether to ask before a call with these validated arguments."""
        if self.condition is None:
            return True
        known = {**self.defaults, **args}
        given = known if self.takes_all else {name: known.get(name) for name in self.arguments}
        return bool(self.condition(**given, **self.binding.bind(call._replace(overlay=None))))


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
    fields = replace(
        signature, parameters=tuple([one for one in signature.parameters if one.name not in own]), takes_all=False
    )
    plan = plan_binding(fields, options._replace(reads=None, views=NOTHING, computed=NOTHING), name)
    problems += [f"{text} Its arguments are {', '.join(arguments) or 'none'}." for text in plan.unknown]
    problems += [*plan.problems, *_refusals(approve, plan.binding, name)]
    defaults = {key: schema["default"] for key, schema in arguments.items() if "default" in schema}
    return ApprovalRule(approve, own, signature.takes_all, plan.binding, defaults)


def _refusals(approve: Callable[..., object], binding: Binding, name: str) -> Iterator[str]:
    if is_async(approve):
        yield f"{name} is an async function: give one that is not"
    if binding.contexts:
        yield f"{name} takes ctx: it decides by arguments and fields alone, the same at each attempt"
    yield from hidden_problems(approve, name, "decide by arguments and fields, and ask a model in a `check`")


def answer_type(validate: Callable[[Mapping[str, Any]], object]) -> Any:
    """The type of the answers: True, False or an `Approval`, whose arguments `validate` refuses by a `ValueError`."""

    def checked(answer: bool | Approval) -> bool | Approval:
        if isinstance(answer, Approval) and answer.ok and answer.args is not None:
            validate(answer.args)
        return answer

    return Annotated[bool | Approval, AfterValidator(checked)]


def call_text(name: str, args: Mapping[str, Any]) -> str:
    """A call as the question shows it, whole: what is not shown is not approved.

    Example:
        >>> call_text("mail", {"to": "Ada", "text": "At 9:40."})
        "mail(to='Ada', text='At 9:40.')?"
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})?"
