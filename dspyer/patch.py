"""JSON merge patches (RFC 7396) over frozen mappings: their markers, `apply`, `diff`, and their JSON form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, final

from dspyer.errors import ImmutableError, PatchError, with_article
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze, freeze_within, kind_of, same
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
from dspyer.values.scalars import (
    MAX_DEPTH,
    PLAIN,
    SCALARS,
    KeyPath,
    TooDeepError,
    Uncopied,
    add_advice,
    refuse_depth,
    same_scalar,
)

_ABSENT: Any = object()
_EMPTY: FrozenDict[Any, Any] = freeze({})

# --- the markers of a patch


@final
class _Delete(Uncopied):
    """The type of `DELETE`: in a patch it deletes a key, in a conflict it means an absent value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DELETE"

    def __reduce__(self) -> str:
        return "DELETE"


DELETE = _Delete()
"""In a patch: delete this key. In the conflict of a merge: absent."""


@final
class Replace:
    """In a patch: put exactly this value here, such as a mapping without merging it, or a `None` that deletes nothing.

    Args:
        value: the value; it is frozen at once.

    Raises:
        UnsupportedValueError: the value cannot be protected from later changes.

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
        """The value as it reads from a state: immutable, or a copy.

        Example:
            >>> Replace({"id": 7}).value
            FrozenDict({'id': 7})
        """
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


class Updates:
    """In a patch: several updates of one field with a reducer, which are folded one after the other.

    Args:
        *updates: the updates, in order; those of an `Updates` are taken one by one.

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


add_advice((_Delete, Replace), "the markers DELETE and Replace have a meaning in the mappings of a patch only")
add_advice((Updates,), "Updates(...) is for the value of a field with a reducer only")


def each_update(update: Any) -> tuple[Any, ...]:
    """Return the single updates that a patch holds for a field with a reducer."""
    return update.updates if isinstance(update, Updates) else (update,)


def resets(update: Any) -> bool:
    """Return whether an update of a field with a reducer replaces or deletes the value instead of folding into it."""
    return any(part is DELETE or isinstance(part, Replace) for part in each_update(update))


# --- patches that were committed


class SealedPatch(Uncopied, dict[Any, Any]):
    """A committed patch: a dict that cannot be changed. Its values are frozen and its inner patches sealed."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ImmutableError("a committed patch cannot be changed: make a copy of it, dict(commit.patch)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedPatch, (dict(self),)


def seal(patch: Mapping[Any, Any]) -> SealedPatch:
    """Return a patch of frozen values as a `SealedPatch`.

    Example:
        >>> seal({"user": {"theme": "dark"}})["user"].clear()
        Traceback (most recent call last):
        dspyer.errors.ImmutableError: a committed patch cannot be changed: make a
        copy of it, dict(commit.patch)
    """
    if isinstance(patch, SealedPatch):
        return patch
    # Most patches have no inner ones: they are copied once, without a look at each key.
    for update in patch.values():
        if type(update) is dict:
            return SealedPatch({key: seal(part) if type(part) is dict else part for key, part in patch.items()})
    return SealedPatch(patch)


# --- applying a patch

_MAPPINGS = (dict, FrozenDict, SealedPatch)


def apply(value: FrozenDict[Any, Any], patch: Mapping[Any, Any], net: dict[Any, Any] | None = None) -> Any:
    """Apply a patch: mappings merge deeply, `None` and `DELETE` delete, everything else replaces.

    Args:
        value: the frozen mapping to patch.
        patch: the patch, with the markers `DELETE` and `Replace`.
        net: a dict that receives the net change, as `diff` would give it, without comparing keys that the patch does
            not name.

    Returns:
        A mapping of the type of `value` that shares what the patch does not name; `value` itself if nothing changes.

    Raises:
        PatchError: the patch is not a mapping, or is nested too deep.
        UnsupportedValueError: a value in it cannot be protected from later changes.

    Example:
        >>> before = freeze({"user": {"name": "Ada", "theme": "dark"},
        ...     "tags": ["a"]})
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
        return _apply(value, patch, (), MAX_DEPTH, net)
    except TooDeepError:
        refuse_depth((), PatchError)


