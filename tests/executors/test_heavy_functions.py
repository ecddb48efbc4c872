"""An executor as a resource: the heavy function of a node runs there, and everything else with the owner of the run."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Failure, Graph, Retry
from dspyer.errors import ExecutorLost, GraphError, is_lost_work
from dspyer.testing import no_pauses
from tests.children import run_python


class Pages(BaseModel):
    pages: list[str]
    texts: list[str] = []
    unread: list[Failure] = []
    problem: Failure | None = None


def heavy(page: str) -> str:
    if page == "odd":
        raise ValueError(page)
    return page.upper()


def parse(page: str, pool: Executor) -> str:
    return pool.submit(heavy, page).result()


async def aparse(page: str, pool: Executor) -> str:
    return await asyncio.wrap_future(pool.submit(heavy, page))


class Pool(ThreadPoolExecutor):
    """Is lost with one task, as if its worker was killed: that one and all later ones fail."""

    def __init__(self, lost_at: int | None = None, error: type[Exception] = BrokenExecutor) -> None:
        super().__init__(2)
        self.pages: Counter[str] = Counter()
        self.lost_at, self.error, self.is_lost = lost_at, error, False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.is_lost = self.is_lost or self.pages.total() == self.lost_at
        if self.is_lost:
            future: Future[Any] = Future()
            future.set_exception(self.error("a worker was killed"))
            return future
        self.pages[args[0]] += 1
        return super().submit(fn, *args, **kwargs)


LOST = [BrokenExecutor, CancelledError]  # a killed worker; a pool that was shut down with `cancel_futures=True`
PAGES = [f"page {number}" for number in range(30)]


def mapped(fn: Any = parse, *, max_concurrency: int = 1, **options: Any) -> CompiledGraph:
    graph = Graph(Pages, inputs=["pages"], name="Pages")
    graph.add_map("parse", fn, over="pages", item="page", into="texts", **options)
    return graph.add_path(START, "parse", END).compile(store=":memory:", max_concurrency=max_concurrency)


def one_page(**options: Any) -> Graph:
    graph = Graph(Pages, inputs=["pages"], name="Page")

    def first(pages: list[str], pool: Executor) -> dict[str, Any]:
        return {"texts": [pool.submit(heavy, pages[0]).result()]}

    return graph.add_node("first", first, writes=["texts"], **options).add_path(START, "first", END)


# --- rule 9


@pytest.mark.parametrize("fn", [parse, aparse])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_map_through_a_pool_is_that_map(fn: Any, is_async: bool) -> None:
    def here(page: str) -> str:
        return heavy(page)

    with Pool() as pool:
        local, pooled = mapped(here), mapped(fn, max_concurrency=4).with_resources({Executor: pool})
        runs = [
            asyncio.run(program.arun({"pages": PAGES})) if is_async else program.run({"pages": PAGES})
            for program in (local, pooled)
        ]
    assert runs[0].state == runs[1].state
    assert [commit.patch for commit in runs[0].commits] == [commit.patch for commit in runs[1].commits]
    assert pool.pages == Counter(PAGES)


def test_what_the_heavy_function_raises_is_a_failure_of_the_page() -> None:
    with Pool() as pool:
        program = mapped(failures="unread").with_resources({Executor: pool})
        run = program.run({"pages": ["a", "odd", "b"]})
    assert run.state["texts"] == ["A", "B"]
    assert [(failure.index, failure.type) for failure in run.state["unread"]] == [(1, "ValueError")]


def test_no_more_pages_are_in_flight_than_max_concurrency() -> None:
    most, running = 0, 0

    class Watched(Pool):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            nonlocal most, running
            running += 1
            most = max(most, running)
            future = super().submit(fn, *args, **kwargs)
            future.add_done_callback(ended)
            return future

    def ended(_: Future[Any]) -> None:
        nonlocal running
        running -= 1

    with Watched() as pool:
        program = mapped(aparse, max_concurrency=4).with_resources({Executor: pool})
        asyncio.run(program.arun({"pages": PAGES}))
    assert 1 <= most <= 4


# --- a lost worker is no failure of what it worked on


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("options", [{}, {"failures": "unread"}, {"failures": "unread", "retry": 3}], ids=str)
def test_a_map_that_lost_its_pool_fails_and_is_resumed_with_another(error: Any, options: Any) -> None:
    with Pool(25, error) as first, Pool() as second, no_pauses():
        program = mapped(**options)
        run = program.with_resources({Executor: first}).thread("t").run({"pages": PAGES})
        assert (run.status, type(run.error)) == ("failed", error)
        assert run.state["unread"] == []
        run = program.with_resources({Executor: second}).thread("t").resume()
    assert run.status == "completed"
    assert run.state["texts"] == [page.upper() for page in PAGES]
    assert run.state["unread"] == []
    assert first.pages + second.pages == Counter(PAGES)  # what the first pool has read is not read again


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_program_that_lost_a_pool_raises_what_no_score_counts(error: Any, is_async: bool) -> None:
    program = mapped(failures="unread").with_resources({Executor: Pool(25, error)})
    with pytest.raises(ExecutorLost, match=r"what a node of graph 'Pages' gave it.*a worker was killed") as caught:
        asyncio.run(program.acall(pages=PAGES)) if is_async else program(pages=PAGES)
    cause = caught.value.__cause__
    assert cause is not None
    assert type(cause) is error
    assert "in node 'parse'" in "".join(cause.__notes__)


def test_a_lost_pool_is_no_score() -> None:
    """As rule 6: a pool that broke on the way gave 83 of 100 points, in the place of 100."""
    examples = [dspy.Example(pages=[page]).with_inputs("pages") for page in PAGES]
    graph = one_page()
    graph.add_error_edge("first", END, into="problem")
    inner = graph.compile()
    outer = Graph(Pages, inputs=["pages"]).add_node("inner", inner).add_path(START, "inner", END).compile()
    for program in (inner, outer, mapped()):
        far = program.with_resources({Executor: Pool(25)})
        evaluate = dspy.Evaluate(devset=examples, metric=lambda *_: 1.0, num_threads=2, max_errors=1000)
        with pytest.raises(ExecutorLost):
            evaluate(far)


@pytest.mark.parametrize("text", ["cannot schedule new futures after shutdown", "cannot submit after shutdown"])
def test_a_pool_that_was_shut_down_is_a_lost_one(text: str) -> None:
    """It gave 50 of 100 points: those of the examples before the shutdown. Executors raise one of two texts for it."""

    class ShutDown(Pool):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if self.pages.total() == 25:
                raise RuntimeError(text)
            return super().submit(fn, *args, **kwargs)

    program, first = mapped(failures="unread"), ShutDown()
    run = program.with_resources({Executor: first}).thread("t").run({"pages": PAGES})
    assert (run.status, str(run.error), run.state["unread"]) == ("failed", text, [])
    with Pool() as second:
        run = program.with_resources({Executor: second}).thread("t").resume()
    assert run.state["texts"] == [page.upper() for page in PAGES]
    assert first.pages + second.pages == Counter(PAGES)
    with pytest.raises(ExecutorLost, match=text):
        one_page().compile().with_resources({Executor: first})(pages=PAGES)


def test_what_python_raises_after_a_shutdown_is_lost_work() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError) as caught:
        pool.submit(heavy, "page")
    assert is_lost_work(caught.value)
    assert not is_lost_work(RuntimeError("the page cannot be read"))


SUBMITS_UNTIL_THE_END = """
import threading
from concurrent.futures import ThreadPoolExecutor
from dspyer.errors import is_lost_work

