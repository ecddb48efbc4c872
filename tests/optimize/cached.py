"""A graph with every place where a module is called, and an LM that says how often it was asked for each field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import dspy
from pydantic import BaseModel

from dspyer import Run, reducers
from dspyer.testing import ScriptedLM


class Doc(BaseModel):
    title: str
    words: int = 0


class Desk(BaseModel):
    question: str = ""
    docs: list[str] = []
    notes: list[str] = []
    doc: Doc | None = None
    kind: str = ""
    answer: str = ""
    tries: Annotated[int, reducers.increment] = 0
    problems: list[str] = []


def look(place: str) -> str:
    """A tool."""
    return place


def ending(end: str) -> Callable[[str], str]:
    """A constraint of a type."""
    return lambda text: text + end


def answers(prompt: Any) -> dict[str, Any]:
    """What the LM says of any prompt: a function of it alone."""
    given = {name: str(value) for name, value in prompt.inputs.items()}
    text = f"{' '.join(given.values())}|{prompt.instructions[:40]}"
    found: dict[str, Any] = {}
    for field in prompt.output_fields:
        if field.choices:
            found[field.name] = field.choices[len(text) % len(field.choices)]
        elif field.name == "next_tool_args":
            found[field.name] = {"place": "town"}
        elif field.schema and "properties" in json.dumps(dict(field.schema)):
            found[field.name] = {"title": text[:20], "words": len(text)}
        else:
            found[field.name] = f"{field.name} of {text}"
    return found


def caching_lm(script: Callable[[Any], Any] = answers, **kwargs: Any) -> ScriptedLM:
    return ScriptedLM(script, **{"cache": True, **kwargs})


@contextmanager
def caching(script: Callable[[Any], Any] = answers, **kwargs: Any) -> Iterator[ScriptedLM]:
    """A block with such an LM."""
    lm = caching_lm(script, **kwargs)
    with dspy.context(lm=lm):
        yield lm


def facts(run: Run) -> Any:
    """All of a run that must not depend on a cache. Rejected steps have copies of predictors."""
    commits = [(one.id, one.node, dict(one.patch), one.route, one.reason, one.version) for one in run.commits]
    steps = [
        (
            step.execution,
            step.node,
            step.predictor.signature,
            step.inputs,
            dict(step.outputs),
            step.attempt,
            step.status,
        )
        for step in run.trace_steps
    ]
    trace = [(predictor.signature, inputs, dict(outputs)) for predictor, inputs, outputs in run.trace]
    return run.status, commits, run.state.to_dict(), steps, trace, repr(run.prediction)


def own_steps(run: Run, program: Any) -> list[str]:
    """The steps of a run whose predictors are those of the program, by name."""
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    return [names.get(id(predictor), "") for predictor, _, _ in run.trace]
