"""A lost worker never becomes a wrong result: `ExecutorLost`, whatever made the call (rule 6)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Graph, optimize
from dspyer.errors import ExecutorLost
from tests.dspy_optimizers.programs import PAIRS
from tests.dspy_optimizers.table import ROWS, Row
from tests.executors.comparing import called, differences, ran
from tests.executors.pools import POOLS, BreakingExecutor, BytesExecutor, HeldExecutor
from tests.executors.programs import CASES, WordLM, chain, deadly
from tests.executors.shared_lms import SharedNotingLM, SharedSkillLM
from tests.executors.test_equal_optimizers import CHAIN, tuned_by
from tests.optimize.conftest import quiet  # noqa: F401 - a fixture
from tests.optimize.skills import RULES, examples
from tests.optimize.skills import chain as skills
from tests.rows import each, in_turn

BY_FIELD = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")


class KilledWorker(Exception):  # noqa: N818 - as in Dask, where it is an ordinary exception
    """What the future of Dask raises after the last retry."""


LOSSES: dict[str, dict[str, Any]] = {
    "the future breaks": {},
    "submit breaks": {"submit": True},
    "the future is cancelled": {"error": None},
    "an error of the engine": {"error": lambda: KilledWorker("t-1", "worker", 3)},
    "another broken executor": {"error": lambda: BrokenExecutor("broken")},
    "submit after shutdown": {"submit": True, "error": lambda: RuntimeError("cannot schedule after shutdown")},
}
CALLS: dict[str, Callable[[CompiledGraph], Any]] = {
    "call": lambda program: program(q="why"),
    "acall": lambda program: asyncio.run(program.acall(q="why")),
    "run": lambda program: program.run({"q": "why"}),
    "arun": lambda program: asyncio.run(program.arun({"q": "why"})),
    "asyncify": lambda program: asyncio.run(dspy.asyncify(program)(q="why")),
    "Parallel": lambda program: dspy.Parallel(num_threads=2, disable_progress_bar=True, max_errors=99)(
        [(program, {"q": str(n)}) for n in range(4)]
    ),
    "BestOfN": lambda program: dspy.BestOfN(program, N=3, reward_fn=lambda *_: 0.0, threshold=1.0)(q="why"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@each("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_no_exception_that_anything_counts_as_a_failure(loss: dict[str, Any], call: Any) -> None:
    with BreakingExecutor(0, **loss) as pool, dspy.context(lm=WordLM()), pytest.raises(ExecutorLost) as lost:
        call(chain().compile().with_executor(pool))
    assert not isinstance(lost.value, Exception)
    assert isinstance(lost.value.__cause__, BaseException)
    assert "Chain" in str(lost.value)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ({}, r"a worker was killed\. A pool that is broken stays so: make another one.*__name__ == '__main__'"),
        ({"error": None}, "CancelledError.*keep the pool open while calls are made"),
    ],
)
def test_a_loss_says_what_to_do(loss: dict[str, Any], says: str) -> None:
    """A script without its guard ends here, too: its pool breaks, for a reason that only its processes print."""
    with BreakingExecutor(0, **loss) as pool, dspy.context(lm=WordLM()), pytest.raises(ExecutorLost, match=says):
        chain().compile().with_executor(pool)(q="why")


# --- under what calls a program many times


class Misbehaving(BytesExecutor):
    """What a user has written by hand, and not well."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.returns = returns

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        future = super().submit(function, *args, **kwargs)
        if self.returns == "the first future":
            return self.futures[0]
        if self.returns == "the result":
            return future.result()
        if self.returns == "garbage":
            future = Future()
            future.set_result(b"x")
            return future
        return None


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@each("returns", ["None", "the result", "garbage", "the first future"])
def test_an_executor_that_misbehaves_gives_no_score(returns: str, call: Any) -> None:
    with Misbehaving(returns) as pool, dspy.context(lm=WordLM()):
        far = chain().compile().with_executor(pool)
        if returns == "the first future":
            far(q="another")
        with pytest.raises(ExecutorLost, match=r"another call|Future|invalid load key"):
            call(far)


def evaluated(program: Any, lm: Any) -> Any:
    rows = [dspy.Example(n=n, **dict.fromkeys(RULES, 0)).with_inputs("n") for n in range(12)]
    evaluate = dspy.Evaluate(devset=rows, metric=BY_FIELD, num_threads=3, display_progress=False, max_errors=1000)
    return evaluate(program)


def tuned_by_gepa(kind: Any) -> Callable[..., Any]:
    def tune(program: Any, lm: Any) -> Any:
        options = {"max_metric_calls": 30, "num_threads": 2, "reflection_lm": SharedSkillLM()}
        return kind(BY_FIELD, **options).compile(program, trainset=examples(6), valset=examples(4, 100))

    return tune


