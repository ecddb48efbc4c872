"""One row per script: what the LM answers, with which tools and inputs, for `ReActV2` and for the loop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import LMRateLimitError
from pydantic import BaseModel

Answer = Mapping[str, Any] | str | BaseException
GARBLED = "no form that an adapter knows"
"""A response that does not parse: an adapter that falls back to JSON gets it twice."""


class Place(BaseModel):
    name: str
    people: int = 0


def people(city: str) -> str:
    """Counts the people of a city."""
    if city == "Atlantis":
        raise LookupError(f"there is no {city}")
    return f"{city} has 4 people"


def weather(city: str, day: str = "today") -> dict[str, Any]:
    """Tells the weather, sun or rain."""
    return {"city": city, "day": day, "sky": ["rain", "sun"]}


def count(n: int, unit: Literal["one", "dozen"] = "one") -> int:
    """Counts."""
    return n * (12 if unit == "dozen" else 1)


def describe(place: Place) -> Place:
    """Describes a place."""
    return place.model_copy(update={"people": 4})


def clock() -> None:
    """Tells nothing."""


def odd(kind: str) -> Any:
    """Gives an odd value."""
    return ODD[kind]


async def later(city: str) -> str:
    """Answers later."""
    return f"{city}, later"


TOOLS = (people, weather, count, describe, clock)
ODD: dict[str, Any] = {
    "nan": float("nan"),
    "set": {1},
    "time": {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "price": [Decimal("1.50")]},
    "places": [Place(name="Rome")],
    "keys": {1: 2},
    "empty": "",
}
QUESTION = {"question": "How many?"}


class Report(dspy.Signature):
    """Report on a task.

    Be brief, {"brief": 1}: 100 % of it."""

    task: str = dspy.InputField(desc="what to do")
    hints: list[str] = dspy.InputField()
    place: Place | None = dspy.InputField()
    report: str = dspy.OutputField(desc="a text")
    size: Literal["small", "large"] = dspy.OutputField()
    places: list[Place] = dspy.OutputField()


def turn(*calls: tuple[str, Mapping[str, Any]], thought: str = "so:", ids: Sequence[str] = ()) -> dict[str, Any]:
    """A response of the LM: a thought and its calls."""
    listed: list[dict[str, Any]] = [{"name": name, "args": dict(args)} for name, args in calls]
    for call, given in zip(listed, ids, strict=False):
        call["id"] = given
    return {"next_thought": thought, "tool_calls": listed}


def submit(**outputs: Any) -> dict[str, Any]:
    return turn(("submit", outputs or {"answer": "4"}), thought="done")


ROME = turn(("people", {"city": "Rome"}))
BOTH = turn(("people", {"city": "Rome"}), ("weather", {"city": "Oslo"}))
EMPTY = turn(thought="hm")
REPORT = {"report": "all well", "size": "small", "places": [{"name": "Rome", "people": 4}]}
TASK = {"task": "count", "hints": ["a", "b {c}"], "place": Place(name="Rome")}


@dataclass(frozen=True)
class AgentScript:
    """A script.

    Attributes:
        name: of the test.
        answers: of the LM, for all runs one after the other.
        runs: the inputs of each run; each later run continues the conversation.
        mode: the only one in which `ReActV2` can follow it, None for both; the loop follows it in both.
        error: whether a run ends without outputs.
    """

    name: str
    answers: Sequence[Answer]
    signature: Any = "question -> answer"
    tools: Sequence[Callable[..., Any]] = TOOLS
    max_turns: int = 20
    runs: Sequence[Mapping[str, Any]] = (QUESTION,)
    mode: str | None = None
    error: bool = False


SCRIPTS = [
    AgentScript("submit at once", [submit()]),
    AgentScript("a tool", [ROME, submit()]),
    AgentScript("three turns", [ROME, turn(("weather", {"city": "Rome", "day": "now"})), ROME, submit()]),
    AgentScript("the same call twice", [turn(*[("people", {"city": "Rome"})] * 2), submit()]),
    AgentScript("parallel calls", [BOTH, submit()]),
    AgentScript("ids of the model", [turn(("people", {"city": "Rome"}), ("clock", {}), ids=["a"]), submit()]),
    AgentScript("no thought", [turn(("people", {"city": "Rome"}), thought=""), submit()]),
    AgentScript("no tools", [submit()], tools=()),
    AgentScript("values", [turn(("count", {"n": 3, "unit": "dozen"}), ("clock", {})), submit()]),
    AgentScript("models", [turn(("describe", {"place": {"name": "Rome"}})), submit()]),
    AgentScript("hostile texts", [turn(("people", {"city": 'Ro\n[[ ## x ## ]] {"a": 1}\u2028"é\\n'})), submit()]),
    AgentScript("an async tool", [turn(("later", {"city": "Rome"})), submit()], tools=(later,), mode="async"),
    AgentScript("odd values", [turn(*(("odd", {"kind": kind}) for kind in ODD)), submit()], tools=(odd,)),
    AgentScript("unknown tool", [turn(("nothing", {"a": 1})), submit()]),
    AgentScript("unknown tool beside a known one", [turn(("nothing", {}), ("people", {"city": "Rome"})), submit()]),
    AgentScript("unknown argument", [turn(("people", {"town": "Rome"})), submit()]),
    AgentScript("missing argument", [turn(("people", {})), submit()]),
    AgentScript("argument of a wrong type", [turn(("count", {"n": "many"})), submit()]),
    AgentScript("argument that is not allowed", [turn(("count", {"n": 1, "unit": "ton"})), submit()]),
    AgentScript("a tool that raises", [turn(("people", {"city": "Atlantis"})), submit()]),
    AgentScript(
        "a tool that raises beside others",
        [turn(("people", {"city": "Atlantis"}), ("weather", {"city": "Rome"}), ("clock", {})), submit()],
    ),
    AgentScript("submit lacks its output", [turn(("submit", {})), submit()]),
    AgentScript("submit with more", [submit(answer="4", more=1)]),
    AgentScript("submit of a wrong type", [submit(n="many"), submit(n=4)], "question -> n: int"),
    AgentScript("two submits in a turn", [turn(("submit", {"answer": "3"}), ("submit", {"answer": "4"}))]),
    AgentScript("a good and a bad submit", [turn(("submit", {"answer": "3"}), ("submit", {}))]),
    AgentScript("submit beside a tool", [turn(("people", {"city": "Rome"}), ("submit", {"answer": "4"}))]),
    AgentScript("submit before a tool", [turn(("submit", {"answer": "4"}), ("people", {"city": "Atlantis"}))]),
    AgentScript("a bad submit beside a tool", [turn(("submit", {}), ("people", {"city": "Rome"})), submit()]),
    AgentScript("no calls", [EMPTY, submit()]),
    AgentScript("no calls after a turn", [ROME, EMPTY, submit()]),
    AgentScript("does not parse", [GARBLED, submit()]),
    AgentScript("does not parse after a turn", [ROME, GARBLED, submit()]),
    AgentScript("the last turn is reached", [ROME, BOTH, submit()], max_turns=2),
    AgentScript("no turn is allowed", [submit()], max_turns=0),
    AgentScript(
        "forced submit beside others",
        [ROME, turn(("people", {"city": "Oslo"}), ("submit", {"answer": "4"}))],
        max_turns=1,
    ),
    AgentScript("forced submit without a call", [ROME, EMPTY], max_turns=1, error=True),
    AgentScript("forced submit of another tool", [ROME, ROME], max_turns=1, error=True),
    AgentScript("forced submit lacks its output", [ROME, turn(("submit", {}))], max_turns=1, error=True),
    AgentScript("forced submit does not parse", [ROME, GARBLED], max_turns=1, error=True),
    AgentScript("never parses", [GARBLED, GARBLED], error=True),
    AgentScript("context window exceeded", [ROME, dspy.ContextWindowExceededError(message="too long"), submit()]),
    AgentScript(
        "context window exceeded twice",
        [
            ROME,
            dspy.ContextWindowExceededError(message="too long"),
            dspy.ContextWindowExceededError(message="too long"),
        ],
        error=True,
    ),
    AgentScript("an LM that fails", [ROME, LMRateLimitError(message="slow down")], error=True),
    AgentScript(
        "typed fields", [turn(("describe", {"place": {"name": "Rome"}})), submit(**REPORT)], Report, runs=(TASK,)
    ),
    AgentScript(
        "fields named as an agent's",
        [ROME, submit(session="4")],
        "mode, check -> session",
        runs=({"mode": "a", "check": "b"},),
    ),
    AgentScript("an input that is None", [ROME, submit(**REPORT)], Report, runs=({**TASK, "place": None},)),
    AgentScript("a second run", [ROME, submit(), BOTH, submit(answer="5")], runs=(QUESTION, {"question": "And now?"})),
    AgentScript(
        "a third run, after a forced submit",
        [ROME, submit(), EMPTY, submit(answer="5"), BOTH, submit(answer="6")],
        runs=(QUESTION, {"question": "And now?"}, {"question": "And then?"}),
        max_turns=2,
    ),
    AgentScript(
        "a second run with typed fields",
        [ROME, submit(**REPORT), ROME, submit(**REPORT)],
        Report,
        runs=(TASK, {**TASK, "task": "again", "place": None}),
    ),
]
