"""Predictors that fill fields of the state into their instructions when they are called, and shorten their demos.

A predictor of a compiled graph whose instructions name fields gets a subclass of its class; all others keep theirs.
What optimizers tune stays the template. The subclasses are made when they are needed: OpenInference looks for every
subclass of `dspy.Predict` in `dspy` itself, and fails at one that is not there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any, Protocol

import dspy
from dspy.utils.exceptions import AdapterParseError

from dspyer.dspy_module.paths import parts_with_paths
from dspyer.errors import InputError
from dspyer.templates import fill_text, is_template, names_in

VALUES_SETTING = "dspyer_filling"
"""The setting of DSPy that carries the values of a node: its threads inherit it."""

WARNING_SETTING = "dspyer_warning"
"""The setting that carries the warning for a node that runs near the limit of its run."""

logger = logging.getLogger("dspyer")


class TemplateValues(Protocol):
    """The values of one call of a node."""

    def text(self, name: str) -> str | None:
        """How a prompt shows a value; None if there is none."""

    def plain(self, name: str) -> Any:
        """The value itself."""


class PredictorTemplate:
    """What a predictor's template was when the graph was compiled. All copies of the predictor share it.

    Attributes:
        path: the predictor, as DSPy names it.
        text: its instructions.
        names: the names in them that are filled in.
        allowed: all names that would be; None for any.
    """

    def __init__(self, path: str, text: str, names: tuple[str, ...], allowed: frozenset[str] | None) -> None:
        self.path = path
        self.text = text
        self.names = names
        self.allowed = allowed
        self._said: set[tuple[str, str]] = set()

    def check(self, text: str) -> None:
        """Warns, once, of what is wrong with instructions that an optimizer has written, or that were loaded."""
        if text == self.text:
            return
        known = names_in(self.text)
        for name in names_in(text):
            if self.allowed is not None and name not in known and name not in self.allowed:
                self._say("unknown", name, "%s: {%s} in its tuned instructions is nothing that it reads, and stays")
        for name in self.names:
            if name not in names_in(text):
                self._say("lost", name, "%s: its tuned instructions have lost {%s}, which is put at their end")

    def refuse(self) -> None:
        """Refuses a call that no node makes.

        Raises:
            InputError: if there are names to fill in: their braces are never sent to an LM.
        """
        if self.names:
            named = ", ".join(f"{{{name}}}" for name in self.names)
            raise InputError(
                f"{self.path}: its instructions name {named}, and this call belongs to no node that could fill it in. "
                "In a thread that a node starts, make the call in the node's context, "
                "contextvars.copy_context().run(...), or use dspy.Parallel; outside of a run, call the program"
            )

    def _say(self, kind: str, name: str, text: str) -> None:
        if (kind, name) not in self._said:
            self._said.add((kind, name))
            logger.warning(text, self.path, name)

    def __deepcopy__(self, memo: object) -> PredictorTemplate:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PredictorTemplate, (self.path, self.text, self.names, self.allowed)


class _Called:
    """One call of such a predictor."""

    def __init__(self, predictor: Any, kwargs: dict[str, Any]) -> None:
        self.own = kwargs.get("signature", predictor.signature)
        self.values: dict[str, Any] = {}
        turns = vars(predictor).get("demo_turns")
        if turns is not None:
            demos = kwargs.get("demos", predictor.demos)
            kwargs["demos"] = [_shortened(demo, _histories(predictor), turns) for demo in demos]
        filling: TemplateValues | None = dspy.settings.get(VALUES_SETTING)
        template: PredictorTemplate | None = vars(predictor).get("template")
        if template is not None:
            if filling is None:
                template.refuse()
            else:
                kwargs["signature"] = self._filled(filling, template)
        warning = dspy.settings.get(WARNING_SETTING)
        if warning:
            signature = dspy.ensure_signature(kwargs.get("signature", self.own))
            kwargs["signature"] = signature.with_instructions(f"{signature.instructions}\n\n{warning}")

    def _filled(self, filling: TemplateValues, template: PredictorTemplate) -> Any:
        """The signature with values in its instructions."""
        signature = dspy.ensure_signature(self.own)
        text = signature.instructions
        template.check(text)

        def value_of(name: str) -> str | None:
            return filling.text(name) if template.allowed is None or name in template.allowed else None

        new, used, _ = fill_text(text, value_of)
        lost = {name: value_of(name) for name in template.names if name not in used}
        ends = [f"{name}: {value}" for name, value in lost.items() if value is not None]
        if ends:
            new = "\n".join([new, *ends])
        named = [*used, *(name for name, value in lost.items() if value is not None)]
        self.values = {name: filling.plain(name) for name in named if name not in signature.fields}
        return signature.with_instructions(new)

    def blame(self, error: AdapterParseError) -> None:
        """Optimizers look for the predictor by the signature of the error."""
        error.signature = self.own

    def note(self, prediction: Any) -> None:
        """Puts the values beside the inputs in the trace, so that who reads it sees more than their names."""
        trace = dspy.settings.trace
        if not trace or not self.values:
            return
        for place in range(len(trace) - 1, -1, -1):
            predictor, inputs, found = trace[place]
            if found is prediction:
                trace[place] = (predictor, {**inputs, **self.values}, found)
                return


@functools.lru_cache(maxsize=256)
def template_class(base: Any) -> Any:
    """The subclass of a class of predictors that fills templates in.

    Args:
        base: `dspy.Predict`, or a subclass of it with the same `forward` and `aforward`.
    """

    def forward(self: Any, **kwargs: Any) -> Any:
        called = _Called(self, kwargs)
        try:
            prediction = base.forward(self, **kwargs)
        except AdapterParseError as error:
            called.blame(error)
            raise
        called.note(prediction)
        return prediction

    async def aforward(self: Any, **kwargs: Any) -> Any:
        called = _Called(self, kwargs)
        try:
            prediction = await base.aforward(self, **kwargs)
        except AdapterParseError as error:
            called.blame(error)
            raise
        called.note(prediction)
        return prediction

    def reduce(self: Any, _protocol: Any) -> tuple[Any, ...]:
        return _bare, (base,), self.__getstate__()

    members = {"forward": forward, "aforward": aforward, "__reduce_ex__": reduce, "__module__": __name__}
    metaclass: Any = type(base)
    return metaclass(f"Filling{base.__name__}", (base,), {**members, "__doc__": base.__doc__, "filled_from": base})


def _bare(base: Any) -> Any:
    made = template_class(base)
    return made.__new__(made)


def can_convert(predictor: dspy.Predict) -> bool:
    """Whether instructions of a predictor can be filled in: one with a `forward` of its own decides itself."""
    kind = type(predictor)
    if hasattr(kind, "filled_from"):
        return True
    return kind.forward is dspy.Predict.forward and kind.aforward is dspy.Predict.aforward


def enable_templates(path: str, module: dspy.Module, allowed: frozenset[str] | None) -> None:
    """Lets the predictors of a module fill in their instructions, in place.

    Args:
        path: where the program has the module.
        module: the module.
        allowed: the names that are filled in; None for any.
    """
    for inner, predictor in predictors_in(module):
        text = predictor.signature.instructions
        if is_template(text) and can_convert(predictor):
            where = f"{path}.{inner}" if inner else path
            held = vars(predictor)
            filled_in = tuple(name for name in names_in(text) if allowed is None or name in allowed)
            held["template"] = PredictorTemplate(where, text, filled_in, allowed)
            _convert(predictor)


def enable_warnings(module: dspy.Module) -> list[str]:
    """Prepares the predictors of a module for a warning at the end of their instructions, in place.

    Args:
        module: the module.

    Returns:
        The paths of those that cannot: they have a `forward` of their own.
    """
    found = list(predictors_in(module))
    for _, predictor in found:
        if can_convert(predictor):
            _convert(predictor)
    return [path or type(predictor).__name__ for path, predictor in found if not can_convert(predictor)]


def shorten_demos(module: dspy.Module, turns: int) -> list[str]:
    """Lets the predictors of a module show only the last turns of the histories in their demos, in place.

    Args:
        module: the module.
        turns: how many turns of each.

    Returns:
        The paths of those that cannot: they have a `forward` of their own.
    """
    found = [(path, predictor) for path, predictor in predictors_in(module) if _histories(predictor)]
    for _, predictor in found:
        if can_convert(predictor):
            vars(predictor)["demo_turns"] = turns
            _convert(predictor)
    return [path or type(predictor).__name__ for path, predictor in found if not can_convert(predictor)]


def _convert(predictor: Any) -> None:
    if not hasattr(type(predictor), "filled_from"):
        kind: Any = type(predictor)
        predictor.__class__ = template_class(kind)


def _histories(predictor: dspy.Predict) -> list[str]:
    fields = predictor.signature.input_fields
    return [name for name, field in fields.items() if field.annotation is dspy.History]


def _shortened(demo: Any, names: list[str], turns: int) -> Any:
    """A demo with the last turns of its histories; one that was saved holds them as plain dicts."""
    cut = {}
    for name in names:
        history = demo.get(name)
        messages = history.messages if isinstance(history, dspy.History) else (history or {}).get("messages")
        if messages is not None and len(messages) > turns:
            cut[name] = dspy.History(messages=messages[len(messages) - turns :])
    if not cut:
        return demo
    return {**demo, **cut} if isinstance(demo, dict) else demo.copy(**cut)


def check_template(predictor: object) -> None:
    """Warns of what is wrong with the instructions of a predictor that fills them in."""
    held: Any = predictor
    if isinstance(predictor, dspy.Predict) and "template" in vars(predictor):
        held.template.check(held.signature.instructions)


def predictors_in(value: object, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """The predictors of a module with their paths, those of compiled modules too; not those of a graph in it."""
    seen = set() if seen is None else seen
    if not isinstance(value, (dspy.Module, list, tuple, dict)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dspy.Predict):
        yield path, value
        return
    if hasattr(type(value), "_dspyer_program"):
        return
    for name, part in parts_with_paths(path, value):
        yield from predictors_in(part, name, seen)


def user_instructions(module: dspy.Module) -> Iterator[str]:
    """The instructions that the user wrote: not what a module of DSPy adds to them, such as the texts of its tools."""
    signature = getattr(module, "signature", None)
    of_dspy = type(module).__module__.partition(".")[0] == "dspy" and not isinstance(module, dspy.Predict)
    if of_dspy and signature is not None:
        yield signature.instructions
        return
    for _, predictor in predictors_in(module):
        yield predictor.signature.instructions
