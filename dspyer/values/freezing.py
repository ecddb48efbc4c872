"""`freeze`, from any supported value to its frozen form, and `same`, the equality of values with their types."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property, partial
from types import NoneType
from typing import Any, ClassVar, NoReturn, cast, get_args, get_type_hints

from pydantic import AnyUrl, BaseModel

from dspyer.errors import StateError, UnsupportedValueError, brief
from dspyer.values.frozen import (
    Container,
    CopyOnRead,
    FrozenDict,
    FrozenList,
    FrozenSet,
    Same,
    ValueKind,
    check_depth,
    copier_of,
    depth_of,
    rebuild_tuple,
    thaw,
)
from dspyer.values.persistent import MapData, as_map, as_sequence
from dspyer.values.scalars import (
    MAX_DEPTH,
    PLAIN,
    SCALARS,
    KeyPath,
    TooDeepError,
    Uncopied,
    freeze_key,
    is_scalar,
    refuse_depth,
    refuse_value,
    same_scalar,
    scalar_base,
    scalar_identity,
)

# The types of which a state keeps private copies: dataclasses, models, DSPy's records, arrays, registered types.
#
# A `ValueKind` for each of them says how a value is taken apart and rebuilt. DSPy and numpy are never imported here:
# a
# value of theirs can only exist once they have been imported.


# A dataclass that inherits from one of these has content that its attributes do not show.
_LAYOUTS = (dict, list, set, frozenset, tuple, str, bytes, int, float, BaseException)


def _parts_copier(parts: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return a function that returns a dict of plain copies of these frozen parts, at each call."""
    nested = tuple([(name, copier_of(part)) for name, part in parts.items() if type(part) not in SCALARS])
    if not nested:
        return parts.copy

    def copied() -> dict[str, Any]:
        new = parts.copy()
        for name, copy_part in nested:
            new[name] = copy_part()
        return new

    return copied


class _Record(ValueKind):
    """Values that consist of their attributes: the content is a frozen mapping of them."""

    freezes_content = True

    def pack(self, value: Any) -> Any:
        return self.parts(value)

    def copier(self, cls: type, content: Any) -> Callable[[], Any]:
        return self.builder(cls, dict(content.raw_items()))

    def parts(self, value: Any) -> dict[str, Any]:
        """Return the attributes of which the value consists."""
        raise NotImplementedError

    def builder(self, cls: type, parts: dict[str, Any]) -> Callable[[], Any]:
        """Return a function that returns a value with copies of these attributes, without a call of its class."""
        copy_parts = _parts_copier(parts)

        def built() -> Any:
            new: Any = object.__new__(cls)
            for name, part in copy_parts().items():
                object.__setattr__(new, name, part)
            return new

        return built


class _Dataclass(_Record):
    name = "dataclass"

    def parts(self, value: Any) -> dict[str, Any]:
        cls = type(value)
        found = _attributes(value).items()
        return {name: part for name, part in found if not isinstance(getattr(cls, name, None), cached_property)}


class _Model(_Record):
    """Pydantic models: fields under their names, everything else under names that no field can have."""

    name = "model"

    def parts(self, value: Any) -> dict[str, Any]:
        fields = type(value).__pydantic_fields__
        parts = {name: part for name, part in value.__dict__.items() if name in fields}
        given = value.__pydantic_fields_set__
        if given != fields.keys():
            parts["$set"] = set(given)
        if value.__pydantic_extra__:
            parts["$extra"] = value.__pydantic_extra__
        if value.__pydantic_private__:
            parts["$private"] = value.__pydantic_private__
        return parts

    def builder(self, cls: Any, parts: dict[str, Any]) -> Callable[[], Any]:
        given, extra, private = parts.pop("$set", None), parts.pop("$extra", None), parts.pop("$private", None)
        if given is None:
            given = frozenset(cls.__pydantic_fields__)
        # Pydantic has None, not an empty dict, where a class allows no extra attributes, or declares no private ones.
        no_extra: Any = dict if cls.model_config.get("extra") == "allow" else NoneType
        no_private: Any = dict if cls.__private_attributes__ else NoneType
        copy_extra = no_extra if extra is None else copier_of(extra)
        copy_private = no_private if private is None else copier_of(private)
        copy_parts = _parts_copier(parts)
        return lambda: unvalidated(cls, copy_parts(), given, copy_extra(), copy_private())


