"""The fields of a schema: how an update is validated and becomes the new value, and how a model is read as fields.

The cost of validation depends on what changed, not on the size of the value. An update of a built-in reducer is
validated alone, with a type derived from that of the field; a patch of a `dict` field by the entries that it names. If
the type has constraints or validators that may concern the whole value, the whole new value is validated.
"""

from __future__ import annotations

import collections
import collections.abc
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    RootModel,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from dspyer import errors, reducers
from dspyer.errors import DspyerError, GraphError, InputError, NodeOutputError, StateError, annotate, brief, suggestion
from dspyer.hints import UNIONS, without_none
from dspyer.message_list import Edited
from dspyer.patch import DELETE, Replace, apply_value, resets
from dspyer.policies import ShowPath
from dspyer.reducers import WITH_PARTS, Reducer, Updates
from dspyer.schema.limits import Limit, limit, limit_problem
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same, unvalidated
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList, thaw

Check = Callable[[Any], Any]
"""Validates a value and returns it as the declared type; raises `ValidationError`."""

FieldCheck = Callable[[Any, Mapping[str, Any]], Any]
"""The same, with the other fields of the state, which the validators of a model may read."""

NO_OTHER_FIELDS: Mapping[str, Any] = {}
EMPTY_DICT: FrozenDict[Any, Any] = FrozenDict()


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a schema.

    Attributes:
        name: name of the field.
        annotation: its type, without `Annotated`.
        info: pydantic's description of the field.
        required: whether it has no default.
        reducer: how updates fold into it; None if they replace the value or, in mappings, merge into it.
        always_replaces: whether an update always replaces the value, mappings too.
        hint: what an error about a refused update ends with.
        inputs_only: whether only the inputs may set it (pydantic's `Field(frozen=True)`).
        exact_types: scalar types whose values need no validation.
        validate: validates a value.
        validate_update: validates one update of the reducer; None if only the new value can be validated.
        validate_entries: validates some entries of a mapping; None if only the whole mapping can be validated.
        unvalidated_mapping: whether its values may be mappings to patch, whose entries have no declared type.
        patches_by_key: whether a patch of a mapping changes only the keys that it names.
        model: the pydantic model of its values; None for another type, or several.
        checks_result: whether the new value is validated as a whole after a fold or a merge.
        reads_other_fields: whether its validators may read the other fields.
        fold_start: the value from which a reducer starts if there is none; `DELETE` if the first update is the value.
        fixed_default: the frozen default; `DELETE` if there is none, or a factory for it.
        live: the marker of a live field; None if it is not live.
        limit: the most that it may hold; None for no limit.
        validate_item: validates one item of a list; None if only the whole list can be validated.
        plain_config: the configuration of the model, if the type alone says what is valid; None if constraints or
            validators of the field say it too.
        lasts: whether it lasts over the runs of a thread.
        transient: whether the next commit that does not write it resets it.
    """

    name: str
    annotation: Any
    info: FieldInfo
    required: bool
    reducer: Reducer | None
    always_replaces: bool
    hint: str
    inputs_only: bool
    exact_types: frozenset[type]
    validate: FieldCheck
    validate_update: Check | None
    validate_entries: Check | None
    unvalidated_mapping: bool
    patches_by_key: bool
    model: type[BaseModel] | None
    checks_result: bool
    reads_other_fields: bool
    fold_start: Any
    fixed_default: Any
    live: Live | None = None
    limit: Limit | None = None
    validate_item: Check | None = None
    plain_config: ConfigDict | None = None
    lasts: bool = False
    transient: bool = False

    def default(self, others: Mapping[str, Any] = NO_OTHER_FIELDS) -> Any:
        """Return the frozen default, `DELETE` for none; `others` are the earlier fields, which a factory may read."""
        factory: Callable[..., Any] | None = self.info.default_factory
        if factory is None:
            return self.fixed_default
        takes_others = getattr(self.info, "default_factory_takes_validated_data", False)
        return freeze(factory(dict(others)) if takes_others else factory(), (self.name,))

    def folds_like(self, other: Field) -> bool:
        """Return whether the same updates fold to the same value in another field."""
        if self.reducer is None or other.reducer is None:
            return self.reducer is other.reducer
        return self.reducer.name == other.reducer.name and self.limit == other.limit

    def holds_values_of(self, other: Field) -> bool:
        """Return whether every value of another field is a value of this one, unchanged by a validation."""
        if self.plain_config is None or self.plain_config != other.plain_config:
            return False
        same_fold = self.reducer is None or self.folds_like(other)
        return same_fold and self.limit == other.limit and self.annotation == other.annotation

    def new_value(self, old: Any, update: Any, whole: bool, others: Mapping[str, Any] = NO_OTHER_FIELDS) -> Any:
        """Return the frozen, validated value after an update of a field without reducer; `old` if nothing changes.

        `old` is `DELETE` if there is no value. With `whole` a mapping is the new value, otherwise a patch.
        """
        if type(update) in self.exact_types:
            return update
        if update is DELETE:
            return self.default(others)
        if isinstance(update, Replace):
            return self._valid(update.frozen, others)
        if isinstance(update, Updates):
            raise NodeOutputError("Updates(...) is for fields with a reducer; return the new value alone")
        if not whole and not self.always_replaces and isinstance(update, Mapping):
            if self.unvalidated_mapping or self.validate_entries is not None:
                return self._patched(old, update, others)
            of_model = self.model is not None and isinstance(old, CopyOnRead)
            if of_model and all(key in old.cls.model_fields for key in update):
                return self._valid(merged_model(old.read(), update), others)
        return self._valid(update, others)

    def _valid(self, value: Any, others: Mapping[str, Any]) -> Any:
        if type(value) in self.exact_types:
            return value
        given = value.read() if type(value) is CopyOnRead else value
        return self._keep(value, self.validate(given, others))

    def _keep(self, given: Any, valid: Any) -> Any:
        """Return the frozen form of a validated value: `given` itself if it is frozen and the same."""
        frozen = freeze(valid, (self.name,))
        return given if isinstance(given, (FrozenDict, FrozenList, CopyOnRead)) and same(frozen, given) else frozen

    def _patched(self, old: Any, update: Mapping[Any, Any], others: Mapping[str, Any]) -> Any:
        new = apply_value(old, update, (self.name,))
        unchecked = self.unvalidated_mapping and (
            self.validate_entries is None or all(type(key) is str for key in update)
        )
        if new is old or (unchecked and not self.checks_result):
            return new
        if self.checks_result or self.validate_entries is None:
            return self._keep(new, self.validate(thaw(new), others))
        before = old if isinstance(old, FrozenDict) else EMPTY_DICT
        # Identity: entries that the patch left the same are shared with the old value, which is valid.
        written = {key: new.raw(key) for key in update if key in new and new.raw(key) is not before.raw(key, DELETE)}
        return self._with_valid_entries(new, written)

    def validate_joined(self, value: Any, sides: Iterable[Any], others: Mapping[str, Any] = NO_OTHER_FIELDS) -> Any:
        """Return the validated form of a value that a join made of the values of its branches, `sides`.

        Each side is valid. Of a mapping only the entries that no side has are validated, unless its type concerns the
        whole.
        """
        if type(value) in self.exact_types:
            return value
        if self.reducer is not None:
            value = self._valid(value, others)
            return value if self.limit is None else self.limit.enforce(self.name, DELETE, DELETE, value)
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
            if key not in valid:  # validation has changed the key, such as "1" to 1
                new = new.discard(key)
        for key, value in valid.raw_items():
            if not same(new.raw(key, DELETE), value):
                new = new.set(key, value)
        return new

    def stored_update(self, current: Any, update: Any, commit_id: str) -> Any:
        """Return the form in which a commit stores an update of a field with reducer: with ids, validated, frozen.

        `current` is the frozen value before, `DELETE` for none. Reducers derive the ids from `commit_id`, so that the
        same commit made again gets the same ones.
        """
        if isinstance(update, Updates):
            ids = [f"{commit_id}/{number}" if number else commit_id for number in range(len(update.updates))]
            return Updates(*[self.stored_update(current, *part) for part in zip(update.updates, ids, strict=True)])
        if update is DELETE:
            # A factory is called once and its result is stored: a replay would get another one.
            return DELETE if self.info.default_factory is None else Replace(self.default())
        if isinstance(update, Replace):
            return Replace(self._valid(update.frozen, NO_OTHER_FIELDS))
        assert self.reducer is not None  # only such fields have updates
        if type(update) is CopyOnRead:
            update = update.read()
        if self.reducer.check is not None:
            self.reducer.check(update)
        if self.reducer.assign_ids is not None:
            update = self.reducer.assign_ids(update, commit_id, current)
        return self.validated_update(update)

    def validated_update(self, update: Any) -> Any:
        """Return the validated, frozen form of one update of the reducer."""
        if self.validate_update is None:
            return freeze(update, (self.name,))
        return self._keep(update, self.validate_update(update))

    def fold(self, current: Any, update: Any) -> Any:
        """Return the frozen value after folding in an update of `stored_update`; `current` is `DELETE` for none."""
        if isinstance(update, Updates):
            for part in update.updates:
                current = self.fold(current, part)
            return current
        if update is DELETE:
            return self.default()
        if isinstance(update, Replace):
            value = update.frozen
            return value if self.limit is None else self.limit.enforce(self.name, DELETE, DELETE, value)
        assert self.reducer is not None  # only such fields have updates
        # For the built-in reducers None is no value yet, as in `list[str] | None = None`.
        if current is DELETE or (current is None and self.reducer.check is not None):
            current = self.fold_start
        try:
            new = self.reducer.fold(current, update)
        except Exception as error:
            annotate(error, f"raised by reducer {self.reducer.name!r} of field {self.name!r}")
            raise
        if self.limit is not None:
            new = self.limit.enforce(self.name, current, update, new, self.reducer)
        if self.checks_result and type(new) not in self.exact_types:
            return self._keep(new, self.validate(thaw(new), NO_OTHER_FIELDS))
        return new


def merged_model(model: BaseModel, update: Mapping[str, Any]) -> BaseModel:
    """Return a copy of a model with a patch merged into its fields, validated.

    None is a value in a model; only `DELETE` resets a field. Fields that were set explicitly (`model_fields_set`) stay
    so in the copy, as do those that `update` names.
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
    merged = type(model).model_validate({input_name(type(model), name): value for name, value in values.items()})
    written = {name for name, part in update.items() if part is not DELETE}
    object.__setattr__(merged, "__pydantic_fields_set__", (model.model_fields_set - set(update)) | written)
    return merged


def input_name(model: type[BaseModel], name: str) -> str:
    """Return the name by which the input of a model gives a field: its alias, if it has one."""
    info = model.model_fields.get(name)
    alias = None if info is None else info.validation_alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else name


# --- reading a pydantic model as fields

RESERVED = frozenset({"run", "state", "ctx", "self"})  # parameters of nodes, and of a call, that are not fields
EXACT: frozenset[Any] = frozenset({str, int, float, bool, NoneType})
# Types that take a container of another class.
CONTAINERS = frozenset(
    {list, dict, set, frozenset, tuple, collections.abc.Sequence, collections.abc.Set, collections.abc.Mapping}
)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict)
# Options of a model by which validation may change or refuse a value of exactly the declared type.
CHANGING_OPTIONS = frozenset(
    {"str_strip_whitespace", "str_to_lower", "str_to_upper", "str_min_length", "str_max_length", "allow_inf_nan"}
)
# The names of the reducers whose fields are conversations, also of LangGraph's function.
CONVERSATIONS = frozenset({"conversation", "add_messages"})
# The empty value by type, from which the reducers start that work on several types.
STARTS: Mapping[Any, Any] = {kind: freeze(kind()) for kind in (list, dict, set, frozenset, tuple)}


