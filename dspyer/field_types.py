"""The fields of a schema: their types, defaults and reducers, and what of an update has to be validated.

Validation costs by what changed. An update of a built-in reducer is validated alone, with a type derived from the field's; a patch
of a `dict` field is validated by the entries that it names. Where the type says more (constraints, validators), the new value of
the field is validated as a whole.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, is_typeddict

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from . import reducers
from ._boxes import Box
from .errors import GraphError, StateError, brief, suggestion
from .patch import DELETE, Replace, apply_value
from .reducers import Reducer, Updates, without_none
from .values import FrozenDict, FrozenList, freeze, same, thaw

Check = Callable[[Any], Any]
EXACT = frozenset({str, int, float, bool, NoneType})
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict, object)
# Options of a model that change even values of exactly the right type.
STRICT_OPTIONS = (
    "str_strip_whitespace",
    "str_to_lower",
    "str_to_upper",
    "str_min_length",
    "str_max_length",
    "allow_inf_nan",
)
EMPTY_VALUES: Mapping[Any, Any] = {
    list: FrozenList(),
    dict: FrozenDict(),
    set: freeze(set()),
    frozenset: frozenset(),
    tuple: (),
}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a schema.

    Attributes:
        name: its name.
        annotation: its type, without what `Annotated` adds.
        required: whether it has no default.
        reducer: how updates of it fold; None if they replace it or, in mappings, merge into it.
        whole: whether an update always replaces the value, mappings too.
        constant: whether only the inputs may set it (pydantic's `Field(frozen=True)`).
        exact: types whose values are valid as they are.
        validate: validates a value of the field and gives it as the field's type.
        validate_update: the same for one update of the reducer; None if only the new value can be validated.
        validate_entries: the same for some entries of a `dict` field; None for other fields.
        checks_result: whether the new value has to be validated after an update was folded or merged in.
        wants_others: whether its validators may read the other fields.
    """

    name: str
    annotation: Any
    info: FieldInfo
    reducer: Reducer | None
    whole: bool
    constant: bool
    exact: frozenset[type]
    validate: Callable[[Any, Mapping[str, Any]], Any]
    validate_update: Check | None
    validate_entries: Check | None
    checks_result: bool
    wants_others: bool
    start: Any
    fixed_default: Any

    @property
    def required(self) -> bool:
        return self.info.is_required()

    def default(self, others: Mapping[str, Any] | None = None) -> Any:
        """The frozen default, `DELETE` if the field has none.

        Args:
            others: the values of the fields before this one, for factories that ask for them.
        """
        if self.info.default_factory is None:
            return self.fixed_default
        value = self.info.get_default(call_default_factory=True, validated_data=dict(others or {}))
        return freeze(value, (self.name,))

    def place(self, old: Any, update: Any, whole: bool, others: Mapping[str, Any]) -> Any:
        """The new value of a field without reducer.

        Args:
            old: the frozen value, `DELETE` if there is none.
            update: what was written: a value, a patch for a mapping, `Replace` or `DELETE`.
            whole: whether a mapping stands for itself, not for a patch.
            others: the other fields, for validators that read them.

        Returns:
            The frozen, validated value; `old` itself where nothing changes.
        """
        if type(update) in self.exact:
            return update
        if update is DELETE:
            return self.default(others)
        if isinstance(update, Replace):
            return self._valid(update.value, others)
        if not whole and not self.whole and isinstance(update, Mapping):
            if isinstance(old, Box) and _is_patch_of(old.cls, update):
                return self._valid(_merged_model(old.open(), update), others)
            if _is_free_mapping(self.annotation):
                return self._patched(old, update, others)
        return self._valid(update, others)

    def _valid(self, value: Any, others: Mapping[str, Any]) -> Any:
        if type(value) in self.exact:
            return value
        frozen = freeze(self.validate(value, others), (self.name,))
        return value if _is_frozen(value) and same(frozen, value) else frozen

    def _patched(self, old: Any, update: Mapping[Any, Any], others: Mapping[str, Any]) -> Any:
        new = apply_value(old, update)
        if new is old:
            return old
        if self.validate_entries is None or self.checks_result:
            valid = freeze(self.validate(thaw(new), others), (self.name,))
            return new if same(valid, new) else valid
        before = old if isinstance(old, FrozenDict) else FrozenDict()
        written = {key: new.raw(key) for key in update if key in new and new.raw(key) is not before.raw(key, DELETE)}
        if written:
            valid = freeze(self.validate_entries(thaw(freeze(written))), (self.name,))
            for key in written:
                if key not in valid:  # the key itself was coerced
                    new = new.discard(key)
            for key, value in valid.raw_items():
                if not same(new.raw(key, DELETE), value):
                    new = new.set(key, value)
        return new

    def prepare(self, update: Any, commit_id: str) -> Any:
        """The stored form of an update of a field with reducer: stamped, validated, frozen.

        Args:
            update: what was written: one update, `Updates`, `Replace` or `DELETE`.
            commit_id: id of the commit, for reducers that derive names from it.
        """
        if isinstance(update, Updates):
            parts = enumerate(update.updates)
            return Updates(
                *[self.prepare(part, f"{commit_id}/{number}" if number else commit_id) for number, part in parts]
            )
        if update is DELETE:
            return DELETE if self.info.default_factory is None else Replace(self.default())
        if isinstance(update, Replace):
            return Replace(self._valid(update.value, {}))
        assert self.reducer is not None
        if self.reducer.check is not None:
            self.reducer.check(update)
        if self.reducer.stamp is not None:
            update = self.reducer.stamp(update, commit_id)
        if self.validate_update is None:
            return freeze(update, (self.name,))
        frozen = freeze(self.validate_update(update), (self.name,))
        return update if _is_frozen(update) and same(frozen, update) else frozen

    def fold(self, current: Any, update: Any) -> Any:
        """Folds a stored update into the field.

        Args:
            current: the frozen value, `DELETE` if there is none.
            update: the update as `prepare` gave it.

        Returns:
            The frozen new value.
        """
        if isinstance(update, Updates):
            for part in update.updates:
                current = self.fold(current, part)
            return current
        if update is DELETE:
            return self.default()
        if isinstance(update, Replace):
            return update.frozen
        assert self.reducer is not None
        new = self.reducer.fold(self.start if current is DELETE else current, update)
        if self.checks_result and type(new) not in self.exact:
            valid = freeze(self.validate(thaw(new), {}), (self.name,))
            return new if same(valid, new) else valid
        return new