OURS = {
    "Evaluate": evaluated,
    "optimize.GEPA": tuned_by_gepa(optimize.GEPA),
    "dspy.GEPA": tuned_by_gepa(dspy.GEPA),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("work", OURS.values(), ids=OURS)
def test_an_evaluation_or_optimization_ends_with_the_loss(work: Any, at: int) -> None:
    lm = SharedSkillLM()
    with BreakingExecutor(at) as pool, dspy.context(lm=lm, max_errors=1000), pytest.raises(ExecutorLost):
        work(skills().with_executor(pool), lm)
    assert pool.count > at


RUNNING = [row for row in ROWS if row.name not in ("LabeledFewShot", "KNNFewShot")]  # they call no program


@pytest.mark.usefixtures("quiet")
@each("row", RUNNING, ids=[row.name for row in RUNNING])
def test_no_optimizer_of_dspy_goes_on_without_its_workers(row: Any) -> None:
    lm, pair = SharedNotingLM(), PAIRS[0]
    with BreakingExecutor(1) as pool, dspy.context(lm=lm, max_errors=1000):
        program = pair.graph().with_executor(pool)
        if row.pins_lm:
            program.set_lm(lm)
        with pytest.raises(ExecutorLost):
            row.tune(program, pair.trainset, lm)


# --- the caller ends the wait


def test_a_cancelled_task_is_cancelled_and_so_is_its_future(caplog: pytest.LogCaptureFixture) -> None:
    async def main(program: CompiledGraph) -> None:
        task = asyncio.create_task(program.acall(q="why"))
        await asyncio.to_thread(pool.submitted.wait, 30)
        waiting = asyncio.create_task(program.acall(q="second"))
        third = asyncio.create_task(program.acall(q="third"))
        while len(pool.futures) < 3:  # noqa: ASYNC110 - until the tasks have begun
            await asyncio.sleep(0)
        for one in (task, waiting, third):
            one.cancel()
        found = await asyncio.gather(task, waiting, third, return_exceptions=True)
        assert [type(one) for one in found] == [asyncio.CancelledError] * 3
        pool.go_on.set()
        await asyncio.to_thread(pool.futures[0].result, 30)  # nothing waits for it any more
        await asyncio.sleep(0)

    with HeldExecutor() as pool, dspy.context(lm=WordLM()):
        asyncio.run(main(chain().compile().with_executor(pool)))
    assert pool.futures[2].cancelled()
    assert caplog.records == []


def test_a_time_limit_of_the_caller_is_a_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async def main(program: CompiledGraph) -> None:
        await asyncio.wait_for(program.acall(q="why"), 0.01)

    with HeldExecutor() as pool, dspy.context(lm=WordLM()):
        with pytest.raises(TimeoutError):
            asyncio.run(main(chain().compile().with_executor(pool)))
        pool.go_on.set()  # the loop is closed when the worker returns
    assert caplog.records == []


class InterruptedExecutor(Executor):
    """Never starts its only task; Ctrl-C comes while the caller waits for it."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        signal.raise_signal(signal.SIGINT)
        return self.future


def test_ctrl_c_ends_the_wait_and_drops_the_call() -> None:
    pool = InterruptedExecutor()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with dspy.context(lm=WordLM()), pytest.raises(KeyboardInterrupt):
            chain().compile().with_executor(pool)(q="why")
    finally:
        signal.signal(signal.SIGINT, before)
    assert pool.future.cancelled()


def interrupted(q: str) -> dict[str, str]:
    raise KeyboardInterrupt


def test_ctrl_c_in_a_worker_is_a_lost_worker() -> None:
    program = Graph().add_node("work", interrupted, writes=["a"]).add_path(START, "work", END).compile()
    with BytesExecutor() as pool, pytest.raises(ExecutorLost, match="was interrupted"):
        program.with_executor(pool)(q="why")


# --- real engines: equal to a local call, until a worker is killed


def right(example: Any, prediction: Any, trace: Any = None) -> float:
    return float(prediction.a == example.q.upper())


TUNED = [row for row in ROWS if row.name in ("BootstrapFewShot", "MIPROv2", "GEPA")]
SOME = ["chain", "failure", "error edge", "check", "budget", "LM of a predictor", "StopIteration"]


@pytest.mark.usefixtures("quiet", "fork_server")
@pytest.mark.parametrize(("kind", "row"), in_turn(POOLS, TUNED), ids=POOLS)
@pytest.mark.slow("pools of other projects start workers, of which one is killed")
def test_a_real_pool_gives_the_same_until_a_worker_is_killed(kind: str, row: Row, tmp_path: Path) -> None:
    with POOLS[kind]() as pool:
        for name in SOME:
            case = CASES[name]
            far = case.program().with_executor(pool)
            assert differences(called(case.program(), case, "sync"), called(far, case, "sync")) == {}, name
            assert differences(ran(case.program(), case, "async"), ran(far, case, "async")) == {}, name
        (here, _, *scored_here), (there, _, *scored_there) = (tuned_by(row, CHAIN, one) for one in (None, pool))
        assert (there, scored_there) == (here, scored_here)  # the workers count the prompts
        log = tmp_path / "log"
        far = deadly(tmp_path / "mark", log).compile().with_executor(pool)
        rows = [dspy.Example(q=f"q{n}").with_inputs("q") for n in range(10)]
        evaluate = dspy.Evaluate(devset=rows, metric=right, num_threads=2, display_progress=False, max_errors=1000)
        completes(evaluate, far) if kind == "Dask" else loses(evaluate, far, pool)
        lines = [line.split() for line in log.read_text().splitlines()]
        assert str(os.getpid()) not in {process for process, _ in lines}


def completes(evaluate: dspy.Evaluate, far: CompiledGraph) -> None:
    assert evaluate(far).score == 100


def loses(evaluate: dspy.Evaluate, far: CompiledGraph, pool: Executor) -> None:
    with pytest.raises(ExecutorLost) as lost:
        evaluate(far)
    assert isinstance(lost.value.__cause__, BrokenExecutor)
    with pytest.raises(ExecutorLost):
        far(q="q1")