def read_model(model: object) -> dict[str, Field]:
    """Return the fields of a model by name, in its order.

    Raises `GraphError` with everything in the model that a graph cannot use.
    """
    if not isinstance(model, type) or not issubclass(model, BaseModel) or issubclass(model, RootModel):
        hint = f": write class {getattr(model, '__name__', model)}(BaseModel)" if is_typeddict(model) else ""
        raise GraphError(f"a schema is a class of pydantic's BaseModel with fields, not {brief(model)}{hint}")
    if not model.__pydantic_complete__:
        try:
            model.model_rebuild()
        except PydanticUndefinedAnnotation as error:
            raise GraphError(f"schema {model.__name__} uses {error.name!r}, which is not defined yet") from None
    problems = list(_model_problems(model))
    checker, validated = _checker(model), validated_fields(model)
    fields: dict[str, Field] = {}
    for name in model.model_fields:
        try:
            fields[name] = _read_field(model, checker, name, name in validated)
        except GraphError as error:
            problems.extend(error.problems)
    if problems:
        raise GraphError(problems)
    return fields


def _model_problems(model: type[BaseModel]) -> Iterator[str]:
    place = f"schema {model.__name__}"
    decorators = model.__pydantic_decorators__
    for name in (*decorators.model_validators, *decorators.root_validators):
        yield (
            f"{place}: validator {name!r} checks the whole model, but nodes write single fields; "
            "use @field_validator, or a node that checks the state and routes"
        )
    for name in model.__private_attributes__:
        yield f"{place}: {name!r} is a private attribute, not a field; name it without the leading underscore"
    for name in model.model_fields:
        if name in RESERVED:
            yield f"{place}: a field cannot be called {name!r}, the name of a parameter that nodes have; rename it"


