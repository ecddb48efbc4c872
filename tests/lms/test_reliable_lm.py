"""`reliable` is a `dspy.LM` in every respect: usage, cost, caches, history, callbacks, copies, saving, optimizers."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import logging
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import dspy
import pytest
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.lm15 import Config, Message, Request
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError, LMUnsupportedFeatureError
from tenacity import wait_fixed

from dspyer import END, START, Budget, Graph, Retry, lms
from dspyer.lms import reliable
from dspyer.testing import ScriptedLM, clock, no_pauses
from tests.http_faults import Cut, Hold, Status
from tests.lm_calls import CALLS, QA, Outcome, call_async, call_sync
from tests.openai_server import OpenAIServer
from tests.rows import each

BROKEN = Status(500)
Call = Callable[..., Outcome]
Serve = Callable[..., tuple[OpenAIServer, Any]]


def says(text: str) -> str:
    return f"[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]"


@pytest.fixture
def served() -> Iterator[Serve]:
    """Starts a server that answers with its name: `server, lm = served("main", faults=[...], cache=True)`."""
    with ExitStack() as stack:

        def serve(name: str, faults: Any = (), **settings: Any) -> tuple[OpenAIServer, Any]:
            server = stack.enter_context(OpenAIServer(lambda messages: says(name), name, faults))
            return server, server.lm(**settings)

        with no_pauses():
            yield serve


# --- usage, cost, history


@pytest.mark.parametrize("call", CALLS)
def test_usage_and_history_have_one_entry_under_the_model_that_responded(served: Serve, call: Call) -> None:
    _, main = served("main", itertools.repeat(BROKEN))
    _, backup = served("backup")
    lm = reliable(main, backup, retry=2)
    before = len(GLOBAL_HISTORY)
    outcome = call(lm)
    assert list(outcome.usage) == ["openai/backup"]
    assert len(outcome.usage["openai/backup"]) == 1
    assert len(GLOBAL_HISTORY) == before + 1
    [entry] = lm.history
    assert (entry["model"], entry["outputs"]) == ("openai/backup", [says("backup")])
    assert entry["usage"]["total_tokens"] == outcome.total_tokens["openai/backup"]
    assert not main.history
    assert not backup.history


def test_the_cost_is_that_of_the_model_that_responded(served: Serve) -> None:
    _, main = served("main", itertools.repeat(BROKEN))
    _, backup = served("gpt-4o-mini")
    lm = reliable(main, backup, retry=1)
    call_sync(lm)
    call_sync(backup)
    assert lm.history[0]["cost"] == backup.history[0]["cost"] > 0


def test_the_usage_of_a_run_has_each_response_once(served: Serve) -> None:
    _, main = served("main", [BROKEN])
    with dspy.context(lm=reliable(main, retry=2)):
        run = Graph().add_node("say", dspy.Predict(QA)).add_path(START, "say", END).compile().run({"question": "a"})
    assert list(run.usage) == ["openai/main"]
    assert run.usage["openai/main"]["total_tokens"] == call_sync(main, "a").total_tokens["openai/main"]


def test_a_callback_hears_each_request_once(served: Serve) -> None:
    heard: list[str] = []

    class Listener(BaseCallback):
        def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            heard.append(f"start {instance.model}")

        def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
            heard.append("ok" if exception is None else type(exception).__name__)

    _, main = served("main", [BROKEN, BROKEN])
    _, backup = served("backup")
    lm = reliable(main, backup, retry=2)
    lm.callbacks = [Listener()]
    call_sync(lm)
    assert heard == ["start openai/main", "LMServerError"] * 2 + ["start openai/backup", "ok"]


# --- caches


@pytest.mark.parametrize("call", [call_sync, call_async])
def test_the_response_of_a_backup_is_not_served_as_that_of_the_main_lm(served: Serve, call: Call) -> None:
    main_server, main = served("main", [BROKEN], cache=True)
    backup_server, backup = served("backup", cache=True)
    lm = reliable(main, backup, retry=1, cooldown=0)
    question = uuid4().hex
    assert [call(lm, question).answer for _ in range(3)] == ["backup", "main", "main"]
    assert (len(main_server.requests), len(backup_server.requests)) == (2, 1), "the third is from the main LM's cache"


@pytest.mark.parametrize("call", [call_sync, call_async])
def test_a_cached_response_waits_for_nothing(served: Serve, call: Call) -> None:
    server, main = served("main", cache=True)
    lm = reliable(main, requests_per_minute=1, tokens_per_minute=1, max_concurrency=1)
    question = uuid4().hex
    with no_pauses() as pauses:
        call(lm, question)
        found = [call(lm, question) for _ in range(5)]
    assert {one.answer for one in found} == {"main"}
    assert all(not one.total_tokens for one in found)
    assert (len(server.requests), pauses) == (1, [])


@pytest.mark.parametrize("settings", [{"rollout_id": 7, "temperature": 1.0}, {"cache": False}], ids=str)
@pytest.mark.parametrize("by", ["copy", "call", "config"])
def test_a_rollout_id_reaches_the_lms(served: Serve, by: str, settings: dict[str, Any]) -> None:
    main_server, main = served("main", itertools.repeat(BROKEN), cache=True)
    backup_server, backup = served("backup", cache=True)
    lm = reliable(main, backup, retry=1, cooldown=0)
    question = uuid4().hex

    def ask(lm: Any, **settings: Any) -> None:
        predict = dspy.Predict(QA, **(settings if by == "config" else {}))
        with dspy.context(lm=lm):
            predict(question=question, **({"config": settings} if by == "call" else {}))

    ask(lm)
    ask(lm)
    assert len(backup_server.requests) == 1
    ask(lm.copy(**settings) if by == "copy" else lm, **settings)
    assert len(backup_server.requests) == 2
    assert all("rollout_id" not in body for body in [*main_server.requests, *backup_server.requests])
    if "temperature" in settings:
        assert backup_server.requests[-1]["temperature"] == 1.0


# --- settings


def test_each_lm_keeps_its_settings(served: Serve) -> None:
    main_server, main = served("main", itertools.repeat(BROKEN), max_tokens=100, temperature=0.5)
    backup_server, backup = served("backup", max_tokens=200)
    lm = reliable(main, backup, retry=1, cooldown=0)
    call_sync(lm)
    assert (main_server.requests[0]["max_completion_tokens"], main_server.requests[0]["temperature"]) == (100, 0.5)
    assert backup_server.requests[0]["max_completion_tokens"] == 200
    assert "temperature" not in backup_server.requests[0]
    call_sync(lm.copy(max_tokens=7, temperature=None))
    assert [server.requests[1]["max_completion_tokens"] for server in (main_server, backup_server)] == [7, 7]
    assert "temperature" not in main_server.requests[1]
    assert (main.num_retries, main.kwargs["max_tokens"]) == (0, 100)


def test_what_reads_the_lm_sees_the_main_one(served: Serve) -> None:
    _, main = served("main", max_tokens=100)
    lm = reliable(main, served("backup")[1])
    assert isinstance(lm, dspy.LM)
    assert (lm.model, lm.model_type, lm.kwargs) == (main.model, main.model_type, main.kwargs)
    assert lm.supported_params == main.supported_params
    assert lm.supports_response_schema == main.supports_response_schema
    scripted = ScriptedLM([])
    assert reliable(scripted).supports_function_calling is True
    assert reliable(scripted, main).supports_function_calling is main.supports_function_calling
    assert reliable(main).num_retries == 3


@each("name", ["api_key", "api_base", "timeout", "model", "engine", "num_retries"])
def test_a_copy_takes_no_settings_of_one_lm(served: Serve, name: str) -> None:
    _, main = served("main")
    with pytest.raises(ValueError, match=f"^{name}: a reliable LM takes no settings that belong to one LM"):
        reliable(main).copy(**{name: "x"})
    if name in ("api_key", "api_base", "timeout"):
        lm = reliable(main)
        lm.kwargs[name] = "x"
        with pytest.raises(ValueError, match="belong to one LM"):
            lm("hi")


def test_a_typed_request_is_passed_on_with_the_name_of_the_lm(served: Serve) -> None:
    _, main = served("main", [BROKEN])
    server, backup = served("backup")
    request = Request(model=main.model, messages=(Message.user("hi"),), config=Config(max_tokens=9))
    lm = reliable(main, backup, retry=1, tokens_per_minute=1000)
    assert lm(request).message.text == says("backup")
    assert lm(request=request).model == "backup"
    assert [body["max_completion_tokens"] for body in server.requests] == [9, 9]
    assert lm.copy(temperature=0.3)(request).model == "backup", "a typed request holds its settings"
    server, cached = served("cached", cache=True)
    request = Request(model=cached.model, messages=(Message.user(uuid4().hex),))
    for one in (reliable(cached), reliable(cached), reliable(cached).copy(rollout_id=7, temperature=1.0)):
        assert one(request).message.text == says("cached")
    assert len(server.requests) == 2, "another rollout is another request"


@pytest.mark.parametrize("in_loop", [False, True])
def test_forward_gives_the_response_of_the_provider(served: Serve, in_loop: bool) -> None:
    lm = reliable(served("main", [BROKEN])[1], retry=2)
    found = asyncio.run(lm.aforward("hi")) if in_loop else lm.forward("hi")
    assert found.choices[0].message.content == says("main")


# --- saving, copying


def test_a_program_is_saved_without_keys(served: Serve, tmp_path: Path) -> None:
    _, main = served("main", itertools.repeat(BROKEN), api_key="secret-1")
    _, backup = served("backup", api_key="secret-2")
    program = dspy.Predict(QA)
    limits: dict[str, Any] = {"requests_per_minute": 600, "tokens_per_minute": 9e5, "max_concurrency": 3}
    program.set_lm(reliable(main, backup, retry=Retry(2, max_wait=9), cooldown=5, **limits).copy(temperature=0.3))
    file = tmp_path / "program.json"
    program.save(file)
    assert "secret" not in file.read_text()
    loaded = dspy.Predict(QA)
    loaded.load(file, allow_unsafe_lm_state=True)
    state = loaded.lm.dump_state()
    assert state == program.lm.dump_state() == json.loads(file.read_text())["lm"]
    assert (state["limits"], state["retry"]["attempts"], state["changes"]) == (limits, 2, {"temperature": 0.3})
    assert loaded.lm.kwargs["temperature"] == 0.3


def test_nested_lms_and_waits_without_a_bound_are_saved(tmp_path: Path) -> None:
    """JSON has no infinity."""
    program, loaded, file = dspy.Predict(QA), dspy.Predict(QA), tmp_path / "program.json"
    inner = reliable(PLAIN, requests_per_minute=5, retry=Retry(2, max_wait=math.inf))
    program.set_lm(reliable(inner, retry=None, cooldown=math.inf))
    program.save(file)
    loaded.load(file, allow_unsafe_lm_state=True)
    assert loaded.lm.dump_state() == program.lm.dump_state()


def test_a_policy_with_functions_cannot_be_saved(served: Serve) -> None:
    for policy in (Retry(2, on=ConnectionError), Retry(2, wait=wait_fixed(1))):
        with pytest.raises(TypeError, match=r"set the LM again after loading: program\.set_lm\(lm\)"):
            reliable(served("main")[1], retry=policy).dump_state()


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda lm: lm.copy(), lambda lm: lm.copy(rollout_id=1, temperature=1.0)]
)
def test_copies_share_the_limits(served: Serve, duplicate: Callable[[Any], Any]) -> None:
    lm = reliable(served("main")[1], requests_per_minute=60)
    with no_pauses() as pauses:
        call_sync(lm)
        call_sync(duplicate(lm))
    assert len(pauses) == 1
    assert 0 < pauses[0] <= 1


def test_a_pickled_lm_has_its_own_limits(served: Serve) -> None:
    lm = pickle.loads(pickle.dumps(reliable(served("main")[1], requests_per_minute=60)))
    with no_pauses() as pauses:
        assert [call_sync(lm).answer for _ in range(2)] == ["main", "main"]
    assert len(pauses) == 1


def test_a_copy_has_its_own_history_and_callbacks(served: Serve) -> None:
    lm = reliable(served("main")[1])
    other = lm.copy()
    call_sync(other)
    assert (len(lm.history), len(other.history)) == (0, 1)


# --- where DSPy puts LMs


def test_it_is_set_pinned_and_used_as_a_teacher(served: Serve) -> None:
    server, main = served("main", itertools.cycle([BROKEN, None]))
    lm = reliable(main, retry=2)
    pinned = dspy.Predict(QA)
    pinned.lm = lm
    assert pinned(question="a").answer == "main"
    program = dspy.ChainOfThought("question -> answer: str")
    program.set_lm(lm)
    assert program.get_lm() is lm
    student, example = dspy.Predict(QA), dspy.Example(question="a", answer="main").with_inputs("question")

    def right(example: Any, prediction: Any, trace: Any = None) -> bool:
        return bool(example.answer == prediction.answer)

    with dspy.context(lm=ScriptedLM([])):
        optimizer = dspy.BootstrapFewShot(right, teacher_settings={"lm": lm})
        tuned = optimizer.compile(student, trainset=[example])
    assert [demo.answer for demo in tuned.demos] == ["main"]
    assert len(server.requests) == 4


def test_best_of_n_gets_different_responses(served: Serve) -> None:
    server, main = served("main", cache=True)
    question = uuid4().hex
    best = dspy.BestOfN(dspy.Predict(QA), N=3, reward_fn=lambda args, pred: 0.0, threshold=1.0)
    with dspy.context(lm=reliable(main)):
        best(question=question)
    assert len(server.requests) == 3


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_node_does_not_repeat_what_the_lm_has_repeated(served: Serve, in_loop: bool) -> None:
    server, main = served("main", itertools.repeat(BROKEN))
    graph = Graph().add_node("say", dspy.Predict(QA), retry=3).add_path(START, "say", END)

    def ask(lm: Any) -> Any:
        server.requests.clear()
        with dspy.context(lm=lm):
            program = graph.compile()
            return asyncio.run(program.arun({"question": "a"})) if in_loop else program.run({"question": "a"})

    run = ask(reliable(main, retry=4))
    assert isinstance(run.error, LMServerError)
    assert len(server.requests) == 4
    ask(reliable(main, retry=None))
    assert len(server.requests) == 3, "only the node retries"


def test_a_node_repeats_a_stream_that_broke_off(served: Serve) -> None:
    server, main = served("main", [Cut(after=1)])
    program = Graph().add_node("say", dspy.Predict(QA), retry=3).add_path(START, "say", END).compile()

    async def collect() -> list[Any]:
        with dspy.context(lm=reliable(main, retry=4)):
            streamed = dspy.streamify(program, is_async_program=True)
            return [item async for item in streamed(question="a")]

    assert asyncio.run(collect())[-1].answer == "main"
    assert len(server.requests) == 2


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_budget_counts_and_bounds_each_request(served: Serve, in_loop: bool) -> None:
    server, main = served("main", itertools.repeat(BROKEN))
    program = Graph().add_node("say", dspy.Predict(QA)).add_path(START, "say", END).compile(budget=Budget(requests=3))
    lm = reliable(main, retry=5, max_concurrency=1)
    with dspy.context(lm=lm):
        inputs = {"question": "a"}
        run = asyncio.run(program.arun(inputs)) if in_loop else program.run(inputs)
    assert (run.status, len(server.requests)) == ("stopped", 3)
    with pytest.raises(LMServerError):  # it would wait for ever if the refused request had not given its slot back
        lm("b")


def test_a_budget_takes_the_price_of_the_lm_that_responded(served: Serve) -> None:
    _, main = served("main", [BROKEN])
    _, backup = served("backup")
    prices = {"openai/main": (1e6, 1e6), "openai/backup": (1.0, 1.0)}
    program = Graph().add_node("say", dspy.Predict(QA)).add_path(START, "say", END).compile()
    with dspy.context(lm=reliable(main, backup, retry=1)):
        run = program.run({"question": "a"}, budget=Budget(cost=0.5, prices=prices))
    assert (run.status, sorted(run.usage)) == ("completed", ["openai/backup", "openai/main"])
    assert run.usage["openai/main"] == {"requests": 1, "cost": 0.0}, "it failed"


# --- order of the LMs


def test_an_lm_that_failed_is_skipped_until_it_has_cooled(served: Serve) -> None:
    main_server, main = served("main", [BROKEN] * 4)
    backup_server, backup = served("backup", [None, None, BROKEN, BROKEN])
    lm = reliable(main, backup, retry=Retry(2, wait=wait_fixed(0)), cooldown=100)
    with no_pauses():
        assert [call_sync(lm).answer for _ in range(2)] == ["backup", "backup"]
        assert len(main_server.requests) == 2, "skipped the second time"
        assert isinstance(call_sync(lm).error, LMServerError), "the backup fails: the main LM is asked, and fails, too"
        assert (len(main_server.requests), len(backup_server.requests)) == (4, 4)
        assert call_sync(lm).answer == "main", "no other LM is available"
        assert call_sync(lm).answer == "main", "it has recovered"


def answers_after(lm: Any, *seconds: float) -> list[str | None]:
    found = []
    with clock() as time, no_pauses():
        for pause in seconds:
            time.advance(pause)
            found.append(call_sync(lm).answer)
    return found


def test_after_the_cooldown_the_main_lm_is_asked_again(served: Serve) -> None:
    _, main = served("main", [BROKEN])
    lm = reliable(main, served("backup")[1], retry=1, cooldown=30)
    assert answers_after(lm, 0, 29, 2) == ["backup", "backup", "main"]


def test_an_lm_that_refused_a_request_is_not_skipped(served: Serve) -> None:
    """Nothing is wrong with it: another LM is not asked for what it refuses, and not for the next request either."""
    _, main = served("main", [Status(400)])
    lm = reliable(main, served("backup")[1])
    assert isinstance(call_sync(lm).error, LMInvalidRequestError)
    assert call_sync(lm).answer == "main"


def test_a_server_that_asks_for_an_hour_is_skipped_for_an_hour(served: Serve) -> None:
    main_server, main = served("main", [Status(429, Retry_After="3600")])
    lm = reliable(main, served("backup")[1], cooldown=30)
    assert answers_after(lm, 0, 3500, 101) == ["backup", "backup", "main"]
    assert len(main_server.requests) == 2


def test_a_response_ends_the_cooldown(served: Serve) -> None:
    """The main LM, which asked for an hour, is asked when the backup fails, and responds."""
    _, main = served("main", [Status(429, Retry_After="3600")])
    lm = reliable(main, served("backup", [None, BROKEN])[1], retry=1, cooldown=100)
    assert answers_after(lm, 0, 0, 101) == ["backup", "main", "main"]


def test_the_response_to_an_earlier_request_does_not_end_the_cooldown(served: Serve) -> None:
    """It was sent before the server asked for an hour."""
    main_server, main = served("main", [Hold(), Status(429, Retry_After="3600")])
    lm = reliable(main, served("backup")[1], cooldown=30)
    early = threading.Thread(target=call_sync, args=(lm,))
    with clock() as now, no_pauses():
        early.start()
        while not main_server.requests:
            time.sleep(0.001)
        now.advance(1)
        assert call_sync(lm).answer == "backup"
        main_server.release()
        early.join(20)
        assert call_sync(lm).answer == "backup"
    assert len(main_server.requests) == 2


def test_lms_with_different_limits_are_nested(served: Serve) -> None:
    main_server, main = served("main", itertools.repeat(BROKEN))
    _, backup = served("backup")
    lm = reliable(reliable(main, retry=2), reliable(backup, requests_per_minute=60), retry=5, cooldown=0)
    with no_pauses():
        outcomes = [call_sync(lm), call_sync(lm)]
    assert [one.answer for one in outcomes] == ["backup", "backup"]
    assert len(main_server.requests) == 4, "the outer one does not repeat what the inner one has repeated"
    assert list(outcomes[0].usage) == ["openai/backup"]
    assert len(lm.history) == 2
    inside = reliable(reliable(main, backup, retry=1))
    call_sync(inside)
    assert inside.history[-1]["fallback"], "that of an inner one"


def test_a_fallback_is_logged(served: Serve, caplog: pytest.LogCaptureFixture) -> None:
    lm = reliable(served("main", itertools.repeat(BROKEN))[1], served("backup")[1], retry=2)
    with caplog.at_level(logging.INFO, "dspyer.lms"):
        call_sync(lm)
    assert [record.levelname for record in caplog.records if record.name == "dspyer.lms"] == ["INFO", "WARNING"]
    assert "openai/main failed, the next LM is asked: LMServerError" in caplog.text


# --- what is refused

PLAIN = dspy.LM("openai/plain", api_key="test")
WRONG: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((), {}, TypeError, "takes one or more LMs"),
    (("openai/gpt-4.1",), {}, TypeError, r"LM 1 is a str: dspy\.LM\('openai/gpt-4.1'\)"),
    ((PLAIN, len), {}, TypeError, "LM 2 is a builtin_function"),
    ((PLAIN, PLAIN), {}, ValueError, "one LM twice"),
    ((PLAIN,), {"requests_per_minute": 0}, ValueError, r"requests_per_minute=0\): give a number above 0"),
    ((PLAIN,), {"requests_per_minute": float("nan")}, ValueError, "above 0"),
    ((PLAIN,), {"tokens_per_minute": -1}, ValueError, "tokens_per_minute=-1"),
    ((PLAIN,), {"max_concurrency": 1.5}, TypeError, "max_concurrency=1.5.*whole number"),
    ((PLAIN,), {"max_concurrency": 0}, ValueError, "max_concurrency=0"),
    ((PLAIN,), {"requests_per_minute": "600"}, TypeError, "requests_per_minute='600'"),
    ((PLAIN,), {"cooldown": -1}, ValueError, "seconds, 0 or more"),
    ((PLAIN,), {"cooldown": "30"}, TypeError, "seconds, 0 or more"),
    ((PLAIN,), {"retry": "3"}, TypeError, "give a number of attempts"),
    ((PLAIN,), {"retry": 0}, ValueError, "1 or more"),
]


@each(("given", "options", "error", "text"), WRONG)
def test_wrong_arguments_are_refused(
    given: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        reliable(*given, **options)


@pytest.mark.parametrize("name", ["finetune", "reinforce", "launch", "kill"])
def test_what_only_one_lm_can_do_is_refused_before_anything_is_paid(name: str) -> None:
    with pytest.raises(LMUnsupportedFeatureError, match=rf"a reliable LM has no .*{name}\(\)"):
        getattr(reliable(PLAIN), name)([], "chat")


def test_a_wrong_call_is_raised_as_it_is(served: Serve) -> None:
    server, main = served("main", [Status(400)])
    lm = lms.reliable(main, served("backup")[1])
    with pytest.raises(LMInvalidRequestError):
        lm("hi")
    limited = reliable(main, requests_per_minute=6000, tokens_per_minute=6000)
    for n in (0, -3, "many"):
        for one in (lm, limited):
            with pytest.raises(ValueError, match="n must be a positive integer"):
                one("hi", n=n)
    assert len(server.requests) == 1


def test_an_async_call_closes_the_pools_of_the_lms(served: Serve) -> None:
    _, main = served("main")
    assert call_async(reliable(main)).answer == "main"
    assert call_sync(reliable(main)).answer == "main"
    reliable(main).close()
    assert not main._engine_store