def _apply(
    value: FrozenDict[Any, Any], patch: Mapping[Any, Any], path: KeyPath, levels_left: int, net: dict[Any, Any] | None
) -> Any:
    before: Any = value._map
    data = before
    small = type(data) is dict  # a small map is copied once, on the first change, and then changed in place
    depth = value._depth
    for given, update in patch.items():
        key = given if type(given) is str else value._key(given, path)
        old = data.get(key, _ABSENT)
        cls = type(update)
        inner: dict[Any, Any] | None = None  # stays None if the new value is the update itself
        if update is None or update is DELETE:
            if old is _ABSENT:
                continue
            new = DELETE
        elif cls in SCALARS:
            if old is update or (type(old) is cls and (old == update if cls in PLAIN else same_scalar(old, update))):
                continue
            new = update
        else:
            inner = None if net is None else {}
            new = _updated(old, update, (*path, key), levels_left - 1, inner)
            if new is old:
                continue
            depth = max(depth, 1 + depth_of(new))
        if net is not None:
            net[key] = new if inner is None else inner or diff_value(DELETE if old is _ABSENT else old, new)
            if type(net[key]) is dict and not inner:  # keys in the order in which a reader of the patch has them
                new = _apply(old, net[key], path, levels_left - 1, None)
        if not small:
            data = data.discard(key) if new is DELETE else data.set(key, new)
            small = type(data) is dict  # a trie becomes a dict when few keys remain
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


def _updated(old: Any, update: Any, path: KeyPath, levels_left: int, net: dict[Any, Any] | None) -> Any:
    """Return the new value of a key whose update is not a scalar; `old` itself if nothing changes."""
    cls = type(update)
    if cls is FrozenList:  # the most frequent case: frozen already, and not a mapping
        return old if old is not _ABSENT and same(old, update) else update
    if cls in _MAPPINGS or (isinstance(update, Mapping) and kind_of(update) is None):
        if levels_left <= 0:
            raise TooDeepError
        if isinstance(old, FrozenDict):
            return _apply(old, update, path, levels_left, net)
        return _apply(_EMPTY, update, path, levels_left, None)
    if cls is Members:
        return (old - update.lost) | update.got
    if cls is Tail:
        return (old if update.kept == len(old) else old[: update.kept]).plus(update.items.raw_items())
    new = update.frozen if cls is Replace else freeze_within(update, path, levels_left)
    return old if old is not _ABSENT and same(old, new) else new


def apply_value(old: Any, update: Any, path: KeyPath = ()) -> Any:
    """Return the frozen value after one update; `DELETE` as the old or new value means absent.

    Example:
        >>> apply_value(freeze({"a": 1}), {"b": 2}), apply_value(1, None)
        (FrozenDict({'a': 1, 'b': 2}), DELETE)
    """
    if update is None or update is DELETE:
        return DELETE
    try:
        return _updated(_ABSENT if old is DELETE else old, update, path, MAX_DEPTH, None)
    except TooDeepError:
        refuse_depth(path, PatchError)


# --- the patch between two values


def diff(
    old: FrozenDict[Any, Any], new: FrozenDict[Any, Any], of: Callable[[Any, Any], Any] | None = None
) -> dict[Any, Any]:
    """Return the smallest patch that makes `new` of `old`; `of` returns the update of one value, as `diff_value` does.

    Its values are frozen; deletions are `DELETE`, and a value that would be read as a merge or a deletion is wrapped in
    `Replace`.

    Example:
        >>> diff(freeze({"a": 1, "b": {"c": 2, "d": 3}}),
        ...     freeze({"b": {"c": None, "d": 3}}))
        {'a': DELETE, 'b': {'c': Replace(None)}}
    """
    patch: dict[Any, Any] = {}
    of = of or diff_value
    for key, value in old.raw_items():
        after = new.raw(key, DELETE)
        if after is not value and not same(value, after):
            patch[key] = of(value, after)
    for key, after in new.raw_items():
        if key not in old:
            patch[key] = of(DELETE, after)
    return patch


def diff_value(old: Any, new: Any) -> Any:
    """Return the update that makes `new` of `old`; `DELETE` as either of them means absent.

    Two mappings give a nested patch. A mapping in place of anything else gives a `Replace`, so that every mapping in
    the result is a patch of a mapping.
    """
    if isinstance(new, FrozenDict):
        return diff(old, new) if isinstance(old, FrozenDict) else Replace(new)
    return Replace(None) if new is None else new


