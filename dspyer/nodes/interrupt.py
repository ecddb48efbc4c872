"""Nodes that ask a question outside the program, and run no code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import ValidationError

from dspyer.errors import NodeOutputError, brief
from dspyer.log.execution_records import MISSING
from dspyer.nodes.attempt import NO_ANSWER, RESERVED_KEYS, Expires, deadline_problem, schema_of, type_name
from dspyer.nodes.binding import (
    Binding,
    BoundNode,
    FieldParameter,
    is_known,
    plan_binding,
    shown_in_prompt,
    unknown_names,
)
from dspyer.nodes.callables import members, read_signature
from dspyer.nodes.field_access import unknown_field_text
from dspyer.nodes.node import Built, Call, Flaws, Look, Node, Reply
from dspyer.nodes.options import KindOptions, NodeOptions
from dspyer.nodes.steps import Script, is_async
from dspyer.schema.type_fit import misfit, shown_type
from dspyer.templates import RUN, Templates, fill_text, names_in
from dspyer.values.freezing import freeze


@dataclass(frozen=True, slots=True)
class InterruptOptions(KindOptions):
    """The question of `add_interrupt`, the type of its answer, and the field for it."""

    question: object
    answer: Any
    into: str | None
    expires: Expires = None
    default: Any = MISSING

    def build(self, options: NodeOptions) -> Built:
        """The node, and what is wrong with it."""
        found = Flaws(options.who)
        fields: list[str] = []
        text: Callable[..., object]
        if isinstance(self.question, str):
            fields = [name for name in names_in(self.question) if not name.startswith(RUN)]
            found.unknown += unknown_names(fields, "in its question", options, options.who)
            parameters = tuple(FieldParameter(name, name, True, False, is_known(name, options)) for name in fields)
            binding = Binding(options.who, fields=parameters, schema=options.schema)
            text = partial(_filled_question, self.question)
        elif callable(self.question):
            text = self.question
            binding = plan_binding(read_signature(text, options.who), options, found)
            if is_async(text):
                found.problems.append(f"{options.who}: its question is an async function: give one that is not")
        else:
            problem = f"{options.who}: its question is {brief(self.question)}: give a text, or a function of fields"
            return Built(None, None, (problem,))
        found.problems += _answer_problems(self, options)
        # Frozen, since the caller may change what was given.
        default = self.default if found.problems or self.default is MISSING else freeze(self.default)
        return found.built(
            InterruptNode(
                name=options.name,
                **binding.facts(Templates(typed=tuple(fields))),
                writes={} if self.into is None else {self.into: self.into},
                text=text,
                answer_types={options.name: self.answer},
                deadline=(self.expires, default),
            )
        )

    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node."""
        question = repr(self.question) if isinstance(self.question, str) else show(self.question)
        answer = inspect.formatannotation(self.answer) if self.answer is not None else "None"
        into = f', into="{self.into}"' if self.into is not None else ""
        expires = "" if self.expires is None else f", expires={self.expires!r}"
        default = "" if self.default is MISSING else f", default={show(self.default)}"
        return f'graph.add_interrupt("{name}", question={question}, answer={answer}{into}{expires}{default})'


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterruptNode(BoundNode):
    """A node that asks a question and commits the answer. No code runs again when the answer is given.

    Attributes:
        text: makes the text of the question, from arguments by name.
        deadline: when the question expires, and its answer then.
    """

    kind: ClassVar[str] = "interrupt"
    look = Look("interrupt", "interrupt")

    text: Callable[..., object]
    deadline: tuple[Expires, Any] = (None, MISSING)

    def script(self, call: Call) -> Script[Reply]:
        """Commit the answer, or ask."""
        yield from ()
        attempt = call.context.delegate
        # The text stays as it was when the question was asked, even if the state of a rerun would make another one.
        earlier = attempt.earlier_question(self.name)
        text, answer = self._text(call) if earlier is None else earlier.text, self.answer_types[self.name]
        value = attempt.interrupt(self.name, text, answer, None, *self.deadline)
        return Reply(dict.fromkeys(self.writes or (), value), None, True)

    def _text(self, call: Call) -> str:
        text = self.text(**self.binding.bind(call))
        if not isinstance(text, str):
            kind = type(text).__name__
            raise NodeOutputError(f"{self.who}: its question is {brief(text)}, of type {kind}: let it give text")
        return text


def interrupts_of(nodes: Mapping[str, Node]) -> list[str]:
    """The names of the nodes that ask a question each time."""
    return [name for name, node in nodes.items() if isinstance(node, InterruptNode)]


def _filled_question(question: str, /, **fields: Any) -> str:
    """The text of a question, with fields as a prompt shows them."""
    return fill_text(question, {name: shown_in_prompt(value) for name, value in fields.items()}.get)[0]


def _answer_problems(asked: InterruptOptions, options: NodeOptions) -> Iterator[str]:
    """Problems with the type of the answer and its field."""
    if options.name in RESERVED_KEYS:
        yield f"{options.who}: its name is the key of its question, and Breakpoints({options.name}=) has this key"
    try:
        schema_of(asked.answer)
    except TypeError as error:
        yield f"{options.who}: {error}"
        return
    if problem := deadline_problem(asked.expires, asked.default, asked.answer):
        yield f"{options.who}: {problem}"
    into, schema = asked.into, options.schema
    if asked.answer in NO_ANSWER:
        if into is not None:
            yield (
                f"{options.who}: it takes no answer that into={into!r} could get: say answer=bool, or leave `into` out"
            )
        return
    if into is None:
        yield (
            f"{options.who}: its answer goes nowhere, so a no would change nothing: name a field, into='approved', or "
            "say answer=None if it is there to wait only"
        )
    elif into not in schema:
        yield f"{options.who}: into={into!r} {unknown_field_text(into, schema)}"
    elif not schema.accepts_any_key:
        reason = misfit(schema, into, asked.answer) or _never_fits(asked.answer, into, options)
        if reason:
            yield f"{options.who}: its answer {reason}: ask for that type, or declare the field for the answer"


def _never_fits(answer: Any, into: str, options: NodeOptions) -> str:
    """Reason why a field takes none of the values of a type that has few, like `bool`; empty if it may accept some."""
    field = options.schema.fields[into]
    # Of a type with few values each can be tried when the graph is built: no person is asked for an answer that never
    # fits.
    values = [_values(kind) for kind in members(answer)]
    # A validator that reads other fields, or a reducer of the user's, may accept a value in one state and refuse it
    # in another.
    unknown = field.reads_other_fields or (field.reducer is not None and field.validate_update is None)
    if unknown or not all(values):
        return ""
    for value in chain.from_iterable(values):
        try:
            field.validate(value, {}) if field.validate_update is None else field.validate_update(value)
        except ValidationError:
            continue
        except Exception:  # noqa: BLE001 - a validator of the user's may raise anything
            return ""
        return ""
    return f"is {type_name(answer)}, and field {into!r} takes {shown_type(field.annotation)}"


def _values(kind: Any) -> tuple[Any, ...]:
    """All values of a type that has few; none for another one."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(kind)
    return {bool: (True, False), NoneType: (None,)}.get(kind, ())