def validated_fields(model: type[BaseModel]) -> set[str]:
    """Return the names of the fields that have validators."""
    decorators = model.__pydantic_decorators__
    named = [each.info.fields for each in decorators.field_validators.values()]
    named += [each.info.fields for each in decorators.validators.values()]
    return {name for names in named for name in (model.model_fields if "*" in names else names)}


def _checker(model: type[BaseModel]) -> type[BaseModel]:
    """Return a model with the same fields and validators in which frozen fields can be assigned too."""
    constant = {name: info for name, info in model.model_fields.items() if info.frozen}
    if not constant and not model.model_config.get("frozen"):
        return model
    namespace: dict[str, Any] = {"__module__": model.__module__, "model_config": ConfigDict(frozen=False)}
    namespace["__annotations__"] = {name: info.annotation for name, info in constant.items()}
    for name, info in constant.items():
        namespace[name] = copy(info)
        namespace[name].frozen = None
    checker: type[BaseModel] = types.new_class(model.__name__, (model,), {}, lambda body: body.update(namespace))
    return checker


def _read_field(model: type[BaseModel], checker: type[BaseModel], name: str, validated: bool) -> Field:
    info, config = model.model_fields[name], model.model_config
    place = f"field {name!r} of schema {model.__name__}"
    reducer, live, bound, constraints = _split_metadata(info, place)
    # Without constraints and validators the type alone says what is valid, and an update can be validated by itself.
    plain = not constraints and not validated and info.discriminator is None
    inner = without_none(info.annotation)
    origin = get_origin(inner) or inner
    is_mapping = origin in MAPPINGS
    is_typed_dict = hasattr(origin, "__required_keys__")  # of `typing` and of `typing_extensions`
    any_mapping = inner is Any or (is_mapping and (get_args(inner) or (str, Any)) == (str, Any))
    validate = _plain_validator(info.annotation, config) if plain else _model_validator(checker, name)
    folding = reducer if reducer is not None and reducer.folds else None
    replaces = reducer is not None and reducer.function is reducers.replace.function
    update_type = _update_type(folding, info.annotation, place)
    wrong = "" if live is None else live_problem(live, folding)
    if bound is not None and not wrong:
        wrong = limit_problem(bound, "" if folding is None else folding.name, origin)
    if wrong:
        raise GraphError(f"{place}: {wrong}")
    default = _fixed_default(info, place, validate, config)
    if bound is not None and default is not DELETE:
        try:
            bound.enforce(name, DELETE, DELETE, default)
        except NodeOutputError as error:
            raise GraphError(f"{place}: its default: {error}") from None
    return Field(
        name=name,
        annotation=info.annotation,
        info=info,
        required=info.is_required(),
        reducer=folding,
        always_replaces=replaces,
        hint="" if reducer is None else reducer.hint,
        inputs_only=bool(info.frozen),
        exact_types=frozenset() if not plain or info.frozen else _exact_types(info.annotation, config),
        validate=validate,
        validate_update=None if update_type is None else _adapter(update_type, config),
        validate_entries=_adapter(inner, config) if is_mapping else None,
        unvalidated_mapping=any_mapping or is_typed_dict,
        patches_by_key=(any_mapping or is_mapping) and plain and not replaces,
        model=origin if isinstance(origin, type) and issubclass(origin, BaseModel) else None,
        checks_result=not plain or is_typed_dict or (folding is not None and update_type is None),
        reads_other_fields=validated,
        fold_start=DELETE if folding is None else _start(folding, origin),
        fixed_default=default,
        live=live,
        limit=bound,
        validate_item=None if validated else _item_validator(inner, constraints, config),
        plain_config=config if plain else None,
        # A conversation that a run began anew would not be one; what other reducers fold is the work of one run.
        lasts=_is_kept(info, place) or (folding is not None and folding.name.strip("_") in CONVERSATIONS),
        transient=reducer is not None and reducer.transient,
    )


