"""LMs for `bench.optimize` that can learn: what they answer depends on the texts of their prompts, and on nothing else.

**The task.** Values are texts such as `red 17`: one of six kinds, and a number. Each step of a program turns the value
that it reads into the value that it writes by a convention that depends on the kind: "red: add 2". Which kind the new
value has follows from its number. So a step that reads a wrong value writes a wrong value too, mostly by a rule for
another kind than it should have used. A step that chooses a path writes the name of a desk instead.

**The task LM** knows the conventions of four of the six kinds of each step. It learns the others from the instruction
("- red: add 2"), else from demonstrations (whose inputs and outputs show what was added); else it adds 0 or names the
first desk, which is wrong; at a temperature above 0, with a rollout id, it guesses one of four numbers or two desks.
An instruction wins over what the LM knows, so a wrong rule harms.

**The reflection LM** writes rules into instructions. For each record that it is shown:

- feedback that says that the step is right, or that there is nothing to fix: no rule.
- feedback on the output of this very step, with the value that was expected: with probability `p_high` the rule that
  leads from the shown input to the expected value. If the input was wrong, that rule is wrong; it cannot know.
- other feedback, such as that the final answer is wrong: with probability `p_low` the right rule for the shown input,
  if the shown output breaks it. That is what a strong LM knows or guesses about the task.

So a value that is expected for other inputs misleads it. Two of the sweeps have reflection LMs that are harder to
mislead: a *careful* one writes only plausible rules, those that add 1, 2 or 3, as all right ones do; one that is *never
misled* writes no wrong rule at all.

It always returns a text that differs from the one that it was shown, as LMs do: a remark with a number at the end.

**What makes this easier than the real thing**: rules never disturb one another, no rule is forgotten in a rewrite, and
every instruction is obeyed. All of that favours selecting many components at once, so it favours the baselines that
edit all of them. **What makes it harder**: a step has no skill in common with another one.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from dspyer.testing.prompt import Prompt, Sampling, TextLM, write_answer

KINDS = ("red", "green", "blue", "amber", "white", "black")
UNKNOWN = 2  # kinds of each step whose convention the task LM does not know
DESKS = ("north", "south")
VALUE = re.compile(r"\b(" + "|".join(KINDS) + r") (-?\d+)\b")
RULE = re.compile(r"^- (\w+): (?:add (-?\d+)|desk (\w+))$", re.MULTILINE)
REMARK = re.compile(r"\n\(Version \d+: work with care\.\)$")
FIXED = ("nothing to fix", "is right")
EXPECTED = re.compile(r"`(\w+)` is ['\"]?([\w -]+?)['\"]?, expected ['\"]?([\w -]+?)['\"]?\.(?=\s|$)")

Action = int | str  # what a rule says: the number to add, or the desk


def chance(*parts: object) -> random.Random:
    """A generator of random numbers that depends on the parts alone, the same in every process."""
    return random.Random(sha256(repr(parts).encode()).digest())


def kind_of(step: str, number: int) -> str:
    """The kind of the value that a step writes."""
    return KINDS[sha256(f"{step} {number}".encode()).digest()[0] % len(KINDS)]


@dataclass(frozen=True)
class Step:
    """A step of a program: what it reads, what it writes, and whether it chooses a desk.

    Attributes:
        name: name of the step, and of its node.
        reads: fields that it reads; the first one has the kind, the numbers of all values in them are added up.
        writes: the field that it writes.
        chooses: whether it writes the name of a desk.
        minus: fields whose numbers are taken off.
        shown: fields that it is shown besides, and need not use.
    """

    name: str
    reads: tuple[str, ...]
    writes: str
    chooses: bool = False
    minus: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def instruction(self) -> str:
        """The instruction that a program starts with. Its first words are how an LM knows the step."""
        return f"As the {self.name} step, write `{self.writes}`."

    def situation(self, inputs: Mapping[str, str]) -> tuple[str, int] | None:
        """Kind and number of the inputs, None if they are no values."""
        found = [VALUE.findall(str(inputs.get(name, ""))) for name in self.reads]
        if not all(found):
            return None
        signs = [-1 if name in self.minus else 1 for name in self.reads]
        total = sum(sign * int(number) for sign, values in zip(signs, found, strict=True) for _, number in values)
        return found[0][0][0], total

    def apply(self, number: int, action: Action) -> str:
        """What the step writes if it does that."""
        if isinstance(action, str):
            return action
        return f"{kind_of(self.name, number + action)} {number + action}"

    def infer(self, number: int, output: str) -> Action | None:
        """What the step did, or should have done, if that was its output."""
        if self.chooses:
            return output if output in DESKS else None
        match = VALUE.search(output)
        return None if match is None else int(match.group(2)) - number


@dataclass
class Conventions:
    """The hidden parameters: what each step does with each kind, and which of it the task LM knows."""

    steps: tuple[Step, ...]
    seed: int
    actions: dict[str, dict[str, Action]] = field(init=False)
    unknown: dict[str, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.actions, self.unknown = {}, {}
        for step in self.steps:
            dice = chance("conventions", self.seed, step.name)
            self.unknown[step.name] = frozenset(dice.sample(KINDS, UNKNOWN))
            actions: list[Action] = [dice.choice(DESKS) if step.chooses else dice.randint(1, 3) for _ in KINDS]
            self.actions[step.name] = dict(zip(KINDS, actions, strict=True))
            if step.chooses:  # the LM names the first desk if it does not know, which must be wrong
                self.actions[step.name].update(dict.fromkeys(self.unknown[step.name], DESKS[1]))

    def right(self, step: Step, inputs: Mapping[str, str]) -> str:
        """What the step should write for these inputs."""
        situation = step.situation(inputs)
        assert situation is not None, f"{step.name} cannot read {dict(inputs)}"
        kind, number = situation
        return step.apply(number, self.actions[step.name][kind])


def rules_in(text: str) -> dict[str, Action]:
    """The rules of an instruction by kind; the last one of a kind counts."""
    return {kind: int(add) if add else desk for kind, add, desk in RULE.findall(text)}


def step_of(steps: Sequence[Step], text: str) -> Step:
    """The step that a text is about."""
    return next(step for step in steps if f"As the {step.name} step" in text)


@dataclass(frozen=True)
class Skill:
    """How well a reflection LM learns.

    Attributes:
        p_low: probability that it writes the right rule although the feedback is not about the step's own output.
        p_high: probability that it writes the rule that the expected value of the step's own output shows.
        misled: by which expected values it is misled: by all of them, by those that show a plausible rule, or by none.
    """

    p_low: float = 0.2
    p_high: float = 0.7
    misled: Literal["always", "plausibly", "never"] = "always"


class Worker:
    """Answers the prompts of a program's steps, and counts them."""

    def __init__(self, conventions: Conventions) -> None:
        self.conventions = conventions
        self.calls = 0
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Worker:
        return self  # copies of the LM count in one place

    def __call__(self, prompt: Prompt, sampling: Sampling, /) -> str:
        with self._lock:
            self.calls += 1
        step = step_of(self.conventions.steps, prompt.instructions)
        situation = step.situation(prompt.inputs)
        if situation is None:
            return write_answer(prompt, {step.writes: "unreadable"})
        kind, number = situation
        return write_answer(prompt, {step.writes: step.apply(number, self._action(step, prompt, kind, sampling))})

    def _action(self, step: Step, prompt: Prompt, kind: str, sampling: Sampling) -> Action:
        told = rules_in(prompt.instructions)
        if kind in told:
            return told[kind]
        for demo in prompt.demos:
            situation = step.situation(demo.inputs)
            if situation is not None and situation[0] == kind and step.writes in demo.outputs:
                shown = step.infer(situation[1], demo.outputs[step.writes])
                if shown is not None:
                    return shown
        if kind not in self.conventions.unknown[step.name]:
            return self.conventions.actions[step.name][kind]
        guesses: tuple[Action, ...] = DESKS if step.chooses else (0, 1, 2, 3)
        if not sampling.temperature or sampling.rollout is None:
            return guesses[0]
        asked = (step.name, tuple(prompt.inputs.items()), len(prompt.demos))
        return chance("guess", self.conventions.seed, sampling.rollout, *asked).choice(guesses)


