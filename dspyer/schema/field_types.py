"""The fields of a schema: what of an update is validated, and how it becomes the new value.

Validation costs by what changed. An update of a built-in reducer is validated alone, with a type derived from the
field's; a patch of a `dict` field by the entries that it names. Where the type says more (constraints, validators),
the new value is validated as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from dspyer.errors import NodeOutputError, annotate
from dspyer.patch import DELETE, Replace, apply_value
from dspyer.reducers import Reducer, Updates
from dspyer.schema.limits import Limit
from dspyer.schema.live import Live
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList, thaw

Check = Callable[[Any], Any]
CheckBeside = Callable[[Any, Mapping[str, Any]], Any]
NO_OTHERS: Mapping[str, Any] = {}
EMPTY_DICT: FrozenDict[Any, Any] = FrozenDict()


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a schema.

    Attributes:
        name: its name.
        annotation: its type, without what `Annotated` adds.
        info: what pydantic knows about it.
        required: whether it has no default.
        reducer: how updates fold into it; None if they replace its value or, in mappings, merge into it.
        whole: whether an update always replaces the value, mappings too.
        constant: whether only the inputs may set it (pydantic's `Field(frozen=True)`).
        exact: types whose values are valid as they are.
        validate: validates a value beside the other fields, and gives it as the field's type.
        validate_update: the same for one update of the reducer; None if only the new value can be validated.
        validate_entries: the same for some entries of a mapping; None if only the whole mapping can be validated.
        free: whether its values are mappings to patch, with nothing to validate in them.
        merges: whether a patch of a mapping changes what it names and nothing else.
        model: the pydantic model that its values are of, None if they are of another type or of several.
        checks_result: whether the new value is validated after an update was folded or merged in.
        wants_others: whether its validators may read the other fields.
        start: what a reducer starts from where there is no value; `DELETE` if the first update is the value.
        fixed_default: the frozen default, `DELETE` if it has none or a factory makes it.
        limit: the most that it holds; None for no limit.
        validate_item: validates one item of a list; None if only the whole list can be validated.
        live: whether posts are seen by running siblings at once, and what becomes of conflicts; None if not.
    """

    name: str
    annotation: Any
    info: FieldInfo
    required: bool
    reducer: Reducer | None
    whole: bool
    constant: bool
    exact: frozenset[type]
    validate: CheckBeside
    validate_update: Check | None
    validate_entries: Check | None
    free: bool
    merges: bool
    model: type[BaseModel] | None
    checks_result: bool
    wants_others: bool
    start: Any
    fixed_default: Any
    live: Live | None = None
    limit: Limit | None = None
    validate_item: Check | None = None

    def default(self, others: Mapping[str, Any] = NO_OTHERS) -> Any:
        """The frozen default, `DELETE` if the field has none.

        Args:
            others: the values of the fields before this one, for factories that ask for them.
        """
        factory: Callable[..., Any] | None = self.info.default_factory
        if factory is None:
            return self.fixed_default
        takes_others = getattr(self.info, "default_factory_takes_validated_data", False)
        return freeze(factory(dict(others)) if takes_others else factory(), (self.name,))

    def folds_like(self, other: Field) -> bool:
        """Whether the same updates come to the same value in another field."""
        if self.reducer is None or other.reducer is None:
            return self.reducer is other.reducer
        return self.reducer.name == other.reducer.name and self.limit == other.limit

    def place(self, old: Any, update: Any, whole: bool, others: Mapping[str, Any] = NO_OTHERS) -> Any:
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
            return self._valid(update.frozen, others)
        if isinstance(update, Updates):
            raise NodeOutputError("Updates(...) is for fields with a reducer; return the new value alone")
        if not whole and not self.whole and isinstance(update, Mapping):
            if self.free or self.validate_entries is not None:
                return self._patched(old, update, others)
            if self.model is not None and isinstance(old, CopyOnRead) and _names_fields(old.cls, update):
                return self._valid(merged_model(old.open(), update), others)
        return self._valid(update, others)

    def _valid(self, value: Any, others: Mapping[str, Any]) -> Any:
        if type(value) in self.exact:
            return value
        given = value.open() if type(value) is CopyOnRead else value
        return self._keep(value, self.validate(given, others))

    def _keep(self, given: Any, valid: Any) -> Any:
        """The frozen form of a validated value: what was given, where that is frozen and the same."""
        frozen = freeze(valid, (self.name,))
        return given if isinstance(given, (FrozenDict, FrozenList, CopyOnRead)) and same(frozen, given) else frozen

    def _patched(self, old: Any, update: Mapping[Any, Any], others: Mapping[str, Any]) -> Any:
        new = apply_value(old, update, (self.name,))
        unchecked = self.free and (self.validate_entries is None or all(type(key) is str for key in update))
        if new is old or (unchecked and not self.checks_result):
            return new
        if self.checks_result or self.validate_entries is None:
            return self._keep(new, self.validate(thaw(new), others))
        before = old if isinstance(old, FrozenDict) else EMPTY_DICT
        written = {key: new.raw(key) for key in update if key in new and new.raw(key) is not before.raw(key, DELETE)}
        return self._with_valid_entries(new, written)

    def joined(self, value: Any, sides: Iterable[Any], others: Mapping[str, Any] = NO_OTHERS) -> Any:
        """The validated value that a join made of those of its branches. Of a mapping, only the entries that no branch
        has are validated, unless its type says something about the whole.

        Args:
            value: the frozen value.
            sides: the frozen values of the branches, valid each for itself.
            others: the other fields, for validators that read them.
        """
        if type(value) in self.exact:
            return value
        if self.reducer is not None:
            value = self._valid(value, others)
            return value if self.limit is None else self.limit.held(self.name, DELETE, DELETE, value)
        if isinstance(value, FrozenDict) and not self.checks_result and self.validate_entries is not None:
            known = [side for side in sides if isinstance(side, FrozenDict)]
            made = {
                key: entry for key, entry in value.raw_items() if all(k.raw(key, DELETE) is not entry for k in known)
            }
            return self._with_valid_entries(value, made) if made else value
        return self._keep(value, self.validate(thaw(value), others))

    def _with_valid_entries(self, new: FrozenDict[Any, Any], entries: Mapping[Any, Any]) -> FrozenDict[Any, Any]:
        assert self.validate_entries is not None  # only mappings have entries
        written = {key: thaw(value) for key, value in entries.items()}
        valid = freeze(self.validate_entries(written), (self.name,))
        for key in written:
            if key not in valid:  # the key itself was coerced
                new = new.discard(key)
        for key, value in valid.raw_items():
            if not same(new.raw(key, DELETE), value):
                new = new.set(key, value)
        return new

    def prepare(self, current: Any, update: Any, commit_id: str) -> Any:
        """The stored form of an update of a field with reducer: stamped, validated, frozen.

        Args:
            current: the frozen value before, `DELETE` if there is none.
            update: what was written: one update, `Updates`, `Replace` or `DELETE`.
            commit_id: id of the commit, for reducers that derive names from it.
        """
        if isinstance(update, Updates):
            ids = [f"{commit_id}/{number}" if number else commit_id for number in range(len(update.updates))]
            return Updates(*[self.prepare(current, *part) for part in zip(update.updates, ids, strict=True)])
        if update is DELETE:
            return DELETE if self.info.default_factory is None else Replace(self.default())
        if isinstance(update, Replace):
            return Replace(self._valid(update.frozen, NO_OTHERS))
        assert self.reducer is not None  # only such fields have updates
        if type(update) is CopyOnRead:
            update = update.open()
        if self.reducer.check is not None:
            self.reducer.check(update)
        if self.reducer.stamp is not None:
            update = self.reducer.stamp(update, commit_id, current)
        return self.valid_update(update)

    def valid_update(self, update: Any) -> Any:
        """The validated, frozen form of one update of the reducer."""
        if self.validate_update is None:
            return freeze(update, (self.name,))
        return self._keep(update, self.validate_update(update))

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
            value = update.frozen
            return value if self.limit is None else self.limit.held(self.name, DELETE, DELETE, value)
        assert self.reducer is not None  # only such fields have updates
        if current is DELETE or (current is None and self.reducer.check is not None):
            current = self.start
        try:
            new = self.reducer.fold(current, update)
        except Exception as error:
            annotate(error, f"raised by reducer {self.reducer.name!r} of field {self.name!r}")
            raise
        if self.limit is not None:
            new = self.limit.held(self.name, current, update, new, self.reducer)
        if self.checks_result and type(new) not in self.exact:
            return self._keep(new, self.validate(thaw(new), NO_OTHERS))
        return new


