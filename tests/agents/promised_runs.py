"""What the guides promise of the runs of an agent, as a model of its own: from a script of the LM to what comes of it.

The model knows neither the graph nor its state. It says the messages, the fields, the mode, and how often each tool and
each LM is called, run after run of one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

MODES = ("a", "b")
TOOLS = frozenset({"look", "later", "boom", "mail", "report", "go", "summarize", "research"})
WRITERS = frozenset({"report", "research"})  # their results count at the end of a turn of several calls


class DrawnCall(NamedTuple):
    """One call of the model.

    Attributes:
        kind: a key of `KINDS`.
        agreed: the answer to the question that it asks, if any.
        session: which session it continues; 0 for one of its own.
        steps: how often the sub-agent calls its tool.
    """

    kind: str
    agreed: bool = True
    session: int = 0
    steps: int = 0


Response = tuple[DrawnCall, ...]
"""The calls of one response; none for a response without calls."""

KINDS = {  # what the model calls: the tool, and its arguments but for the tag
    **{name: (name, {}) for name in ("look", "later", "boom", "mail", "report", "summarize", "research")},
    "go": ("go", {"mode": "b"}),
    "go nowhere": ("go", {"mode": "c"}),
    "to_a": ("to_a", None),
    "to_b": ("to_b", None),
    "unknown": ("nothing", None),
    "wrong": ("look", None),
    "good": ("submit", None),
    "bad": ("submit", None),
    "empty": ("submit", None),
}
GOOD: Response = (DrawnCall("good"),)


@dataclass(frozen=True)
class AgentPromise:
    """An agent of two modes.

    Attributes:
        guarded: whether mode b can only be entered with a plan.
        route: mode a is followed by b whatever the model says if the plan has so many entries, modulo 3; None: never.
        max_turns: of each run.
        max_fixes: corrections of each run, after which the outputs are accepted; None for no check.
    """

    guarded: bool
    route: int | None
    max_turns: int
    max_fixes: int | None


def drawn(rng: random.Random) -> tuple[AgentPromise, list[list[Response]]]:
    """An agent, and what its model answers in each run.

    Drawn by chance alone: Hypothesis prefers short scripts with equal calls, in which little can go wrong.
    """
    agent = AgentPromise(
        rng.random() < 0.5, rng.choice([None, None, 0, 1]), rng.choice([1, 3, 5]), rng.choice([None, 0, 1, 2])
    )
    return agent, [[drawn_response(rng) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 3))]


def drawn_response(rng: random.Random) -> Response:
    """One response: without calls now and then, outputs alone more often, else calls of two kinds."""
    alone = rng.random()
    if alone < 0.3:
        return () if alone < 0.05 else (DrawnCall(rng.choice(["good", "bad"])),)
    kinds = rng.choices(rng.sample([*KINDS, "research", "go", "to_b"], 2), k=rng.randint(1, 4))
    return tuple(DrawnCall(kind, rng.random() < 0.7, rng.choice([0, 1, 1, 2]), rng.randint(0, 3)) for kind in kinds)


def response_at(script: Sequence[Sequence[Response]], run: int, place: int) -> Response:
    """What the model answers in a run; when its script is over, good outputs."""
    return script[run][place] if place < len(script[run]) else GOOD


def written(response: Response, run: int, place: int) -> list[tuple[str, dict[str, Any]]]:
    """The calls as the model writes them. Each has a tag of its own."""
    found = []
    for number, call in enumerate(response):
        (name, args), tag = KINDS[call.kind], f"t{run}.{place}.{number}"
        if call.kind in ("good", "bad"):
            found.append((name, {"answer": f"{call.kind} {tag}"}))
        elif call.kind == "research":
            session = {"session": f"s{call.session}"} if call.session else {}
            found.append((name, {"topic": f"{tag}|{call.steps}", **session}))
        else:
            found.append((name, {} if args is None else {"tag": tag, **args}))
    return found


def last_turn_of(response: Response, run: int, place: int) -> list[tuple[str, dict[str, Any]]]:
    """What the model answers when it must submit: the outputs of this response, or good ones."""
    kept = [call for call in written(response, run, place) if call[0] == "submit" and call[1]]
    return kept or [("submit", {"answer": f"good t{run}.{place}"})]


@dataclass
class PromisedThread:
    """What a thread must have after its runs so far.

    Attributes:
        mode: the mode.
        answer: the output.
        plan: what tools noted.
        found: what sub-agents found.
        messages: role, author, and of each result whether it is an error.
        sessions: how many messages each named session has.
        calls: of each tag, and of the LMs.
        turns: of all runs.
    """

    agent: AgentPromise
    script: Sequence[Sequence[Response]]
    mode: str = "a"
    answer: str | None = None
    plan: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    messages: list[tuple[str, str | None, bool | None]] = field(default_factory=list)
    sessions: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    turns: int = 0

    def run(self, number: int) -> None:
        """One more run."""
        fixes = self.agent.max_fixes or 0
        self.answer = None
        self.messages.append(("user", None, None))
        for place in count():
            if not self._submits(number, place):
                continue
            if self.agent.max_fixes is None or not str(self.answer).startswith("bad") or not fixes:
                return
            fixes -= 1
            self.answer = None
            self.messages.append(("user", "check", None))

    def _submits(self, run: int, place: int) -> bool:
        """One turn; whether it ends with outputs."""
        response, mode = response_at(self.script, run, place), self.mode
        last = place >= self.agent.max_turns or not response
        self.calls["lm"] += (place < self.agent.max_turns) + last
        calls = last_turn_of(response, run, place) if last else written(response, run, place)
        self.turns += 1
        self.messages.append(("assistant", mode, None))
        handoffs = {n: args.get("mode", other(mode)) for n, (name, args) in enumerate(calls) if hands_off(name, mode)}
        used = set[str]()
        failed = {n: self._called(*call, response[n] if response else GOOD[0], used) for n, call in enumerate(calls)}
        routed = None if last else self._routed(mode)
        target = None
        for number, wanted in handoffs.items():
            allowed = wanted == other(mode) and target is None and routed in (None, wanted)
            held = wanted == "b" and routed is None and self.agent.guarded and not self.plan
            target = wanted if allowed and not held else target
            failed[number] = not allowed or held
        late = {n for n in failed if calls[n][0] in WRITERS and len(calls) > 1 and not failed[n]}
        settled = [n for n, (name, _) in enumerate(calls) if name not in TOOLS or n in handoffs or n in late]
        for number in [n for n in failed if n not in settled] + settled:
            self.messages.append(("tool", calls[number][0], failed[number]))
        self.mode = routed or target or mode
        outputs = [args["answer"] for name, args in calls if name == "submit" and args]
        self.answer = outputs[-1] if outputs else self.answer
        return bool(outputs) and routed is None

    def _called(self, name: str, args: dict[str, Any], call: DrawnCall, used: set[str]) -> bool:
        """A call; whether its result is an error. That of a handoff depends on the other calls."""
        if name == "submit":
            return not args
        if name == "research":
            return self._researched(args, call.steps, used)
        if name not in TOOLS or not args or (name == "mail" and not call.agreed):
            return True
        self.calls[args["tag"]] += 1
        if name in ("report", "go"):
            self.plan.append(args["tag"])
        return name == "boom"

    def _researched(self, args: dict[str, Any], steps: int, used: set[str]) -> bool:
        """A call of the sub-agent, which takes two ordinary turns at most; whether its result is an error."""
        session, tag = args.get("session"), args["topic"].partition("|")[0]
        if session in used:
            return True
        steps = min(steps, 2)
        self.calls[f"{tag} lm"] += steps + 1
        self.calls[tag] += steps
        self.found.append(tag)
        if session:
            used.add(session)
            self.sessions[f"research/{session}"] += 1 + 2 * (steps + 1)
        return False

    def _routed(self, mode: str) -> str | None:
        route = self.agent.route
        return "b" if mode == "a" and route is not None and len(self.plan) % 3 == route else None


def hands_off(name: str, mode: str) -> bool:
    """Whether a call asks for a handoff. A mode has no tool that hands off to itself."""
    return name in ("go", f"to_{other(mode)}")


def other(mode: str) -> str:
    """The mode that may follow."""
    return "b" if mode == "a" else "a"