def _is_frozen(value: Any) -> bool:
    return isinstance(value, (FrozenDict, FrozenList))


def _is_free_mapping(annotation: Any) -> bool:
    bare = without_none(annotation)
    origin = get_origin(bare) or bare
    return bare is Any or is_typeddict(origin) or origin in MAPPINGS


def _is_patch_of(model: type, update: Mapping[Any, Any]) -> bool:
    return issubclass(model, BaseModel) and all(key in model.model_fields for key in update)


def _merged_model(model: BaseModel, update: Mapping[str, Any]) -> BaseModel:
    """A model with a patch merged into its fields, validated. In a model None is a value; only `DELETE` resets."""
    values: dict[str, Any] = {
        name: getattr(model, name) for name in model.model_fields_set if name in type(model).model_fields
    }
    for name, part in update.items():
        old = getattr(model, name, None)
        if part is DELETE:
            values.pop(name, None)
        elif isinstance(part, Replace):
            values[name] = thaw(part.value)
        elif isinstance(part, Mapping) and isinstance(old, BaseModel) and _is_patch_of(type(old), part):
            values[name] = _merged_model(old, part)
        elif isinstance(part, Mapping) and isinstance(old, Mapping):
            values[name] = thaw(apply_value(freeze(old), part))
        else:
            values[name] = thaw(part)
    return type(model).model_validate(values, by_name=True)


