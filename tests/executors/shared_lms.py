"""LMs of other tests whose copies in a worker of the same process note their calls in the same place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tests.dspy_optimizers.lm import NotingLM, NotingWriter, WriterLM
from tests.optimize.skills import RULES, SkillLM, Writer

_WRITERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class SharedNoting(NotingWriter):
    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (_key(self), SharedNoting)


class SharedSkills(Writer):
    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (_key(self), SharedSkills, RULES, self.hard)


class SharedNotingLM(NotingLM):
    writer_type = SharedNoting


class SharedSkillLM(SkillLM):
    """The LM of the tests of GEPA."""

    def __init__(self, **options: Any) -> None:
        WriterLM.__init__(self, "skills", SharedSkills(RULES, options.pop("hard", None) or {}), **options)


def _key(writer: object) -> int:
    _WRITERS[id(writer)] = writer
    return id(writer)


def _found(key: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """The writer itself; in another process, one like it."""
    known = _WRITERS.get(key)
    return make(*arguments) if known is None else known
