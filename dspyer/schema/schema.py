"""Schemas: the fields of a state, and how the output of a node becomes the next state.

Everything is validated before anything is committed. A schema without a model accepts any key and validates nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import formatannotation
from types import MappingProxyType
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ValidationError, create_model

from dspyer import reducers
from dspyer.errors import (
    GraphError,
    ImmutableError,
    NodeOutputError,
    UnsetFieldError,
    list_names,
    suggestion,
)
from dspyer.events import Commit, FieldShape
from dspyer.hints import bare_subclass
from dspyer.patch import DELETE, Replace, apply, apply_value, change_between, diff, diff_value
from dspyer.policies import ShowPath, show_brief
from dspyer.reducers import BUILT_IN, Reducer, Updates
from dspyer.schema.fields import (
    NO_OTHER_FIELDS,
    Field,
    FieldWriter,
    Live,
    read_model,
    refusal_text,
)
from dspyer.schema.limits import size_of
from dspyer.state import ImmutableState
from dspyer.values.freezing import same, unvalidated
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.values.persistent import as_map
from dspyer.values.scalars import SCALARS, Uncopied

NONE_VALID: Mapping[str, Any] = MappingProxyType({})
NOTHING_MADE: Mapping[Any, Any] = MappingProxyType({})
_NEVER_MERGED = (SCALARS - {type(None)}) | {type(DELETE)}  # types that a patch takes as they are


class Schema(Uncopied):
    """The fields of a state. Created by `Schema.of`.

    Attributes:
        model: the pydantic model; None for a schema that accepts any key.
        fields: the fields by name, in the order of the model; last comes the conversation, if it is added to them.
        live_fields: the markers of the live fields, by name.
        limited_fields: names of the fields with a limit.
        field_shapes: the description of the fields in events.
        show_value: how errors show a value.
        user_folded: names of the fields that a function of the user folds.
        lasting: names of the fields that last over the runs of a thread by their declaration.
        transient: the fields that each commit resets which does not write them, with their defaults.

    Example:
        >>> from pydantic import BaseModel
        >>> class Draft(BaseModel):
        ...     title: str
        ...     words: int = 0
        >>> schema = Schema.of(Draft)
        >>> state = schema.initial_state({"title": "Bees"})
        >>> schema.commit(state, {"words": "12"}, node="count",
        ...     commit_id="trunk:1")[0]
        {'words': 12}
    """

    def __init__(
        self,
        model: type[BaseModel] | None,
        fields: Mapping[str, Field],
        view: type[BaseModel] | None,
        show_value: ShowPath = show_brief,
    ) -> None:
        self.show_value = show_value
        self.model = model
        self.fields = fields
        self.live_fields: Mapping[str, Live] = {
            name: field.live for name, field in fields.items() if field.live is not None
        }
        self.limited_fields = frozenset(name for name, field in fields.items() if field.limit is not None)
        self.lasting = frozenset(name for name, field in fields.items() if field.lasts)
        self.transient = {name: field.fixed_default for name, field in fields.items() if field.transient}
        self.field_shapes = tuple([_shape(field) for field in fields.values()])
        # A factory may read the clock or count: its value is made anew for each run, all other defaults once.
        fixed = all(field.info.default_factory is None for field in fields.values())
        self._defaults = self._with_defaults({}) if fixed else None
        self._read_only_class = view
        self.user_folded = frozenset(
            name
            for name, field in fields.items()
            if field.reducer is not None and BUILT_IN.get(field.reducer.name) is not field.reducer
        )

    @classmethod
    def of(cls, model: type[BaseModel] | None, show_value: ShowPath = show_brief, conversation: bool = False) -> Schema:
        """Return the schema of a pydantic model; raises `GraphError` with every field that cannot be used.

        With `conversation` it has a field `messages`, also if the model has none.
        """
        if model is None:
            return cls(None, MappingProxyType({}), None, show_value)
        whole, fields = model, read_model(model)
        if conversation and "messages" not in fields:
            added: Any = Annotated[list[dict[str, Any]], reducers.conversation], []
            whole = create_model(model.__name__, __base__=model, __module__=model.__module__, messages=added)
            fields = read_model(whole)
        return cls(model, MappingProxyType(fields), read_only_class(whole), show_value)

    def with_show_value(self, show_value: ShowPath) -> Schema:
        """Return the same schema with another way to show values in errors."""
        return Schema(self.model, self.fields, self._read_only_class, show_value)

    @property
    def accepts_any_key(self) -> bool:
        """Return whether any key is allowed and nothing is validated."""
        return self.model is None

    def __contains__(self, name: str) -> bool:
        """Return whether a state may have a field of this name."""
        return self.model is None or name in self.fields

    def reducer(self, name: str) -> Reducer | None:
        """Return the reducer of a field; None if it has none, or is unknown."""
        field = self.fields.get(name)
        return None if field is None else field.reducer

    def operation(self, name: str, update: object) -> str:
        """Return how an update of a field is folded in: the name of its reducer, or `"replace"`."""
        reducer = self.reducer(name)
        return "replace" if reducer is None or update is DELETE or isinstance(update, Replace) else reducer.name

    def initial_state(
        self,
        inputs: Mapping[str, object],
        *,
        commit_id: str = "inputs",
        valid: Mapping[str, Any] = NONE_VALID,
    ) -> ImmutableState:
        """Return the state with which a run starts: the defaults, with the inputs folded in.

        `valid` are the frozen values of inputs that are valid as they are: whole values of fields of the same type.
        The fields are in the order of the schema. Raises `InputError` for unknown or invalid inputs.
        """
        if self.model is None:
            return ImmutableState().apply_patch(_as_whole(inputs))
        state = self._with_defaults(valid) if valid or self._defaults is None else self._defaults
        # What is valid is in the state already: it would be folded a second time.
        if valid:
            inputs = {name: value for name, value in inputs.items() if name not in valid}
        _, state = self._commit_exact(state, inputs) or self._commit(
            state, inputs, FieldWriter(None, commit_id, True, self.show_value)
        )
        # Inputs come in the order of the caller: prompts and pages show fields in that of the schema.
        names = [name for name in self.fields if name in state._map]
        return state if list(state._map) == names else ImmutableState({name: state.raw(name) for name in names})

    def _with_defaults(self, valid: Mapping[str, Any]) -> ImmutableState:
        """Return the state with these values, and the defaults of the other fields."""
        state = ImmutableState()
        for name, field in self.fields.items():
            value = valid[name] if name in valid else field.default(state)
            if value is not DELETE:
                state = state.set(name, value)
        return state

    def begin(
        self, before: ImmutableState, inputs: Mapping[str, object], *, keep: Collection[str] | None, commit_id: str
    ) -> tuple[dict[str, Any], ImmutableState]:
        """Return the patch and the state with which a run starts that continues from the state of another.

        Fields that are not in `keep` (None for all) are reset to their defaults, then the inputs are folded in. The
        state is `replay(before, patch)`. Raises `InputError` for unknown or invalid inputs.
        """
        if self.model is None:
            removed = (
                {} if keep is None else {name: DELETE for name in before if name not in keep and name not in inputs}
            )
            patch, _ = _commit_open(before, {**_as_whole(inputs), **removed}, False)
            return patch, self.replay(before, patch)
        state, resets = before, {}
        for name, field in self.fields.items():
            old = state.raw(name, DELETE)
            if old is DELETE or (keep is not None and name not in keep):
                new = field.default(state)
                # The patch says only what changes, so that a field which every run resets costs no row.
                if not same(old, new):
                    resets[name] = DELETE if new is DELETE else Replace(new)
                    state = state.discard(name) if new is DELETE else state.set(name, new)
        updates, after = self._commit(state, inputs, FieldWriter(None, commit_id, True, self.show_value))
        patch = {}
        for name in self.fields:
            if self.reducer(name) is None:
                old, new = before.raw(name, DELETE), after.raw(name, DELETE)
                if not same(old, new):
                    patch[name] = diff_value(old, new)
            elif name in resets or name in updates:
                parts = [found[name] for found in (resets, updates) if name in found]
                patch[name] = parts[0] if len(parts) == 1 else Updates(*parts)
        return patch, self.replay(before, patch)

    def replay(
        self, state: ImmutableState, patch: Mapping[str, Any], made: Mapping[str, Any] = NOTHING_MADE
    ) -> ImmutableState:
        """Return the state after a patch of `commit` or `begin`: reducers fold, nothing is validated again.

        A field of `made` is not folded: it gets the value that it had then. So readers of a store call no function of
        the user. The built-in reducers are part of the format of stores: what they make of an update never changes.
        """
        for name, update in patch.items():
            old = state.raw(name, DELETE)
            # What was made is taken as it is: the function of the user may have changed, or be gone.
            plain = name in made or self.reducer(name) is None
            new = apply_value(old, made.get(name, update)) if plain else self.fold(name, old, update)
            state = state.discard(name) if new is DELETE else state.set(name, new)
        return state

    def made(self, before: ImmutableState, after: ImmutableState, written: Iterable[str] | None) -> dict[str, Any]:
        """Return how the written fields have changed that functions of the user fold, for `replay`.

        Stores hold it, since a reader of the field may have another function, or none. Of a join, whose `written` is
        None, it is how all fields have changed: no reader merges again.
        """
        if written is None:
            return diff(before, after, change_between)
        # Sorted: the order of a set differs between processes, and rows are compared when a write is repeated.
        names = sorted(self.user_folded.intersection(written))
        return {name: change_between(before.raw(name, DELETE), after.raw(name, DELETE)) for name in names}

    def as_replacements(self, inputs: Mapping[str, object], commit_id: str) -> dict[str, object]:
        """Wrap inputs that are values of another state: none is folded into the default of its field.

        Messages without an id, which the field of the other state may hold, get one from `commit_id`.
        """
        found = dict(inputs)
        for name, value in inputs.items():
            reducer = self.reducer(name)
            if reducer is not None and reducer.assign_ids is not None and value is not None:
                with suppress(NodeOutputError):  # it is refused where the whole value is validated
                    if reducer.check is not None:
                        reducer.check(value)
                    value = reducer.assign_ids(value, commit_id, DELETE)  # noqa: PLW2901 - the same, with ids
            found[name] = value if reducer is None else Replace(value)
        return found

    def commit(
        self,
        state: ImmutableState,
        updates: Mapping[str, object],
        *,
        node: str,
        commit_id: str,
        whole_values: bool = False,
    ) -> tuple[dict[str, Any], ImmutableState]:
        """Validate the updates of a node and return the canonical patch and the state after it.

        The patch holds the stored update of each field with a reducer, and of other fields the net change: a value
        that did not change is left out. With `whole_values` the updates are new values, None included, and mappings
        are not merged. Raises `NodeOutputError` for an unknown key or a value that does not fit.
        """
        if self.model is None:
            return _commit_open(state, updates, whole_values)
        if self.transient:
            updates = {**{name: DELETE for name in self.transient if name in state}, **updates}
        return self._commit_exact(state, updates) or self._commit(
            state, updates, FieldWriter(node, commit_id, whole_values, self.show_value)
        )

    def fold(self, name: str, current: Any, update: Any) -> Any:
        """Return the value of a field with a reducer after an update of a patch; `DELETE` is no value."""
        try:
            return self.fields[name].fold(current, update)
        except ValidationError as refusal:
            raise NodeOutputError(
                f"the updates of field {name!r} fold to a value that it refuses: {refusal_text(refusal, name)}. Each "
                "of them was valid where it was written: loosen the field's constraint, or give it a reducer that "
                "keeps it"
            ) from None

    def validate_joined(self, name: str, value: Any, sides: Iterable[Any], state: ImmutableState) -> Any:
        """Return the validated form of a value that a join made of the values of its branches without a reducer.

        `state` is the joined state. Raises `NodeOutputError` if the field refuses the value.
        """
        field = self.fields.get(name)
        if field is None or value is DELETE:
            return value
        try:
            return field.validate_joined(value, sides, state if field.reads_other_fields else NO_OTHER_FIELDS)
        except ValidationError as refusal:
            raise NodeOutputError(
                f"field {name!r} refuses the value that a join made of branches, {self.show_value((name,), value)}: "
                f"{refusal_text(refusal, name)}. What each branch wrote was valid: loosen the field's constraint, let "
                "one node alone write it, or choose a merge policy that keeps it"
            ) from None

    def valid_update(self, name: str, update: Any) -> Any:
        """Return the validated, frozen form of an update that a merge policy returned for a field with a reducer."""
        try:
            return self.fields[name].validated_update(update)
        except ValidationError as refusal:
            shown = self.show_value((name,), update)
            raise NodeOutputError(
                f"field {name!r} refuses {shown}, which a merge policy returned: {refusal_text(refusal, name)}"
            ) from None

    def with_sizes(self, commit: Commit, written: Iterable[str], after: ImmutableState) -> Commit:
        """Return a commit with the sizes of the limited fields that it has written, in the state after it."""
        named = [name for name in written if name in self.limited_fields and name in after]
        return replace(commit, sizes={name: size_of(after.raw(name)) for name in named}) if named else commit

    def view(self, state: Mapping[str, Any], readable: Iterable[str] | None = None) -> BaseModel:
        """Return the state as a read-only instance of the model, for a node with a parameter such as `s: Research`.

        Reading a field that has no value, or is not in `readable` (None for all), raises `UnsetFieldError`.
        """
        if self._read_only_class is None:
            raise GraphError("a typed view needs a schema: write Graph(Research), with a pydantic model")
        names = self.fields if readable is None else frozenset(readable)
        values = {name: state[name] for name in self.fields if name in names and name in state}
        # No field counts as set: a node that returns `view.model_copy(update={...})` writes only the update.
        view: BaseModel = unvalidated(self._read_only_class, values)
        return view

    def _commit_exact(
        self, state: ImmutableState, updates: Mapping[str, Any]
    ) -> tuple[dict[str, Any], ImmutableState] | None:
        """The commit of scalars that need no validation, in one copy of the state; None if there is anything else."""
        data = before = state._map
        if type(data) is not dict:
            return None
        fields, patch = self.fields, dict[str, Any]()
        for name, update in updates.items():
            field = fields.get(name)
            kind = type(update)
            if field is None or kind not in field.exact_types or field.reducer is not None:
                return None
            old = data.get(name, DELETE)
            # Of two numbers that differ, and are not both NaN, `same` is not asked.
            if type(old) is kind and (old == update or update != update) and same(old, update):
                continue
            if data is before:
                data = data.copy()
            data[name] = update
            patch[name] = Replace(None) if update is None else update
        return patch, state if data is before else state._of(as_map(data), state._depth)

    def _commit(
        self, state: ImmutableState, updates: Mapping[str, Any], write: FieldWriter
    ) -> tuple[dict[str, Any], ImmutableState]:
        patch: dict[str, Any] = {}
        for name, update in updates.items():
            field = self.fields.get(name)
            if field is None:
                hint, known = suggestion(name, self.fields), list_names(self.fields)
                raise write.error(f"{write.author} {name!r}, which is no field of the schema.{hint} Fields: {known}")
            old = state.raw(name, DELETE)
            if type(update) in field.exact_types and field.reducer is None:
                stored, new = update, update
            else:
                stored, new = write.write(field, old, update, state)
            # With a reducer the update is stored, not the value: at a join the updates of all branches fold.
            if field.reducer is not None:
                patch[name] = stored
            elif field.patches_by_key and not write.whole_values:
                if not _add_net_change(patch, name, old, new, update):
                    continue
            elif new is old or same(old, new):
                continue
            else:
                patch[name] = diff_value(old, new)
            if field.reducer is None and type(net := patch[name]) is dict:
                merged = type(update) is dict and not write.whole_values
                if not merged or not SCALARS.issuperset(map(type, net.values())):
                    new = apply_value(old, net)  # keys in the order in which a reader of the patch has them
            state = state.discard(name) if new is DELETE else state.set(name, new)
        return patch, state

    def __repr__(self) -> str:
        return f"Schema({None if self.model is None else self.model.__name__})"

    def __reduce__(self) -> tuple[Any, ...]:
        own = {} if self.model is None else self.model.model_fields
        return Schema.of, (self.model, self.show_value, "messages" in self.fields and "messages" not in own)


def _shape(field: Field) -> FieldShape:
    """Return the description of a field in events."""
    reducer, live, most = field.reducer, field.live, field.limit
    return FieldShape(
        field.name,
        formatannotation(field.annotation),
        "" if reducer is None else reducer.name,
        "" if live is None else live.on_conflict,
        None if most is None else most.kb,
        "" if most is None else most.full,
    )


def _commit_open(
    state: ImmutableState, updates: Mapping[str, Any], whole_values: bool
) -> tuple[dict[str, Any], ImmutableState]:
    """Commit without a model: a JSON merge patch, or with `whole_values` new values."""
    if whole_values:
        updates = _as_whole(updates)
    patch: dict[str, Any] = {}
    after: ImmutableState = apply(state, updates, net=patch)
    return patch, after


def _as_whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a patch in which none of them is merged or deletes."""
    return {
        name: value if type(value) in _NEVER_MERGED or isinstance(value, Replace) else Replace(value)
        for name, value in values.items()
    }