def _is_kept(info: FieldInfo, place: str) -> bool:
    """Return whether a field is declared `Kept[...]`."""
    kept = any(isinstance(item, Lasting) for item in info.metadata)
    if kept and isinstance(info.annotation, TypeVar):
        raise GraphError(f"{place}: Kept has no type: write Kept[int], or Kept[Any]")
    if not kept and _names_inside(info.annotation, Lasting):
        raise GraphError(f"{place}: it is kept as a whole, or not at all: Kept[int | None], not Kept[int] | None")
    return kept


def _item_validator(annotation: Any, constraints: list[Any], config: ConfigDict) -> Check | None:
    """Return the check for one item of a list; None if the field has a validator that may change the list first."""
    if get_origin(annotation) is not list or any(hasattr(each, "__get_pydantic_core_schema__") for each in constraints):
        return None
    item, *_ = get_args(annotation) or (Any,)  # `typing.List` names no type of its items
    return _adapter(item, config)


def _update_type(reducer: Reducer | None, annotation: Any, place: str) -> Any:
    if reducer is None or reducer.update_type is None:
        return None
    try:
        return reducer.update_type(annotation)
    except TypeError as error:
        raise GraphError(f"{place}: {error}") from None


def _start(reducer: Reducer, origin: Any) -> Any:
    """Return the value from which a reducer starts: of the field's type if the reducer works on several."""
    if reducer.check is None or reducer is reducers.union:
        return STARTS.get(origin, reducer.empty)
    return reducer.empty