class Tail(NamedTuple):
    """The change of a list: its first `kept` items stay, and `items` follow them."""

    kept: int
    items: FrozenList[Any]


class Members(NamedTuple):
    """The change of a set: the members that it has lost, and those that it has got."""

    lost: frozenset[Any]
    got: frozenset[Any]


def change_between(old: Any, new: Any) -> Any:
    """Return the update that makes `new` of `old`, as `diff_value`; of two lists, what follows their equal beginning.

    Stores hold it: a list or set that grows is not stored again each time. Mappings keep the order of their keys.

    Example:
        >>> change_between(freeze(["a", "b"]), freeze(["a", "b", "c"]))
        Tail(kept=2, items=FrozenList(['c']))
    """
    if isinstance(old, FrozenDict) and isinstance(new, FrozenDict):
        order = [*(key for key in old if key in new), *(key for key in new if key not in old)]
        return diff(old, new, change_between) if order == list(new) else Replace(new)
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        lost, got = old - new, new - old
        # A set takes 1 for True: where members differ by their type alone, the new set is the update.
        return Members(lost, got) if type(old) is type(new) and same((old - lost) | got, new) else new
    if not isinstance(old, FrozenList) or not isinstance(new, FrozenList):
        return diff_value(old, new)
    pairs = enumerate(zip(old.raw_items(), new.raw_items(), strict=False))
    kept = next((at for at, (one, two) in pairs if one is not two and not same(one, two)), min(len(old), len(new)))
    return Tail(kept, new[kept:])


def plain_patch(patch: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a patch of `diff` with plain values, and with `Replace` only where it is needed."""
    return {key: _plain_update(update) for key, update in patch.items()}


def _plain_update(update: Any) -> Any:
    if type(update) is Replace:
        plain = isinstance(update.frozen, FrozenDict) and not _holds_none(update.frozen)
        return thaw(update.frozen) if plain else update
    return plain_patch(update) if type(update) in (dict, SealedPatch) else thaw(update)


def _holds_none(frozen: FrozenDict[Any, Any]) -> bool:
    """Return whether a mapping holds a `None`, which a patch would take for a deletion."""
    return any(
        value is None or (isinstance(value, FrozenDict) and _holds_none(value)) for _, value in frozen.raw_items()
    )


# --- the JSON form


def update_size(update: Any) -> int:
    """Return the bytes of the JSON form of one update of a patch."""
    return len(json.dumps(encode_update(update), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def encode_update(update: Any) -> Any:
    """Return the JSON form of one update of a patch.

    Example:
        >>> encode_update({"theme": "dark", "age": DELETE})
        {'$type': 'patch', 'value': [['theme', 'dark'], ['age', {'$type':
        'delete'}]]}
    """
    if update is DELETE:
        return {TAG: "delete"}
    if isinstance(update, Replace):
        return {TAG: "replace", "value": encoding.encode(freeze(update.value))}
    if isinstance(update, Updates):
        return {TAG: "updates", "value": [encode_update(part) for part in update.updates]}
    if isinstance(update, Members):
        return {TAG: "members", "value": [encoding.encode(update.lost), encoding.encode(update.got)]}
    if isinstance(update, Tail):
        return {TAG: "tail", "value": [update.kept, encoding.encode(update.items)]}
    if type(update) in (dict, SealedPatch):
        return {TAG: "patch", "value": [[encoding.encode(key), encode_update(part)] for key, part in update.items()]}
    return encoding.encode(freeze(update))


def decode_update(found: Any, decode: Callable[[Any], Any] = encoding.decode) -> Any:
    """Return one update of a patch from its JSON form; `decode` reads the values in it."""
    tag = found.get(TAG) if type(found) is dict else None
    if tag == "delete":
        return DELETE
    if tag == "replace":
        return Replace(decode(found["value"]))
    if tag == "updates":
        return Updates(*[decode_update(part, decode) for part in found["value"]])
    if tag == "members":
        return Members(*map(decode, found["value"]))
    if tag == "tail":
        return Tail(found["value"][0], decode(found["value"][1]))
    if tag == "patch":
        return {decode(key): decode_update(part, decode) for key, part in found["value"]}
    return decode(found)