def submit():
    try:
        while True:
            ThreadPoolExecutor(1).submit(int).result()
    except RuntimeError as error:
        print(is_lost_work(error), error, flush=True)

threading.Thread(target=submit).start()
"""


def test_what_python_raises_at_its_end_is_lost_work() -> None:
    said = run_python(SUBMITS_UNTIL_THE_END).stdout
    assert said == "True cannot schedule new futures after interpreter shutdown\n"


def test_a_retry_that_names_it_finds_another_pool() -> None:
    pools = [Pool(3), Pool(3), Pool()]

    def healed(page: str) -> str:
        if pools[0].is_lost:
            pools.pop(0)
        return str(pools[0].submit(heavy, page).result())

    with no_pauses():
        run = mapped(healed, retry=Retry(2, on=BrokenExecutor)).run({"pages": PAGES})
    assert run.status == "completed"
    assert len(pools) == 1


def test_an_error_edge_for_it_is_refused() -> None:
    graph = one_page()
    graph.add_node("apologize", lambda problem: None, writes=[]).add_edge("apologize", END)
    with pytest.raises(GraphError, match="on BrokenExecutor is never taken"):
        graph.add_error_edge("first", "apologize", on=BrokenExecutor, into="problem")


# --- rule 10


def test_ctx_is_not_sent() -> None:
    def sent(page: str, ctx: Context) -> str:
        return repr(pickle.dumps(ctx))

    run = mapped(sent).run({"pages": ["a"]})
    assert isinstance(run.error, TypeError)
    assert "ctx of node 'parse' is a part of its run" in str(run.error)


def test_what_is_annotated_as_plain_is_sent_as_plain() -> None:
    """So that a process of the pool need not import dspyer to read it."""

    class Records(BaseModel):
        records: list[dict[str, list[str]]]
        texts: list[str] = []

    def plain(record: dict[str, list[str]]) -> str:
        return repr(pickle.dumps(record))

    graph = Graph(Records, inputs=["records"])
    graph.add_map("plain", plain, over="records", item="record", into="texts")
    run = graph.add_path(START, "plain", END).compile().run({"records": [{"lines": ["a", "b"]}]})
    assert "dspyer" not in run.state["texts"][0]


# --- the code of the guide that no page can run


def block(wanted: str) -> str:
    """The block of code of the guide that has a text."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "batches.md"
    blocks: list[str] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return next(code for code in blocks if wanted in code)


def test_the_processes_of_a_pool_end_with_their_owner(tmp_path: Path) -> None:
    file = tmp_path / "owner.py"
    imports = "from concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing import get_context\n"
    killed = "pool = make_pool(2)\n    pool.submit(print, 'ready', flush=True).result()\n    os.kill(os.getpid(), 9)\n"
    file.write_text(f"{imports}{block('def end_with_owner')}\nif __name__ == '__main__':\n    {killed}")
    # The end of their output, for which this waits, is the end of all processes that have it.
    done = subprocess.run([sys.executable, file], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (-9, b"ready\n")


def test_the_pool_of_ray_makes_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Work(NamedTuple):
        function: Callable[..., Any]
        threads: ThreadPoolExecutor

        def remote(self, *args: Any) -> Any:
            return SimpleNamespace(future=lambda: self.threads.submit(self.function, *args))

    with ThreadPoolExecutor(1) as threads:
        ray = SimpleNamespace(remote=lambda max_retries: lambda function: Work(function, threads))
        monkeypatch.setitem(sys.modules, "ray", ray)
        names: dict[str, Any] = {}
        exec(block("import ray"), names)
        program = mapped(heavy).with_executor(names["ray_pool"]())
        assert program(pages=["a", "b"]).texts == ["A", "B"]