def _exact_types(annotation: Any, config: ConfigDict) -> frozenset[type]:
    """Return the scalar types of an annotation such as `str | None`; none if it contains any other type."""
    if CHANGING_OPTIONS & config.keys():
        return frozenset()
    members = {annotation} if annotation in (str, int, float, bool) else set(get_args(annotation))
    is_union = get_origin(annotation) in UNIONS or annotation in members
    return frozenset(members) if is_union and members <= EXACT else frozenset()


def _adapter(annotation: Any, config: ConfigDict) -> Check:
    try:
        check = TypeAdapter(annotation, config=config).validator.validate_python
    except PydanticUserError:  # models and dataclasses have their own configuration
        check = TypeAdapter(annotation).validator.validate_python
    return _on_thawed(check) if config.get("strict") or _tells_containers_apart(annotation) else check


def _tells_containers_apart(annotation: Any) -> bool:
    """Return whether a type such as `set[str] | list[str]` takes a frozen list for the first container that fits."""
    members = get_args(annotation)
    if get_origin(annotation) in UNIONS:
        kinds = [get_origin(each) or each for each in map(_without_metadata, members)]
        fitting = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, collections.abc.Iterable)]
        if len(set(fitting) - {str, bytes}) > 1 and not CONTAINERS.isdisjoint(fitting):
            return True
    return any(map(_tells_containers_apart, members))


