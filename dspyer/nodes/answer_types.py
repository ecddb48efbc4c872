"""Types of answers: the JSON schema that a question shows, and the validated value that a node gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import isroutine
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from dspyer.errors import InputError, brief
from dspyer.events import Question
from dspyer.ids import id_prefix
from dspyer.log.execution_records import MISSING, AnswerSource, no_answer
from dspyer.nodes.callables import members
from dspyer.values.frozen import thaw
from dspyer.values.json import with_valid_text

Answers: TypeAlias = Mapping[str, Any] | Callable[[Question], Any] | None
"""Answers that are given before the questions are asked: by key, or from a function of the question."""

NO_ANSWER = (None, type(None))
"""The values of `answer=` for a question that only waits for a resume."""


@dataclass(frozen=True, slots=True)
class Given:
    """Answers by key, or by execution and key (`"1:0/approve"`), given before the id of the run is known."""

    answers: Mapping[str, Any]

    def __call__(self, question: Question) -> Any:
        """The answer to a question, `MISSING` if there is none."""
        here = id_prefix(question.execution) + question.key
        return self.answers.get(question.key, self.answers.get(here, MISSING))


def answer_source(answers: Answers) -> AnswerSource:
    """The source of answers for `answers=`: a dict by key, or a function that answers every question."""
    if answers is None:
        return no_answer
    if isinstance(answers, Mapping):
        return Given(dict(answers))
    if callable(answers):
        return answers
    raise TypeError(
        f"answers={brief(answers)}: give a dict from the key of a question to its answer, or a function "
        "(Question) -> answer"
    )


def first_of(first: AnswerSource, second: AnswerSource) -> AnswerSource:
    """An answer source that asks the second source only where the first has no answer."""
    if first is no_answer or second is no_answer:
        return second if first is no_answer else first

    def answer(question: Question) -> Any:
        given = first(question)
        return second(question) if given is MISSING else given

    return answer


def schema_of(answer: Any) -> Mapping[str, Any] | None:
    """The JSON schema of a type of answers; None for a question that needs no answer."""
    return None if answer in NO_ANSWER else _known_or_described(answer)[1]


def validated(answer: Any, frozen: Any, question: Question, shown: str | None = None) -> Any:
    """The answer `frozen` as a value of its type, a copy; an `InputError` if it is not of this type.

    The error has the text `shown` in the place of the answer, if that is given; `""` for none.
    """
    plain = thaw(frozen)
    shown = f" {brief(plain) if shown is None else shown}" if shown != "" else ""
    if answer in NO_ANSWER:
        if plain is None or plain is True:
            return None
        raise InputError(f"{_named(question)} takes no answer, and was given{shown or ' one'}: give None to resume")
    try:
        value = _read_strictly(_known_or_described(answer)[0], plain)
    except ValidationError as refusal:
        reasons = "; ".join(_reason(problem) for problem in refusal.errors(include_url=False, include_input=False)[:3])
        raise InputError(
            f"the answer{shown} to {_named(question)} is no {type_name(answer)}: {reasons}. The question is open"
        ) from None
    check_shape(plain, question, shown)
    return value


def check_shape(plain: Any, question: Question, shown: str) -> None:
    """Raise `InputError` for an answer of JSON values that are of other types than the question's JSON schema says.

    That needs no class, and tells true from 1 also where Python does not: in an enum, or a `Literal`.
    """
    if _is_json(plain) and not _Shape(thaw(question.answer)).is_valid(plain):
        schema = brief(thaw(question.answer))
        raise InputError(f"the answer{shown} to {_named(question)} does not fit {schema}. The question is open")


_KEPT = ("$ref", "type", "enum", "const", "allOf", "anyOf", "properties", "items", "prefixItems")
_ALL = Draft202012Validator.VALIDATORS
# Types alone: patterns are of another language than Python's, and fields may have other names than the schema shows.
_SHAPES: dict[str, Any] = {name: lambda *_: None for name in _ALL if name not in _KEPT}
_SHAPES["additionalProperties"] = lambda it, extra, *of: extra and _ALL["additionalProperties"](it, extra, *of)
_Shape: Any = extend(Draft202012Validator, _SHAPES)


def _is_json(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_is_json, [*value, *value.values()] if isinstance(value, dict) else value))
    return type(value) in (str, bool, int, float, type(None))


def _read_strictly(adapter: TypeAdapter[Any], plain: Any) -> Any:
    """The value of an instance of the type, or of JSON: no text or number becomes a yes, no text a number."""
    try:
        return adapter.validate_python(plain, strict=True)
    except ValidationError:
        adapter.validate_python(plain)  # refuses what fits as JSON alone: a date is no text
        text = to_json(with_valid_text(plain), inf_nan_mode="constants", fallback=str)
        return adapter.validate_json(text, strict=True)


def type_name(answer: Any) -> str:
    """A type of answers as errors show it."""
    kinds = members(answer)
    if all(isinstance(kind, type) for kind in kinds):
        return " | ".join(kind.__name__ for kind in kinds)
    return str(answer).replace("typing.", "")


def _named(question: Question) -> str:
    return f"question {question.key!r} of node {question.node!r}"


def _reason(problem: Mapping[str, Any]) -> str:
    place = "".join(f"[{part!r}]" for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])


def _described(answer: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    try:
        if isroutine(answer):
            raise PydanticUserError("a function", code=None)
        adapter: TypeAdapter[Any] = TypeAdapter(answer)
        return adapter, adapter.json_schema()
    except PydanticUserError as refusal:
        reason = str(refusal).partition("\n")[0]
        raise TypeError(
            f"answer={brief(answer)} is no type of answers ({reason}): give a type that pydantic validates and has a "
            "JSON schema for, like bool, str, Literal['yes', 'no'] or a model; None to wait only"
        ) from None


_known = lru_cache(maxsize=256)(_described)


def _known_or_described(answer: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    try:
        return _known(answer)
    except TypeError:  # a type that cannot be hashed, like Annotated with a list: it is not cached
        return _described(answer)
