"""One Signature class per predictor of a program, so that optimizers can tell predictors apart and change one alone.

DSPy identifies predictors by their Signature classes: by `==` nearly everywhere, by `hash` in GRPO. Two nodes with
equal signatures would be taken for one, and a tuned class of a user would change every program that uses it. So a
program gets subclasses with a tag, the predictor's path, in their fields; `NodeSignatureMeta` and `FieldExtra` define
when two of them are equal.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from typing import Any

import dspy
from dspy import SignatureMeta

from dspyer.dspy_module.predictors import walk

_TAG = "dspyer_node"
_TOKEN = "__dspyer_token__"  # a dunder name: pydantic makes private attributes of names with one underscore


def own_signatures(program: dspy.Module, *, retag: bool = False) -> None:
    """Gives every predictor of a program, in place, a Signature class of its own; those of frozen modules too.

    The class is a subclass of the predictor's, with the same name, instructions and fields. What an optimizer writes to
    it changes neither the user's class nor another copy of the program. Its fields hold the predictor's path, which no
    prompt shows, so that predictors with equal signatures differ. `retag` replaces the paths that the predictors have:
    for a new program, not for a copy.

    Example:
        >>> program = dspy.ChainOfThought("question -> answer")
        >>> before = program.predict.signature
        >>> own_signatures(program)
        >>> program.predict.signature.instructions = "Be brief."
        >>> before.instructions
        'Given the fields `question`, produce the fields `answer`.'
    """
    for path, predictor in list(_predictors(program, retag)):
        predictor.signature = _own(predictor.signature, path, retag)


def _own(signature: type[dspy.Signature], path: str, retag: bool) -> type[dspy.Signature]:
    if type(signature) not in (SignatureMeta, NodeSignatureMeta):
        return signature  # the user's own metaclass: a class of another metaclass could not inherit from it
    tag = None if retag else _tag(signature)
    base, token = _origin(signature)
    extras = {
        name: {**(field.json_schema_extra or {}), _TAG: tag or path} for name, field in signature.model_fields.items()
    }
    return _subclass(base, signature.__doc__ or "", extras, path if retag else token)


def _predictors(program: dspy.Module, retag: bool) -> Iterator[tuple[str, dspy.Predict]]:
    """Each predictor once, by its path in DSPy, frozen ones too."""
    copier = getattr(type(program), "__deepcopy__", None)

    def into(part: object) -> bool:  # of a graph in a graph, its own `__deepcopy__` has done this
        return part is program or retag or not copier or getattr(type(part), "__deepcopy__", None) is not copier

    return ((path, part) for path, part in walk(program, into=into) if isinstance(part, dspy.Predict))


def _origin(signature: type[dspy.Signature]) -> tuple[type[dspy.Signature], object]:
    """The class that the user or an optimizer made, and the token by which copies of it get one hash."""
    if isinstance(signature, NodeSignatureMeta) and _TOKEN in signature.__dict__:
        return signature.__bases__[0], signature.__dict__[_TOKEN]
    return signature, signature


def _tag(signature: type[dspy.Signature]) -> str | None:
    for field in signature.model_fields.values():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and _TAG in extra:
            return str(extra[_TAG])
    return None


def path_in_program(predictor: Any) -> str | None:
    """The path of a predictor in its program, also of a copy whose instructions were changed; None if it has none."""
    return _tag(predictor.signature)


def _untagged(extra: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in extra.items() if key != _TAG}


def _subclass(
    base: type[dspy.Signature], instructions: str, extras: dict[str, dict[str, Any]], token: object
) -> type[dspy.Signature]:
    namespace = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": instructions,
        _TOKEN: token,
        "model_config": {"defer_build": True},  # copies are made by the thousand, and none is instantiated
    }
    own: type[dspy.Signature] = NodeSignatureMeta(base.__name__, (base,), namespace)
    for name, field in own.model_fields.items():
        field.json_schema_extra = FieldExtra(extras[name])
    return own


def _reduce(own: type[dspy.Signature]) -> str | tuple[Any, ...]:
    if _TOKEN not in own.__dict__:
        return own.__qualname__
    extras = {name: dict(field.json_schema_extra or {}) for name, field in own.model_fields.items()}
    base, token = _origin(own)
    return _subclass, (base, own.__doc__, extras, token)


# --- when two of these classes are equal


class NodeSignatureMeta(SignatureMeta):
    """The metaclass of a program's Signature classes: copies of one class have one hash, and are not equal.

    GRPO finds the predictor of a step by `hash(signature)`, so a student and its copies must agree on it. The rest of
    DSPy compares classes with `==`, where copies must differ: a change of one is no change of the other.
    """

    def __hash__(self) -> int:
        token = self.__dict__.get(_TOKEN)
        return hash(token) if token is not None else type.__hash__(self)


class FieldExtra(dict[str, Any]):
    """The `json_schema_extra` of a tagged field: equal to an untagged one, not to one with another tag.

    So a graph and a plain `dspy.Module` with the same predictors can be each other's teacher, although two nodes with
    equal signatures differ.
    """

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        if _TAG in self and _TAG in other:
            return dict.__eq__(self, other)
        return _untagged(self) == _untagged(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(_untagged(self))  # MIPROv2 shows the repr of a signature to the LM that proposes instructions


copyreg.pickle(NodeSignatureMeta, _reduce)
