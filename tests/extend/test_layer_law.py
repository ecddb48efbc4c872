"""The law of the layer that does nothing: at each place it changes no commit, no trace and no event of any graph."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import dspy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspyer import CompiledGraph, Run
from dspyer.errors import StoreError
from dspyer.extend import using
from dspyer.stores import Memory, Store
from dspyer.testing import ScriptedLM, no_pauses
from tests.extend.kit import nothing
from tests.log.equality import outcome
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.kinds import CALLS, INPUTS, KINDS
from tests.log.test_error_edges_of_random_graphs import Behaviour, Faults, faulty_plans
from tests.runtime.test_attempt_law import Nodes
from tests.runtime.test_attempt_law import Plan as BlockPlan
from tests.runtime.test_attempt_law import plans as block_plans
from tests.scheduler.test_schedule import Plan

Mode = Literal["sync", "async", "stored", "astored"]
MODES = st.sampled_from(["sync", "async", "stored", "astored"])
OWN = {"run_id", "started", "ended", "duration", "seconds", "pause", "at", "time", "position"}
"""What a run has of its own: times, its id, the order in which nodes ended that ran at once."""


def surrounded() -> AbstractContextManager[None]:
    """A block with layers that do nothing, of each kind at each place, around all nodes, of inner graphs too."""
    return using(*nothing())


def play(program: CompiledGraph, mode: Mode, inputs: dict[str, Any]) -> Run:
    match mode:
        case "sync":
            return program.run(inputs)
        case "async":
            return asyncio.run(program.arun(inputs))
        case "stored":
            return program.thread("t").run(inputs)
        case "astored":
            return asyncio.run(program.thread("t").arun(inputs))


def told(run: Run) -> Counter[str]:
    """The events without times and the id of the run, in any order: nodes that run at once end in any."""
    return Counter(str(without_own(event.to_dict())) for event in run.events)


def without_own(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_own(part) for name, part in value.items() if name not in OWN}
    return [without_own(part) for part in value] if isinstance(value, list | tuple) else value


def all_of(run: Run) -> Any:
    """What a run is compared by."""
    trace = [(type(step[0]).__name__, dict(step[1]), step[2].toDict()) for step in run.trace]
    lost = Counter(step.status for step in run.trace_steps)
    return outcome(run), sorted(map(str, trace)), lost, told(run), str(run.error)


def check(make: Callable[[], CompiledGraph], mode: Mode, inputs: dict[str, Any]) -> None:
    """A run without layers, and one with: all is the same but times; so are the calls of nodes and routers."""
    CALLS.take()
    plain, calls = play(make(), mode, inputs), CALLS.take()
    with surrounded():
        other = play(make(), mode, inputs)
    if plain.status == "completed":  # what else ran beside a failure is a matter of time
        assert all_of(other) == all_of(plain)
        assert CALLS.take() == calls
    else:  # of several that fail at once, any may be the one that ends the run
        assert (other.status, other.error is None) == (plain.status, plain.error is None)
        CALLS.take()


@pytest.mark.slow("a random graph, run twice, for each example")
@given(faulty_plans(), st.integers(0, 2**32), MODES)
def test_random_graphs_with_failures(plan: tuple[Plan, Faults], seed: int, mode: Mode) -> None:
    def program() -> CompiledGraph:
        store = Memory() if "stored" in mode else None
        return Behaviour(*plan).program(random.Random(seed), store, is_async=mode.startswith("a"))

    with no_pauses():
        check(program, mode, {})


@pytest.mark.slow("a random graph with LM calls, run twice, for each example")
@given(block_plans, MODES)
def test_random_graphs_of_maps_graphs_sends_checks_and_module_routers(plan: BlockPlan, mode: Mode) -> None:
    """The texts of posts and questions tell the attempt, so the retries are the same, too.

    One node after the other: which of two that fail at once stops the other is a matter of time.
    """
    plan = plan.model_copy(update={"concurrency": 1})
    with no_pauses():
        made = Nodes(plan), Nodes(plan)
        runs = []
        for nodes, around in zip(made, (nullcontext, surrounded), strict=True):
            with dspy.context(lm=ScriptedLM(nodes.answer)), around():
                runs.append(play(nodes.graph(Memory() if "stored" in mode else None), mode, {}))
    assert runs[0].status == "completed", runs[0].error
    assert all_of(runs[1]) == all_of(runs[0])
    assert made[0].calls == made[1].calls
    assert made[0].effects == made[1].effects


@pytest.mark.slow("every kind of graph, run twice in two modes")
def test_every_kind_of_graph() -> None:
    for kind in KINDS.values():
        for call_mode, mode in (("sync", "stored"), ("async", "astored")):

            def program(kind: Any = kind, call_mode: str = call_mode) -> CompiledGraph:
                made: CompiledGraph = kind.compile(call_mode, Memory())
                return made

            with kind.lm():
                check(program, mode, INPUTS)  # type: ignore[arg-type]


@pytest.mark.slow("a random graph that crashes, for each example")
@given(faulty_plans(), st.integers(0, 2**32), st.integers(1, 12), st.booleans(), st.booleans())
def test_a_run_with_layers_that_crashed_is_resumed_without_and_the_other_way_round(
    plan: tuple[Plan, Faults], seed: int, at: int, after: bool, first: bool
) -> None:
    """At any write: layers are in no fingerprint and in no row, so a resume takes those of its own program."""
    around = (surrounded, nullcontext) if first else (nullcontext, surrounded)
    behaviour, store = Behaviour(*plan), FailingMemory()

    def program(store: Store) -> CompiledGraph:
        return behaviour.program(random.Random(seed), store)

    with no_pauses():
        whole = asyncio.run(program(Memory()).thread("t").arun({}))
        assume(whole.status == "completed")
        store.arm(crash, at, after)
        try:
            with around[0]():
                asyncio.run(program(store).thread("t").arun({}))
        except (Crash, StoreError):
            pass
        store.rest()
        thread = program(store).thread("t")
        with around[1]():
            if thread.status == "new":
                asyncio.run(thread.arun({}))
            elif thread.status != "completed":
                assert outcome(asyncio.run(thread.aresume())) == outcome(whole)
    CALLS.take()
    assert (thread.status, thread.state) == ("completed", whole.state)