def _names_fields(model: type[BaseModel], update: Mapping[Any, Any]) -> bool:
    return all(key in model.model_fields for key in update)


def merged_model(model: BaseModel, update: Mapping[str, Any]) -> BaseModel:
    """A model with a patch merged into its fields, validated. In a model None is a value; only `DELETE` resets a field.

    Args:
        model: the model; it is not changed.
        update: new values by field; mappings merge into models and mappings.

    Returns:
        A new model. What counted as set in `model` does so in it, with what `update` names.
    """
    values: dict[str, Any] = {**model.__dict__, **(model.model_extra or {})}
    for name, part in update.items():
        old = values.get(name)
        if part is DELETE:
            values.pop(name, None)
        elif isinstance(part, Replace):
            values[name] = thaw(part.frozen)
        elif isinstance(part, Mapping) and isinstance(old, BaseModel):
            values[name] = merged_model(old, part)
        elif isinstance(part, Mapping) and isinstance(old, Mapping):
            values[name] = thaw(apply_value(freeze(old), part))
        else:
            values[name] = thaw(part)
    merged = type(model).model_validate({_input_name(type(model), name): value for name, value in values.items()})
    written = {name for name, part in update.items() if part is not DELETE}
    object.__setattr__(merged, "__pydantic_fields_set__", (model.model_fields_set - set(update)) | written)
    return merged


def _input_name(model: type[BaseModel], name: str) -> str:
    """The name by which a model takes the value of a field: its alias, if it has one."""
    info = model.model_fields.get(name)
    alias = None if info is None else info.validation_alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else name
