"""A call of `with_executor` gives what a local call gives: one table of programs, called in every way."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest

from dspyer import CompiledGraph, Run
from tests.executors.comparing import called, differences, plain, ran, run_of
from tests.executors.pools import BytesExecutor
from tests.executors.programs import CASES, Case, WordLM, chain, loop
from tests.log.kinds import CALLS, INPUTS, KINDS

# `program(...)` and `acall` differ in how they wait alone, so each case is called in one of the two ways and run in the
# other one; those whose error or trace takes another way in async code are called in both.
BOTH = ("chain", "StopIteration", "question", "budget", "check")
CALLED = [pytest.param(case, "sync", id=name) for name, case in CASES.items()]
RAN = [pytest.param(case, "async", id=name) for name, case in CASES.items()]


@pytest.mark.parametrize(("case", "mode"), [*CALLED, *[pytest.param(CASES[name], "async") for name in BOTH]])
def test_a_call_gives_prediction_trace_usage_error_and_run_of_a_local_one(
    case: Case, mode: str, pool: BytesExecutor
) -> None:
    local, far = called(case.program(), case, mode), called(case.program().with_executor(pool), case, mode)
    assert differences(local, far) == {}


@pytest.mark.parametrize(("case", "mode"), [*RAN, *[pytest.param(CASES[name], "sync") for name in BOTH]])
def test_a_run_tells_what_a_local_one_tells(case: Case, mode: str, pool: BytesExecutor) -> None:
    local, far = ran(case.program(), case, mode), ran(case.program().with_executor(pool), case, mode)
    assert differences(local, far) == {}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_graph_makes_the_same_commits_and_calls(kind: Any, pool: BytesExecutor) -> None:
    program = kind.build("async").compile()
    found = []
    for one in (program, program.with_executor(pool)):
        CALLS.take()
        if kind.lm is not KINDS["chain"].lm:
            with dspy.context(lm=Judge()):
                run = one.run(dict(INPUTS))
        else:
            run = one.run(dict(INPUTS))
        calls = {(call.what, call.name, call.execution): number for call, number in CALLS.take().items()}
        found.append({**run_of(one, run), "calls": calls})
    assert differences(*found) == {}


class Judge(WordLM):
    """The LM of the kind with an LM router."""


def test_calls_at_once_are_kept_apart(pool: BytesExecutor) -> None:
    """Each call gets its own result, trace and usage, whichever ends first."""
    local = chain().compile()
    far = local.with_executor(pool)

    def one(program: CompiledGraph, number: int) -> Any:
        trace: list[Any] = []
        with dspy.context(lm=WordLM(), trace=trace, track_usage=True):
            prediction = program(q=f"question {number}")
        return plain(prediction), plain([outputs for _, _, outputs in trace]), prediction.get_lm_usage()

    rows = dspy.Parallel(num_threads=4, disable_progress_bar=True)
    found = rows([(lambda number: one(far, number), (number,)) for number in range(12)])
    assert found == [one(local, number) for number in range(12)]


def test_awaited_calls_at_once(pool: BytesExecutor) -> None:
    far = chain().compile().with_executor(pool)

    async def main() -> list[Any]:
        return await asyncio.gather(*[far.acall(q=f"question {number}") for number in range(8)])

    with dspy.context(lm=WordLM()):
        assert [one.c for one in asyncio.run(main())] == [far(q=f"question {number}").c for number in range(8)]


def test_the_tuned_state_is_what_runs(pool: BytesExecutor) -> None:
    """Each call sends the program as it is then: a demonstration or an instruction counts from the next call on."""
    far = chain().compile().with_executor(pool)
    with dspy.context(lm=WordLM()):
        before = far(q="why").a
        far.first.signature = far.first.signature.with_instructions("Answer in another way.")
        after = far(q="why").a
        copied = far.deepcopy()
        copied.first.signature = copied.first.signature.with_instructions("And in a third way.")
        third = copied(q="why").a
        again = far(q="why").a
    assert len({before, after, third}) == 3
    assert again == after
    assert (copied._executor, far._executor) == (pool, pool)


def test_what_is_asked_of_a_run_later_is_there_without_the_program_and_the_pool() -> None:
    with BytesExecutor() as pool, dspy.context(lm=WordLM()):
        prediction = chain().compile().with_executor(pool)(q="why")
    run = Run.of(prediction)
    assert Run.of(prediction) is run
    assert run.blame("c").node == "third"
    assert run.prediction == prediction


def test_inputs_are_checked_before_anything_is_sent() -> None:
    with BytesExecutor() as pool:
        far = loop().compile().with_executor(pool)
        with pytest.raises(Exception, match="no input 'm'"):
            far(m=1)
        with pytest.raises(Exception, match="no input 'm'"):
            far.run({"m": 1})
        assert pool.sent == []
