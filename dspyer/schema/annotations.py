"""Reading a pydantic model as a schema: its problems, and the type, reducer and default of each field."""

from __future__ import annotations

import collections
import collections.abc
import types
from collections.abc import Iterator, Mapping
from copy import copy
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    RootModel,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typing_extensions import is_typeddict

from dspyer import reducers
from dspyer.errors import GraphError, NodeOutputError, StateError, brief, suggestion
from dspyer.patch import DELETE
from dspyer.reducers import Reducer, without_none
from dspyer.schema.field_types import Check, CheckBeside, Field
from dspyer.schema.limits import Limit, limit, limit_problem
from dspyer.schema.live import Live, live_problem
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList, thaw

RESERVED = frozenset({"run", "state", "ctx"})  # names of parameters that nodes bind
EXACT: frozenset[Any] = frozenset({str, int, float, bool, NoneType})
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict)
# Options of a model that may change or refuse values of exactly the right type.
CHANGING_OPTIONS = frozenset(
    {"str_strip_whitespace", "str_to_lower", "str_to_upper", "str_min_length", "str_max_length", "allow_inf_nan"}
)
STARTS: Mapping[Any, Any] = {
    list: FrozenList(),
    dict: FrozenDict(),
    set: freeze(set()),
    frozenset: frozenset(),
    tuple: (),
}


def read_model(model: object) -> dict[str, Field]:
    """The fields of a model, in its order.

    Args:
        model: the schema.

    Returns:
        The fields by name.

    Raises:
        GraphError: naming everything in the model that a graph cannot use, and why.
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
    checker, validated = _checker(model), _validated_fields(model)
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


def _validated_fields(model: type[BaseModel]) -> set[str]:
    """Names of the fields with validators of their own."""
    decorators = model.__pydantic_decorators__
    named = [each.info.fields for each in decorators.field_validators.values()]
    named += [each.info.fields for each in decorators.validators.values()]
    return {name for names in named for name in (model.model_fields if "*" in names else names)}


def _checker(model: type[BaseModel]) -> type[BaseModel]:
    """A class with the fields and validators of a model that lets each field be assigned."""
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
    reducer, live, most, constraints = _split_metadata(info, place)
    plain = not constraints and not validated and info.discriminator is None
    bare = without_none(info.annotation)
    origin = get_origin(bare) or bare
    is_mapping = origin in MAPPINGS
    is_typed_dict = hasattr(origin, "__required_keys__")  # of typing or of typing_extensions
    free = bare is Any or (is_mapping and (get_args(bare) or (str, Any)) == (str, Any))
    validate = _plain_validator(info.annotation, config) if plain else _model_validator(checker, name)
    folding = reducer if reducer is not None and reducer.folds else None
    update_type = _update_type(folding, info.annotation, place)
    wrong = "" if live is None else live_problem(live, folding)
    if most is not None and not wrong:
        wrong = limit_problem(most, "" if folding is None else folding.name, origin)
    if wrong:
        raise GraphError(f"{place}: {wrong}")
    default = _fixed_default(info, place, validate, config)
    if most is not None and default is not DELETE:
        try:
            most.held(name, DELETE, DELETE, default)
        except NodeOutputError as error:
            raise GraphError(f"{place}: its default: {error}") from None
    return Field(
        name=name,
        annotation=info.annotation,
        info=info,
        required=info.is_required(),
        reducer=folding,
        whole=reducer is reducers.replace,
        constant=bool(info.frozen),
        exact=frozenset() if not plain or info.frozen else _exact_types(info.annotation, config),
        validate=validate,
        validate_update=None if update_type is None else _adapter(update_type, config),
        validate_entries=_adapter(bare, config) if is_mapping else None,
        free=free or is_typed_dict,
        merges=(free or is_mapping) and plain and reducer is not reducers.replace,
        model=origin if isinstance(origin, type) and issubclass(origin, BaseModel) else None,
        checks_result=not plain or is_typed_dict or (folding is not None and update_type is None),
        wants_others=validated,
        start=DELETE if folding is None else _start(folding, origin),
        fixed_default=default,
        live=live,
        limit=most,
        validate_item=None if validated else _item_validator(bare, constraints, config),
    )


def _item_validator(annotation: Any, constraints: list[Any], config: ConfigDict) -> Check | None:
    """What validates one item of a list, unless the field says something that may change the list before."""
    if get_origin(annotation) is not list or any(hasattr(each, "__get_pydantic_core_schema__") for each in constraints):
        return None
    return _adapter(get_args(annotation)[0], config)


def _update_type(reducer: Reducer | None, annotation: Any, place: str) -> Any:
    if reducer is None or reducer.update_type is None:
        return None
    try:
        return reducer.update_type(annotation)
    except TypeError as error:
        raise GraphError(f"{place}: {error}") from None


def _start(reducer: Reducer, origin: Any) -> Any:
    """What a reducer starts from: of the field's type, for those that do not know it themselves."""
    if reducer.check is None or reducer is reducers.union:
        return STARTS.get(origin, reducer.empty)
    return reducer.empty


