"""`optimize.cache`: no module is called again for what it was called for before, and runs are the same."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest

from dspyer import END, START, Budget, Graph, Retry, Send, optimize
from dspyer.errors import StoreError
from dspyer.persistence import patch_cache
from dspyer.testing import ScriptedLM, no_pauses
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import PAIRS
from tests.optimize.cached import Desk, Doc, answers, caching, caching_lm, facts, own_steps
from tests.runtime.conftest import PLAYS, Play
from tests.timeouts import TimeIsOver

pytestmark = pytest.mark.usefixtures("no_dspy_cache")


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in log.records if one.levelno == logging.WARNING and one.name == "dspyer"]


# --- runs


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_run_with_results_from_the_folder_is_the_same_run(pair: Any, tmp_path: Path) -> None:
    program, inputs = pair.graph(), dict(pair.trainset[0].inputs())
    plain, cold, warm = NotingLM(cache=True), NotingLM(cache=True), NotingLM(cache=True)
    with dspy.context(lm=plain):
        expected = facts(program.run(inputs))
    with optimize.cache(tmp_path):
        for lm in (cold, warm):
            with dspy.context(lm=lm):
                assert facts(program.run(inputs)) == expected
    assert cold.prompts() <= plain.prompts()
    assert len(warm.sent) == (pair.name == "bound")  # a function calls a module there


def notes(docs: list[str]) -> list[Send]:
    return [Send("note", {"doc": doc}) for doc in docs]


def short(answer: str) -> list[str]:
    return [] if "again" in answer else ["say it again"]


def everything() -> Any:
    """Modules in a node, in branches of Sends, items of a map, a router, a check, its fix, a condenser, a subgraph."""
    inner = Graph(Desk, name="Inner", inputs=["question"], outputs=["kind"])
    inner.add_node("sort", dspy.ChainOfThought("question -> kind: Literal['a', 'b']"))
    inner.add_path(START, "sort", END)
    graph = Graph(Desk, name="Everything", inputs=["question", "docs"])
    graph.add_node("inner", inner.compile())
    graph.add_node("read", dspy.Predict(ReadDoc))
    graph.add_map("notes", dspy.Predict("item -> note"), over="docs", item="item", into="notes")
    graph.add_node("answer", dspy.ChainOfThought("question, notes: list[str] -> answer"))
    graph.add_check("good", dspy.Predict("answer -> problems: list[str]"), of="answer", max_fixes=1, accept=True)
    graph.add_path(START, "inner", "read", "notes", "answer")
    after = dspy.Predict("answer -> next: Literal['stop', 'end']")
    graph.add_conditional_edges("answer", after, {"stop": END, "end": END})
    return graph.compile()


class ReadDoc(dspy.Signature):
    """Read a document."""

    question: str = dspy.InputField()
    doc: Doc = dspy.OutputField()


INPUTS = {"question": "Where?", "docs": ["north", "south", "north"]}


@pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))
def test_modules_are_cached_wherever_a_graph_calls_them(play: Play, tmp_path: Path) -> None:
    program = everything()

    def said(prompt: Any) -> Any:
        if any(field.name == "problems" for field in prompt.output_fields):
            return {"problems": [] if "previous" in str(prompt.inputs) else ["say it again"]}
        return answers(prompt)

    with caching_lm(said) as plain:
        run = play(program, INPUTS)
    expected, steps = facts(run), own_steps(run, program)
    assert steps.count("") == 1  # the rejected one has a copy
    with optimize.cache(tmp_path) as spared:
        with caching_lm(said) as cold:
            assert facts(play(program, INPUTS)) == expected
        with dspy.context(lm=caching_lm(said)):
            warm = play(program, INPUTS)
    assert facts(warm) == expected
    assert own_steps(warm, program) == steps
    assert not warm.usage
    assert len(plain.calls) - len(cold.calls) == 1  # two documents are the same
    assert spared.to_dict().keys() >= {"sort", "read", "notes", "answer", "answer_router", "good", "answer_fix"}
    assert sum(one["lm_spared"] for one in spared.to_dict().values()) == len(plain.calls) + 1
    assert all(one["calls"] for one in spared.to_dict().values())


def one_node(module: Any = None, **options: Any) -> Any:
    graph = Graph(name="One").add_node("answer", module or dspy.Predict("question -> answer"), **options)
    return graph.add_path(START, "answer", END).compile()


def test_a_hit_counts_as_a_call_of_its_node_and_costs_nothing(tmp_path: Path) -> None:
    graph = Graph(Desk, name="Counting", inputs=["question"])
    reads = {"question": "question", "number": "run.answer.calls"}
    graph.add_node("answer", dspy.Predict("question, number: int -> answer"), reads=reads)
    graph.add_node("count", lambda: {"tries": 1}, writes=["tries"])
    graph.add_path(START, "answer", "count")
    graph.add_conditional_edges("count", lambda tries: END if tries == 3 else "answer", [END, "answer"])
    program = graph.compile()
    with caching_lm() as lm, optimize.cache(tmp_path) as spared:
        cold = program.run({"question": "Where?"})
        warm = program.run({"question": "Where?"}, budget=Budget(tokens=1))
    assert len(lm.calls) == 3
    assert facts(cold) == facts(warm)
    assert [one.cached for one in warm.commits if one.node == "answer"] == [True] * 3
    assert not any(one.cached for one in (*cold.commits, *(one for one in warm.commits if one.node != "answer")))
    assert {name: one.cached for name, one in warm.stats().nodes.items()} == {"answer": 3, "count": 0}
    assert not warm.usage
    assert spared.to_dict() == {"answer": {"calls": 3, "spared": 3, "lm_calls": 3, "lm_spared": 3}}
    assert str(spared).split("\n")[1].split() == ["answer", "3", "3", "3", "3"]


CALLED: list[str] = []
"""A global variable is no part of a key."""


def search(query: str) -> dict[str, Any]:
    CALLED.append(query)
    return {"hits": [query]}


def test_of_a_function_with_cache_the_calls_are_counted_too(tmp_path: Path) -> None:
    CALLED.clear()

    graph = Graph(name="Searching").add_node("query", dspy.Predict("question -> query"))
    graph.add_node("search", search, writes=["hits"], cache=True)
    program = graph.add_path(START, "query", "search", END).compile(cache_dir=tmp_path / "functions")
    with caching_lm(), optimize.cache(tmp_path / "modules") as spared:
        for _ in range(10):
            run = program.run({"question": "Where?"})
    assert spared.to_dict()["search"] == {"calls": 1, "spared": 9, "lm_calls": 0, "lm_spared": 0}
    assert [one.cached for one in run.commits] == [False, True, True]
    assert len(CALLED) == 1


# --- what is not kept


class Stateful(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")
        self.seen: list[str] = []

    def forward(self, question: str) -> dspy.Prediction:
        self.seen.append(question)
        return self.ask(question=question)


class Holding(dspy.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")
        self.value = value

    def forward(self, question: str) -> dspy.Prediction:
        return self.ask(question=question)


class Changing(Holding):
    """Changes its input in place."""

    def forward(self, question: Any) -> dspy.Prediction:
        question.append("Why?")
        return self.ask(question=question)


class Naming(Holding):
    """Gives what has no JSON form."""

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer=self.ask(question=question).answer, by=object())


class Foreign(Holding):
    """Calls a predictor that it does not hold."""

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Predict("question -> answer")(question=question)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (dspy.Predict("question -> answer", cache=False), "has cache=False"),
        (Stateful(), "a call changes the module"),
        (Holding(threading.Lock()), "Holding.value is a lock, which cannot be told from another one"),
        (Changing(None), "a call changes the module, its inputs, or a variable"),
        (Naming(None), "object"),
        (Foreign(None), "that it does not hold"),
        (Holding(one_node()), "is a compiled graph"),
        (dspy.BestOfN(dspy.Predict("question -> answer"), 2, lambda *_: 1.0, 1.0), "that it does not hold"),
    ],
    ids=["config", "state", "lock", "inputs", "object", "foreign", "graph", "copies"],
)
def test_what_is_not_kept_is_called_and_said_once(
    module: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = one_node(module, writes=["answer"])
    with caching_lm() as lm, optimize.cache(tmp_path) as spared:
        runs = [program.run({"question": ["Where?"]}) for _ in range(3)]
    assert len(lm.calls) == 3
    assert [run.commits[-1].cached for run in runs] == [False] * 3
    assert spared.to_dict()["answer"]["spared"] == 0
    (warning,) = warnings_of(caplog)
    assert warning.startswith("optimize.cache, node 'answer': its results are not kept: ")
    assert reason in warning


def test_an_lm_that_does_not_cache_is_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = one_node()
    with ScriptedLM(answers) as lm, optimize.cache(tmp_path):
        for _ in range(3):
            program.run({"question": "Where?"})
    assert len(lm.calls) == 3
    (warning,) = warnings_of(caplog)
    assert warning.endswith(
        "its results are not kept: the LM 'scripted' does not cache (dspy.LM(..., cache=True) would)"
    )


def test_a_module_without_predictors_is_no_concern_of_the_cache(tmp_path: Path, caplog: Any) -> None:
    class Plain(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Prediction(answer=question.upper())

    with optimize.cache(tmp_path) as spared:
        assert one_node(Plain(), writes=["answer"])(question="a").answer == "A"
    assert (str(spared), warnings_of(caplog)) == ("no node was called", [])


@pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))
def test_errors_are_never_kept(play: Play, tmp_path: Path) -> None:
    program = one_node(dspy.Predict("question -> answer: int"))
    script = [RuntimeError("down"), "no field", "no field", {"answer": 3}]  # a response that does not parse asks twice
    with ScriptedLM(script, cache=True) as lm, optimize.cache(tmp_path):
        statuses = [play(program, {"question": "Where?"}).status for _ in range(4)]
    assert statuses == ["failed", "failed", "completed", "completed"]
    assert len(lm.calls) == 4


# --- attempts


@pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))
def test_the_result_of_a_later_attempt_is_under_the_key_of_the_first(play: Play, tmp_path: Path) -> None:
    class Strict(Desk):
        answer: Literal["good", ""] = ""

    graph = Graph(Strict, name="Strict", inputs=["question"])
    program = graph.add_node("answer", dspy.Predict("question -> answer"), retry=Retry(3))
    program = program.add_path(START, "answer", END).compile()
    with no_pauses(), optimize.cache(tmp_path):
        with ScriptedLM([{"answer": "bad"}, {"answer": "bad"}, {"answer": "good"}], cache=True) as lm:
            cold = play(program, {"question": "Where?"})
        with ScriptedLM([], cache=True):
            warm = play(program, {"question": "Where?"})
    assert len(lm.calls) == 3
    assert (cold.commits[-1].attempt, warm.commits[-1].attempt) == (3, 1)
    assert (warm.commits[-1].cached, warm.state["answer"]) == (True, "good")
    assert [step.status for step in cold.trace_steps] == ["lost", "lost", "used"]
    assert [step.status for step in warm.trace_steps] == ["used"]
    assert [dict(outputs) for _, _, outputs in warm.trace] == [dict(outputs) for _, _, outputs in cold.trace]


def test_what_a_schema_refuses_is_not_kept(tmp_path: Path) -> None:
    class Strict(Desk):
        answer: Literal["good", ""] = ""

    graph = Graph(Strict, name="Strict", inputs=["question"]).add_node("answer", dspy.Predict("question -> answer"))
    program = graph.add_path(START, "answer", END).compile()
    with ScriptedLM([{"answer": "bad"}, {"answer": "good"}], cache=True), optimize.cache(tmp_path):
        assert program.run({"question": "Where?"}).status == "failed"
        assert not list(patch_cache.cache_in(str(tmp_path))._open())
        assert [program.run({"question": "Where?"}).status for _ in range(2)] == ["completed", "completed"]


def test_a_result_that_the_schema_of_now_refuses_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Strict(Desk):
        answer: Literal["good", ""] = ""

    def program(schema: Any) -> Any:
        graph = Graph(schema, name="Desk", inputs=["question"]).add_node("answer", dspy.Predict("question -> answer"))
        return graph.add_path(START, "answer", END).compile()

    with optimize.cache(tmp_path):
        with ScriptedLM([{"answer": "bad"}], cache=True):
            program(Desk).run({"question": "Where?"})
        with ScriptedLM([{"answer": "good"}], cache=True), dspy.context(trace=[]):
            run = program(Strict).run({"question": "Where?"})
            assert (run.status, run.state["answer"], run.commits[-1].cached) == ("completed", "good", False)
            assert [step.outputs["answer"] for step in run.trace_steps] == ["good"]
        with ScriptedLM([], cache=True):
            assert program(Strict).run({"question": "Where?"}).commits[-1].cached
    (warning,) = warnings_of(caplog)
    assert "a result in the cache cannot be used, so the module is called: " in warning


# --- concurrency


def test_equal_calls_at_the_same_time_are_one_call_with_the_steps_of_all(tmp_path: Path) -> None:
    entered, let_go = threading.Event(), threading.Event()

    def slowly(prompt: Any) -> Any:
        entered.set()
        assert let_go.wait(20)
        return answers(prompt)

    program, runs = one_node(), []
    with caching_lm(slowly) as lm, optimize.cache(tmp_path) as spared:

        def work() -> None:
            runs.append(program.run({"question": "Where?"}))

        threads = [threading.Thread(target=in_context(work)) for _ in range(4)]
        threads[0].start()
        assert entered.wait(20)
        for thread in threads[1:]:
            thread.start()
        while len(waiting()) < 3:
            threading.Event().wait(0.001)
        let_go.set()
        for thread in threads:
            thread.join()
    assert len(lm.calls) == 1
    assert spared.to_dict()["answer"]["spared"] == 3
    assert len({repr(facts(run)) for run in runs}) == 1
    assert all(own_steps(run, program) == ["answer"] for run in runs)


def waiting() -> list[Any]:
    """Those that wait for the leader of a flight."""
    return [wake for flight in list(patch_cache._flights.values()) for wake in flight._waiting]


def in_context(work: Any) -> Any:
    import contextvars

    return lambda context=contextvars.copy_context(): context.run(work)


def test_threads_of_evaluate_use_one_folder(tmp_path: Path, quiet: None) -> None:
    program = everything()
    devset = [dspy.Example(INPUTS, answer="").with_inputs("question", "docs") for _ in range(6)]

    def metric(example: Any, prediction: Any) -> float:
        return float(len(prediction.answer))

    def score() -> Any:
        evaluate = dspy.Evaluate(devset=devset, metric=metric, num_threads=4, display_progress=False)
        return evaluate(program).score

    with caching_lm() as plain:
        expected = score()
    with caching_lm() as cold, optimize.cache(tmp_path):
        assert score() == expected
        assert score() == expected
    assert len(cold.calls) < len(plain.calls) / 5


def test_tasks_on_one_loop_make_one_call(tmp_path: Path) -> None:
    program = one_node()

    async def ask() -> list[Any]:
        return await asyncio.gather(*[program.acall(question="Where?") for _ in range(5)])

    with caching_lm() as lm, optimize.cache(tmp_path):
        found = asyncio.run(ask())
    assert len(lm.calls) == 1
    assert len({one.answer for one in found}) == 1


def test_an_attempt_that_timed_out_is_waited_for_no_longer(tmp_path: Path, time_is_over: TimeIsOver) -> None:
    let_go = threading.Event()

    def slowly(prompt: Any) -> Any:
        time_is_over()
        assert let_go.wait(20)
        return answers(prompt)

    program = one_node(timeout=0.05)
    with dspy.context(lm=caching_lm(slowly)), optimize.cache(tmp_path):
        assert type(program.run({"question": "Where?"}).error).__name__ == "NodeTimeoutError"
        assert not patch_cache._flights
        let_go.set()
        assert one_node().run({"question": "Where?"}).status == "completed"


# --- blocks and folders


def test_a_block_inside_a_block_uses_its_own_folder(tmp_path: Path) -> None:
    program = one_node()
    with caching_lm() as lm, optimize.cache(tmp_path / "a") as outer:
        program(question="Where?")
        with optimize.cache(tmp_path / "b") as inner:
            program(question="Where?")
        program(question="Where?")
    program_calls = [outer.to_dict()["answer"], inner.to_dict()["answer"]]
    assert [(one["calls"], one["spared"]) for one in program_calls] == [(1, 1), (1, 0)]
    assert len(lm.calls) == 2
    with dspy.context(lm=lm):
        program(question="Where?")
    assert len(lm.calls) == 3  # outside of the block nothing is looked up


def make_other_format(folder: Path) -> None:
    folder.mkdir()
    (folder / "format").write_text("dspyer results 99\n")


def make_foreign(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("all of it")


def make_damaged(folder: Path) -> None:
    folder.mkdir()
    (folder / "cache.db").write_text("no database" * 1000)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (make_other_format, "is of another format, 'dspyer results 99'"),
        (make_foreign, "has 'thesis.txt' in it"),
        (make_damaged, "cannot be used for results: DatabaseError"),
        (lambda folder: folder.write_text("a file"), "cannot be used for results: FileExistsError"),
    ],
    ids=["format", "foreign", "damaged", "file"],
)
def test_a_folder_that_is_none_of_ours_is_refused_before_anything_runs(make: Any, text: str, tmp_path: Path) -> None:
    make(tmp_path / "tuning")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StoreError) as raised, optimize.cache(tmp_path / "tuning"):
        raise AssertionError("the block began")
    assert text in str(raised.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}.items() >= before.items()


@pytest.mark.parametrize("path", [None, 3, ""])
def test_a_path_is_a_path(path: Any) -> None:
    with pytest.raises(TypeError, match=r"optimize\.cache takes the path of a folder"), optimize.cache(path):
        pass


def test_a_block_may_be_entered_again_and_within_another_one(tmp_path: Path) -> None:
    program, block = one_node(), optimize.cache(tmp_path / "a")
    with caching() as lm:
        for calls in (1, 0):
            with block as spared, block:
                program.run({"question": "Where?"})
            assert spared.to_dict() == {}  # the inner one counts
            with block as spared:
                program.run({"question": f"Where? {calls}"})
            assert spared.to_dict()["answer"]["calls"] == 1
        program.run({"question": "Where?"})
    assert len(lm.calls) == 4
    with ThreadPoolExecutor(4) as pool, caching() as lm:

        def ask(number: int) -> str:
            with dspy.context(lm=lm), block:
                return str(program.run({"question": f"Which? {number % 3}"}).status)

        assert set(pool.map(ask, range(12))) == {"completed"}
    assert len(lm.calls) == 3


def test_a_block_without_with_says_that_it_keeps_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optimize.cache(tmp_path)
    gc.collect()
    (warning,) = warnings_of(caplog)
    assert "was never entered, so it has kept nothing: write `with optimize.cache(...):`" in warning
    caplog.clear()
    with optimize.cache(tmp_path):
        pass
    decorator: Any = optimize.cache(tmp_path)
    decorator(len)
    del decorator
    gc.collect()
    assert warnings_of(caplog) == []


def test_hidden_files_are_of_tools(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*")
    with caching() as lm:
        for _ in range(2):
            with optimize.cache(tmp_path):
                one_node().run({"question": "Where?"})
    assert len(lm.calls) == 1
    assert (tmp_path / ".gitignore").read_text() == "*"


def test_a_disk_that_fails_later_is_a_miss(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    program = one_node()

    def broken(folder: str) -> Any:
        raise OSError("no space left on device")

    with caching_lm() as lm, optimize.cache(tmp_path):
        program(question="Where?")
        patch_cache.cache_in(str(tmp_path))._disk = None
        monkeypatch.setattr(patch_cache, "open_disk", broken)
        results = [program(question="Where?").answer for _ in range(2)]
        monkeypatch.undo()
        program(question="Where?")
    assert len(lm.calls) == 3
    assert len(set(results)) == 1
    assert len(warnings_of(caplog)) == 1


def test_a_damaged_entry_is_a_miss(tmp_path: Path, caplog: Any) -> None:
    program = one_node()
    with caching_lm() as lm, optimize.cache(tmp_path):
        program(question="Where?")
        disk = patch_cache.cache_in(str(tmp_path))._open()
        (key,) = list(disk)
        disk.set(key, b"x" * 40)
        program(question="Where?")
        program(question="Where?")
    assert len(lm.calls) == 2
    assert "is damaged" in warnings_of(caplog)[0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list open files")
def test_a_folder_is_closed_after_its_last_block(tmp_path: Path) -> None:
    program = one_node()

    def files_after(count: int) -> int:
        for number in range(count):
            with optimize.cache(tmp_path / str(number)), optimize.cache(tmp_path / str(number)):
                program.run({"question": "Where?"})
        gc.collect()  # diskcache leaves the files to the garbage collector
        return len(list(Path("/proc/self/fd").iterdir()))

    with caching_lm():
        before = files_after(1)
        assert files_after(5) <= before
