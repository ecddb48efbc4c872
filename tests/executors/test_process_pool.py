"""`with_executor`: a call is a task of an executor, and gives what a call in this process gives."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import dspy
import pytest

from dspyer import CompiledGraph, Run
from dspyer.errors import ExecutorLost, InputError
from tests.executors.pools import forked
from tests.executors.shouting import OtherArgumentsError, shouting


@pytest.mark.slow("a process that imports everything anew")
def test_each_form_of_a_call_gives_what_it_gives_here() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        check_forms_of_calls(shouting().with_executor(pool))


def check_forms_of_calls(far: CompiledGraph) -> None:
    here = shouting()
    prediction = far(text="hey")
    assert prediction.toDict() == here(text="hey").toDict()
    assert Run.of(prediction).blame("loud").node == "shout"
    assert Run.of(prediction).prediction is prediction
    run = far.run({"text": "hey"})
    assert (run.status, run.state, len(run.events)) == ("completed", here.run({"text": "hey"}).state, 5)
    assert asyncio.run(far.acall(text="hey")).loud == "HEY"
    assert asyncio.run(far.arun({"text": "hey"})).prediction.loud == "HEY"


@pytest.mark.usefixtures("fork_server")
def test_what_a_run_raises_is_raised_here() -> None:
    with forked() as pool:
        check_what_is_raised(shouting().with_executor(pool))


def check_what_is_raised(far: CompiledGraph) -> None:
    for program in (shouting(), far):
        with pytest.raises(ValueError, match="odd") as caught:
            program(text="odd")
        assert caught.value.__notes__ == ["in node 'shout' (branch trunk, visit 1, attempt 1)"]
        run = program.run({"text": "odd"})
        assert (run.status, type(run.error)) == ("failed", ValueError)
        with pytest.raises(InputError):
            program(text=5)
    with pytest.raises(OtherArgumentsError, match="1 and 2") as raised:
        far(text="other arguments")
    assert "raise OtherArgumentsError(1, 2)" in str(raised.value.__cause__)


def test_equal_calls_are_different_tasks() -> None:
    tasks = set()

    class Merging(ThreadPoolExecutor):
        """As Dask's, which makes one task of those that have the same arguments."""

        def submit(self, *task: Any, **options: Any) -> Future[Any]:
            tasks.add(task)
            return super().submit(*task, **options)

    with Merging(1) as pool:
        far = shouting().with_executor(pool)
        for _ in range(3):
            far(text="hey")
    assert len(tasks) == 3


@pytest.mark.usefixtures("fork_server")
def test_a_killed_worker_is_no_wrong_score() -> None:
    with forked() as pool:
        far = shouting().with_executor(pool)
        examples = [dspy.Example(text=text).with_inputs("text") for text in ("hey", "killed", "you", "we")]
        evaluate = dspy.Evaluate(devset=examples, metric=lambda *_: 1.0, num_threads=2, max_errors=1000)
        with pytest.raises(ExecutorLost, match="graph 'Text'"):
            evaluate(far)
