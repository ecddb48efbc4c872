"""Traces of random graphs: one tree, a span for each committed execution, and the commits of an untraced run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan

from dspyer import START, CompiledGraph, Run
from dspyer.stores import Memory
from dspyer.testing import no_pauses
from tests.log.equality import outcome
from tests.log.kinds import CALLS
from tests.log.test_error_edges_of_random_graphs import Behaviour, Faults, faulty_plans
from tests.runtime.traces import Meter, Traces, metering, tracing
from tests.scheduler.test_schedule import Plan

Mode = Literal["sync", "async", "stored", "astored"]


def play(program: CompiledGraph, mode: Mode) -> Run:
    match mode:
        case "sync":
            return program.run({})
        case "async":
            return asyncio.run(program.arun({}))
        case "stored":
            return program.thread("t").run({})
        case "astored":
            return asyncio.run(program.thread("t").arun({}))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def check(traces: Traces, run: Run) -> None:
    """One root, which has ended last; each committed execution has its span, below the root, with what it committed."""
    spans = traces.spans
    (root,) = [span for span in spans if span.parent is None]
    by_id = {span.context.span_id: span for span in spans}
    assert attributes(root)["dspyer.status"] == run.status
    assert len({span.context.trace_id for span in spans}) == 1
    nodes = [span for span in spans if span.name.startswith("invoke_node ")]
    by_execution = {attributes(span)["dspyer.execution"]: span for span in nodes}
    assert len(nodes) == len(by_execution), "no execution has two"
    for span in spans:
        assert span.end_time is not None
        if span is not root:
            assert span.parent is not None
            parent = by_id[span.parent.span_id]
            assert (parent is root) is (span in nodes)
            assert (parent.start_time or 0) <= (span.start_time or 0) <= span.end_time <= (parent.end_time or 0)
            assert span in nodes or span.name.startswith("attempt ")
    names = {commit.id: commit.node for commit in run.commits}
    for commit in run.commits:
        if commit.node == START or commit.node.startswith("join:"):
            assert commit.id not in by_execution
            continue
        found = attributes(by_execution.pop(commit.id))
        assert found["graph.node.name"] == commit.node
        assert found["dspyer.visit"] == commit.visit
        if "dspyer.version" in found:
            assert found["dspyer.version"] == commit.version
        before = names[commit.parents[0]]
        if not before.startswith("join:"):
            assert found.get("graph.node.parent_id", START) == before
    left = {attributes(span).get("dspyer.status") for span in by_execution.values()}
    assert left <= {"failed", "stopped", "interrupted"}, "what has no commit says why"
    assert run.status != "completed" or not by_execution


def check_counts(meter: Meter, run: Run) -> None:
    """The metrics count what is in the history."""
    steps, errors = Counter[str](), Counter[str]()
    for commit in run.commits:
        if commit.node != START and not commit.node.startswith("join:"):
            steps[commit.node] += 1
            errors[commit.node] += len(commit.failed_attempts) + (commit.failure is not None)
    for failure in run.failures:
        errors[failure.node] += failure.attempt
    found: dict[str, Counter[str]] = {"runs": Counter(), "steps": Counter(), "node.errors": Counter()}
    for name, told, value in meter.points():
        if name in found:
            found[name][told.get("node") or told["status"]] += int(value)
    assert found == {"runs": Counter({run.status: 1}), "steps": steps, "node.errors": errors}


@pytest.mark.slow("a random graph, run twice, for each example")
@given(faulty_plans(), st.integers(0, 2**32), st.sampled_from(["sync", "async", "stored", "astored"]))
def test_random_graphs_have_one_tree_and_the_commits_of_an_untraced_run(
    plan: tuple[Plan, Faults], seed: int, mode: Mode
) -> None:
    behaviour = Behaviour(*plan)

    def program() -> CompiledGraph:
        store = Memory() if "stored" in mode else None
        return behaviour.program(random.Random(seed), store, is_async=mode.startswith("a"))

    with no_pauses():
        untraced = play(program(), mode)
        CALLS.take()
        with tracing() as traces, metering() as meter:
            traced = play(program(), mode)
            check(traces, traced)
            check_counts(meter, traced)
    CALLS.take()
    if untraced.status == "completed":
        assert outcome(traced) == outcome(untraced)
    else:
        assert traced.status == untraced.status