def _exact_types(annotation: Any, config: ConfigDict) -> frozenset[type]:
    """The types of scalars that an annotation consists of, if it consists of nothing else."""
    if CHANGING_OPTIONS & config.keys():
        return frozenset()
    members = {annotation} if annotation in (str, int, float, bool) else set(get_args(annotation))
    is_union = get_origin(annotation) in reducers.UNIONS or annotation in members
    return frozenset(members) if is_union and members <= EXACT else frozenset()


def _adapter(annotation: Any, config: ConfigDict) -> Check:
    try:
        check = TypeAdapter(annotation, config=config).validator.validate_python
    except PydanticUserError:  # models and the like bring a configuration of their own
        check = TypeAdapter(annotation).validator.validate_python
    return _plainly(check) if config.get("strict") else check


def _plainly(check: Check) -> Check:
    """A check that gets plain values only: strict validation takes no immutable list for a list."""

    def validate(value: Any) -> Any:
        return check(thaw(freeze(value)))

    return validate


def _plain_validator(annotation: Any, config: ConfigDict) -> CheckBeside:
    check = _adapter(annotation, config)

    def validate(value: Any, _others: Mapping[str, Any]) -> Any:
        return check(value)

    return validate


def _model_validator(checker: type[BaseModel], name: str) -> CheckBeside:
    """Validates through the model, so that constraints and validators of the field hold."""
    assign = checker.__pydantic_validator__.validate_assignment
    strict = checker.model_config.get("strict")

    def validate(value: Any, others: Mapping[str, Any]) -> Any:
        blank = checker.__new__(checker)
        values = {other: each for other, each in others.items() if other != name}
        object.__setattr__(blank, "__dict__", values)
        object.__setattr__(blank, "__pydantic_fields_set__", set())
        object.__setattr__(blank, "__pydantic_extra__", None)
        object.__setattr__(blank, "__pydantic_private__", None)
        assign(blank, name, thaw(freeze(value)) if strict else value)
        return blank.__dict__[name]

    return validate


def _fixed_default(info: FieldInfo, place: str, validate: CheckBeside, config: ConfigDict) -> Any:
    if info.default is PydanticUndefined or info.default_factory is not None:
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
    """The reducer of a field, whether it is live, its limit, and the rest of what `Annotated` says about it."""
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
        elif item is None or isinstance(item, (bool, int, float, list, dict, tuple, set)):
            raise GraphError(f"{place}: {brief(item)} is no reducer; use one of dspyer.reducers or a function")
        else:
            rest.append(item)
    if len(found) > 1:
        raise GraphError(f"{place}: it has {len(found)} reducers ({', '.join(each.name for each in found)}); keep one")
    if not found and _has_inner_reducer(info.annotation):
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


def _has_inner_reducer(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return any(isinstance(item, Reducer) for item in annotation.__metadata__) or _has_inner_reducer(
            annotation.__origin__
        )
    return any(_has_inner_reducer(part) for part in get_args(annotation))