_SLOTS: Any = vars(BaseModel)
_set_attributes = _SLOTS["__dict__"].__set__
_set_given = _SLOTS["__pydantic_fields_set__"].__set__
_set_extra = _SLOTS["__pydantic_extra__"].__set__
_set_private = _SLOTS["__pydantic_private__"].__set__


def unvalidated(
    cls: Any, parts: Mapping[str, Any], given: Iterable[str] = (), extra: Any = None, private: Any = None
) -> Any:
    """Return a model with these attributes, as `model_construct` builds it, in half the time.

    The other fields are absent. By default no field counts as set.
    """
    new = cls.__new__(cls)
    _set_attributes(new, parts)
    _set_given(new, set(given))
    _set_extra(new, extra)
    _set_private(new, private)
    return new


class _Example(_Record):
    """DSPy's `Example`, `Prediction` and `Completions`, without the signature of completions, which is a class."""

    name = "example"

    def parts(self, value: Any) -> dict[str, Any]:
        parts = dict(vars(value))
        if "signature" in parts:
            parts["signature"] = None
        return parts


class _Array(ValueKind):
    """Numpy arrays."""

    name = "array"

    def pack(self, value: Any) -> Any:
        content = value.copy()
        content.flags.writeable = False
        return content

    def copier(self, _: type, content: Any) -> Callable[[], Any]:
        return cast("Callable[[], Any]", content.copy)

    def same(self, a: Any, b: Any, _: Same) -> bool:
        native = a.dtype.newbyteorder("=")  # pickle does not keep the byte order
        if b.dtype.newbyteorder("=") != native or a.shape != b.shape:
            return False
        return bool(a.astype(native, copy=False).tobytes() == b.astype(native, copy=False).tobytes())


class _Bundle(ValueKind):
    """Tuples and sets with members that are stored as `CopyOnRead`."""

    name = "bundle"

    def copier(self, cls: Any, content: Any) -> Callable[[], Any]:  # the content is a tuple of frozen members
        def copied() -> Any:
            members = [thaw(member) for member in content]
            return rebuild_tuple(cls, members) if issubclass(cls, tuple) else cls(members)

        return copied


@dataclasses.dataclass(frozen=True, eq=False)
class RegisteredKind(ValueKind):
    """The kind of a type that was registered with `register_value_type`; `unstored` is what `encode` leaves out."""

    name = "registered"

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    duplicate: Callable[[Any], Any]
    cls: type
    unstored: Callable[[Any], Any] = lambda _: None

    def pack(self, value: Any) -> Any:
        return self.duplicate(value)

    def copier(self, _: type, content: Any) -> Callable[[], Any]:
        return partial(self.duplicate, content)

    def same(self, a: Any, b: Any, same: Same) -> bool:
        return bool(self.unstored(a) == self.unstored(b)) and same(self.encode(a), self.encode(b))

    def __reduce__(self) -> tuple[Any, ...]:
        return registered_kind, (self.cls,)


DATACLASS, MODEL, EXAMPLE, ARRAY, BUNDLE = _Dataclass(), _Model(), _Example(), _Array(), _Bundle()

_registered: dict[type, RegisteredKind] = {}
_known: dict[str, type] = {}