def build_field(model: type[BaseModel], checker: type[BaseModel], name: str, validated: frozenset[str]) -> Field:
    """Reads one field of a model.

    Args:
        model: the schema.
        checker: a class with the same fields that validates assignments.
        name: the field.
        validated: names of the fields with validators of their own.

    Returns:
        The field.

    Raises:
        GraphError: if its reducer or its default cannot be used.
    """
    info = model.model_fields[name]
    place = f"field {name!r} of schema {model.__name__}"
    reducer, metadata = _split_metadata(info, place)
    config = model.model_config
    plain = not metadata and name not in validated and info.discriminator is None
    validate = _plain_validator(info.annotation, config) if plain else _model_validator(checker, name)
    members = set(get_args(info.annotation)) if info.annotation not in EXACT else {info.annotation}
    exact = plain and members and members <= EXACT and not any(option in config for option in STRICT_OPTIONS)
    folds = reducer is not None and reducer.folds
    update_type = None
    if reducer is not None and reducer.update_type is not None:
        try:
            update_type = reducer.update_type(info.annotation)
        except TypeError as error:
            raise GraphError(f"{place}: {error}") from None
    bare = without_none(info.annotation)
    is_dict = get_origin(bare) is dict or bare is dict
    start = (
        EMPTY_VALUES.get(get_origin(bare) or bare, DELETE)
        if folds and reducer is not None and reducer.check is None
        else DELETE
    )
    return Field(
        name=name,
        annotation=info.annotation,
        info=info,
        reducer=reducer if folds else None,
        whole=reducer is reducers.replace,
        constant=bool(info.frozen),
        exact=frozenset(NoneType if member is None else member for member in members) if exact else frozenset(),
        validate=validate,
        validate_update=None if update_type is None else _adapter(update_type, config),
        validate_entries=_adapter(bare, config) if is_dict else None,
        checks_result=not plain or (folds and update_type is None),
        wants_others=name in validated,
        start=start,
        fixed_default=_fixed_default(info, place, validate, config),
    )


def _adapter(annotation: Any, config: ConfigDict) -> Check:
    try:
        return TypeAdapter(annotation, config=config).validator.validate_python
    except PydanticUserError:  # models and the like bring their own configuration
        return TypeAdapter(annotation).validator.validate_python


def _plain_validator(annotation: Any, config: ConfigDict) -> Callable[[Any, Mapping[str, Any]], Any]:
    check = _adapter(annotation, config)
    return lambda value, others: check(value)


def _model_validator(checker: type[BaseModel], name: str) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Validates through the model, so that constraints and validators of the field hold."""
    assign = checker.__pydantic_validator__.validate_assignment

    def validate(value: Any, others: Mapping[str, Any]) -> Any:
        blank = checker.model_construct()
        blank.__dict__.clear()
        blank.__dict__.update({other: each for other, each in others.items() if other != name})
        assign(blank, name, value)
        return blank.__dict__[name]

    return validate


def _fixed_default(
    info: FieldInfo, place: str, validate: Callable[[Any, Mapping[str, Any]], Any], config: ConfigDict
) -> Any:
    if info.default is PydanticUndefined or info.default_factory is not None:
        return DELETE
    value = info.default
    if info.validate_default or (info.validate_default is None and config.get("validate_default")):
        value = validate(value, {})
    try:
        return freeze(value)
    except StateError as error:
        raise GraphError(f"{place}: its default cannot be part of a state: {error}") from None


def _split_metadata(info: FieldInfo, place: str) -> tuple[Reducer | None, list[Any]]:
    """The reducer of a field, and the rest of what `Annotated` says about it."""
    found: list[Reducer] = []
    rest: list[Any] = []
    for item in info.metadata:
        if isinstance(item, str):
            raise GraphError(f"{place}: {_text_advice(item)}")
        if isinstance(item, Reducer) or (callable(item) and not _is_pydantic(item)):
            try:
                found.append(Reducer.of(item))
            except TypeError as error:
                raise GraphError(f"{place}: {error}") from None
        elif isinstance(item, (bool, int, float, list, dict, tuple, set)) or item is None:
            raise GraphError(
                f"{place}: {brief(item)} in Annotated is no reducer; use one of dspyer.reducers or a function"
            )
        else:
            rest.append(item)
    if len(found) > 1:
        names = ", ".join(reducer.name for reducer in found)
        raise GraphError(f"{place}: it has {len(found)} reducers ({names}); keep one")
    if not found and _has_inner_reducer(info.annotation):
        raise GraphError(
            f"{place}: a reducer belongs outside of the whole type: Annotated[list[str] | None, reducers.extend]"
        )
    return (found[0] if found else None), rest


def _is_pydantic(item: Any) -> bool:
    module = getattr(type(item), "__module__", "").split(".")[0]
    return module in {"pydantic", "pydantic_core", "annotated_types"} or hasattr(item, "__get_pydantic_core_schema__")


def _text_advice(text: str) -> str:
    if text in reducers.BUILT_IN:
        return f"{text!r} is text; write reducers.{text}"
    near = suggestion(text, reducers.BUILT_IN)
    return f"{text!r} is no reducer.{near} Write a description as Field(description=...)"


def _has_inner_reducer(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return any(isinstance(item, Reducer) for item in annotation.__metadata__) or _has_inner_reducer(
            annotation.__origin__
        )
    return any(_has_inner_reducer(part) for part in get_args(annotation))
