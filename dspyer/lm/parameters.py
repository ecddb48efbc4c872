"""The parameters of a program, as DSPy's optimizers find, tune, copy and store them.

In this order: the walk over the parts of a module, predictors whose instructions are templates, a Signature class for
each predictor, listing and loading, and copies that keep shared modules shared.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

import dspy
from dspy import AdapterParseError, SignatureMeta
from pydantic.fields import FieldInfo

from dspyer.errors import InputError, suggestion
from dspyer.hints import bare_subclass
from dspyer.lm.not_public import COMPILED, TRACE, Parameter
from dspyer.templates import fill_text, is_template, names_in

# --- the walk over the parts of a module, by the paths that DSPy gives them, such as `steps[0].predict`.
#
# Each call of a module adds to its history, up to 10,000 entries. So no code of this package walks over the attributes
# of a module by itself, or by `dspy.Module.named_sub_modules`: a run would cost more with every run before it.


RECORDS: Final = frozenset({"history", "callbacks"})
"""The attributes of modules and language models in which DSPy keeps what it has called."""

HOLDING: Final = (dspy.Module, list, tuple, dict)
"""What the walk goes into."""


def walk(value: object, into: Callable[[object], bool] | None = None) -> Iterator[tuple[str, Any]]:
    """A value and its parts at any depth with their paths, each once; not the parts of which `into` says no."""
    seen: set[int] = set()
    ahead = [("", value)]
    while ahead:
        path, value = ahead.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if isinstance(value, HOLDING) and (into is None or into(value)):
            ahead += reversed(parts_with_paths(path, value))


def modules_in(module: object) -> Iterator[tuple[str, Any]]:
    """A module and the modules in it, each with its path: by attributes, lists and dicts, and each once.

    What DSPy's history keeps of calls is left out.

    Args:
        module: the module.

    Example:
        >>> import dspy
        >>> from dspyer.extend import modules_in
        >>> module = dspy.ChainOfThought("question -> answer")
        >>> [(path, type(one).__name__) for path, one in modules_in(module)]
        [('', 'ChainOfThought'), ('predict', 'Predict')]
    """
    return ((path, part) for path, part in walk(module) if isinstance(part, dspy.Module))


def predictors_in(module: object, graphs: bool = False) -> Iterator[tuple[str, Any]]:
    """The predictors of a module with their paths, those of compiled modules too; of graphs in it if asked."""

    def into(part: object) -> bool:
        return not isinstance(part, dspy.Predict) and (graphs or not hasattr(type(part), "_dspyer_program"))

    return ((path, part) for path, part in walk(module, into=into) if isinstance(part, dspy.Predict))


def user_instructions(module: dspy.Module) -> Iterator[str]:
    """The instructions that the user wrote: without what a module of DSPy adds to them, such as the texts of tools."""
    signature = getattr(module, "signature", None)
    of_dspy = type(module).__module__.partition(".")[0] == "dspy" and not isinstance(module, dspy.Predict)
    if of_dspy and signature is not None:
        yield signature.instructions
        return
    for _, predictor in predictors_in(module):
        yield predictor.signature.instructions


def parts_with_paths(
    path: str, value: dspy.Module | Mapping[Any, object] | Iterable[object]
) -> list[tuple[str, object]]:
    """The attributes of a module but for `RECORDS`, the values of a dict or the items of a list, each with its path.

    Example:
        >>> parts_with_paths("answer", [1, 2])
        [('answer[0]', 1), ('answer[1]', 2)]
    """
    if isinstance(value, dspy.Module):
        parts = [(name, part) for name, part in vars(value).items() if name not in RECORDS]
        return [(f"{path}.{name}" if path else name, part) for name, part in parts]
    if isinstance(value, Mapping):
        return [(f"{path}['{key}']", part) for key, part in value.items()]
    return [(f"{path}[{index}]", part) for index, part in enumerate(value)]


# --- predictors that fill fields of the state into their instructions when they are called, and shorten their demos.
#
# A predictor whose instructions name fields gets a subclass of its class when the graph is compiled; all others keep
# their class. The instructions stay a template: what an optimizer reads and writes is the text with its braces, and the
# values are filled into a copy of the signature for one call. The values come with the DSPy settings of the node's
# call, since DSPy's own threads inherit these.
#
# The subclasses are made when they are needed, not here: OpenInference looks up every subclass of `dspy.Predict` in the
# module `dspy`, and fails at one that is not there.


VALUES_SETTING = "dspyer_filling"
"""The setting of DSPy with the values of a node: `text(name)` is one as a prompt shows it, `plain(name)` itself."""

WARNING_SETTING = "dspyer_warning"
"""The setting with the warning for a node that runs near a limit of its run."""

logger = logging.getLogger("dspyer")


# --- preparing the predictors of a module, when a graph is compiled


def can_convert(predictor: dspy.Predict) -> bool:
    """Return whether a predictor can get a template class: not if its class has a `forward` of its own."""
    kind = type(predictor)
    if hasattr(kind, "template_base"):
        return True
    return kind.forward is dspy.Predict.forward and kind.aforward is dspy.Predict.aforward


def enable_templates(path: str, module: dspy.Module, allowed: frozenset[str] | None) -> None:
    """Lets the predictors of a module, whose path in the program is given, fill in their instructions, in place.

    Only the names in `allowed` are filled in; None allows any.
    """
    for inner, predictor in predictors_in(module):
        text = predictor.signature.instructions
        if is_template(text) and can_convert(predictor):
            where = f"{path}.{inner}" if inner else path
            names = tuple(name for name in names_in(text) if allowed is None or name in allowed)
            vars(predictor)["template"] = PredictorTemplate(where, text, names, allowed)
            predictor.__class__ = template_class(predictor.__class__)


def enable_warnings(module: dspy.Module) -> list[str]:
    """Lets the predictors of a module put a warning at the end of their instructions, in place.

    Returns the paths of those that cannot, see `can_convert`.
    """
    return _convert_all(list(predictors_in(module)))


def shorten_demos(module: dspy.Module, turns: int) -> list[str]:
    """Lets the predictors of a module show only the last turns of the histories in their demos, in place.

    Those of graphs in it too, but for graphs with a number of their own. Returns the paths of those that cannot, see
    `can_convert`.
    """
    found = [
        (path, predictor)
        for path, predictor in predictors_in(module, graphs=True)
        if _history_fields(predictor) and "demo_turns" not in vars(predictor)
    ]
    return _convert_all(found, demo_turns=turns)


def _convert_all(found: list[tuple[str, Any]], **attributes: object) -> list[str]:
    """Prepares predictors, and sets attributes of them; returns the paths of those that cannot be prepared."""
    for _, predictor in found:
        if can_convert(predictor):
            vars(predictor).update(attributes)
            predictor.__class__ = template_class(predictor.__class__)
    return [path or type(predictor).__name__ for path, predictor in found if not can_convert(predictor)]


def _history_fields(predictor: dspy.Predict) -> list[str]:
    fields = predictor.signature.input_fields
    return [name for name, field in fields.items() if field.annotation is dspy.History]


# --- the class of a prepared predictor


@functools.lru_cache(maxsize=256)
def template_class(base: Any) -> Any:
    """The subclass of `dspy.Predict`, or of a subclass with the same `forward` and `aforward`, that fills templates."""
    if hasattr(base, "template_base"):
        return base

    def forward(self: Any, **kwargs: Any) -> Any:
        with _PredictorCall(self, kwargs) as call:
            return call.traced(base.forward(self, **kwargs))

    async def aforward(self: Any, **kwargs: Any) -> Any:
        with _PredictorCall(self, kwargs) as call:
            return call.traced(await base.aforward(self, **kwargs))

    def reduce(self: Any, _protocol: Any) -> tuple[Any, ...]:
        return _new_instance, (base,), self.__getstate__()  # the class has no name that pickle could import

    members = {"forward": forward, "aforward": aforward, "__reduce_ex__": reduce, "__module__": __name__}
    metaclass: Any = type(base)
    return metaclass(f"Filling{base.__name__}", (base,), {**members, "__doc__": base.__doc__, "template_base": base})


def _new_instance(base: Any) -> Any:
    kind = template_class(base)
    return kind.__new__(kind)


class _PredictorCall:
    """The block of a call of a prepared predictor: changes its `kwargs` in place before it, and the trace after it."""

    def __init__(self, predictor: Any, kwargs: dict[str, Any]) -> None:
        self.signature = kwargs.get("signature", predictor.signature)
        self.values: dict[str, Any] = {}
        turns = vars(predictor).get("demo_turns")
        if turns is not None:
            demos = kwargs.get("demos", predictor.demos)
            kwargs["demos"] = [_shortened(demo, _history_fields(predictor), turns) for demo in demos]
        values: Any = dspy.settings.get(VALUES_SETTING)
        template: PredictorTemplate | None = vars(predictor).get("template")
        if template is not None:
            if values is None:
                template.refuse_call()
            else:
                kwargs["signature"] = self._filled(values, template)
        warning = dspy.settings.get(WARNING_SETTING)
        if warning:
            signature = dspy.ensure_signature(kwargs.get("signature", self.signature))
            kwargs["signature"] = signature.with_instructions(f"{signature.instructions}\n\n{warning}")

    def _filled(self, values: Any, template: PredictorTemplate) -> Any:
        """The signature with values in its instructions."""
        signature = dspy.ensure_signature(self.signature)
        text = signature.instructions
        template.check(text)

        def value_of(name: str) -> str | None:
            return values.text(name) if template.allowed is None or name in template.allowed else None

        filled, used = fill_text(text, value_of)
        # An optimizer may have dropped a name from the instructions: its value is appended, or the LM would not see it.
        lost = {name: value_of(name) for name in template.names if name not in used}
        ends = [f"{name}: {value}" for name, value in lost.items() if value is not None]
        if ends:
            filled = "\n".join([filled, *ends])
        named = [*used, *(name for name, value in lost.items() if value is not None)]
        self.values = {name: values.plain(name) for name in named if name not in signature.fields}
        return signature.with_instructions(filled)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, AdapterParseError):
            error.signature = self.signature  # that with the template: optimizers find the predictor by it

    def traced(self, prediction: Any) -> Any:
        """The prediction, in whose step the inputs have the values: an optimizer that reads it sees more than names."""
        trace: Any = dspy.settings.get(TRACE) if self.values else ()
        for index in reversed(range(len(trace or ()))):
            predictor, inputs, traced = trace[index]
            if traced is prediction:
                trace[index] = (predictor, {**inputs, **self.values}, traced)
                break
        return prediction


def _shortened(demo: Any, names: list[str], turns: int) -> Any:
    """A demo with the last turns of its histories, which are plain dicts in a demo that was saved and loaded."""
    shortened = {}
    for name in names:
        history = demo.get(name)
        messages = history.messages if isinstance(history, dspy.History) else (history or {}).get("messages")
        if messages is not None and len(messages) > turns:
            shortened[name] = dspy.History(messages=messages[len(messages) - turns :])
    if not shortened:
        return demo
    return {**demo, **shortened} if isinstance(demo, dict) else demo.copy(**shortened)


class PredictorTemplate:
    """The template of a predictor when the graph was compiled. All copies of the predictor share it.

    Attributes:
        path: the path of the predictor in the program.
        text: its instructions.
        names: the names in them that are filled in.
        allowed: the names that instructions may have; None for any.
    """

    def __init__(self, path: str, text: str, names: tuple[str, ...], allowed: frozenset[str] | None) -> None:
        self.path = path
        self.text = text
        self.names = names
        self.allowed = allowed
        self._warned: set[tuple[str, str]] = set()

    def check(self, text: str) -> None:
        """Warns, once for each name, of tuned or loaded instructions with unknown or missing names."""
        if text == self.text:
            return
        known = names_in(self.text)
        for name in names_in(text):
            if self.allowed is not None and name not in known and name not in self.allowed:
                self._warn_once(
                    "unknown", name, "%s: {%s} in its tuned instructions is nothing that it reads, and stays"
                )
        for name in self.names:
            if name not in names_in(text):
                self._warn_once("lost", name, "%s: its tuned instructions have lost {%s}, which is put at their end")

    def refuse_call(self) -> None:
        """Raises `InputError` for a call outside of a node if there are names: braces are never sent to an LM."""
        if self.names:
            named = ", ".join(f"{{{name}}}" for name in self.names)
            raise InputError(
                f"{self.path}: its instructions name {named}, and this call belongs to no node that could fill it in. "
                "In a thread that a node starts, make the call in the node's context, "
                "contextvars.copy_context().run(...), or use dspy.Parallel; outside of a run, call the program"
            )

    def _warn_once(self, reason: str, name: str, text: str) -> None:
        if (reason, name) not in self._warned:
            self._warned.add((reason, name))
            logger.warning(text, self.path, name)

    def __deepcopy__(self, memo: object) -> PredictorTemplate:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PredictorTemplate, (self.path, self.text, self.names, self.allowed)


# --- one Signature class per predictor of a program, so that optimizers can tell predictors apart and change one alone.
#
# DSPy identifies predictors by their Signature classes: by `==` nearly everywhere, by `hash` in GRPO. Two nodes with
# equal signatures would be taken for one, and a tuned class of a user would change every program that uses it. So a
# program gets subclasses with a tag, the predictor's path, in their fields; `NodeSignatureMeta` and `FieldExtra` define
# when two of them are equal.


_TAG = "dspyer_node"
_FIELDS = "__pydantic_fields__"
_TOKEN = "__dspyer_token__"  # a dunder name: pydantic makes private attributes of names with one underscore


def own_signatures(program: dspy.Module, *, retag: bool = False) -> None:
    """Gives every predictor of a program, in place, a Signature class of its own; those of frozen modules too.

    The class is a subclass of the predictor's, with the same name, instructions and fields. What an optimizer writes to
    it changes neither the user's class nor another copy of the program. Its fields hold the predictor's path, which no
    prompt shows, so that predictors with equal signatures differ. `retag` replaces the paths that the predictors have:
    for a new program, not for a copy.

    Example:
        >>> program = dspy.ChainOfThought("question -> answer")
        >>> before = program.predict.signature
        >>> own_signatures(program)
        >>> program.predict.signature.instructions = "Be brief."
        >>> before.instructions
        'Given the fields `question`, produce the fields `answer`.'
    """
    copier = getattr(type(program), "__deepcopy__", None)

    def into(part: object) -> bool:  # of a graph in a graph, its own `__deepcopy__` has done this
        return part is program or retag or not copier or getattr(type(part), "__deepcopy__", None) is not copier

    for path, predictor in list(walk(program, into=into)):
        if isinstance(predictor, dspy.Predict):  # each once, by its path in DSPy, frozen ones too
            predictor.signature = _own(predictor.signature, path, retag)


def _own(signature: type[dspy.Signature], path: str, retag: bool) -> type[dspy.Signature]:
    if type(signature) not in (SignatureMeta, NodeSignatureMeta):
        return signature  # the user's own metaclass: a class of another metaclass could not inherit from it
    tag = None if retag else _tag(signature)
    base, token = _origin(signature)
    extras = {
        name: {**(field.json_schema_extra or {}), _TAG: tag or path} for name, field in signature.model_fields.items()
    }
    return _subclass(base, signature.__doc__ or "", extras, path if retag else token)


def _origin(signature: type[dspy.Signature]) -> tuple[type[dspy.Signature], object]:
    """The class that the user or an optimizer made, and the token by which copies of it get one hash."""
    if isinstance(signature, NodeSignatureMeta) and _TOKEN in signature.__dict__:
        return signature.__bases__[0], signature.__dict__[_TOKEN]
    return signature, signature


def _tag(signature: type[dspy.Signature]) -> str | None:
    for field in signature.model_fields.values():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and _TAG in extra:
            return str(extra[_TAG])
    return None


def _untagged(extra: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in extra.items() if key != _TAG}


def _subclass(
    base: type[dspy.Signature], instructions: str, extras: dict[str, dict[str, Any]], token: object
) -> type[dspy.Signature]:
    fields = {name: _copy_of_field(field, extras[name]) for name, field in base.model_fields.items()}
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": instructions}
    own: type[dspy.Signature] = bare_subclass(base, {**names, _TOKEN: token, _FIELDS: fields}, NodeSignatureMeta)
    return own


def _copy_of_field(field: FieldInfo, extra: dict[str, Any]) -> FieldInfo:
    twin = FieldInfo.__new__(type(field))
    for name in FieldInfo.__slots__:  # four times as fast as `copy.copy`
        setattr(twin, name, getattr(field, name))
    twin.json_schema_extra = FieldExtra(extra)
    return twin


def _reduce(own: type[dspy.Signature]) -> str | tuple[Any, ...]:
    if _TOKEN not in own.__dict__:
        return own.__qualname__
    extras = {name: dict(field.json_schema_extra or {}) for name, field in own.model_fields.items()}
    base, token = _origin(own)
    return _subclass, (base, own.__doc__, extras, token)


# --- when two of these classes are equal


class NodeSignatureMeta(SignatureMeta):
    """The metaclass of a program's Signature classes: copies of one class have one hash, and are not equal.

    GRPO finds the predictor of a step by `hash(signature)`, so a student and its copies must agree on it. The rest of
    DSPy compares classes with `==`, where copies must differ: a change of one is no change of the other.
    """

    def __hash__(self) -> int:
        token = self.__dict__.get(_TOKEN)
        return hash(token) if token is not None else type.__hash__(self)


class FieldExtra(dict[str, Any]):
    """The `json_schema_extra` of a tagged field: equal to an untagged one, not to one with another tag.

    So a graph and a plain `dspy.Module` with the same predictors can be each other's teacher, although two nodes with
    equal signatures differ.
    """

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        if _TAG in self and _TAG in other:
            return dict.__eq__(self, other)
        return _untagged(self) == _untagged(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(_untagged(self))  # MIPROv2 shows the repr of a signature to the LM that proposes instructions


copyreg.pickle(NodeSignatureMeta, _reduce)


ProgramT = TypeVar("ProgramT", bound=dspy.Module)


# --- listing and loading


def all_parameters(program: dspy.Module) -> list[tuple[str, Any]]:
    """The parameters of a program by name: those that DSPy lists, then those of modules that an optimizer has compiled.

    DSPy leaves out the parameters of a compiled sub-module. That is right for tuning, but would lose them when the
    program is saved or given a language model. The walk is DSPy's own, one level into lists and dicts: what optimizers
    store on a program deeper than that, such as the candidates that they tried, is not part of it.
    """
    found = {id(parameter): (name, parameter) for name, parameter in program.named_parameters()}
    for name, parameter in walk_parameters(program):
        found.setdefault(id(parameter), (name, parameter))
    return list(found.values())


def walk_parameters(module: dspy.Module, tuned: bool = False) -> Iterator[tuple[str, Any]]:
    """The parameters of a module with their paths, one for each path to them.

    Also those of compiled sub-modules, unless only those are asked for that optimizers may change.
    """
    for name, value in parts_with_paths("", module):
        one_level = isinstance(value, list | tuple | dict)
        for path, item in parts_with_paths(name, value) if one_level else [(name, value)]:
            if isinstance(item, Parameter):
                yield path, item
            elif isinstance(item, dspy.Module) and not (tuned and getattr(item, COMPILED, False)):
                own = tuned and type(item).named_parameters is not dspy.Module.named_parameters
                inner = item.named_parameters() if own else walk_parameters(item, tuned)
                yield from ((f"{path}.{name}", parameter) for name, parameter in inner)


def parameter_names(program: dspy.Module) -> dict[int, str]:
    """The name of each parameter of a program by its id: the first of its paths."""
    return {id(parameter): name for name, parameter in reversed([*walk_parameters(program)])}


def load_parameters(program: dspy.Module, state: dict[str, Any], allow_unsafe_lm_state: bool) -> None:
    """Loads a state, first into a copy, so that a state that does not fit changes nothing.

    Raises `InputError` if the state lacks a parameter that optimizers may change, or has one that the program lacks.
    """
    parameters = dict(all_parameters(program))
    tuned = {name for name, _ in program.named_parameters()}
    missing = [name for name in parameters if name not in state and name in tuned]
    extra = [name for name in state if name not in parameters and name != "metadata"]
    if missing or extra:
        differences = [f"it has nothing for {', '.join(map(repr, missing))}"] if missing else []
        if extra:
            differences.append(f"it has {', '.join(map(repr, extra))}, which this graph has not")
        hints = "".join(suggestion(name, missing) for name in extra)
        raise InputError(
            f"this state belongs to another graph: {'; '.join(differences)}.{hints} Give the nodes the names that "
            "they had then"
        )
    for target in (dict(all_parameters(program.deepcopy())), parameters):
        for name, parameter in target.items():
            if name not in state:
                continue
            if isinstance(parameter, dspy.Module):
                parameter.load_state(state[name], allow_unsafe_lm_state=allow_unsafe_lm_state)
                if isinstance(template := vars(parameter).get("template"), PredictorTemplate):
                    template.check(parameter.signature.instructions)
            else:
                parameter.load_state(state[name])


# --- copies


def copy_parts(parts: dict[str, Any], memo: dict[int, Any]) -> tuple[dict[str, Any], bool]:
    """Copies the attributes of a program, and gives the copies of its predictors Signature classes of their own.

    Also whether that is all: a signature without the path of its predictor gets it from `own_signatures`.
    """
    found, whole = _parts(parts), True
    copies = _copied(parts, found, memo)
    for part in found:
        if isinstance(part, dspy.Predict):
            if _tag(part.signature) is None:
                whole = False
            else:
                memo.get(id(part), part).signature = _own(part.signature, "", False)
    return copies, whole


def copy_tree(modules: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Copies modules and other attributes together, so that a part that two of them share is shared by their copies.

    A part that cannot be copied (a client, a lock) is shared with the original. `dspy.Module.deepcopy` would in that
    case copy each attribute alone, so that one predictor becomes two. `memo` is that of `copy.deepcopy`.
    """
    return _copied(modules, _parts(modules), memo)


