"""Random agents over several runs of a thread, sync and async, with crashes at random writes: as the guides promise."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import anyio.lowlevel
import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import Command, CompiledGraph, Kept, Run, Thread, agents, reducers, to_chat
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.parity import ADAPTERS
from tests.agents.promised_runs import (
    AgentPromise,
    PromisedThread,
    Response,
    drawn,
    last_turn_of,
    response_at,
    written,
)
from tests.agents.scripts import turn
from tests.log.failing import Crash, FailingMemory, crash
from tests.messages.providers import problems_of

STORE, NUMBERS = FailingMemory(), itertools.count()
CALLS: Counter[str] = Counter()


class Notes(BaseModel):
    plan: Kept[Annotated[list[str], reducers.append]] = []
    found: Kept[Annotated[list[str], reducers.extend]] = []


def look(tag: str) -> str:
    """Looks."""
    CALLS[tag] += 1
    return tag


async def later(tag: str) -> str:
    """Looks later."""
    CALLS[tag] += 1
    await anyio.lowlevel.checkpoint()
    return tag


def boom(tag: str) -> str:
    """Fails."""
    CALLS[tag] += 1
    raise ValueError(tag)


def mail(tag: str) -> str:
    """Sends a mail."""
    CALLS[tag] += 1
    return tag


def report(tag: str) -> Command[Any]:
    """Reports."""
    CALLS[tag] += 1
    return Command(update={"plan": tag}, result="noted")


def go(tag: str, mode: str) -> Command[Any]:
    """Hands off."""
    CALLS[tag] += 1
    return Command(update={"plan": tag}, goto=mode, result="gone")


def search(tag: str, left: int) -> str:
    """Searches."""
    CALLS[tag] += 1
    return f"{tag}|{left - 1}"


def has_plan(plan: list[str]) -> bool:
    """There is no plan."""
    return bool(plan)


def no_bad(answer: str) -> list[str]:
    return ["it is bad"] if answer.startswith("bad") else []


def program_of(agent: AgentPromise) -> CompiledGraph:
    sub = agents.tool_loop("topic -> findings: list[str]", [search], max_turns=2, name="Sub")
    tools = [look, later, boom, agents.tool(mail, approve=True), report, go]
    tools.append(agents.tool(dspy.Predict("tag -> summary"), name="summarize", desc="Sums up."))
    tools.append(agents.tool(sub, name="research", desc="Reads.", writes={"findings": "found"}))
    route = None if agent.route is None else lambda plan: "b" if len(plan) % 3 == agent.route else None
    modes = {
        "a": agents.Mode("A.", tools, to=["b"], route=route),
        "b": agents.Mode("B.", tools, to=["a"], guard=has_plan if agent.guarded else None),
    }
    checked: dict[str, Any] = (
        {} if agent.max_fixes is None else {"check": no_bad, "max_fixes": agent.max_fixes, "accept": True}
    )
    graph = agents.modes("question -> answer", modes, schema=Notes, max_turns=agent.max_turns, **checked)
    return graph.compile(store=STORE)


class Player:
    """Plays a script: what the model answers depends on its prompt alone, so a crash changes nothing."""

    def __init__(self, agent: AgentPromise, script: Sequence[Sequence[Response]], mode: str) -> None:
        self.script, self.mode = script, mode
        self.run = self.before = 0
        self.thread: Thread = program_of(agent).thread(f"t {next(NUMBERS)}")
        self.lm = ScriptedLM(self.answer)

    def answer(self, prompt: Prompt) -> dict[str, Any]:
        if "summary" in prompt.asks:
            CALLS[prompt.inputs["tag"]] += 1
            return {"summary": "short"}
        if "topic" in prompt.inputs:
            return self.research(prompt)
        place = sum(each.role == "assistant" for each in prompt.turns) - self.before
        response = response_at(self.script, self.run, place)
        CALLS["lm"] += 1
        return turn(*(last_turn_of if prompt.must_call else written)(response, self.run, place))

    def research(self, prompt: Prompt) -> dict[str, Any]:
        tag, _, left = prompt.inputs["topic"].partition("|")
        said = prompt.inputs.get("tool_call_results", "")
        left = said.partition("|")[2] if said.startswith(f"{tag}|") else left
        CALLS[f"{tag} lm"] += 1
        done = prompt.must_call or left == "0"
        return turn(("submit", {"findings": [tag]}) if done else ("search", {"tag": tag, "left": int(left)}))

    def begin(self, number: int) -> Run:
        self.run = number
        inputs = {"question": f"q{number}"}
        return self.thread.run(inputs) if self.mode == "sync" else asyncio.run(self.thread.arun(inputs))

    def resume(self) -> Run:
        """Goes on with the run; answers one of its open questions."""
        answers = {question.id: self.agreed(question.text) for question in self.thread.questions[-1:]}
        options: dict[str, Any] = {"max_resumes": 100}
        if self.mode == "sync":
            return self.thread.resume(answers, **options)
        return asyncio.run(self.thread.aresume(answers, **options))

    def agreed(self, text: str) -> bool:
        run, place, number = map(int, text.split("'t")[1].split("'", maxsplit=1)[0].split("."))
        return response_at(self.script, run, place)[number].agreed


def play(player: Player, number: int, crashes: Iterator[tuple[int, bool]]) -> int:
    """One run to its end; how often it crashed."""
    crashed = 0
    for attempt in itertools.count():
        assert attempt < 100
        STORE.rest()
        if armed := next(crashes, None):
            STORE.arm(crash, *armed)
        try:
            if player.thread.status in ("interrupted", "crashed"):
                player.resume()
            elif sum(commit.node == "START" for commit in player.thread.history()) == number:
                player.begin(number)
            else:
                break
        except Crash:
            crashed += 1
    return crashed


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Errors of tools are expected, hundreds of them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def equal(thread: Thread, promised: PromisedThread) -> None:
    """The thread is as promised."""
    state = thread.state.to_dict()
    said = [(each["role"], each.get("name"), each.get("error")) for each in state["messages"]]
    assert said == promised.messages
    assert not problems_of(to_chat(state["messages"]))
    assert (state["answer"], state.get("mode", "a")) == (promised.answer, promised.mode)
    assert (state["plan"], state["found"]) == (promised.plan, promised.found)
    sessions = {name: len(each) for name, each in state["sessions"].items() if "/s" in name}
    assert sessions == promised.sessions


@pytest.mark.slow("agents of two modes are built for each example, and run several times with crashes")
@given(
    st.integers(0, 2**32),
    st.sampled_from(["sync", "async"]),
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=3),
)
def test_all_runs_of_a_thread_are_as_promised(seed: int, mode: str, crashes: list[tuple[int, bool]]) -> None:
    agent, script = drawn(random.Random(seed))
    CALLS.clear()
    player, promised, left = Player(agent, script, mode), PromisedThread(agent, script), iter(crashes)
    crashed = 0
    with dspy.context(lm=player.lm, adapter=ADAPTERS["chat, native"]()):
        for number in range(len(script)):
            player.before = promised.turns
            promised.run(number)
            crashed += play(player, number, left)
            equal(player.thread, promised)
            assert promised.calls <= CALLS
            assert (CALLS - promised.calls).total() <= 4 * crashed, "only what ran when it crashed is called again"
