"""`ImmutableState`: an immutable snapshot of the state of a program, and the patches that lead to the next one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NoReturn, Self

from dspyer.errors import StateError
from dspyer.patch import apply, diff, plain_patch
from dspyer.policies import Policies, merge_values
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, dict_of_pairs, thaw
from dspyer.values.scalars import KeyPath, refuse_key

_STR = frozenset({str})


class ImmutableState(FrozenDict[str, Any]):
    """An immutable snapshot: a mapping from field names to values, in insertion order.

    Neither the values that it was built from nor the values read from it can change it. Applying a patch returns a new
    state, which shares every value that the patch does not name. A mutable object, such as a dataclass, is read as a
    copy. A `dspy.Tool` is held with its function, which no store keeps: one that was read from a store has what prompts
    show of it, and raises when it is called.

    Args:
        mapping: fields and their values.

    Raises:
        UnsupportedValueError: a value cannot be protected from later changes, or a key is no string.

    Example:
        >>> state = ImmutableState({"user": {"name": "Ada", "theme": "dark"},
        ...     "tags": ["a"]})
        >>> after = state.apply_patch({"user": {"theme": "light"}, "tags": None})
        >>> after.to_dict()
        {'user': {'name': 'Ada', 'theme': 'light'}}
        >>> state.diff(after)
        {'user': {'theme': 'light'}, 'tags': DELETE}
        >>> state["tags"] is (state | {"user": {"theme": "light"}})["tags"]
        True
    """

    __slots__ = ()

    def __new__(cls, mapping: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> Self:
        """Freezes a mapping."""
        if type(mapping) is tuple and not mapping:
            return cls._of({}, 1)
        plain = mapping if type(mapping) is dict or isinstance(mapping, Mapping) else dict_of_pairs(mapping, cls)
        if not _STR.issuperset(map(type, plain)):
            plain = {_field_name(key, ()): value for key, value in plain.items()}
        frozen = plain if isinstance(plain, FrozenDict) else cls._freeze(plain)
        return cls._of(frozen._map, frozen._depth)

    @staticmethod
    def _key(key: Any, path: KeyPath) -> Hashable:
        return _field_name(key, path)

    def __getattr__(self, name: str) -> NoReturn:
        hint = f": a field is read as state[{name!r}]" if not name.startswith("_") and name in self else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def apply_patch(self, patch: Mapping[str, Any]) -> ImmutableState:
        """The state after a merge patch (RFC 7396, with the markers `DELETE` and `Replace`).

        Args:
            patch: new values by key; mappings merge deeply, `None` deletes, everything else replaces.

        Returns:
            The next state; this very state where the patch changes nothing.

        Raises:
            PatchError: the patch is no mapping, or nested too deep.
            UnsupportedValueError: a value cannot be stored.

        Example:
            >>> ImmutableState({"n": 1}).apply_patch({"n": 2, "done": True})
            ImmutableState({'n': 2, 'done': True})
        """
        after: ImmutableState = apply(self, patch)
        return after

    def __or__(self, patch: Mapping[str, Any]) -> ImmutableState:
        return self.apply_patch(patch)

    __ior__: Any = __or__  # `state |= patch` binds the name to the next state

    def diff(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """The smallest patch from this state to another: `state | state.diff(other) == other`.

        Args:
            other: the state, or plain mapping, to reach.

        Returns:
            A plain dict with `DELETE` for removed keys, and `Replace` around values that a patch would merge or delete.

        Example:
            >>> ImmutableState({"a": 1, "b": 2}).diff({"a": None})
            {'a': Replace(None), 'b': DELETE}
        """
        return plain_patch(diff(self, freeze(other)))

    def merge(
        self, other: Mapping[str, Any], policy: object = "last_write_wins", base: Mapping[str, Any] | None = None
    ) -> ImmutableState:
        """Merges two states into one.

        Without `base` a key of only one side is kept, equal values are no conflict, mappings merge deeply, and the
        policy decides everything else. With `base`, the common ancestor of both, it is a three-way merge: only what a
        side changed since `base` counts, so that nothing is resurrected, lost or doubled.

        Args:
            other: the incoming state; it is the right side of a conflict, this one the left.
            policy: `"last_write_wins"` (the incoming value), `"first_write_wins"`, `"combine_lists"`, `"raise"`, a
                function `(Conflict) -> value`, or a dict from path pattern to one of these.
            base: the state that both sides started from.

        Returns:
            The merged state; keys in the order of this one, then the new ones of `other`.

        Raises:
            MergeConflictError: both sides changed a path, and the policy is `"raise"`.
            ValueError: an unknown policy or a malformed pattern.

        Example:
            >>> a = ImmutableState({"user_id": 123, "tags": ["active"]})
            >>> b = ImmutableState({"user_id": 123, "tags": ["premium"], "score": 95})
            >>> a.merge(b, policy="combine_lists").to_dict()
            {'user_id': 123, 'tags': ['active', 'premium'], 'score': 95}
        """
        start: Any = freeze({} if base is None else base)
        merged: ImmutableState = merge_values(start, self, freeze(other), (), Policies.of(policy).resolve)
        return merged

    def to_dict(self) -> dict[str, Any]:
        """A dict of plain copies of all values, in insertion order; the caller may change it.

        Returns:
            The dict.

        Example:
            >>> ImmutableState({"tags": ["a"]}).to_dict()
            {'tags': ['a']}
        """
        plain: dict[str, Any] = thaw(self)
        return plain

    def sizes(self) -> dict[str, int]:
        """The bytes of each field as JSON. Their sum is about the size of the stored state.

        Returns:
            Bytes by field, in insertion order.

        Raises:
            StateError: a value has no JSON form.

        Example:
            >>> ImmutableState({"tags": ["a"], "n": 1}).sizes()
            {'tags': 5, 'n': 1}
        """
        return {name: len(encoding.to_json(value).encode("utf-8", "surrogatepass")) for name, value in self.raw_items()}

    def to_json(self) -> str:
        """The state as JSON text, in insertion order; values of types that JSON lacks are tagged with their type.

        Returns:
            The text; `from_json` reads it back.

        Raises:
            StateError: a value has no JSON form.

        Example:
            >>> ImmutableState({"n": 1, "seen": {"a"}}).to_json()
            '{"n": 1, "seen": {"$type": "set", "value": ["a"]}}'
        """
        return encoding.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes, types: Iterable[type] = ()) -> ImmutableState:
        """Reads back the text of `to_json`. No class is imported by its name: the caller passes the classes.

        Args:
            text: the JSON text.
            types: the dataclasses, models, enums and other classes in the text that are not registered with
                `register_value_type`.

        Returns:
            The state.

        Raises:
            StateError: the text is no state, or it names an unknown class.

        Example:
            >>> ImmutableState.from_json(
            ...     '{"n": 1, "seen": {"$type": "set", "value": ["a"]}}').to_dict()
            {'n': 1, 'seen': {'a'}}
        """
        value = encoding.from_json(text, types)
        if not isinstance(value, FrozenDict):
            raise StateError(f"the JSON text of a state is an object, not a {type(thaw(value)).__name__}")
        return cls(value)


def _field_name(key: object, path: KeyPath) -> str:
    if isinstance(key, str):
        return str.__str__(key)  # of a subclass, such as a str enum, the plain text
    return refuse_key(key, path, "the keys of a state are names of fields: strings")
