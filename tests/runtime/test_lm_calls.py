"""What the server received is what is recorded, in number and text, with the execution that asked."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from tenacity import wait_none

from dspyer import END, START, Archive, Budget, CompiledGraph, Context, Graph, Retry, Run, Thread
from dspyer.errors import LMCallError
from dspyer.events import LMCall
from dspyer.lms import reliable
from dspyer.stores import SQLite
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import ScriptedLM
from tests.log.processes import end_of, fork
from tests.nodes.kit import MODES
from tests.openai_server import HTTPFailureError, OpenAIServer
from tests.stores.bodies import unpacked

NOW = Retry(3, wait=wait_none())
PRICES = {"openai/local": (1.0, 2.0)}
LOST = "LMUnexpectedError: [scripted] lost"
SECRET = "the tide is at six"


def answer(messages: list[dict[str, Any]]) -> str:
    """The fields that the prompt asks for; a question with "fails" gets status 500, once for each wording."""
    text = json.dumps(messages)
    if "fails" in text:
        raise HTTPFailureError(500, "broken")
    return "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answer) as found:
        yield found


def play(thread: Thread, inputs: dict[str, Any], mode: str, **options: Any) -> Run:
    if mode == "sync":
        return thread.run(inputs, **options)
    return asyncio.run(thread.arun(inputs, **options))


def prompts_of(server: OpenAIServer) -> Counter[str]:
    return Counter(json.dumps(request["messages"], sort_keys=True) for request in server.requests)


def prompts_in(calls: tuple[LMCall, ...]) -> Counter[str]:
    return Counter(json.dumps(call.messages, sort_keys=True) for call in calls if not call.cached)


def all_calls(thread: Thread) -> tuple[LMCall, ...]:
    """The calls of all commits of a thread, and of the executions that have failed."""
    found = [call for commit in thread.history() for call in thread.lm_calls(commit.id)]
    for failure in thread.failures:
        found += [call for call in thread.lm_calls(failure.execution) if call not in found]
    return tuple(found)


def mixed(**options: Any) -> CompiledGraph:
    """A map, a retried node, a graph that is a node, a router and a node that calls an LM by itself."""
    inner = Graph().add_node("deep", dspy.Predict("question -> answer")).add_path(START, "deep", END)
    flaky: Counter[str] = Counter()

    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            found = self.ask(question=f"twice {question}")
            flaky["twice"] += 1
            if flaky["twice"] == 1:
                raise ConnectionError("lost")
            return dspy.Prediction(again=found.answer)

        async def aforward(self, question: str) -> dspy.Prediction:
            found = await self.ask.acall(question=f"twice {question}")
            flaky["twice"] += 1
            if flaky["twice"] == 1:
                raise ConnectionError("lost")
            return dspy.Prediction(again=found.answer)

    def once(question: str, ctx: Context) -> dict[str, Any]:
        return {"direct": ctx.once("ask", lambda: dspy.settings.lm(f"once {question}")[0])}

    graph = Graph(inputs=["question", "parts"])
    graph.add_map("each", dspy.Predict("part -> answer"), over="parts", item="part", into="answers", retry=NOW)
    graph.add_node("twice", Twice(), retry=NOW)
    graph.add_node("inside", inner)
    graph.add_node("once", once, writes=["direct"])
    return graph.add_path(START, "each", "twice", "inside", "once", END).compile(**options)


INPUTS = {"question": "when?", "parts": ["one", "two", "three"]}


@MODES
def test_what_the_server_received_is_what_is_stored(server: OpenAIServer, tmp_path: Path, mode: str) -> None:
    program = mixed(store=tmp_path / "t.db", record_lm_calls="full", budget=Budget(cost=9, prices=PRICES))
    thread = program.thread("t")
    with dspy.context(lm=server.lm(num_retries=0, cache=False)):
        run = play(thread, INPUTS, mode)
    assert run.status == "completed", run.error
    stored = all_calls(thread)
    assert prompts_in(stored) == prompts_in(run.lm_calls) == prompts_of(server)
    assert len(stored) == len(server.requests) == run.usage["openai/local"]["requests"] == 7
    places = Counter((call.execution, call.node, call.predictor, call.attempt) for call in stored)
    assert places == Counter(
        [
            *[(f"trunk:1[{index}]", "each", "each", 1) for index in range(3)],
            *[("trunk:2", "twice", "twice.ask", number) for number in (1, 2)],
            ("trunk:3/trunk:1", "deep", "deep", 1),
            ("trunk:4", "once", "", 1),
        ]
    )
    one = next(call for call in stored if call.node == "deep")
    assert (one.model, one.response_model, one.cached, one.finish_reason) == ("openai/local", "local", False, "stop")
    assert (one.response, one.failed, one.requests) == (answer([]), None, 1)
    assert one.cost == pytest.approx((one.prompt_tokens + 2 * one.response_tokens) / 1e6)
    assert 0 < one.seconds < 10
    assert run.cost == pytest.approx(thread.cost) == pytest.approx(sum(call.cost or 0 for call in stored))
    assert thread.usage == run.usage
    assert thread.stats().nodes["twice"].lm_calls == run.stats().nodes["twice"].lm_calls == 2
    assert thread.stats().nodes["inside"].tokens == one.tokens
    assert [call.execution for call in thread.lm_calls(3)] == ["trunk:3/trunk:1"]
    for place, number in places.items():
        assert len(thread.lm_calls(place[0])) >= number, "also of an item"
    with pytest.raises(LookupError, match="no commit"):
        thread.lm_calls("trunk:1[3]")
    assert program.thread("t").replay() == run.state


@pytest.mark.parametrize(("mode", "history"), [("sync", True), ("async", False)])
def test_failed_calls_and_a_fallback(server: OpenAIServer, tmp_path: Path, mode: str, history: bool) -> None:
    """Also where DSPy keeps no history: the callback has the prompt, and the usage tracker the tokens."""
    with OpenAIServer(lambda _: (_ for _ in ()).throw(HTTPFailureError(500, "down")), model="main") as broken:
        lm = reliable(broken.lm(cache=False), server.lm(cache=False), retry=Retry(2, wait=wait_none()))
        graph = Graph().add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END)
        thread = graph.compile(store=tmp_path / "t.db", record_lm_calls="full").thread("t")
        with dspy.context(lm=lm, disable_history=not history):
            run = play(thread, {"question": "why?"}, mode)
        calls = thread.lm_calls(1)
        assert [(call.model, call.failed is None) for call in calls] == [
            ("openai/main", False),
            ("openai/main", False),
            ("openai/local", True),
        ]
        assert prompts_in(calls) == prompts_of(broken) + prompts_of(server)
    assert [call.requests for call in calls] == [1, 1, 1]
    assert calls[0].failed is not None
    assert calls[0].failed.startswith("LMServerError: ")
    assert calls[2].prompt_tokens > 0
    assert run.usage["openai/main"]["requests"] == 2
    assert calls[2].fallback


@MODES
def test_the_calls_of_a_run_that_failed_and_was_resumed(tmp_path: Path, mode: str) -> None:
    graph = Graph().add_node("first", dspy.Predict("question -> answer"))
    graph.add_node("second", dspy.Predict("answer, question -> end"))
    program = graph.add_path(START, "first", "second", END).compile(store=tmp_path / "t.db", record_lm_calls="full")
    thread = program.thread("t")
    with dspy.context(lm=ScriptedLM([{"answer": "a"}, ConnectionError("lost")])):
        failed = play(thread, {"question": "?"}, mode)
    assert failed.status == "failed"
    (call,) = thread.lm_calls(thread.failures[0].execution)
    assert (call.failed, call.execution, call.requests) == (LOST, "trunk:2", 1)
    with dspy.context(lm=ScriptedLM([{"end": "b"}])):
        run = thread.resume()
    assert [one.failed for one in thread.lm_calls(2)] == [LOST, None]
    assert [one.execution for one in run.lm_calls] == ["trunk:2"]
    assert thread.usage["scripted"]["requests"] == 3
    assert thread.lm_calls("trunk:1") == thread.lm_calls(1) == thread.lm_calls("t.1/trunk:1")
    with pytest.raises(LookupError, match="no commit 'trunk:9'"):
        thread.lm_calls("trunk:9")
    copied = thread.copy(to="u", at=1)
    assert copied.lm_calls("t.1/trunk:1") == thread.lm_calls(1) == copied.lm_calls(1)
    thread.export(tmp_path / "t.jsonl")
    loaded = program.thread("loaded")
    thread.delete()
    copied.delete()
    loaded.load(tmp_path / "t.jsonl")
    assert [one.failed for one in loaded.lm_calls(2)] == [LOST, None]


def test_a_response_from_the_cache_is_no_request(server: OpenAIServer, tmp_path: Path) -> None:
    graph = Graph().add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END)
    thread = graph.compile(store=tmp_path / "t.db", budget=Budget(cost=1, prices=PRICES)).thread("t")
    with dspy.context(lm=server.lm(cache=True)):
        runs = [thread.run({"question": "cached?"}) for _ in range(2)]
    assert [(one.lm_calls[0].cached, one.lm_calls[0].requests, one.lm_calls[0].cost == 0) for one in runs] == [
        (False, 1, False),
        (True, 0, True),
    ]
    assert (runs[1].cost, runs[1].usage, len(server.requests)) == (0.0, {}, 1)
    assert thread.cost == runs[0].cost
    assert thread.lm_calls(3)[0].cached


def test_without_a_price_the_cost_is_unknown(server: OpenAIServer) -> None:
    program = Graph().add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END).compile()
    with dspy.context(lm=server.lm(cache=False)):
        run = program.run({"question": "?"})
    assert (run.cost, run.usage["openai/local"]["cost"], run.lm_calls[0].cost) == (None, None, None)
    assert (run.lm_calls[0].messages, run.lm_calls[0].response) == (None, None)


def folder_text(path: Path) -> bytes:
    """The bytes of the files, and what the database has packed."""
    found = [file.read_bytes() for file in sorted(path.iterdir())]
    with closing(sqlite3.connect(path / "t.db")) as database:
        found += [unpacked(body) for (body,) in database.execute("SELECT body FROM entry")]
    return b"".join(found)


def hide(call: LMCall) -> LMCall | None:
    """What a careful user writes: nothing of "deep", and of the others no secret."""
    if call.node == "other":
        return None
    messages = json.loads(json.dumps(call.messages).replace(SECRET, "[hidden]"))
    return replace(call, messages=messages, response="[hidden]")


RECORDED: list[tuple[str, Any, dict[str, Any], bool]] = [
    ("usage", "usage", {}, False),
    ("none", "none", {}, False),
    ("full", "full", {}, True),
    ("function", hide, {}, False),
    ("function, redacted", hide, {"redact": ["secret"]}, False),
]


@pytest.mark.parametrize(
    ("recorded", "options", "found"), [row[1:] for row in RECORDED], ids=[row[0] for row in RECORDED]
)
def test_what_the_file_contains(
    server: OpenAIServer, tmp_path: Path, recorded: Any, options: dict[str, Any], found: bool
) -> None:
    def use(ctx: Context) -> dict[str, Any]:
        ask = dspy.Predict("question -> answer")
        ask(question=SECRET)
        return {"n": 1}

    graph = Graph().add_node("use", use, writes=["n", "secret"]).add_node("other", use, writes=["n"])
    program = graph.add_path(START, "use", "other", END).compile(
        store=tmp_path / "t.db", record_lm_calls=recorded, **options
    )
    with dspy.context(lm=server.lm(cache=False)):
        run = program.thread("t").run({})
    assert run.status == "completed", run.error
    data = folder_text(tmp_path)
    assert (SECRET.encode() in data) == found
    if isinstance(recorded, str):
        assert (b"completed ## ]]" in data) == found
    calls = program.thread("t").lm_calls(1)
    assert len(calls) == (recorded != "none")
    if recorded is hide:
        assert "[hidden]" in json.dumps(calls[0].messages)
        assert program.thread("t").lm_calls(2) == ()
        assert len(run.lm_calls) == 2
        assert program.thread("t").usage["openai/local"]["requests"] == 2, "what is not written is counted"


def test_an_encrypted_store_shows_nothing(server: OpenAIServer, tmp_path: Path) -> None:
    store = Encrypted(SQLite(tmp_path / "t.db"), key=Encrypted.new_key())
    graph = Graph().add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END)
    thread = graph.compile(store=store, record_lm_calls="full").thread("t")
    long = SECRET * 100
    with dspy.context(lm=server.lm(cache=False)):
        thread.run({"question": long})
    assert SECRET.encode() not in folder_text(tmp_path)
    assert long in thread.lm_calls(1)[0].messages[-1]["content"]


def test_redacted_texts_are_stored_and_never_shown(server: OpenAIServer, tmp_path: Path) -> None:
    graph = Graph().add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END)
    program = graph.compile(store=tmp_path / "t.db", record_lm_calls="full", redact=["question"])
    thread = program.thread("t")
    with dspy.context(lm=server.lm(cache=False)):
        run = thread.run({"question": SECRET})
    plain = graph.compile(store=tmp_path / "t.db").thread("t")
    for call in (run.lm_calls[0], thread.lm_calls(1)[0], plain.lm_calls(1)[0]):
        assert (call.messages, call.response) == (None, None)
        assert call.tokens > 0
    assert SECRET not in json.dumps([event.to_dict() for event in run.events])
    assert folder_text(tmp_path).count(SECRET.encode()) >= 2, "in the state, and in the prompt"


def broken(call: LMCall) -> Any:
    raise ValueError(json.dumps(call.messages))


@pytest.mark.parametrize(
    ("mode", "function"),
    [("sync", broken), ("async", lambda call: "text"), ("sync", lambda call: call._replace(model=3))],
)
def test_a_function_that_fails_fails_the_run(tmp_path: Path, mode: str, function: Callable[[LMCall], Any]) -> None:
    def use(ctx: Context) -> dict[str, Any]:
        dspy.Predict("question -> answer")(question=SECRET)
        return {"n": 1}

    graph = Graph().add_node("ask", use, writes=["n"]).add_path(START, "ask", END)
    thread = graph.compile(store=tmp_path / "t.db", record_lm_calls=function).thread("t")
    with dspy.context(lm=ScriptedLM([{"answer": "a"}])):
        run = play(thread, {}, mode)
    assert (run.status, thread.status) == ("failed", "failed")
    assert "the function given as record_lm_calls= failed with" in str(run.error)
    assert isinstance(run.error, LMCallError)
    assert pickle.loads(pickle.dumps(run.error)).call == run.error.call
    assert thread.failures[0].execution == "trunk:1"
    (call,) = thread.lm_calls("trunk:1")
    assert call.messages is None
    assert SECRET.encode() not in folder_text(tmp_path)
    mended = graph.compile(store=tmp_path / "t.db", record_lm_calls=hide).thread("t")
    with dspy.context(lm=ScriptedLM([{"answer": "a"}])):
        assert mended.resume().status == "completed"
    assert len(mended.lm_calls(1)) == 2


@pytest.mark.parametrize("given", ["all", 3, None, LMCall])
def test_what_the_option_refuses(given: Any) -> None:
    graph = Graph().add_node("a", lambda: {"n": 1}, writes=["n"]).add_path(START, "a", END)
    with pytest.raises((TypeError, ValueError), match=r"record_lm_calls=.*give 'usage'"):
        graph.compile(record_lm_calls=given)


@pytest.mark.parametrize("killed_at", [1, 3, 4, 6])
def test_a_killed_process_has_written_what_it_had_committed(tmp_path: Path, killed_at: int) -> None:
    """Each LM call whose result counts is stored once, whenever the process is killed; those that follow are new."""
    log = tmp_path / "requests"

    def answered(messages: list[dict[str, Any]]) -> str:
        with log.open("a") as file:
            file.write(json.dumps(messages) + "\n")
        if len(log.read_text().splitlines()) == killed_at:
            os.kill(os.getpid(), 9)
        return answer(messages)

    program = mixed(store=tmp_path / "t.db", record_lm_calls="full", max_concurrency=1)

    def child() -> None:
        with OpenAIServer(answered) as server, dspy.context(lm=server.lm(num_retries=0, cache=False)):
            program.thread("t").run(INPUTS)

    assert end_of(fork(child)) == -9
    before = log.read_text().splitlines()
    assert len(before) == killed_at
    with OpenAIServer(answer) as server, dspy.context(lm=server.lm(num_retries=0, cache=False)):
        thread = program.thread("t")
        run = thread.resume()
        assert run.status == "completed", run.error
        stored = prompts_in(all_calls(thread))
        received = prompts_of(server) + Counter(json.dumps(json.loads(line), sort_keys=True) for line in before)
        # Of the killed process, the call that was answered last, and those of an execution without a row, are lost.
        lost = received - stored
        assert stored - received == Counter()
        assert 1 <= lost.total() <= 2
        assert thread.usage["openai/local"]["requests"] == received.total() - lost.total()
        assert run.usage["openai/local"]["requests"] == len(server.requests)


def test_threads_of_many_runs_do_not_mix_their_calls(server: OpenAIServer, tmp_path: Path) -> None:
    graph = Graph(inputs=["question"]).add_node("a", dspy.Predict("question -> answer"))
    graph.add_node("b", dspy.Predict("question -> answer"), writes={"answer": "other"})
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", END).add_edge("b", END)
    program = graph.compile(store=tmp_path / "t.db", record_lm_calls="full")
    with dspy.context(lm=server.lm(cache=False)):
        context = dspy.settings.copy() if hasattr(dspy.settings, "copy") else {}

        def one(number: int) -> None:
            with dspy.context(**context):
                program.thread(f"t{number}").run({"question": f"number {number}?"})

        threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(6):
        calls = all_calls(program.thread(f"t{number}"))
        assert sorted(call.node for call in calls) == ["a", "b"]
        assert all(f"number {number}?" in json.dumps(call.messages) for call in calls)


def test_calls_of_a_run_in_a_node_have_the_texts_and_the_prices_of_the_run_around_it() -> None:
    def look_up(question: str) -> dict[str, Any]:
        inner = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
        run = inner.add_path(START, "ask", END).compile().run({"question": f"Ada's {question}"})
        return {"answer": run.prediction.answer}

    def nested(question: str) -> dict[str, Any]:
        middle = Graph(inputs=["question"]).add_node("look_up", look_up, writes=["answer"])
        return {"answer": middle.add_path(START, "look_up", END).compile().run({"question": question}).state["answer"]}

    def without_names(call: LMCall) -> LMCall:
        hidden = [{**message, "content": message["content"].replace("Ada", "[name]")} for message in call.messages]
        return replace(call, messages=hidden)

    for node in (look_up, nested):
        graph = Graph(inputs=["question"]).add_node("node", node, writes=["answer"]).add_path(START, "node", END)
        budget = Budget(cost=1, prices={"scripted": (1.0, 2.0)})
        thread = graph.compile(store=":memory:", record_lm_calls=without_names, budget=budget).thread("t")
        with ScriptedLM([{"answer": "yes"}]):
            run = thread.run({"question": "house?"})
        assert run.error is None
        (call,) = thread.lm_calls(1)
        assert (call.execution, call.node) == ("trunk:1", "node")
        assert "[name]'s house?" in json.dumps(call.messages)
        assert "yes" in call.response
        assert run.cost == thread.cost == pytest.approx((call.prompt_tokens + 2 * call.response_tokens) / 1e6)


def two_steps(then: Callable[[], object], path: Path) -> CompiledGraph:
    """Asks, does something, and asks again."""
    graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
    graph.add_node("then", lambda answer: {"done": bool(then()) or True}, writes=["done"])
    graph.add_node("again", dspy.Predict("answer -> last"))
    budget = Budget(cost=1, prices={"scripted": (1.0, 2.0)})
    return graph.add_path(START, "ask", "then", "again", END).compile(store=path, budget=budget)


def test_lists_have_the_cost_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    program = two_steps(lambda: program.thread("t").stop(), tmp_path / "t.db")
    with ScriptedLM([{"answer": "yes"}]):
        run = program.thread("t").run({"question": "why?"})
    (info,) = Archive(tmp_path / "t.db").runs()
    assert (info.status, info.steps, info.usage) == ("stopped", 2, run.usage)
    assert info.cost == program.thread("t").cost == run.cost != 0
    program = two_steps(lambda: None, tmp_path / "t.db")
    with ScriptedLM([{"last": "yes"}]):
        resumed = program.thread("t").resume()
    (info,) = Archive(tmp_path / "t.db").runs()
    assert info.cost == program.thread("t").cost == (run.cost or 0) + (resumed.cost or 0)


@pytest.mark.parametrize("last_stopped", [False, True])
def test_lists_have_the_cost_of_processes_that_were_killed(tmp_path: Path, last_stopped: bool) -> None:
    path = tmp_path / "t.db"

    def child() -> None:
        with ScriptedLM([{"answer": "yes"}]):
            two_steps(lambda: os._exit(9), path).thread("t").run({"question": "why?"})

    def resumed() -> None:
        two_steps(lambda: os._exit(9), path).thread("t").resume()

    assert end_of(fork(child)) == end_of(fork(resumed)) == 9
    (info,) = Archive(path).runs()
    assert (info.status, info.cost) == ("crashed", None)
    program = two_steps(lambda: program.thread("t").stop() if last_stopped else None, path)
    thread = program.thread("t")
    with ScriptedLM([] if last_stopped else [{"last": "yes"}]):
        run = thread.resume()
    if last_stopped:
        assert run.status == "stopped"
        assert list_of(path) == ("stopped", 1, thread.usage, thread.cost)
        with ScriptedLM([{"last": "yes"}]):
            run = two_steps(lambda: None, path).thread("t").resume()
    assert run.status == "completed"
    assert list_of(path) == ("completed", 2, thread.usage, pytest.approx(thread.cost))


def list_of(path: Path) -> tuple[Any, ...]:
    (info,) = Archive(path).runs()
    return info.status, info.usage["scripted"]["requests"], info.usage, info.cost
