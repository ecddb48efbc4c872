"""Merge patches (RFC 7396) over frozen mappings: apply one, find the one between two values, list what one writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from ._boxes import Box, Path, thaw
from ._frozen import FrozenDict, checked, depth_of, freeze, freeze_key
from ._kinds import kind_of
from ._persistent import as_map
from ._refusals import MAX_DEPTH, SLACK, TooDeep, advise, refuse_depth
from ._scalars import PLAIN, SCALARS
from .errors import PatchError
from .values import same


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
        return self.frozen.open() if type(self.frozen) is Box else self.frozen

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


advise((_Delete, Replace), "the markers DELETE and Replace stand in mappings of a patch only, not inside lists or values")

_EMPTY: FrozenDict[Any, Any] = freeze({})
_ABSENT: Any = object()


def apply(value: FrozenDict[Any, Any], patch: Mapping[Any, Any], path: Path = ()) -> Any:
    """Apply a patch: mappings merge deeply, `None` and `DELETE` delete, everything else replaces.

    Args:
        value: the frozen mapping to patch.
        patch: the patch, with the markers `DELETE` and `Replace`.
        path: where `value` is, for error messages.

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
    if not isinstance(patch, Mapping):
        raise PatchError(
            f"a patch is a mapping from keys to new values, not a {type(patch).__name__}: return a dict such as {{'key': value}} "
            f"(for a model: model.model_dump())"
        )
    try:
        return _apply(value, patch, path)
    except TooDeep:
        refuse_depth(patch, path, PatchError)


def _apply(value: FrozenDict[Any, Any], patch: Mapping[Any, Any], path: Path) -> Any:
    data: Any = value._map
    before = data
    small = type(data) is dict
    depth = value._depth
    for key, update in patch.items():
        if type(key) is not str:
            key = freeze_key(key, path)
        old = data.get(key, _ABSENT)
        cls = type(update)
        if cls in SCALARS and update is not None:
            if old is update or (type(old) is cls and (old == update if cls in PLAIN else same(old, update))):
                continue
            frozen = update
        elif update is None or update is DELETE:
            if old is _ABSENT:
                continue
            frozen = DELETE
        else:
            frozen = _updated(old, update, (*path, key))
            if frozen is old:
                continue
            depth = max(depth, 1 + depth_of(frozen))
        if not small:
            data = data.discard(key) if frozen is DELETE else data.set(key, frozen)
            small = type(data) is dict
            continue
        if data is before:
            data = data.copy()
        if frozen is DELETE:
            del data[key]
        else:
            data[key] = frozen
    if data is before:
        return value
    return checked(value._of(as_map(data) if small else data, depth))


def _updated(old: Any, update: Any, path: Path) -> Any:
    """The new value of one key whose update is no scalar; `old` itself where it is the same."""
    if type(update) is dict or type(update) is FrozenDict or (isinstance(update, Mapping) and kind_of(update) is None):
        if len(path) > MAX_DEPTH + SLACK:
            raise TooDeep
        return _apply(old if isinstance(old, FrozenDict) else _EMPTY, update, path)
    frozen = update.frozen if type(update) is Replace else freeze(update, path)
    return old if old is not _ABSENT and same(old, frozen) else frozen


def apply_value(old: Any, update: Any, path: Path = ()) -> Any:
    """The frozen value that an update makes of one value; `DELETE` stands for an absent one.

    Example:
        >>> apply_value(freeze({"a": 1}), {"b": 2}), apply_value(1, None)
        (FrozenDict({'a': 1, 'b': 2}), DELETE)
    """
    if update is None or update is DELETE:
        return DELETE
    return _updated(_ABSENT if old is DELETE else old, update, path)


def diff(old: FrozenDict[Any, Any], new: FrozenDict[Any, Any]) -> dict[Any, Any]:
    """The patch that names only what differs: `apply(old, diff(old, new)) == new`.

    Values are frozen; deletions are `DELETE`, and `Replace` stands where a plain value would be read as a merge or a deletion.

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

    Two mappings give a nested patch. A mapping where there was none gives a `Replace`, so that every mapping in the result is a
    patch of a mapping.
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
    return plain_patch(update) if type(update) is dict else thaw(update)


def _holds_none(frozen: FrozenDict[Any, Any]) -> bool:
    """Whether a patch with this mapping would lose a `None` in it."""
    for _, value in frozen.raw_items():
        if value is None or (isinstance(value, FrozenDict) and _holds_none(value)):
            return True
    return False


def written_paths(update: object, path: Path = ()) -> Iterator[Path]:
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
