"""The key under which a call of a module is kept: what the module is, what it is given, and what its LMs are asked.

What a module is, is described anew for each call, since optimizers change it in place: the code of classes that DSPy
does not define, with the globals and closures that it uses, and the attributes: of predictors the signature, the
demonstrations, the LM and its settings. Of the settings of DSPy, the LM, the adapter with its rollout ids, the values
for templates and the warning near a limit count; if there is code of the user in the module, also those that only such
code reads. The form of a type is described once for each describer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeAlias, get_args

import dspy
from dspy import Tool
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from dspyer.dspy_module.lm_requests import AsksAnew, added_rollouts, asked_adapter, trial_rollout
from dspyer.dspy_module.not_public import COMPILED, DEFAULT_CONFIG, WARNED
from dspyer.dspy_module.predictors import RECORDS, predictors_in
from dspyer.dspy_module.prompt_templates import VALUES_SETTING, WARNING_SETTING
from dspyer.errors import StateError, with_article
from dspyer.nodes.cache_key import Identity, digest
from dspyer.nodes.callables import own_call
from dspyer.templates import names_in
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.named_classes import classes_in
from dspyer.values.types import class_name

_FORM: Final = 2  # of keys and entries: another number leaves all earlier entries behind
_FUNCTIONS: Final = (FunctionType, MethodType, BuiltinFunctionType, partial)
_LIBRARIES: Final = frozenset({"dspy", "dspyer", "pydantic", "builtins"})
_OF_PREDICTORS: Final = frozenset({"signature", "demos", "lm", "stage", "traces", "train", "template"})
_OF_MODULES: Final = RECORDS | {COMPILED, WARNED}
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_CLIENT: Final = frozenset({"api_key"})  # another key changes no response


_Known: TypeAlias = dict[tuple[str, int], tuple[Any, Any]]
"""What was described before, with the object, so that no other one gets its id."""


class NoKeyError(Exception):
    """The calls of a module have no key: the text says why."""


class ModuleDescriber:
    """Describes modules and calls of them as JSON. May be used from several threads."""

    def __init__(self) -> None:
        self._known: _Known = {}

    def key_of(
        self, where: tuple[str, ...], module: dspy.Module, inputs: Mapping[str, Any], own_rollouts: int
    ) -> tuple[str, Any]:
        """The key of a call, and what `call_of` gives; `NoKeyError` if there is none.

        `where` names the graph and the node. `own_rollouts` is what earlier attempts of the call have added to rollout
        ids: the result of a later attempt has the key of the first one.
        """
        predictors = [predictor for _, predictor in predictors_in(module)]
        called, found = _Description(self._known), _Description(self._known)
        described = called.call(module, inputs)
        adapter = asked_adapter()
        asked = [found.adapter(adapter), added_rollouts(adapter) - own_rollouts, trial_rollout(adapter)]
        if any(predictor.lm is None for predictor in predictors) or called.runs_code:
            asked.append(found.part(dspy.settings.lm, "the LM"))
        if called.runs_code:
            asked.append(found.settings())
        return digest([_FORM, dspy.__version__, where, described, asked, _filled(predictors)]), described

    def call_of(self, module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
        """What a module and its inputs are: a call may change both."""
        return _Description(self._known).call(module, inputs)

    def state_of(self, module: dspy.Module) -> Any:
        """What a module or an LM is; None if that cannot be described."""
        try:
            return _Description(self._known).part(module, type(module).__name__)
        except NoKeyError:
            return None

    def adapter_of(self, adapter: Any) -> Any:
        """What an adapter is, but for its rollout ids; None if that cannot be described."""
        try:
            return _Description(self._known).adapter(adapter)
        except NoKeyError:
            return None


def _filled(predictors: list[Any]) -> list[Any]:
    """The values that templates in the instructions get, and the warning after them."""
    values = dspy.settings.get(VALUES_SETTING)
    filled = []
    for predictor in predictors if values is not None else ():
        template = vars(predictor).get("template")
        if template is not None:
            names = dict.fromkeys((*names_in(predictor.signature.instructions), *template.names))
            filled += [[name, values.text(name), type(values.plain(name)).__name__] for name in names]
    return [filled, dspy.settings.get(WARNING_SETTING) or ""]


def _base_of(cls: Any) -> Any:
    """The class of a predictor behind that which fills templates."""
    return getattr(cls, "template_base", cls)


def _library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _LIBRARIES


class _Description:
    """The description of one call.

    Attributes:
        runs_code: whether there is code in it that no library defines.
    """

    def __init__(self, known: _Known) -> None:
        self.runs_code = False
        self._known = known
        self._seen: dict[int, int] = {}
        self._codes = Identity((dspy.Module, dspy.BaseLM), self._object)

    def call(self, module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
        """Describe a call."""
        simple = isinstance(module, dspy.Predict) and _library(_base_of(type(module)))
        described = self.part(module, type(module).__name__)
        return [described, {name: self.part(value, f"the input {name!r}", simple) for name, value in inputs.items()}]

    def part(self, value: Any, where: str, shown: bool = False) -> Any:
        """Describe a value; `NoKeyError` if another one could be described alike.

        `shown` says that an LM is shown the value, and no code uses it: then of a tool the function does not count.
        """
        if value is None or type(value) in (str, int, bool):
            return value
        if isinstance(value, dspy.Module):
            return self._module(value, where)
        if isinstance(value, dspy.BaseLM):
            return self._lm(value, where)
        if isinstance(value, Tool):
            facts = [value.name, value.desc, self.part(value.args, where)]
            return ["tool", *facts, None if shown else self._function(value.func, f"{where}.func")]
        if type(value) in (list, tuple):
            return [type(value).__name__, [self.part(item, f"{where}[{i}]", shown) for i, item in enumerate(value)]]
        if type(value) is dict and all(type(name) is str for name in value):
            return {name: self.part(item, f"{where}[{name!r}]", shown) for name, item in value.items()}
        if isinstance(value, type):
            return self._signature(value) if issubclass(value, dspy.Signature) else self._class(value, where)
        if isinstance(value, _FUNCTIONS) or isinstance(own_call(value), FunctionType):
            return self._function(value, where)
        try:
            return ["value", encoding.encode(freeze(value)), self._forms([type(value)])]
        except StateError:
            raise NoKeyError(
                f"{where} is {with_article(type(value).__name__)}, which cannot be told from another one"
            ) from None

    def adapter(self, adapter: Any) -> Any:
        """Describe an adapter, but for its rollout ids."""
        cls = next(base for base in type(adapter).__mro__ if not issubclass(base, AsksAnew))
        return [self._class(cls, "the adapter"), self._attributes(adapter, "the adapter", _OF_MODULES)]

    def settings(self) -> Any:
        """Describe the settings that DSPy itself does not read when it calls a predictor."""
        own = {
            name: value for name, value in dspy.settings.copy().items() if is_own_setting(name) and value is not None
        }
        return {name: self.part(value, f"dspy.settings.{name}") for name, value in sorted(own.items())}

    def _module(self, module: Any, where: str) -> Any:
        if id(module) in self._seen:
            return ["again", self._seen[id(module)]]
        self._seen[id(module)] = len(self._seen)
        cls = type(module)
        self.runs_code |= isinstance(module, dspy.Retrieve)  # the code is that of dspy.settings.rm
        if hasattr(cls, "_dspyer_program"):
            raise NoKeyError(f"{where} is a compiled graph, whose own nodes are looked up")
        if not isinstance(module, dspy.Predict):
            return ["module", self._class(cls, where), self._attributes(module, where, _OF_MODULES)]
        if module.config.get("cache") is False:
            raise NoKeyError(f"{where} has cache=False")
        template = vars(module).get("template")
        return [
            "predictor",
            self._class(_base_of(cls), where),
            None if template is None else [template.names, sorted(template.allowed or ()), template.allowed is None],
            self._signature(module.signature),
            [self._demo(demo, f"{where}.demos") for demo in module.demos],
            self.part(module.lm, f"{where}.lm"),
            self._attributes(module, where, _OF_MODULES | _OF_PREDICTORS),
        ]

    def _attributes(self, owner: Any, where: str, without: frozenset[str]) -> Any:
        return {
            name: self.part(value, f"{where}.{name}")
            for name, value in sorted(vars(owner).items())
            if name not in without and not name.startswith("_dspyer")
        }

    def _lm(self, lm: Any, where: str) -> Any:
        """An LM as DSPy's cache knows it, with the LMs that it is made of."""
        if not getattr(lm, "cache", False) or lm.kwargs.get("cache") is False:
            raise NoKeyError(f"the LM {lm.model!r} does not cache (dspy.LM(..., cache=True) would)")
        settings = {name: value for name, value in lm.kwargs.items() if name not in _CLIENT}
        inner = [
            [name, self.part(value, f"{where}.{name}")]
            for name, value in sorted(vars(lm).items())
            if isinstance(value, dspy.BaseLM)
            or (isinstance(value, list | tuple) and value and all(isinstance(one, dspy.BaseLM) for one in value))
        ]
        engine = getattr(lm, "engine", None)
        kinds = [class_name(type(lm)), None if engine is None else class_name(type(engine))]
        developer = bool(getattr(lm, "use_developer_role", False))  # requests name another role then
        return ["lm", kinds, lm.model, lm.model_type, developer, self.part(settings, f"the settings of {where}"), inner]

    def _demo(self, demo: Any, where: str) -> Any:
        return {name: self.part(value, where) for name, value in demo.items() if not name.startswith("dspy_")}

    def _signature(self, signature: Any) -> Any:
        fields = [
            [
                name,
                self._type(info.annotation),
                self.part(info.json_schema_extra or {}, f"the field {name!r} of a signature"),
                [self._constraint(one) for one in info.metadata],
                None if info.default is PydanticUndefined else [_shown(info.default)],
            ]
            for name, info in signature.fields.items()
        ]
        return ["signature", signature.__name__, signature.instructions, fields]

    def _type(self, annotation: Any) -> Any:
        """A type with the JSON schema of which prompts show a part, and the code that reads what an LM returned."""

        def describe() -> Any:
            try:
                schema = TypeAdapter(annotation).json_schema()
            except Exception:  # noqa: BLE001 - pydantic raises errors of several kinds; the name must do
                schema = {}
            classes = [cls for cls in classes_in([annotation]) if not _library(cls)]
            return [_shown(annotation), schema], classes, _is_constrained(annotation)

        shown, classes, constrained = self._once("type", annotation, describe)
        return [shown, self._forms(classes), self._constraints(annotation) if constrained else []]

    def _forms(self, classes: Iterable[Any]) -> list[Any]:
        """The code of the classes of values, and what pydantic checks; what of it cannot be told apart is left out."""
        found: list[Any] = []
        for cls in classes:
            if _library(cls):
                continue
            unknown = len(self._codes.unknown)
            found.append(self._codes.of_callable(cls))
            del self._codes.unknown[unknown:]
            if issubclass(cls, BaseModel):
                found.append(_shown(dict(cls.model_config)))
                found += [
                    [name, info.exclude, self._constraints(info.annotation), list(map(self._constraint, info.metadata))]
                    for name, info in cls.model_fields.items()
                ]
        return found

    def _constraints(self, annotation: Any) -> list[Any]:
        """What `Annotated` says anywhere in a type."""
        own = [self._constraint(one) for one in getattr(annotation, "__metadata__", ())]
        inner = [self._constraints(part) for part in get_args(annotation)]
        return [one for one in (*own, *inner) if one]

    def _constraint(self, one: Any) -> Any:
        """Metadata of a type: what it shows, and the functions that it holds."""
        held = [getattr(one, field.name) for field in fields(one)] if is_dataclass(one) else [one]
        unknown = len(self._codes.unknown)
        functions = [self._codes.of_callable(fn) for fn in held if isinstance(fn, _FUNCTIONS)]
        del self._codes.unknown[unknown:]
        return [_shown(one), functions]

    def _class(self, cls: type, where: str) -> Any:
        """A class with the code that no library defines."""
        return [class_name(cls), *[self._function(base, where) for base in cls.__mro__ if not _library(base)]]

    def _function(self, fn: Any, where: str) -> Any:
        """A function or class, with what it uses nearby."""
        self.runs_code = True
        known = len(self._codes.unknown)
        described = self._codes.of_callable(fn)
        unknown = self._codes.unknown[known:]
        if unknown:
            raise NoKeyError(f"{where} uses {'; '.join(dict.fromkeys(unknown))}, which cannot be told from another")
        return described

    def _object(self, value: Any) -> Any:
        """A module or an LM that code uses; None if it cannot be described."""
        try:
            return self.part(value, type(value).__name__)
        except NoKeyError:
            return None

    def _once(self, kind: str, value: Any, describe: Callable[[], Any]) -> Any:
        known = self._known.get((kind, id(value)))
        if known is None:
            known = self._known[kind, id(value)] = value, describe()
        return known[1]


def is_own_setting(name: str) -> bool:
    """Whether a setting may be read by code of the user, and not by that of predictors."""
    return name == "rm" or not (name in DEFAULT_CONFIG or name.startswith(("_", "dspyer_")))


def _is_constrained(annotation: Any) -> bool:
    """Whether there is an `Annotated` in a type."""
    return hasattr(annotation, "__metadata__") or any(map(_is_constrained, get_args(annotation)))


def _shown(value: Any) -> str:
    """The text of a value, without the addresses of objects, which differ between processes."""
    return _ADDRESS.sub("", repr(value))
