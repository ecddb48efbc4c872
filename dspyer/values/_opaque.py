"""Values of classes that are unknown here: kept as they are written, shown as such, of no use to anybody else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

from dspyer.errors import StateError, brief
from dspyer.values._boxes import Same


class Opaque:
    """A stored value whose class is unknown here. It is kept and written again unchanged; whoever uses it fails.

    Attributes:
        name: the class, as `module:qualname`, or what else the value is tagged with.
        reason: why it could not be read.
        text: its JSON form.
    """

    __slots__ = ("name", "reason", "text")
    name: str
    reason: str
    text: str

    shape = ()  # it is compared as what is no array
    made = False
    """Whether this process has met one: nobody looks for them before."""

    def __init__(self, name: str, reason: str, text: str) -> None:
        for attribute, value in (("name", name), ("reason", reason), ("text", text)):
            object.__setattr__(self, attribute, value)
        Opaque.made = True

    @classmethod
    def of(cls, tagged: dict[str, Any], error: Exception) -> Opaque:
        """Keeps what could not be read.

        Args:
            tagged: its JSON form.
            error: why not.
        """
        name = str(tagged.get("class", tagged.get("$type")))
        reason = str(error) if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
        return cls(name, reason, json.dumps(tagged, ensure_ascii=False, allow_nan=False))

    def __repr__(self) -> str:
        short = json.loads(self.text).get("value")
        return f"<opaque {self.name}: {brief(short)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks every object for these
            raise AttributeError(f"an opaque value has no attribute {name!r}")
        self._refuse()

    def __copy__(self) -> Opaque:
        return self

    def __deepcopy__(self, memo: object) -> Opaque:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Opaque, (self.name, self.reason, self.text)

    @property
    def refusal(self) -> str:
        """Why nobody can use it, and what helps."""
        return (
            f"this stored value is a {self.name}, which cannot be read here: {self.reason}. It is kept as it is; "
            "name its class in the graph's schema, or call register_value_type(...) before the thread is read"
        )

    def _refuse(self, *_: object) -> NoReturn:
        raise StateError(self.refusal)

    __str__: Any = _refuse
    __format__: Any = _refuse
    __bool__: Any = _refuse
    __len__: Any = _refuse
    __iter__: Any = _refuse
    __getitem__: Any = _refuse
    __setattr__: Any = _refuse


class _OpaqueKind:
    """How states keep them."""

    name = "opaque"
    in_parts = False

    def pack(self, value: Any) -> Any:
        return value

    def unpack(self, _: type, content: Any) -> Any:
        return content

    def same(self, a: Any, b: Any, _: Same) -> bool:
        return bool(a == b)

    def __reduce__(self) -> str:
        return "OPAQUE"


OPAQUE = _OpaqueKind()


def opaque_in(value: Any) -> Opaque | None:
    """The first opaque value in a plain or frozen one. Costs nothing in a process that has met none."""
    if not Opaque.made:
        return None
    if type(value) is Opaque:
        return value
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (str, bytes)):
        parts = value
    else:
        parts = vars(value).values() if hasattr(type(value), "model_fields") else ()
    return next((found for part in parts if (found := opaque_in(part)) is not None), None)
