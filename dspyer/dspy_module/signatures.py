"""Signature classes of a program's own, so that optimizers can tell its predictors apart and change one alone."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from typing import Any

import dspy
from dspy.signatures.signature import SignatureMeta

from dspyer.dspy_module.predictors import parts_with_paths

_TAG = "dspyer_node"
_TOKEN = "__dspyer_token__"  # a dunder name: pydantic makes private attributes of names with one underscore


class NodeSignatureMeta(SignatureMeta):
    """Type of the own Signature classes: copies of one class hash alike, yet only a class itself equals itself.

    GRPO finds the predictor of a step by `hash(signature)`, so a student and its copies must agree on it. The rest of
    DSPy compares classes with `==`, where copies have to differ: what is said of one is not said of the other.
    """

    def __hash__(self) -> int:
        token = self.__dict__.get(_TOKEN)
        return hash(token) if token is not None else type.__hash__(self)


class FieldExtra(dict[str, Any]):
    """`json_schema_extra` of a tagged field: equal to an untagged one with the same content, not to another tag's.

    So a graph and the same program written by hand can be each other's teacher, although nodes with equal signatures
    differ.
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
        return repr(_untagged(self))  # MIPROv2 shows the repr of a signature to its proposer


def own_signatures(program: dspy.Module, *, retag: bool = False) -> None:
    """Give every predictor of a program a Signature class of its own.

    The class is a subclass of the one that the predictor has, with the same name, instructions and fields. What an
    optimizer writes to it reaches neither the user's class nor another copy of the program. Its fields carry the
    predictor's path, which no prompt shows, so that predictors with equal signatures stay apart.

    Args:
        program: the module whose predictors get their own classes, in place, frozen sub-modules included.
        retag: replace the paths that a predictor already carries; for a program that is new, not for a copy.

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
        return signature  # a metaclass of the user's: a class of another metaclass could not inherit from it
    tag = None if retag else _tag(signature)
    base, token = _origin(signature)
    extras = {
        name: {**(field.json_schema_extra or {}), _TAG: tag or path} for name, field in signature.model_fields.items()
    }
    return _subclass(base, signature.__doc__ or "", extras, path if retag else token)


def _origin(signature: type[dspy.Signature]) -> tuple[type[dspy.Signature], object]:
    """The class that the user or an optimizer made, and what copies of it are known by."""
    if isinstance(signature, NodeSignatureMeta) and _TOKEN in signature.__dict__:
        return signature.__bases__[0], signature.__dict__[_TOKEN]
    return signature, signature


def _tag(signature: type[dspy.Signature]) -> str | None:
    for field in signature.model_fields.values():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and _TAG in extra:
            return str(extra[_TAG])
    return None


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
        "model_config": {"defer_build": True},  # copies are made by the thousand, and nobody builds an instance of one
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


copyreg.pickle(NodeSignatureMeta, _reduce)


def _predictors(program: dspy.Module, retag: bool) -> Iterator[tuple[str, dspy.Predict]]:
    """Each predictor once, under the path that DSPy names it by, frozen ones too."""
    copier = getattr(type(program), "__deepcopy__", None)
    seen: set[int] = set()

    def walk(path: str, value: object) -> Iterator[tuple[str, dspy.Predict]]:
        if not isinstance(value, (dspy.Module, list, tuple, dict)) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, dspy.Predict):
            yield path, value
        if value is not program and not retag and copier and getattr(type(value), "__deepcopy__", None) is copier:
            return  # a graph in a graph: its own copying has done this
        for name, part in parts_with_paths(path, value):
            yield from walk(name, part)

    yield from walk("", program)