def _without_metadata(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _on_thawed(check: Check) -> Check:
    """Return a check that thaws values first: it does not accept a frozen list for a list, or takes it for a set."""

    def validate(value: Any) -> Any:
        return check(thaw(freeze(value)))

    return validate


def _plain_validator(annotation: Any, config: ConfigDict) -> FieldCheck:
    check = _adapter(annotation, config)

    def validate(value: Any, _others: Mapping[str, Any]) -> Any:
        return check(value)

    return validate


def _model_validator(checker: type[BaseModel], name: str) -> FieldCheck:
    """Return a check that assigns to a field of the model, so that its constraints and validators hold."""
    assign = checker.__pydantic_validator__.validate_assignment
    thaws = checker.model_config.get("strict") or _tells_containers_apart(checker.model_fields[name].annotation)

    def validate(value: Any, others: Mapping[str, Any]) -> Any:
        # pydantic validates a single field only as an assignment, so it gets an instance with the other fields. The
        # instance is built without validation: the values of a state are valid.
        blank = unvalidated(checker, {other: each for other, each in others.items() if other != name})
        assign(blank, name, thaw(freeze(value)) if thaws else value)
        return blank.__dict__[name]

    return validate


def _fixed_default(info: FieldInfo, place: str, validate: FieldCheck, config: ConfigDict) -> Any:
    if info.is_required() or info.default_factory is not None:
        return DELETE
    value = info.default
    checked = config.get("validate_default", False) if info.validate_default is None else info.validate_default
    try:
        return freeze(validate(value, {}) if checked else value)
    except ValidationError as error:
        raise GraphError(f"{place}: its default is not valid: {error.errors()[0]['msg']}") from None
    except StateError as error:
        raise GraphError(f"{place}: its default cannot be part of a state: {error}") from None


def _split_metadata(info: FieldInfo, place: str) -> tuple[Reducer | None, Live | None, Limit | None, list[Any]]:
    """Return the reducer, the live marker, the limit and the other metadata of a field."""
    found: list[Reducer] = []
    live: Live | None = None
    most: Limit | None = None
    rest: list[Any] = []
    for item in info.metadata:
        if isinstance(item, str):
            raise GraphError(f"{place}: {_text_advice(item)}")
        if isinstance(item, Live):
            live = item
        elif isinstance(item, Limit):
            most = item
        elif item is limit:
            raise GraphError(f"{place}: limit needs its size: limit(kb=40)")
        elif isinstance(item, Reducer) or (callable(item) and not _is_pydantic(item)):
            try:
                found.append(Reducer.of(item))
            except TypeError as error:
                raise GraphError(f"{place}: {error}") from None
        elif isinstance(item, Lasting):
            continue
        elif item is None or isinstance(item, (bool, int, float, list, dict, tuple, set)):
            raise GraphError(f"{place}: {brief(item)} is no reducer; use one of dspyer.reducers or a function")
        else:
            rest.append(item)
    if len(found) > 1:
        raise GraphError(f"{place}: it has {len(found)} reducers ({', '.join(each.name for each in found)}); keep one")
    if not found and _names_inside(info.annotation, Reducer):
        raise GraphError(
            f"{place}: its reducer belongs to the whole type: Annotated[list[str] | None, reducers.extend], "
            "not Annotated[list[str], reducers.extend] | None"
        )
    return (found[0] if found else None), live, most, rest


def _is_pydantic(item: Any) -> bool:
    module = type(item).__module__.split(".")[0]
    return module in {"pydantic", "pydantic_core", "annotated_types"} or hasattr(item, "__get_pydantic_core_schema__")


def _text_advice(text: str) -> str:
    if text in reducers.BUILT_IN:
        return f"{text!r} is text, not a reducer; write reducers.{text}"
    near = suggestion(text, reducers.BUILT_IN)
    return f"{brief(text)} is no reducer.{near} A description is written as Field(description=...)"


def _names_inside(annotation: Any, marker: type) -> bool:
    """Return whether a part of a type is annotated with an instance of a class."""
    if get_origin(annotation) is Annotated:
        return any(isinstance(item, marker) for item in annotation.__metadata__) or _names_inside(
            annotation.__origin__, marker
        )
    return any(_names_inside(part, marker) for part in get_args(annotation))


# --- writing one field


class FieldWriter(NamedTuple):
    """The writer of some updates: a node, or the caller with the inputs (`node` is None); and how values are written.

    Attributes:
        node: name of the node; None for inputs.
        commit_id: id of the commit, from which reducers derive ids.
        whole_values: whether mappings are new values rather than patches.
        show_value: how errors show a value.
    """

    node: str | None
    commit_id: str
    whole_values: bool
    show_value: ShowPath

    @property
    def error(self) -> type[DspyerError]:
        """The error class: by whether the node or the caller is at fault."""
        return InputError if self.node is None else NodeOutputError

    @property
    def author(self) -> str:
        """The start of an error text."""
        return "the caller gives" if self.node is None else f"node {self.node!r} writes"

    def write(self, field: Field, old: Any, update: Any, state: ImmutableState) -> tuple[Any, Any]:
        """Return the stored update of a field and its new value; raises `NodeOutputError` or `InputError`."""
        if field.inputs_only and self.node is not None:
            raise NodeOutputError(
                f"{self.author} field {field.name!r}, which is frozen in the schema: only inputs of a run set it"
            )
        if field.reducer is not None and field.reducer.append_only and self.node is not None and resets(update):
            raise NodeOutputError(
                f"{self.author} a new value to field {field.name!r}, whose entries are never removed (reducer "
                f"{field.reducer.name!r}): return the new entries alone"
            )
        if isinstance(update, Edited):  # of a person, who may change what nodes only add to
            update = Replace(update.messages)
        try:
            if field.reducer is None:
                return update, field.new_value(
                    old, update, self.whole_values, state if field.reads_other_fields else NO_OTHER_FIELDS
                )
            stored = field.stored_update(old, update, self.commit_id)
            return stored, field.fold(old, stored)
        except ValidationError as refusal:
            raise self._refusal(field, update, refusal_text(refusal, field.name)) from None
        except NodeOutputError as refusal:
            raise self._refusal(field, update, str(refusal)) from None

    def _refusal(self, field: Field, update: Any, why: str) -> DspyerError:
        text = (
            f"{self.author} {self.show_value((field.name,), update)} for field {field.name!r}, which is refused: {why}"
        )
        text += f"; {field.hint}" if field.hint else ""
        if update is None and field.reducer is None:
            text += ". None is a value of a field with a type; DELETE resets the field to its default"
        return self.error(text)


def refusal_text(refusal: ValidationError, name: str) -> str:
    """Return why pydantic refuses a value of a field, in one line."""
    found = []
    for problem in refusal.errors(include_url=False, include_context=False, include_input=False)[:3]:
        inside = problem["loc"][1:] if problem["loc"][:1] == (name,) else problem["loc"]
        place = "".join(f"[{part!r}]" for part in inside)
        found.append(f"{place}: {problem['msg']}" if place else problem["msg"])
    more = refusal.error_count() - len(found)
    return "; ".join(found) + (f"; and {more} more" if more else "")


# --- the marker of a field that lasts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lasting:
    """Marks a field as one that lasts over the runs of a thread."""


Kept = Annotated[T, Lasting()]
"""The type of a field that lasts over the runs of a thread: `refunds: Kept[int] = 0`. Others live for one run.

A reducer may stand around it or inside, `Kept[Annotated[list[str], reducers.append]]`. A conversation lasts anyway.
"""


# --- the marker of a live field

LiveConflictRule = Literal["merge", "last_write_wins", "reject"]


@dataclass(frozen=True, slots=True)
class Live:
    """Marks a field as live: running siblings can read what a node posts to it. Written after the reducer.

    `live` is an instance; `live(on_conflict="reject")` returns another one. A post replaces the values that its author
    has read, has posted itself, or starts from. It is a *conflict* if there is a value that it does not replace: of the
    same key in a field of keys, of the whole field in one without a reducer or with `on_conflict="reject"`. Every
    conflict is an event, `LiveConflict`, that names both authors.

    When `ctx.post` returns, the post has a number, is in the store and can be read; it is never taken back. A node that
    fails or asks leaves its posts: they are part of the commit that its execution makes in the end, also along an error
    edge. An attempt that posts the same again gets the post that is there. What a node returns for the field is posted
    when it ends. `commit.live` has the numbers of a node's posts and how far it has read. A join folds each post once,
    in the order of arrival; as a parameter and in views the field shows the commits of the lineage.

    In a run a live field with a reducer only grows: `Replace` and `DELETE` are refused. Every node of the graph
    declares `writes`, and no router can write the field. Items of a map may post and not read. If `reads` or `writes`
    of a node that is a graph map its live field to one around, both are one field, at any depth: `reads` permits to
    read, `writes` to post, and the author is the outermost node. A live field of the same name that neither maps is
    another field, of which `compile` warns. With `live=False` in a run, two branches that write one without a reducer
    conflict at the join.

    Attributes:
        on_conflict: `"merge"`: both values are kept; under one key mappings are merged, lists are concatenated, and of
            any other values the later one is kept. `"last_write_wins"`: the later value is kept. `"reject"`: the post
            raises, and its author may read and post again.

    Example:
        >>> live(on_conflict="reject")
        live(on_conflict='reject')
    """

    on_conflict: LiveConflictRule = "merge"

    @errors.names_options("Live")
    def __call__(self, *, on_conflict: LiveConflictRule = "merge") -> Live:
        """Return a marker with another rule for conflicts.

        Args:
            on_conflict: what happens to a value that was written without having read the value before it.

        Returns:
            The marker.

        Raises:
            GraphError: there is no such rule.

        Example:
            >>> live(on_conflict="last_write_wins")
            live(on_conflict='last_write_wins')
        """
        known = get_args(LiveConflictRule)
        if on_conflict not in known:
            raise GraphError(f"live(on_conflict={on_conflict!r}): it is one of {', '.join(map(repr, known))}")
        return Live(on_conflict)

    def __repr__(self) -> str:
        return "live" if self.on_conflict == "merge" else f"live(on_conflict={self.on_conflict!r})"


live = Live()


def live_problem(marker: Live, reducer: Reducer | None) -> str:
    """Return why a field with this marker and reducer cannot be live, with the fix; empty if it can."""
    if reducer is None:
        return ""  # its value is the latest post
    if reducer.parts is None:
        return f"it is live, but reducer {reducer.name!r} does not keep the posts apart: give it one of {WITH_PARTS}"
    if marker.on_conflict == "last_write_wins" and reducer.keyed is None:
        return (
            "live(on_conflict='last_write_wins') is for a field of keys or messages (reducers.update, add_messages): "
            f"reducer {reducer.name!r} keeps every entry. Leave it out, or write live(on_conflict='reject')"
        )
    return ""