class Reflector:
    """Writes instructions after the records that it is shown, and counts how often it was asked."""

    def __init__(self, conventions: Conventions, skill: Skill) -> None:
        self.conventions = conventions
        self.skill = skill
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Reflector:
        return self

    @property
    def calls(self) -> int:
        return self.sent.total()

    def __call__(self, prompt: Prompt, sampling: Sampling, /) -> str:
        shown = prompt.inputs["current_instruction"], prompt.inputs["examples_with_feedback"]
        with self._lock:
            self.sent["\n".join(shown)] += 1
            time = self.sent["\n".join(shown)]
        dice = chance("reflection", self.conventions.seed, *shown, time)
        text = REMARK.sub("", shown[0])
        step = step_of(self.conventions.steps, text)
        for record in json.loads(shown[1]):
            learned = self._learn(step, record, dice.random())
            if learned is not None:
                kind, rule = learned
                text = re.sub(rf"\n- {kind}: .*", "", text) + f"\n- {kind}: {rule}"
        return write_answer(prompt, {"new_instruction": f"{text}\n(Version {dice.randrange(10**9)}: work with care.)"})

    def _learn(self, step: Step, record: Mapping[str, Any], luck: float) -> tuple[str, str] | None:
        """A kind and the rule for it, None if the record teaches nothing this time."""
        feedback, outputs = record["Feedback"], record["Generated Outputs"]
        situation = step.situation(record["Inputs"])
        if situation is None or not isinstance(outputs, Mapping):
            return None
        kind, number = situation
        own = next((wanted for name, _, wanted in EXPECTED.findall(feedback) if name == step.writes), None)
        if own is not None:
            action = step.infer(number, own) if luck < self.skill.p_high else None
            if self.skill.misled == "plausibly" and isinstance(action, int) and action not in (1, 2, 3):
                return None
            if self.skill.misled == "never" and action != self.conventions.actions[step.name][kind]:
                return None
        elif any(words in feedback for words in FIXED):
            return None
        else:
            action = self.conventions.actions[step.name][kind] if luck < self.skill.p_low else None
            if action is not None and outputs.get(step.writes) == step.apply(number, action):
                return None
        if action is None:
            return None
        return kind, f"desk {action}" if isinstance(action, str) else f"add {action}"


class TaskLM(TextLM):
    """The LM of the programs, with DSPy's cache on unless told otherwise."""

    def __init__(self, worker: Worker, cache: bool = True) -> None:
        super().__init__("simulated/task", worker, cache=cache)


class ReflectionLM(TextLM):
    """The LM that writes instructions."""

    def __init__(self, reflector: Reflector, cache: bool = True) -> None:
        super().__init__("simulated/reflection", reflector, cache=cache, temperature=1.0)
