"""Whether a worker uses DSPy's cache of responses: as the caller does, call by call."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import copy_context
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest
from diskcache import FanoutCache

from dspyer import END, START, CompiledGraph, Graph
from tests.executors.pools import HeldExecutor
from tests.executors.programs import WordLM

Caches = dict[tuple[bool, bool], Any]
SWITCHES = [(False, False), (False, True), (True, False), (True, True)]
"""Of the disk, and of memory."""

questions = map(str, count())  # each call of a test asks what no other one has asked


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caches]:
    """The caches of a caller by their switches, as `dspy.configure_cache` makes them."""
    before, found = dspy.cache, {}
    for disk, memory in SWITCHES:
        dspy.configure_cache(disk, memory, str(tmp_path_factory.mktemp("caller")))
        found[disk, memory] = dspy.cache
    yield found
    dspy.cache = before


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FanoutCache]:
    """The answers that the worker has on the disk."""
    with FanoutCache(str(tmp_path_factory.mktemp("worker")), shards=16) as found:
        yield found


@pytest.fixture(scope="module")
def worker(stored: FanoutCache, fork_server: None) -> Iterator[Executor]:
    """A process that caches in memory and in a folder of its own."""
    processes = multiprocessing.get_context("forkserver")
    cache = (True, True, stored.directory)
    with ProcessPoolExecutor(1, mp_context=processes, initializer=dspy.configure_cache, initargs=cache) as pool:
        yield pool


def asking() -> Graph:
    return Graph().add_node("ask", dspy.Predict("q -> a")).add_path(START, "ask", END)


def asking_in_threads() -> Graph:
    def node(q: str) -> dict[str, str]:
        (found,) = dspy.Parallel(num_threads=1, disable_progress_bar=True)([(dspy.Predict("q -> a"), {"q": q})])
        return {"a": found.a}

    return Graph().add_node("ask", node, writes=["a"]).add_path(START, "ask", END)


def asking_inside() -> Graph:
    return Graph().add_node("ask", asking().compile()).add_path(START, "ask", END)


def failing() -> Graph:
    def fail(a: str) -> dict[str, str]:
        raise ValueError(a)

    graph = Graph().add_node("ask", dspy.Predict("q -> a")).add_node("fail", fail, writes=["b"])
    return graph.add_path(START, "ask", "fail", END)


def evaluated(far: CompiledGraph, q: str) -> None:
    dspy.Evaluate(devset=[dspy.Example(q=q).with_inputs("q")], metric=lambda *_: 1.0, num_threads=2)(far)


def raises(far: CompiledGraph, q: str) -> None:
    with pytest.raises(ValueError, match="a "):
        far(q=q)


CALLS: dict[str, tuple[Callable[[], Graph], Callable[[Any, str], object]]] = {
    "a call": (asking, lambda far, q: far(q=q)),
    "an async call": (asking, lambda far, q: asyncio.run(far.acall(q=q))),
    "a run": (asking, lambda far, q: far.run({"q": q})),
    "dspy.Evaluate": (asking, evaluated),
    "dspy.Parallel in a node": (asking_in_threads, lambda far, q: far(q=q)),
    "a graph in a graph": (asking_inside, lambda far, q: far(q=q)),
    "a call that raises": (failing, raises),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_worker_uses_the_cache_as_the_caller_does(
    call: str, worker: Executor, stored: FanoutCache, caches: Caches, tmp_path: Path
) -> None:
    graph, make = CALLS[call]
    far = graph().compile().with_executor(worker)
    for disk, memory in SWITCHES:
        log, before, question = tmp_path / f"{disk} {memory}", len(stored), next(questions)
        with dspy.context(lm=WordLM(log, cache=True)):
            dspy.cache = caches[disk, memory]
            make(far, question)
            make(far, question)
            requests = log.read_text().count("\n")
            assert (requests, len(stored) - before) == (1 if disk or memory else 2, int(disk))
            dspy.cache = caches[True, True]  # the worker's own switches are on
            make(far, next(questions))
            assert len(stored) - before == int(disk) + 1


def test_an_answer_in_memory_is_not_repeated_for_a_caller_without_a_cache(
    worker: Executor, caches: Caches, tmp_path: Path
) -> None:
    far, question = asking().compile().with_executor(worker), next(questions)
    with dspy.context(lm=WordLM(tmp_path / "log", cache=True)):
        for switches in ((True, True), (False, False), (True, True)):
            dspy.cache = caches[switches]
            far(q=question)
    assert (tmp_path / "log").read_text().count("\n") == 2


def test_an_lm_without_a_cache_has_none_in_a_worker(worker: Executor, caches: Caches, tmp_path: Path) -> None:
    dspy.cache, far, question = caches[True, True], asking().compile().with_executor(worker), next(questions)
    with dspy.context(lm=WordLM(tmp_path / "log", cache=False)):
        far(q=question)
        far(q=question)
    assert (tmp_path / "log").read_text().count("\n") == 2


def test_calls_at_once_in_one_process_have_each_their_own(caches: Caches, tmp_path: Path) -> None:
    """With threads as executor, the cache of the worker is that of the callers."""
    with HeldExecutor() as pool, ThreadPoolExecutor(4) as callers:
        far, waiting = asking().compile().with_executor(pool), []
        for number, switches in enumerate(SWITCHES, 1):
            dspy.cache = caches[switches]
            with dspy.context(lm=WordLM(cache=True)):
                waiting.append(callers.submit(copy_context().run, far, q=next(questions)))
                while len(pool.sent) < number:
                    time.sleep(0.001)
        cache = dspy.cache
        before = len(cache.disk_cache), len(cache.memory_cache)
        pool.go_on.set()
        for one in waiting:
            one.result(20)
        assert (len(cache.disk_cache) - before[0], len(cache.memory_cache) - before[1]) == (2, 2)
        assert (cache.enable_disk_cache, cache.enable_memory_cache) == (True, True)