def register_value_type(
    type_: Any,
    *,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    copy: Callable[[Any], Any] = copy.deepcopy,
) -> None:
    """Let states hold values of a type, and read them back from JSON.

    A dataclass, a pydantic model, an enum, a namedtuple or a subclass of a scalar is supported already: registered
    without `encode` and `decode`, it is found by its name in `from_json`.
    A stored value of such a class is read back if the schema names the class or it is registered; a store in a file or
    a database refuses to write any other. One of a class that is gone stays as it is, and a node that reads it fails.

    Args:
        type_: the class; its subclasses are not included.
        encode: from an instance to a value that states support (a dict, a string, ...).
        decode: from the result of `encode` to an instance.
        copy: from an instance to an independent copy; `lambda value: value` for an immutable type.

    Raises:
        TypeError: `type_` is not a class, or `encode` or `decode` is missing for a type that needs them.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> class Money:
        ...     def __init__(self, cents):
        ...         self.cents = cents
        >>> register_value_type(Money, encode=lambda money: money.cents,
        ...     decode=Money)
        >>> freeze({"price": Money(5)})["price"].cents
        5
    """
    if not isinstance(type_, type) or type_ in SCALARS or type_ in (dict, list, set, frozenset, tuple):
        raise TypeError(f"register_value_type takes a class that states do not know yet, not {type_!r}")
    if encode is not None and decode is not None:
        register_kind(RegisteredKind(encode, decode, copy, type_))
    elif encode is not None or decode is not None or not is_rebuildable(type_):
        raise TypeError(
            f"register_value_type({type_.__qualname__}) needs both `encode` (from an instance to a plain value) and "
            f"`decode` (the way back)"
        )
    _known[class_name(type_)] = type_


def register_kind(kind: RegisteredKind) -> None:
    """Let states hold values of the class of a kind."""
    _registered[kind.cls] = kind
    _known[class_name(kind.cls)] = kind.cls


def registered_kind(cls: type) -> RegisteredKind:
    """Return the kind of a registered type; raises `LookupError` for any other class."""
    try:
        return _registered[cls]
    except KeyError:
        raise LookupError(f"{class_name(cls)} is not registered here: call register_value_type first") from None


def is_rebuildable(cls: type) -> bool:
    """Return whether values of a class can be taken apart and rebuilt without functions of the user."""
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, BaseModel | Enum)
        or issubclass(cls, _dspy_records())
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or scalar_base(cls) is not None
    )


def kind_of(value: object) -> ValueKind | None:
    """Return the kind by which a value is kept as a private copy; None if there is none."""
    cls = type(value)
    if cls in _registered:
        return _registered[cls]
    if cls is Opaque:
        return OPAQUE
    if isinstance(value, Enum):  # tested before dataclasses: an enum may inherit from one
        return None
    if isinstance(value, BaseModel):
        return MODEL
    if dataclasses.is_dataclass(cls) and not issubclass(cls, _LAYOUTS):
        return DATACLASS
    if issubclass(cls, _dspy_records()):
        return EXAMPLE
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and cls is numpy.ndarray and not value.dtype.hasobject:  # type: ignore[attr-defined]
        return ARRAY
    return None


def record_kind(cls: type) -> _Record | None:
    """Return the kind of a class whose values are records; None for any other class."""
    if issubclass(cls, BaseModel):
        return MODEL
    if dataclasses.is_dataclass(cls):
        return DATACLASS
    return EXAMPLE if issubclass(cls, _dspy_records()) else None


