"""Predictors that fill fields of the state into their instructions when they are called, and shorten their demos.

A predictor whose instructions name fields gets a subclass of its class when the graph is compiled; all others keep
their class. The instructions stay a template: what an optimizer reads and writes is the text with its braces, and the
values are filled into a copy of the signature for one call. The values come with the DSPy settings of the node's call,
since DSPy's own threads inherit these.

The subclasses are made when they are needed, not here: OpenInference looks up every subclass of `dspy.Predict` in the
module `dspy`, and fails at one that is not there.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Protocol

import dspy
from dspy import AdapterParseError

from dspyer.dspy_module.not_public import TRACE
from dspyer.dspy_module.predictors import predictors_in
from dspyer.errors import InputError
from dspyer.templates import fill_text, is_template, names_in

VALUES_SETTING = "dspyer_filling"
"""The setting of DSPy with the `TemplateValues` of a node."""

WARNING_SETTING = "dspyer_warning"
"""The setting with the warning for a node that runs near a limit of its run."""

logger = logging.getLogger("dspyer")


class TemplateValues(Protocol):
    """The values of one call of a node."""

    def text(self, name: str) -> str | None:
        """How a prompt shows a value; None if there is none."""

    def plain(self, name: str) -> Any:
        """The value itself."""


# --- preparing the predictors of a module, when a graph is compiled


def can_convert(predictor: dspy.Predict) -> bool:
    """Whether a predictor can get a template class: not if its class has a `forward` of its own."""
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
            _convert(predictor)


def enable_warnings(module: dspy.Module) -> list[str]:
    """Lets the predictors of a module put a warning at the end of their instructions, in place.

    Returns the paths of those that cannot, see `can_convert`.
    """
    found = list(predictors_in(module))
    for _, predictor in found:
        if can_convert(predictor):
            _convert(predictor)
    return [path or type(predictor).__name__ for path, predictor in found if not can_convert(predictor)]


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
    for _, predictor in found:
        if can_convert(predictor):
            vars(predictor)["demo_turns"] = turns
            _convert(predictor)
    return [path or type(predictor).__name__ for path, predictor in found if not can_convert(predictor)]


def check_template(predictor: object) -> None:
    """Warns of tuned or loaded instructions that do not fit the template of a predictor."""
    known: Any = predictor
    if isinstance(predictor, dspy.Predict) and "template" in vars(predictor):
        known.template.check(known.signature.instructions)


def _convert(predictor: Any) -> None:
    if not hasattr(type(predictor), "template_base"):
        kind: Any = type(predictor)
        predictor.__class__ = template_class(kind)


def _history_fields(predictor: dspy.Predict) -> list[str]:
    fields = predictor.signature.input_fields
    return [name for name, field in fields.items() if field.annotation is dspy.History]


# --- the class of a prepared predictor


@functools.lru_cache(maxsize=256)
def template_class(base: Any) -> Any:
    """The subclass of `dspy.Predict`, or of a subclass with the same `forward` and `aforward`, that fills templates."""

    def forward(self: Any, **kwargs: Any) -> Any:
        call = _PredictorCall(self, kwargs)
        try:
            prediction = base.forward(self, **kwargs)
        except AdapterParseError as error:
            call.restore_signature(error)
            raise
        call.add_values_to_trace(prediction)
        return prediction

    async def aforward(self: Any, **kwargs: Any) -> Any:
        call = _PredictorCall(self, kwargs)
        try:
            prediction = await base.aforward(self, **kwargs)
        except AdapterParseError as error:
            call.restore_signature(error)
            raise
        call.add_values_to_trace(prediction)
        return prediction

    def reduce(self: Any, _protocol: Any) -> tuple[Any, ...]:
        return _new_instance, (base,), self.__getstate__()  # the class has no name that pickle could import

    members = {"forward": forward, "aforward": aforward, "__reduce_ex__": reduce, "__module__": __name__}
    metaclass: Any = type(base)
    return metaclass(f"Filling{base.__name__}", (base,), {**members, "__doc__": base.__doc__, "template_base": base})


def _new_instance(base: Any) -> Any:
    kind = template_class(base)
    return kind.__new__(kind)


class _PredictorCall:
    """One call of a prepared predictor: changes its `kwargs` in place before the call, and the trace after it."""

    def __init__(self, predictor: Any, kwargs: dict[str, Any]) -> None:
        self.signature = kwargs.get("signature", predictor.signature)
        self.values: dict[str, Any] = {}
        turns = vars(predictor).get("demo_turns")
        if turns is not None:
            demos = kwargs.get("demos", predictor.demos)
            kwargs["demos"] = [_shortened(demo, _history_fields(predictor), turns) for demo in demos]
        values: TemplateValues | None = dspy.settings.get(VALUES_SETTING)
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

    def _filled(self, values: TemplateValues, template: PredictorTemplate) -> Any:
        """The signature with values in its instructions."""
        signature = dspy.ensure_signature(self.signature)
        text = signature.instructions
        template.check(text)

        def value_of(name: str) -> str | None:
            return values.text(name) if template.allowed is None or name in template.allowed else None

        filled, used, _ = fill_text(text, value_of)
        # An optimizer may have dropped a name from the instructions: its value is appended, or the LM would not see it.
        lost = {name: value_of(name) for name in template.names if name not in used}
        ends = [f"{name}: {value}" for name, value in lost.items() if value is not None]
        if ends:
            filled = "\n".join([filled, *ends])
        named = [*used, *(name for name, value in lost.items() if value is not None)]
        self.values = {name: values.plain(name) for name in named if name not in signature.fields}
        return signature.with_instructions(filled)

    def restore_signature(self, error: AdapterParseError) -> None:
        """Puts the signature with the template into an error: optimizers find the predictor by it."""
        error.signature = self.signature

    def add_values_to_trace(self, prediction: Any) -> None:
        """Adds the values to the inputs in the trace, so that an optimizer that reads it sees more than their names."""
        trace = dspy.settings.get(TRACE)
        if not trace or not self.values:
            return
        for index in range(len(trace) - 1, -1, -1):
            predictor, inputs, traced = trace[index]
            if traced is prediction:
                trace[index] = (predictor, {**inputs, **self.values}, traced)
                return


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
