"""Templates and run values at a node: which names they may have, and the values that are filled in at a call."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy

from dspyer.dspy_module.not_public import COMPILED, serialize_for_json
from dspyer.dspy_module.predictors import predictors_in, user_instructions
from dspyer.dspy_module.prompt_templates import VALUES_SETTING, WARNING_SETTING, can_convert
from dspyer.errors import list_names
from dspyer.failure import Failure
from dspyer.nodes.field_names import FieldNames, unknown_field_text
from dspyer.nodes.node import Call
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import Step, Within
from dspyer.nodes.view_access import fields_of_then
from dspyer.scheduler.lineage import written_key
from dspyer.scheduler.run_state import Branch, RunState
from dspyer.scheduler.run_values import run_value, run_value_problem
from dspyer.templates import NO_TEMPLATES, RUN, ComputedInput, Fill, Templates, fill_text, is_template, names_in
from dspyer.values.frozen import thaw
from dspyer.views import ViewForm

if TYPE_CHECKING:
    from dspyer.nodes.context import Context

ABSENT: Any = object()


class Filler:
    """The values for the templates of one call, each read when it is asked for; `allowed` None permits every field."""

    def __init__(self, call: Call, allowed: Collection[str] | None) -> None:
        self._call = call
        self._allowed = allowed
        self._known: dict[str, Any] = {}

    def may_fill(self, name: str) -> bool:
        """Whether the node may read the field or run value of this name."""
        if name.startswith(RUN):
            run = _run_of(self._call.context)
            return run is not None and run_value_problem(name, run[0].topology.nodes) is None
        return self._allowed is None or name in self._allowed

    def plain(self, name: str) -> Any:
        """The value as a plain copy; `ABSENT` if there is none."""
        found = self._known.get(name, self)
        if found is self:
            found = self._known[name] = self._read(name) if self.may_fill(name) else ABSENT
        return found

    def text(self, name: str) -> str | None:
        """The value as a prompt shows it; None if there is none."""
        found = self.plain(name)
        return None if found is ABSENT else shown_in_prompt(found)

    def _read(self, name: str) -> Any:
        if name.startswith(RUN):
            found = value_of_run(name, self._call.context)
            return ABSENT if found is None else found
        overlay, state = self._call.overlay, self._call.state
        if overlay is not None and name in overlay:
            return thaw(overlay.raw(name))
        if name not in state:
            return ABSENT
        value = state.raw(name)
        return ABSENT if value is None and _never_written(name, self._call) else thaw(value)


def shown_in_prompt(value: Any) -> str:
    """A value as DSPy shows an input; a failure as one line."""
    if isinstance(value, Failure):
        return str(value)
    plain = serialize_for_json(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (dict, list)) else str(plain)


def value_of_run(name: str, ctx: Context) -> int | str | None:
    """A run value; None for a node that is called without a run."""
    found = _run_of(ctx)
    if found is None:
        return None
    run, branch = found
    return run_value(name, run.topology, branch)


def _run_of(ctx: Context) -> tuple[RunState, Branch] | None:
    attempt = ctx.delegate
    run: RunState | None = getattr(attempt.host, "run", None)  # none without a run
    if run is None or attempt.position is None or attempt.position.head < 0:
        return None
    return run, attempt.position


def _never_written(field: str, call: Call) -> bool:
    """Whether a field that is None still has its default: no commit after the first has written it."""
    found = _run_of(call.context)
    if found is None:
        return True
    run, branch = found
    known = run.topology.schema.fields.get(field)
    if known is None or known.fixed_default is not None:
        return False  # None was written: it is not the default
    return written_key(field) not in branch.counts


def computed_value(source: ComputedInput, form: ViewForm, call: Call) -> Any:
    """The value of an input that is a template or a run value."""
    if isinstance(source, Fill):
        return fill_text(source.text, Filler(call, None).text).text
    found = value_of_run(source.name, call.context)
    return ("" if found is None else str(found)) if form == "text" else found


def warning_of(call: Call) -> str:
    """The warning near the step limit of the run, "" for none: it is part of the prompt and of the conversation."""
    attempt = call.context.delegate
    return "" if attempt.position is None else attempt.host.views.warning(attempt.position)


def filled(step: Step, templates: Templates, warning: str = "") -> Step:
    """A step in which the predictors of a node fill in their instructions, and append a warning."""
    if not templates.in_instructions and not warning:
        return step
    return Within(step, partial(_filling, templates, warning))


def _filling(templates: Templates, warning: str, call: Call) -> AbstractContextManager[Any]:
    settings: dict[str, Any] = {WARNING_SETTING: warning}
    if templates.in_instructions:
        settings[VALUES_SETTING] = Filler(call, templates.allowed)
    context: AbstractContextManager[Any] = dspy.context(**settings)
    return context


class Planned(NamedTuple):
    """The templates of a node, with what is wrong.

    Attributes:
        templates: the templates.
        problems: what is wrong, each with its fix.
        unknown: what is wrong unless a `Send` brings the missing values.
    """

    templates: Templates = NO_TEMPLATES
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def plan_templates(modules: Iterable[object], options: NodeOptions, names_read: FieldNames | None, who: str) -> Planned:
    """The templates of a node and of the modules that it calls. `names_read` are its other fields; None for all."""
    reads = None if names_read is None else names_read.values()
    names: dict[str, None] = {}
    written: list[tuple[tuple[str, ...], str]] = []  # what texts of the user name, and where
    problems: list[str] = []
    inside = False
    brought: set[str] = set()  # by a `Send`, or a problem
    for own, computed in options.computed.items():
        names |= dict.fromkeys(computed.names)
        written.append((computed.names, f"in reads[{own!r}]"))
    of_views: dict[str, bool] = {}
    for view in options.views.values():
        for name, has_default in fields_of_then(view, options.schema).items():
            of_views[name] = has_default and of_views.get(name, True)
    for module in modules:
        if not isinstance(module, dspy.Module):
            continue
        texts = [text for text in user_instructions(module) if is_template(text)]
        named = tuple(dict.fromkeys(name for text in texts for name in names_in(text)))
        known = [name for name in named if is_known(name, options)]
        inside = inside or bool(texts)
        names |= dict.fromkeys(known)
        brought |= {name for name in named if name not in known}
        # Instructions that an optimizer wrote before are text: braces in them need not be fields.
        if not getattr(module, COMPILED, False):
            written.append((named, "in its instructions"))
        problems += _cannot(module, known, who) if known else ()
    fields = frozenset(name for name in names if not name.startswith(RUN))
    may = None if reads is None else frozenset(reads) | fields | options.overlay | brought
    typed = [name for named, _ in written for name in named if name in fields.difference(reads or (), options.overlay)]
    typed += [view.field for view in options.views.values()]
    unknown = [problem for named, where in written for problem in unknown_names(named, where, options, who)]
    templates = Templates(tuple(names), may, inside, tuple(of_views.items()), tuple(typed))
    return Planned(templates, tuple(problems), tuple(unknown))


def is_known(name: str, options: NodeOptions) -> bool:
    """Whether a name in a text of a node is a field, a run value, or what a map or a condenser gives it."""
    return (
        name.startswith(RUN)
        or options.schema.accepts_any_key
        or name in options.schema.fields
        or name in options.overlay
    )


def unknown_names(names: Iterable[str], where: str, options: NodeOptions, who: str) -> list[str]:
    """What is wrong with names in a text of a node that are none of these."""
    return [
        f"{who}: {{{name}}} {where} {unknown_field_text(name, options.schema)} Double the braces to show them as they "
        "are."
        for name in names
        if not is_known(name, options)
    ]


def _cannot(module: dspy.Module, names: list[str], who: str) -> list[str]:
    """Predictors with templates whose class cannot fill them in."""
    kinds = [type(predictor).__name__ for _, predictor in predictors_in(module) if not can_convert(predictor)]
    return [
        f"{who}: its instructions name {list_names(names)}, and nothing is filled into those of a {kind}, which has a "
        "`forward` of its own: use dspy.Predict, or give the text as an input, reads={'name': fill('...')}"
        for kind in dict.fromkeys(kinds)
    ]