def class_name(cls: type) -> str:
    """Return the name of a class in JSON, `module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def known_class(name: str) -> type | None:
    """Return the registered class with this name, or the class of DSPy if it has been imported; None for any other."""
    if name in _known:
        return _known[name]
    module, _, qualname = name.partition(":")
    if module != "dspy" and not module.startswith("dspy."):
        return None
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and record_kind(found) is not None else None


def _attributes(value: Any) -> dict[str, Any]:
    state = object.__getstate__(value)
    in_dict, in_slots = state if isinstance(state, tuple) else (state, None)
    return {**(in_dict or {}), **(in_slots or {})}


def _dspy_records() -> tuple[type, ...]:
    dspy: Any = sys.modules.get("dspy")
    found = getattr(dspy, "Example", None), getattr(dspy, "Completions", None)
    return tuple(cls for cls in found if cls is not None)


def _itself(value: Any) -> Any:
    return value


def _register_builtins() -> None:
    register_value_type(
        re.Pattern,
        encode=lambda pattern: (pattern.pattern, pattern.flags),
        decode=lambda parts: re.compile(*parts),
        copy=_itself,
    )
    urls = [AnyUrl]
    for cls in urls:
        urls.extend(cls.__subclasses__())
        register_value_type(cls, encode=str, decode=cls)


_register_builtins()


# --- stored values of unknown classes


class Opaque(Uncopied):
    """A stored value of a class that is unknown in this process. It is written back unchanged; any use of it raises.

    Attributes:
        name: the class, as `module:qualname`; without one the `$type` of the JSON form.
        reason: why the value could not be read.
        text: its JSON form.
    """

    __slots__ = ("name", "reason", "text")
    name: str
    reason: str
    text: str

    shape = ()  # `equal` asks every value for its shape; any other attribute raises
    alive: ClassVar[dict[int, None]] = {}
    """The ids of those in this process: while there is none, no search for them is made."""

    def __init__(self, name: str, reason: str, text: str) -> None:
        for attribute, value in (("name", name), ("reason", reason), ("text", text)):
            object.__setattr__(self, attribute, value)
        Opaque.alive[id(self)] = None

    def __del__(self) -> None:
        del Opaque.alive[id(self)]

    @classmethod
    def of(cls, tagged: dict[str, Any], error: Exception) -> Opaque:
        """Wrap the JSON form of a value that could not be read because of `error`."""
        name = str(tagged.get("class", tagged.get("$type")))
        reason = str(error) if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
        return cls(name, reason, json.dumps(tagged, ensure_ascii=False, allow_nan=False))

    def __repr__(self) -> str:
        return f"<opaque {self.name}: {brief(json.loads(self.text).get('value'))}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy`, `pickle` and numpy look for such names on every object
            raise AttributeError(f"an opaque value has no attribute {name!r}")
        self._refuse()

    def __reduce__(self) -> tuple[Any, ...]:
        return Opaque, (self.name, self.reason, self.text)

    @property
    def explanation(self) -> str:
        """The reason why the value cannot be used, and what to do."""
        return (
            f"this stored value is a {self.name}, which cannot be read here: {self.reason}. It is kept as it is; "
            "name its class in the graph's schema, or call register_value_type(...) before the thread is read"
        )

    def _refuse(self, *_: object) -> NoReturn:
        raise StateError(self.explanation)

    __str__: Any = _refuse
    __format__: Any = _refuse
    __bool__: Any = _refuse
    __len__: Any = _refuse
    __iter__: Any = _refuse
    __getitem__: Any = _refuse
    __setattr__: Any = _refuse


class _OpaqueKind(ValueKind):
    """The kind of opaque values: they are immutable and need no copy."""

    name = "opaque"

    def copier(self, _: type, content: Any) -> Callable[[], Any]:
        return partial(_itself, content)

    def same(self, a: Any, b: Any, _: Same) -> bool:
        return bool(a == b)


OPAQUE = _OpaqueKind()


def find_opaque(value: Any) -> Opaque | None:
    """Return the first opaque value in a plain or frozen one; None if there is none."""
    if not Opaque.alive:
        return None
    if type(value) is Opaque:
        return value
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (str, bytes)):
        parts = value
    else:
        parts = vars(value).values() if hasattr(type(value), "model_fields") else ()
    return next((found for part in parts if (found := find_opaque(part)) is not None), None)


_FROZEN: frozenset[type] = frozenset({FrozenDict, FrozenList, FrozenSet, CopyOnRead})


def freeze(value: object, path: KeyPath = ()) -> Any:
    """Return the frozen form of a value: a deep, immutable copy that shares whatever is frozen already.

    Args:
        value: any supported value.
        path: the path at which it will be stored, for error messages.

    Returns:
        The frozen value; `value` itself if it is frozen.

    Raises:
        UnsupportedValueError: a part of it cannot be protected from later changes, or it is nested too deep.

    Example:
        >>> freeze({"tags": ["a"]})
        FrozenDict({'tags': FrozenList(['a'])})
    """
    cls = type(value)
    if cls in SCALARS or cls in _FROZEN:
        return value
    try:
        return freeze_within(value, path, MAX_DEPTH)
    except TooDeepError:
        refuse_depth(path, UnsupportedValueError)


def freeze_within(value: Any, path: KeyPath, levels_left: int) -> Any:
    """Freeze a value that may have `levels_left` levels; raises `TooDeepError`, without a path, if it has more."""
    cls = type(value)
    if cls in SCALARS or cls in _FROZEN:
        return value
    if levels_left <= 0:
        raise TooDeepError
    if cls is dict:
        return _mapping(value, path, levels_left)
    if cls is list:
        return _list(value, path, levels_left)
    if cls is tuple or cls is set or cls is frozenset:
        return _members(value, cls, path, levels_left)
    return _other(value, path, levels_left)


def _other(value: Any, path: KeyPath, levels_left: int) -> Any:
    kind = kind_of(value)
    if kind is not None:
        content = kind.pack(value)
        return check_depth(
            CopyOnRead(
                kind, type(value), freeze_within(content, path, levels_left - 1) if kind.freezes_content else content
            )
        )
    if is_scalar(value):
        return value
    if isinstance(value, FrozenDict):  # a state inside a value becomes a plain FrozenDict
        return FrozenDict._of(value._map, value._depth)
    if isinstance(value, Mapping):
        return _mapping(value, path, levels_left)
    if isinstance(value, list):
        return _list(value, path, levels_left)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _members(value, type(value), path, levels_left)
    return refuse_value(value, path)


def _mapping(value: Mapping[Any, Any], path: KeyPath, levels_left: int) -> Any:
    plain = {}
    depth = 0
    for key, item in value.items():
        name = key if type(key) is str else freeze_key(key, path)
        if type(item) in SCALARS:
            plain[name] = item
        else:
            plain[name] = frozen = freeze_within(item, (*path, name), levels_left - 1)
            depth = max(depth, depth_of(frozen))
    new: FrozenDict[Any, Any] = FrozenDict._of(as_map(plain), depth + 1)
    return check_depth(new)


def _list(value: list[Any], path: KeyPath, levels_left: int) -> Any:
    items = []
    depth = 0
    for index, item in enumerate(value):
        if type(item) in SCALARS:
            items.append(item)
        else:
            frozen = freeze_within(item, (*path, index), levels_left - 1)
            items.append(frozen)
            depth = max(depth, depth_of(frozen))
    new: FrozenList[Any] = FrozenList._of(as_sequence(items), depth + 1)
    return check_depth(new)


def _members(value: Iterable[Any], cls: Any, path: KeyPath, levels_left: int) -> Any:
    """Freeze a tuple or set; the result is a `CopyOnRead` if a member is one, or if the tuple has attributes."""
    members = []
    changed = copied = False
    for index, member in enumerate(value):
        part = member if type(member) in SCALARS else freeze_within(member, (*path, index), levels_left - 1)
        changed = changed or part is not member
        copied = copied or type(part) is CopyOnRead
        members.append(part)
    frozen: Any = value
    if copied or (issubclass(cls, tuple) and cls.__dictoffset__):  # an instance with a `__dict__` can be changed
        frozen = CopyOnRead(BUNDLE, cls, tuple(members))
    elif cls is set:
        frozen = FrozenSet(members)
    elif changed:
        frozen = frozenset(members) if cls is frozenset else rebuild_tuple(cls, members)
    return check_depth(frozen)


Container._freeze = staticmethod(freeze)  # `FrozenDict.set` and others call it; see the class


# --- same


_ABSENT: Any = object()
_MAPS = (FrozenDict, dict)  # tuples: a union type would be built at each test
_LISTS = (FrozenList, list)
_SETS = (FrozenSet, set)


def same(a: Any, b: Any) -> bool:
    """Return whether two values and all their parts have the same types and contents.

    Stricter than `==`: `1`, `True` and `1.0` differ, and so do `-0.0` and `0.0`. NaN is the same as NaN, arrays are
    compared as a whole, and a frozen container counts as the plain type that it is the form of.

    Example:
        >>> same([1], [1]), same([1], [True])
        (True, False)
    """
    if a is b:
        return True
    cls = type(a)
    if cls in SCALARS:
        return cls is type(b) and (bool(a == b) if cls in PLAIN else same_scalar(a, b))
    if cls is FrozenList and type(b) is FrozenList:
        return _same_items(a._seq, b._seq)
    if isinstance(a, _MAPS):
        return isinstance(b, _MAPS) and _same_maps(_map_of(a), _map_of(b))
    if isinstance(a, _LISTS):
        return isinstance(b, _LISTS) and _same_items(_items_of(a), _items_of(b))
    if isinstance(a, CopyOnRead):
        return isinstance(b, CopyOnRead) and a.cls is b.cls and a.kind.same(a.content, b.content, same)
    if isinstance(a, _SETS):
        return isinstance(b, _SETS) and _same_sets(a, b)
    if isinstance(a, frozenset):
        return type(b) is cls and _same_sets(a, b)
    if is_scalar(a):
        return same_scalar(a, b)
    if isinstance(a, tuple):
        return type(b) is cls and _same_items(a, b)
    return type(a) is type(b) and same(freeze(a), freeze(b))  # not frozen yet, such as models


def _map_of(value: Any) -> MapData[Any, Any]:
    return value._map if isinstance(value, FrozenDict) else value


def _items_of(value: Any) -> Any:
    return value.raw_items() if isinstance(value, FrozenList) else value


def _same_maps(a: MapData[Any, Any], b: MapData[Any, Any]) -> bool:
    if a is b:
        return True
    if len(a) != len(b):
        return False
    other_keys = False
    for key, value in a.items():
        theirs = b.get(key, _ABSENT)
        if theirs is not value and (theirs is _ABSENT or not same(value, theirs)):
            return False
        other_keys = other_keys or type(key) is not str
    # A dict finds 1 for the key True: keys that are not strings are compared with their types as well.
    return not other_keys or _identities(a) == _identities(b)


def _same_items(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if len(a) != len(b):
        return False
    return all(map(same, a, b))


def _same_sets(a: Any, b: Any) -> bool:
    return len(a) == len(b) and _identities(a) == _identities(b)


def _identities(members: Any) -> frozenset[Any]:
    return frozenset([_identity(member) for member in members])


def _identity(member: Any) -> Any:
    """Return a hashable key that is equal exactly for members that are the same."""
    if isinstance(member, tuple) and not is_scalar(member):
        return type(member), tuple([_identity(part) for part in member])
    if isinstance(member, frozenset):
        return FrozenSet if isinstance(member, FrozenSet) else frozenset, _identities(member)
    return scalar_identity(member) if is_scalar(member) else member


# The classes that types name: those of values that may be stored under the name of their class.


NAMED = (Enum, tuple, str, int, float, bytes)
"""Bases of the classes that rows name, in addition to models and dataclasses."""


_HELD = "__dspyer_held_classes__"


def set_held_classes(model: type[BaseModel], classes: Iterable[type]) -> None:
    """Say of which classes the values of a model may be besides those that its types name.

    An attribute of the class: it goes with a copy of the class to another process.
    """
    setattr(model, _HELD, tuple(classes))


def held_classes(model: type[BaseModel]) -> tuple[type, ...]:
    """The classes of which the values of a model may be: those that its types name, and those that were set."""
    return (*vars(model).get(_HELD, ()), *classes_in([model]))


def classes_in(annotations: Iterable[Any]) -> tuple[type, ...]:
    """The classes that some types name."""
    found: dict[type, None] = {}
    for annotation in annotations:
        _collect(annotation, found)
    return tuple(found)


def _collect(annotation: Any, found: dict[type, None]) -> None:
    """Add the classes that a type names to `found`, which also keeps recursive types from looping."""
    annotation = getattr(annotation, "__value__", annotation)  # of an alias, `type X = ...`
    for argument in get_args(annotation):
        _collect(argument, found)
    if not isinstance(annotation, type) or annotation in found:
        return
    if issubclass(annotation, BaseModel):
        found[annotation] = None
        for field in annotation.model_fields.values():
            _collect(field.annotation, found)
    elif dataclasses.is_dataclass(annotation) or hasattr(annotation, "__required_keys__"):
        found[annotation] = None
        _collect_hints(annotation, found)
    elif issubclass(annotation, NAMED) and annotation not in NAMED:
        found[annotation] = None
        if hasattr(annotation, "_fields"):
            _collect_hints(annotation, found)


def _collect_hints(cls: type, found: dict[type, None]) -> None:
    try:
        hints = get_type_hints(cls)
    except NameError:  # a name that is imported under TYPE_CHECKING only
        return
    for hint in hints.values():
        _collect(hint, found)
