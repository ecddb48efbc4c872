"""Every optimizer tunes an agent: every predictor learns, from no rejected output, and no tool is saved."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request
from dspy.teleprompt import BootstrapFewShotWithOptuna
from pydantic import BaseModel

from dspyer import END, START, Command, Conversations, Graph, agents, optimize
from dspyer.search import best_of
from dspyer.testing import NearestLM, Prompt, ScriptedLM
from tests.dspy_optimizers import table
from tests.dspy_optimizers.lm import FakeProvider
from tests.dspy_optimizers.programs import LABEL, TEXTS, exact, generous
from tests.dspy_optimizers.table import ROWS, Row, Tune
from tests.rows import each
from tests.search.kit import RolloutLM, asked_here

REFUSED = "refused-note"
MARK = "described-by-its-docstring"
DESKS = dict(TEXTS)
TRAIN = [dspy.Example(question=text, label=label).with_inputs("question") for text, label in TEXTS]


def look_up(text: str) -> str:
    """Finds a desk, described-by-its-docstring."""
    return f"desk: {DESKS.get(text, 'east')}"


class Plan(BaseModel):
    plan: list[str] = []


def report_plan(steps: list[str]) -> Command[Any]:
    """Reports the plan, described-by-its-docstring."""
    return Command(update={"plan": steps}, goto="work", result="noted")


class AgentLM(RolloutLM):
    """Plays the agents: looks up, reports a plan, asks the sub-agent; its first note is refused for even questions.

    With demos or other instructions it finds the desk more often, so that there is something to learn. What optimizers
    ask for their own use is answered by the nearest demonstration.
    """

    def __init__(self, model: str = "fake/model", **kwargs: Any) -> None:
        super().__init__(self.reply, model, **{"provider": FakeProvider(), **kwargs})

    def reply(self, prompt: Prompt, _rollout: int) -> Any:
        if "new_instruction" in prompt.asks:
            return {"new_instruction": "Read what the tool found."}
        if "tool_calls" not in prompt.asks:
            return nearest(prompt)
        asked = asked_here()
        name, args = self.next_call(prompt, asked.rollout if asked.temperature > 0 else None)
        return {"next_thought": f"I call {name}", "tool_calls": [{"name": name, "args": args}]}

    def next_call(self, prompt: Prompt, rollout: int | None) -> tuple[str, dict[str, Any]]:
        """The call that comes next, from the tools and what was said since the demos."""
        demos = [place for place, each in enumerate(prompt.turns) if "an example of the task" in each.content]
        said = "\n".join(each.content for each in prompt.turns[demos[-1] + 2 if demos else 1 :])
        question = max(DESKS, key=said.rfind)
        tools = prompt.inputs["tools"]
        if "report_plan" in tools:
            return "report_plan", {"steps": ["ask"]}
        if "desk: " not in said:
            return ("research", {"topic": question}) if "research" in tools else ("look_up", {"text": question})
        if "'finding'" in tools:
            return "submit", {"finding": f"desk: {DESKS[question]}"}
        untuned = prompt.instructions.endswith("`submit`.") and not demos
        luck = hashlib.sha256(f"{question}{rollout}".encode()).digest()[0]
        label = DESKS[question] if luck < (128 if untuned else 230) else "east"
        bad = len(question) % 2 == 0 and "it says too little" not in said
        return "submit", {"label": label, "note": REFUSED if bad else f"on {question}"}

    def dump_state(self) -> Any:
        return {**dspy.BaseLM.dump_state(self), "model": self.model}

    @classmethod
    def load_state(cls, state: Any) -> AgentLM:
        return cls(state["model"])


def nearest(prompt: Prompt) -> str:
    """What the nearest demonstration answers."""
    system, *others = prompt.turns
    texts = [Message.user(turn.content) if turn.role == "user" else Message.assistant(turn.content) for turn in others]
    return str(NEAREST(Request(model="nearest", system=system.content, messages=tuple(texts))).message.text)


NEAREST = NearestLM()


def is_long(note: str) -> list[str]:
    return ["it says too little"] if note == REFUSED else []


def lone() -> Any:
    return agents.tool_loop(f"question -> {LABEL}, note", [look_up], check=is_long).compile()


def team() -> Any:
    """Two modes, of which the second has a sub-agent; a check refuses what is too short."""
    research = agents.tool_loop("topic -> finding", [look_up], name="Research")
    helper = agents.tool(research, name="research", desc=f"Looks into it, {MARK}.")
    modes = {
        "plan": agents.Mode("Make a plan.", tools=[report_plan], to=["work"]),
        "work": agents.Mode("Do {plan}.", tools=[helper]),
    }
    return agents.modes(f"question -> {LABEL}, note", modes, schema=Plan, check=is_long).compile()


def random_search(program: Any, trainset: Any, lm: Any) -> Any:
    few = {"max_bootstrapped_demos": 2, "max_labeled_demos": 2}
    optimizer = dspy.BootstrapFewShotWithRandomSearch(metric=generous, num_candidate_programs=1, num_threads=1, **few)
    return optimizer.compile(program, trainset=trainset[:2])


def with_optuna(program: Any, trainset: Any, lm: Any) -> Any:
    few = {"max_bootstrapped_demos": 1, "max_labeled_demos": 1}
    optimizer = BootstrapFewShotWithOptuna(metric=generous, num_candidate_programs=1, num_threads=1, **few)
    return optimizer.compile(program, max_demos=1, trainset=trainset[:2])


def mipro(program: Any, trainset: Any, lm: Any) -> Any:
    few = {"max_bootstrapped_demos": 1, "max_labeled_demos": 1}
    optimizer = dspy.MIPROv2(metric=generous, auto=None, num_candidates=2, num_threads=1, seed=3, **few)
    examples = trainset[:2]
    return optimizer.compile(program, trainset=examples, valset=examples, num_trials=2, minibatch=False)


def simba(program: Any, trainset: Any, lm: Any) -> Any:
    optimizer = dspy.SIMBA(metric=exact, bsize=3, num_candidates=2, max_steps=1, max_demos=2, num_threads=1)
    return optimizer.compile(program, trainset=trainset, seed=1)


def copro(program: Any, trainset: Any, lm: Any) -> Any:
    options = {"num_threads": 1, "display_progress": False, "display_table": 0}
    return dspy.COPRO(metric=exact, breadth=2, depth=1).compile(program, trainset=trainset[:2], eval_kwargs=options)


def infer_rules(program: Any, trainset: Any, lm: Any) -> Any:
    few = {"max_bootstrapped_demos": 1, "max_labeled_demos": 1}
    optimizer = dspy.InferRules(metric=generous, num_candidates=1, num_rules=2, num_threads=1, **few)
    return optimizer.compile(program, trainset=trainset[:2], valset=trainset[2:4])


def few_examples(tune: Tune, program: Any, trainset: Any, lm: Any) -> Any:
    return tune(program, trainset[:3], lm)


CHEAPER: dict[str, Tune] = {
    "BootstrapFewShotWithRandomSearch": random_search,
    "BootstrapFewShotWithOptuna": with_optuna,
    "MIPROv2": mipro,
    "SIMBA": simba,
    "COPRO": copro,
    "InferRules": infer_rules,
    "GEPA": functools.partial(few_examples, functools.partial(table.gepa, max_metric_calls=6)),
    "BetterTogether": functools.partial(few_examples, table.better_together),
    "GRPO": functools.partial(table.grpo, steps=1),
}
"""Optimizers that call the program many times, with smaller budgets than in the table."""

TUNED = [dataclasses.replace(row, tune=CHEAPER.get(row.name, row.tune)) for row in ROWS if row.name.isalnum()]
"""One row for each optimizer."""


def tune(row: Row, program: Any) -> tuple[Any, AgentLM]:
    lm = AgentLM()
    with dspy.context(lm=lm):
        if row.pins_lm:
            program = optimize.accepted_only(program)
            program.set_lm(lm)
        return row.tune(program, TRAIN, lm), lm


def learned(program: Any, before: Any) -> list[bool]:
    """Of each predictor, whether it has demos or other instructions."""
    old = {name: predictor.signature.instructions for name, predictor in before.named_predictors()}
    return [
        bool(predictor.demos) or predictor.signature.instructions != old[name]
        for name, predictor in program.named_predictors()
    ]


def outputs_to_follow(lm: AgentLM, tuned: Any) -> Iterator[str]:
    """What a model is to give, as text: the outputs of demos, and of data to train on."""
    for _, predictor in tuned.named_predictors():
        yield from (str(demo.get("tool_calls")) for demo in predictor.demos)
    for job in lm.provider.jobs:
        yield from (data["messages"][-1]["content"] for data in job)
    for item in getattr(getattr(lm, "reinforced", None), "groups", ()):
        yield from (json.dumps(one["completion"]) for one in item["group"])


DEAR = {"SIMBA", "COPRO", "MIPROv2", "InferRules", "BootstrapFewShotWithRandomSearch", "BootstrapFewShotWithOptuna"}
"""They run the program dozens of times, and the others look deeper into it: for these, an agent of one predictor."""


LONG = pytest.mark.slow("it plays an agent, or a team of agents, twenty times")


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[LONG] * (row.name in {"SIMBA", "GEPA"})) for row in TUNED]
)
def test_every_optimizer_tunes_every_predictor_of_agents(row: Row, tmp_path: Path) -> None:
    build = lone if row.name in DEAR else team
    tuned, lm = tune(row, build())
    with dspy.context(lm=lm):
        assert tuned(question=TEXTS[0][0]).label in DESKS.values()
    assert any(REFUSED in turn.content for sent in lm.calls for turn in sent.prompt.turns), "nothing was refused"
    found = learned(tuned, build())
    assert {"all": all(found), "some": any(found), "none": True}[row.learns], found
    if row.name == "BootstrapFewShot":
        assert all(any(demo.get("augmented") for demo in each.demos) for each in tuned.predictors())
    assert not [text for text in outputs_to_follow(lm, tuned) if REFUSED in text]
    tuned.save(tmp_path / "agent.json")
    saved = (tmp_path / "agent.json").read_text()
    assert MARK not in saved
    assert '"tools"' not in saved
    loaded = build()
    loaded.load(tmp_path / "agent.json", allow_unsafe_lm_state=True)
    assert json.dumps(loaded.dump_state()) == json.dumps(tuned.dump_state())


def test_an_agent_that_checks_itself_is_reinforced() -> None:
    """S002-37: reinforcement learning.

    GRPO fails at a step of a predictor that the program has not, and so at a question for problems in the trace.
    """

    def respond(prompt: Prompt) -> dict[str, Any]:
        if "problems" in prompt.asks:
            return {"problems": []}
        return {"next_thought": "", "tool_calls": [{"name": "submit", "args": {"label": "east", "note": "so"}}]}

    class SelfLM(AgentLM):
        def reply(self, prompt: Prompt, _rollout: int) -> Any:
            return respond(prompt)

    [row] = [row for row in TUNED if row.name == "GRPO"]
    program, lm = agents.tool_loop(f"question -> {LABEL}, note", [look_up], check="react").compile(), SelfLM()
    program.set_lm(lm)
    with dspy.context(lm=lm):
        row.tune(program, TRAIN, lm)
    assert lm.reinforced.groups


def demos_of(program: Any, demo: dspy.Example, adapter: dspy.Adapter) -> str:
    """The demos in the prompt of a program with this demo."""
    tuned = program.deepcopy()
    tuned.react.demos = [demo]
    answer = {"next_thought": "", "tool_calls": [{"name": "submit", "args": {"label": "east", "note": ""}}]}
    with ScriptedLM([answer]) as lm, dspy.context(adapter=adapter):
        tuned(question="?")
    return str(lm.calls[0].messages[1:-1])


@pytest.mark.parametrize("native", [False, True])
def test_demos_show_what_those_of_react_show(native: bool) -> None:
    """No labelled example, and with native calls no calls: the guide says so."""
    adapter = dspy.ChatAdapter(use_native_function_calling=native)
    calls = dspy.ToolCalls.from_dict_list([{"name": "look_up", "args": {"text": "the call"}}])
    turn = dspy.Example(
        question="the question", history=dspy.History(messages=[]), next_thought="I look", tool_calls=calls
    )
    by_hand = dspy.ReActV2(f"question -> {LABEL}, note", [look_up])
    assert demos_of(lone(), turn, adapter) == demos_of(by_hand, turn, adapter)
    shown = demos_of(lone(), turn, adapter)
    assert ("the question" in shown, "I look" in shown, "the call" in shown) == (True, True, not native)
    assert demos_of(lone(), TRAIN[0], adapter) == demos_of(by_hand, TRAIN[0], adapter) == "[]"


@each(("kind", "own"), itertools.product(["node", "tool", "search"], [None, 3]))
def test_demos_of_agents_in_other_graphs_are_shortened(kind: str, own: int | None) -> None:
    """Unless the graph inside has a number of its own."""
    inner = agents.tool_loop("question -> label, note", [look_up]).compile(layers=[Conversations(max_demo_turns=own)])
    graph = {
        "node": lambda: Graph().add_node("lead", inner).add_path(START, "lead", END),
        "tool": lambda: agents.tool_loop("task -> label", [agents.tool(inner, name="lead", desc="Helps.")]),
        "search": lambda: best_of(inner, 1, lambda note: 1.0),
    }[kind]()
    program = graph.compile(layers=[Conversations(max_demo_turns=2)])
    part = program.trial if kind == "search" else program.lead
    history = dspy.History(messages=[{"next_thought": f"thought {number}"} for number in range(5)])
    calls = dspy.ToolCalls.from_dict_list([{"name": "submit", "args": {"label": "east", "note": ""}}])
    part.react.demos = [dspy.Example(question="?", history=history, next_thought="so", tool_calls=calls)]
    with ScriptedLM(submits_or_delegates) as lm:
        program(**({"task": "?"} if kind == "tool" else {"question": "?"}))
    shown = str(next(call.messages for call in lm.calls if "thought 4" in str(call.messages)))
    assert [number for number in range(5) if f"thought {number}" in shown] == list(range(5 - (own or 2), 5))
    assert "demo_turns" in vars(part.react)
    assert vars(inner.react).get("demo_turns") == own


def submits_or_delegates(prompt: Prompt) -> dict[str, Any]:
    """Calls the sub-agent once, if there is one, and submits."""
    name, args = "submit", {"label": "east", "note": ""}
    if "lead, whose" in prompt.inputs["tools"]:
        called = '"lead"' in str(prompt.turns)
        name, args = ("submit", {"label": "east"}) if called else ("lead", {"question": "?"})
    return {"next_thought": "", "tool_calls": [{"name": name, "args": args}]}


def test_refine_advises_an_agent_whose_output_was_refused() -> None:
    def respond(prompt: Prompt) -> dict[str, Any]:
        if "advice" in prompt.asks:
            return {"discussion": "so", "advice": {"react": "the advice"}}
        note = "better" if "it says too little" in str(prompt.turns) else REFUSED
        args = {"label": "east", "note": note}
        return {"next_thought": "", "tool_calls": [{"name": "submit", "args": args}]}

    program = agents.tool_loop(f"question -> {LABEL}, note", [look_up], check=is_long).compile()
    refine = dspy.Refine(optimize.accepted_only(program), N=2, reward_fn=lambda args, found: 0.0, threshold=1.0)
    with ScriptedLM(respond) as lm, dspy.context(trace=[]):
        assert refine(question="?").note == "better"
    assert len(lm.calls) == 5
    assert all("the advice" in str(call.messages) for call in lm.calls[-2:])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_response_without_tool_calls_is_no_example(mode: str) -> None:
    args = {"label": "east", "note": ""}
    script = [
        {"next_thought": "I stop", "tool_calls": []},
        {"next_thought": "", "tool_calls": [{"name": "submit", "args": args}]},
    ]
    program = agents.tool_loop(f"question -> {LABEL}, note", [look_up]).compile()
    with ScriptedLM(script):
        run = program.run({"question": "?"}) if mode == "sync" else asyncio.run(program.arun({"question": "?"}))
    assert (run.status, [one.calls[0] for one in run.commits if one.node == "react"]) == ("completed", [2])
    assert [step[2].next_thought.content for step in run.trace] == [""]
    assert [step.status for step in run.trace_steps] == ["lost", "used"]