def _add_net_change(patch: dict[Any, Any], key: Any, old: Any, new: Any, update: Any) -> bool:
    """Add the net change of an update to a patch; False for none. Only keys that the update names are compared."""
    if new is old:
        return False
    if isinstance(update, Mapping) and isinstance(old, FrozenDict) and isinstance(new, FrozenDict):
        inner: dict[Any, Any] = {}
        for name, part in update.items():
            before, after = old.raw(name, DELETE), new.raw(name, DELETE)
            if (
                before is after is DELETE and part is not None and part is not DELETE
            ):  # validation changed the key: compare all
                inner = diff_value(old, new)
                break
            _add_net_change(inner, name, before, after, part)
        if inner:
            patch[key] = inner
        return bool(inner)
    if same(old, new):
        return False
    patch[key] = diff_value(old, new)
    return True


# --- typed, read-only views: a state as an instance of its model


def read_only_class(model: type[BaseModel]) -> type[BaseModel]:
    """Return a subclass of a model, with its name, whose methods and properties work and whose fields cannot be set."""
    name, fields = model.__name__, model.model_fields

    def refuse_read(_view: BaseModel, key: str) -> Any:
        if key in fields:
            raise UnsetFieldError(
                f"field {key!r} of {name} cannot be read here: no node has written it yet, "
                "or the node does not list it in reads="
            )
        raise AttributeError(f"{name} has no field or attribute {key!r}.{suggestion(key, fields)}")

    def refuse_write(_view: BaseModel, key: str, _value: Any = None) -> NoReturn:
        raise ImmutableError(
            f"the state that a node reads cannot be changed: return {{{key!r}: ...}} from the node instead"
        )

    def plain(view: BaseModel) -> Any:
        return unvalidated(model, {key: thaw(value) for key, value in view.__dict__.items() if key in fields})

    def model_dump(view: BaseModel, *args: Any, **options: Any) -> Any:
        return plain(view).model_dump(*args, **options)

    def model_dump_json(view: BaseModel, *args: Any, **options: Any) -> Any:
        return plain(view).model_dump_json(*args, **options)

    namespace = {
        "__module__": model.__module__,
        "__qualname__": model.__qualname__,
        "__doc__": model.__doc__,
        "__getattr__": refuse_read,
        "__setattr__": refuse_write,
        "__delattr__": refuse_write,
        "model_dump": model_dump,
        "model_dump_json": model_dump_json,
    }
    view: type[BaseModel] = bare_subclass(model, namespace)
    return view
