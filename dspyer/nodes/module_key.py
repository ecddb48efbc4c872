"""The key under which a call of a module is kept: what the module is, what it is given, and what its LMs are asked.

What a module is, is described anew for each call, since optimizers change it in place: the code of classes that DSPy
does not define, and the attributes: of predictors the signature, the demonstrations, the LM and its settings. Of the
settings of DSPy, the LM, the adapter with its rollout ids, the values for templates and the warning near a limit count.

The code of a class or function, and the form of a type, are described once for each describer: they do not change
within an optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeAlias

import dspy
from dspy.adapters.types.tool import Tool
from pydantic import TypeAdapter
from pydantic_core import PydanticUndefined

from dspyer.dspy_module.lm_requests import AsksAnew, added_rollouts, asked_adapter, trial_rollout
from dspyer.dspy_module.predictors import predictors_in
from dspyer.dspy_module.prompt_templates import VALUES_SETTING, WARNING_SETTING
from dspyer.errors import StateError, with_article
from dspyer.nodes.cache_key import Identity, digest
from dspyer.nodes.callables import own_call
from dspyer.templates import names_in
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.types import class_name

_FORM: Final = 1  # of keys and entries: another number leaves all earlier entries behind
_FUNCTIONS: Final = (FunctionType, MethodType, BuiltinFunctionType, partial)
_LIBRARIES: Final = frozenset({"dspy", "dspyer", "pydantic", "builtins"})
_OF_PREDICTORS: Final = frozenset({"signature", "demos", "lm", "stage", "traces", "train", "template"})
_OF_MODULES: Final = frozenset({"callbacks", "history", "_compiled", "_warned_zero_temp_rollout"})
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
        described, found = self.call_of(module, inputs), _Description(self._known)
        adapter = asked_adapter()
        asked = [found.adapter(adapter), added_rollouts(adapter) - own_rollouts, trial_rollout(adapter)]
        if any(predictor.lm is None for predictor in predictors) or not _library(type(module)):
            asked.append(found.part(dspy.settings.lm, "the LM"))
        return digest([_FORM, dspy.__version__, where, described, asked, _filled(predictors)]), described

    def call_of(self, module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
        """What a module and its inputs are: a call may change both."""
        found = _Description(self._known)
        simple = isinstance(module, dspy.Predict) and _library(_base_of(type(module)))
        described = found.part(module, type(module).__name__)
        return [described, {name: found.part(value, f"the input {name!r}", simple) for name, value in inputs.items()}]

    def state_of(self, module: dspy.Module) -> Any:
        """What a module or an LM is; None if that cannot be described."""
        try:
            return _Description(self._known).part(module, type(module).__name__)
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
    """The description of one call."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._seen: dict[int, int] = {}

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
            return ["value", encoding.encode(freeze(value))]
        except StateError:
            raise NoKeyError(
                f"{where} is {with_article(type(value).__name__)}, which cannot be told from another one"
            ) from None

    def adapter(self, adapter: Any) -> Any:
        """Describe an adapter, but for its rollout ids."""
        cls = next(base for base in type(adapter).__mro__ if not issubclass(base, AsksAnew))
        return [self._class(cls, "the adapter"), self._attributes(adapter, "the adapter", _OF_MODULES)]

    def _module(self, module: Any, where: str) -> Any:
        if id(module) in self._seen:
            return ["again", self._seen[id(module)]]
        self._seen[id(module)] = len(self._seen)
        cls = type(module)
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
        return ["lm", kinds, lm.model, lm.model_type, self.part(settings, f"the settings of {where}"), inner]

    def _demo(self, demo: Any, where: str) -> Any:
        return {name: self.part(value, where) for name, value in demo.items() if not name.startswith("dspy_")}

    def _signature(self, signature: Any) -> Any:
        fields = [
            [
                name,
                self._type(info.annotation),
                self.part(info.json_schema_extra or {}, f"the field {name!r} of a signature"),
                repr(info.metadata),
                None if info.default is PydanticUndefined else [repr(info.default)],
            ]
            for name, info in signature.fields.items()
        ]
        return ["signature", signature.__name__, signature.instructions, fields]

    def _type(self, annotation: Any) -> Any:
        """A type with the JSON schema of which prompts show a part."""

        def describe() -> Any:
            try:
                schema = TypeAdapter(annotation).json_schema()
            except Exception:  # noqa: BLE001 - pydantic raises errors of several kinds; the name must do
                schema = {}
            return [repr(annotation), schema]

        return self._once("type", annotation, describe)

    def _class(self, cls: type, where: str) -> Any:
        """A class with the code that no library defines."""

        def describe() -> Any:
            return [class_name(cls), *[_code(base, where) for base in cls.__mro__ if not _library(base)]]

        return self._once("class", cls, describe)

    def _function(self, fn: Any, where: str) -> Any:
        return self._once("function", fn, lambda: _code(fn, where))

    def _once(self, kind: str, value: Any, describe: Callable[[], Any]) -> Any:
        known = self._known.get((kind, id(value)))
        if known is None:
            known = self._known[kind, id(value)] = value, describe()
        return known[1]


def _code(fn: Any, where: str) -> Any:
    """A function or class, with what it uses nearby."""
    found = Identity()
    described = found.of_callable(fn)
    if found.unknown:
        raise NoKeyError(f"{where} uses {'; '.join(dict.fromkeys(found.unknown))}, which cannot be told from another")
    return described