def _copied(modules: dict[str, Any], parts: list[Any], memo: dict[int, Any]) -> dict[str, Any]:
    histories = [vars(part).get("history") for part in parts if isinstance(part, dspy.BaseLM)]
    memo.update({id(history): [] for history in histories if history})  # the copy of an LM begins with none, as in DSPy
    known = dict(memo)
    try:
        return copy.deepcopy(modules, memo)
    except Exception:  # noqa: BLE001 - whatever a third-party object raises when it is copied
        memo.clear()
        memo.update(known)
        for value in parts:
            if isinstance(value, HOLDING):
                continue
            try:
                copy.deepcopy(value, dict(known))
            except Exception:  # noqa: BLE001 - the same as above: this one is shared
                memo[id(value)] = value
        return copy.deepcopy(modules, memo)


def without_histories(program: ProgramT) -> ProgramT:
    """A program to pickle: a copy whose language models have no histories, which hold every prompt of the process.

    The program itself if there is no history to leave out.
    """
    memo: dict[int, Any] = {}
    for value in _parts(program, programs=True):
        if isinstance(value, dspy.BaseLM) and value.history:
            memo[id(value)] = twin = copy.copy(value)
            twin.history = []
    return copy.deepcopy(program, memo) if memo else program


_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


def _parts(value: object, programs: bool = False) -> list[Any]:
    """All that `walk` finds but texts and numbers, without paths; not what is in graphs, which copy that themselves.

    Each copy of a program makes it, so it is as short as it can be.
    """
    seen, found, ahead = set[int](), list[Any](), [value]
    while ahead:
        value = ahead.pop()
        if type(value) in _ATOMS or id(value) in seen:
            continue
        seen.add(id(value))
        found.append(value)
        if isinstance(value, (list, tuple)):
            ahead += value
        elif isinstance(value, dict):
            ahead += value.values()
        elif isinstance(value, dspy.Module) and (programs or not hasattr(type(value), "_dspyer_program")):
            ahead += [part for name, part in vars(value).items() if name not in RECORDS]
    return found
