"""Merge patches (RFC 7396) over frozen mappings: apply one, find the one between two values, list what one writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, final

from dspyer.errors import ImmutableError, PatchError, with_article
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze, freeze_within, same
from dspyer.values.frozen import (
    CopyOnRead,
    FrozenDict,
    FrozenList,
    check_depth,
    depth_of,
    thaw,
)
from dspyer.values.json import TAG
from dspyer.values.persistent import as_map
from dspyer.values.refusals import MAX_DEPTH, KeyPath, TooDeepError, add_advice, refuse_depth
from dspyer.values.scalars import PLAIN, SCALARS
from dspyer.values.types import kind_of


@final
class _Delete:
    """The type of `DELETE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DELETE"

    def __reduce__(self) -> str:
        return "DELETE"

    def __copy__(self) -> _Delete:
        return self

    def __deepcopy__(self, memo: object) -> _Delete:
        return self


DELETE = _Delete()
"""In a patch: delete this key. In a conflict of a merge: absent."""


class SealedPatch(dict[Any, Any]):
    """A patch that was committed: a dict that nobody can change. Its values are frozen, inner patches sealed."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ImmutableError("a committed patch cannot be changed: make a copy of it, dict(commit.patch)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    def __copy__(self) -> SealedPatch:
        return self

    def __deepcopy__(self, memo: object) -> SealedPatch:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedPatch, (dict(self),)


_MAPPINGS = (dict, FrozenDict, SealedPatch)


def seal(patch: Mapping[Any, Any]) -> SealedPatch:
    """A patch of frozen values as one that nobody can change.

    Example:
        >>> seal({"user": {"theme": "dark"}})["user"].clear()
        Traceback (most recent call last):
        dspyer.errors.ImmutableError: a committed patch cannot be changed: make a copy of it, dict(commit.patch)
    """
    if isinstance(patch, SealedPatch):
        return patch
    for update in patch.values():
        if type(update) is dict:
            return SealedPatch({key: seal(part) if type(part) is dict else part for key, part in patch.items()})
    return SealedPatch(patch)


@final
class Replace:
    """In a patch: put exactly this value here, a whole mapping instead of a merge, or a real `None`.

    Args:
        value: the value; it is frozen at once.

    Raises:
        UnsupportedValueError: a state cannot hold the value.

    Example:
        >>> apply(freeze({"user": {"name": "Ada"}}), {"user": Replace({"id": 7})})
        FrozenDict({'user': FrozenDict({'id': 7})})
    """

    __slots__ = ("frozen",)

    frozen: Any

    def __init__(self, value: object) -> None:
        object.__setattr__(self, "frozen", freeze(value))

    @property
    def value(self) -> Any:
        """The value as it reads from a state."""
        return self.frozen.read() if type(self.frozen) is CopyOnRead else self.frozen

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Replace cannot be changed: make a new one")

    def __eq__(self, other: object) -> bool:
        return same(self.frozen, other.frozen) if isinstance(other, Replace) else NotImplemented

    def __hash__(self) -> int:
        return hash((Replace, self.frozen))

    def __repr__(self) -> str:
        return f"Replace({self.frozen!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Replace, (self.frozen,)


add_advice((_Delete, Replace), "the markers DELETE and Replace have a meaning in the mappings of a patch only")

_EMPTY: FrozenDict[Any, Any] = freeze({})
_ABSENT: Any = object()


class Updates:
    """Several updates of one field with a reducer, folded in order.

    Args:
        *updates: the updates, the first one first.

    Example:
        >>> Updates(1, 2)
        Updates(1, 2)
    """

    __slots__ = ("updates",)

    def __init__(self, *updates: Any) -> None:
        flat: list[Any] = []
        for update in updates:
            flat.extend(each_update(update))
        self.updates: tuple[Any, ...] = tuple(flat)

    def __eq__(self, other: object) -> bool:
        return self.updates == other.updates if isinstance(other, Updates) else NotImplemented

    def __hash__(self) -> int:
        return hash((Updates, self.updates))

    def __repr__(self) -> str:
        return f"Updates({', '.join(map(repr, self.updates))})"

    def __reduce__(self) -> tuple[type[Updates], tuple[Any, ...]]:
        return Updates, self.updates


def each_update(update: Any) -> tuple[Any, ...]:
    """The updates of a field in a patch, one by one."""
    return update.updates if isinstance(update, Updates) else (update,)


def resets(update: Any) -> bool:
    """Whether an update of a field with a reducer replaces or deletes what was there."""
    return any(one is DELETE or isinstance(one, Replace) for one in each_update(update))


add_advice((Updates,), "Updates(...) stands for the value of a field with a reducer, nowhere else")


def apply(
    value: FrozenDict[Any, Any], patch: Mapping[Any, Any], path: KeyPath = (), net: dict[Any, Any] | None = None
) -> Any:
    """Apply a patch: mappings merge deeply, `None` and `DELETE` delete, everything else replaces.

    Args:
        value: the frozen mapping to patch.
        patch: the patch, with the markers `DELETE` and `Replace`.
        path: where `value` is, for error messages.
        net: gets what the patch changed, as `diff` would give it, found by what the patch names.

    Returns:
        A mapping of the type of `value` that shares what the patch does not name; `value` itself where nothing changes.

    Raises:
        PatchError: the patch, or a mapping in it, is none or is nested too deep.
        UnsupportedValueError: a value in it cannot be stored.

    Example:
        >>> before = freeze({"user": {"name": "Ada", "theme": "dark"}, "tags": ["a"]})
        >>> apply(before, {"user": {"theme": "light"}, "tags": None})
        FrozenDict({'user': FrozenDict({'name': 'Ada', 'theme': 'light'})})
        >>> apply(before, {"user": {"name": "Ada"}}) is before
        True
    """
    if type(patch) is not dict and not isinstance(patch, Mapping):
        raise PatchError(
            f"a patch is a mapping from keys to new values, not {with_article(type(patch).__name__)}: return a dict "
            f"such as {{'key': value}} (for a model: model.model_dump())"
        )
    try:
        return _apply(value, patch, path, MAX_DEPTH, net)
    except TooDeepError:
        refuse_depth(patch, path, PatchError)


def _apply(
    value: FrozenDict[Any, Any], patch: Mapping[Any, Any], path: KeyPath, room: int, net: dict[Any, Any] | None
) -> Any:
    before: Any = value._map
    data = before
    small = type(data) is dict
    depth = value._depth
    for given, update in patch.items():
        key = given if type(given) is str else value._key(given, path)
        old = data.get(key, _ABSENT)
        cls = type(update)
        inner: dict[Any, Any] | None = None  # stays None where the new value is the update itself
        if update is None or update is DELETE:
            if old is _ABSENT:
                continue
            new = DELETE
        elif cls in SCALARS:
            if old is update or (type(old) is cls and (old == update if cls in PLAIN else same(old, update))):
                continue
            new = update
        else:
            inner = None if net is None else {}
            new = _updated(old, update, (*path, key), room - 1, inner)
            if new is old:
                continue
            depth = max(depth, 1 + depth_of(new))
        if net is not None:
            net[key] = new if inner is None else inner or diff_value(DELETE if old is _ABSENT else old, new)
        if not small:
            data = data.discard(key) if new is DELETE else data.set(key, new)
            small = type(data) is dict  # few keys were left
            continue
        if data is before:
            data = data.copy()
        if new is DELETE:
            del data[key]
        else:
            data[key] = new
    if data is before:
        return value
    after = value._of(as_map(data) if small else data, depth)
    return after if depth == value._depth else check_depth(after)


def _updated(old: Any, update: Any, path: KeyPath, room: int, net: dict[Any, Any] | None) -> Any:
    """The new value of one key whose update is no scalar; `old` itself where it is the same."""
    cls = type(update)
    if cls is FrozenList:  # a longer list, most often: frozen already, and no mapping
        return old if old is not _ABSENT and same(old, update) else update
    if cls in _MAPPINGS or (isinstance(update, Mapping) and kind_of(update) is None):
        if room <= 0:
            raise TooDeepError
        if isinstance(old, FrozenDict):
            return _apply(old, update, path, room, net)
        return _apply(_EMPTY, update, path, room, None)
    new = update.frozen if cls is Replace else freeze_within(update, path, room)
    return old if old is not _ABSENT and same(old, new) else new


def apply_value(old: Any, update: Any, path: KeyPath = ()) -> Any:
    """The frozen value that an update makes of one value; `DELETE` stands for an absent one.

    Example:
        >>> apply_value(freeze({"a": 1}), {"b": 2}), apply_value(1, None)
        (FrozenDict({'a': 1, 'b': 2}), DELETE)
    """
    if update is None or update is DELETE:
        return DELETE
    try:
        return _updated(_ABSENT if old is DELETE else old, update, path, MAX_DEPTH, None)
    except TooDeepError:
        refuse_depth(update, path, PatchError)


def diff(old: FrozenDict[Any, Any], new: FrozenDict[Any, Any]) -> dict[Any, Any]:
    """The patch that names only what differs between two mappings, so that applying it to `old` gives `new`.

    Values are frozen; deletions are `DELETE`, and `Replace` stands where a plain value would be read as a merge or a
    deletion.

    Example:
        >>> diff(freeze({"a": 1, "b": {"c": 2, "d": 3}}), freeze({"b": {"c": None, "d": 3}}))
        {'a': DELETE, 'b': {'c': Replace(None)}}
    """
    patch: dict[Any, Any] = {}
    for key, value in old.raw_items():
        after = new.raw(key, DELETE)
        if after is not value and not same(value, after):
            patch[key] = diff_value(value, after)
    for key, after in new.raw_items():
        if key not in old:
            patch[key] = diff_value(DELETE, after)
    return patch


def diff_value(old: Any, new: Any) -> Any:
    """The update that turns one frozen value into another; `DELETE` stands for an absent one.

    Two mappings give a nested patch. A mapping where there was none gives a `Replace`, so that every mapping in the
    result is a patch of a mapping.
    """
    if isinstance(new, FrozenDict):
        return diff(old, new) if isinstance(old, FrozenDict) else Replace(new)
    return Replace(None) if new is None else new


def plain_patch(patch: Mapping[Any, Any]) -> dict[Any, Any]:
    """A patch of `diff` as plain values, with `Replace` only where nothing simpler says the same."""
    return {key: _plain_update(update) for key, update in patch.items()}


def _plain_update(update: Any) -> Any:
    if type(update) is Replace:
        bare = isinstance(update.frozen, FrozenDict) and not _holds_none(update.frozen)
        return thaw(update.frozen) if bare else update
    return plain_patch(update) if type(update) in (dict, SealedPatch) else thaw(update)


def _holds_none(frozen: FrozenDict[Any, Any]) -> bool:
    """Whether a patch with this mapping would lose a `None` in it."""
    return any(
        value is None or (isinstance(value, FrozenDict) and _holds_none(value)) for _, value in frozen.raw_items()
    )


def written_paths(update: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths that an update of `path` writes: its leaves, and every place where a whole value is put or deleted.

    Example:
        >>> list(written_paths({"user": {"theme": "dark", "age": DELETE}, "tags": ["a"]}))
        [('user', 'theme'), ('user', 'age'), ('tags',)]
    """
    if isinstance(update, Mapping) and update:
        for key, below in update.items():
            yield from written_paths(below, (*path, key))
    else:
        yield path


def update_size(update: Any) -> int:
    """The bytes of the JSON form of one update of a patch."""
    return len(json.dumps(encode_update(update), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def encode_update(update: Any) -> Any:
    """The JSON form of one update of a patch."""
    if update is DELETE:
        return {TAG: "delete"}
    if isinstance(update, Replace):
        return {TAG: "replace", "value": encoding.encode(freeze(update.value))}
    if isinstance(update, Updates):
        return {TAG: "updates", "value": [encode_update(part) for part in update.updates]}
    if type(update) in (dict, SealedPatch):
        return {TAG: "patch", "value": [[encoding.encode(key), encode_update(part)] for key, part in update.items()]}
    return encoding.encode(freeze(update))


def decode_update(found: Any, decode: Callable[[Any], Any] = encoding.decode) -> Any:
    """One update of a patch, from its JSON form."""
    tag = found.get(TAG) if type(found) is dict else None
    if tag == "delete":
        return DELETE
    if tag == "replace":
        return Replace(decode(found["value"]))
    if tag == "updates":
        return Updates(*[decode_update(part, decode) for part in found["value"]])
    if tag == "patch":
        return {decode(key): decode_update(part, decode) for key, part in found["value"]}
    return decode(found)
