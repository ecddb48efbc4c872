"""Graphs that call a real `dspy.LM` over HTTP: parallel branches, failures, tokens, usage, demonstrations, cache.

Every test counts the requests that the server saw: exactly one per call of a predictor.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.streaming import StreamListener, StreamResponse
from dspy.utils.exceptions import LMError, LMInvalidRequestError, LMServerError

from dspyer import END, START, Graph
from dspyer.testing import NearestLM, Prompt
from tests.dspy_contract.gates import PATIENCE
from tests.log.processes import end_of
from tests.log.processes import fork as process
from tests.openai_server import HTTPFailureError, Messages, OpenAIServer, answer_text, prompt_of, text_by, usage
from tests.test_examples import run_as_a_program

ROOT = Path(__file__).parent.parent
QUESTION = "Where does the train go?"
NORTH, SOUTH = "to the lakes and the long woods", "down to the old harbour at night"
ANSWER = "one north and one south"
TEXTS = {"north": NORTH, "south": SOUTH, "answer": ANSWER}
EACH_ONCE = {"north": 1, "south": 1, "answer": 1}
Way = Callable[[Any, Any], Any]
Serve = Callable[..., tuple[OpenAIServer, Any]]


def fork() -> Any:
    """Two predictors at once, and a third that is given what both have written."""
    graph = Graph(name="Ways", outputs=["north", "south", "answer"])
    graph.add_node("go_north", dspy.Predict("question -> north"))
    graph.add_node("go_south", dspy.Predict("question -> south"))
    graph.add_node("both", dspy.Predict("north, south -> answer"))
    graph.add_edge(START, ["go_north", "go_south"]).add_edge(["go_north", "go_south"], "both").add_edge("both", END)
    return graph.compile()


def texts(messages: Messages) -> str:
    return answer_text(messages, lambda prompt: {name: TEXTS[name] for name in prompt.asks})


def asked(server: OpenAIServer) -> Counter[str]:
    """How often each field was asked for."""
    return Counter(name for body in server.requests for name in prompt_of(body["messages"]).asks)


def in_loop(lm: Any, work: Callable[[], Awaitable[Any]]) -> Any:
    """Runs async work on a loop of its own, and closes the connections that it opened there."""

    async def whole() -> Any:
        try:
            return await work()
        finally:
            await lm.aclose()

    return asyncio.run(whole())


def in_sync(program: Any, lm: Any) -> Any:
    return program(question=QUESTION)


def in_async(program: Any, lm: Any) -> Any:
    return in_loop(lm, lambda: program.acall(question=QUESTION))


def chunks(program: Any, lm: Any, is_async: bool) -> list[Any]:
    """Everything that one streamed call gives."""

    async def collect() -> list[Any]:
        listeners = [StreamListener(signature_field_name=name) for name in ("north", "south", "answer")]
        streaming = dspy.streamify(program, stream_listeners=listeners, is_async_program=is_async)
        return [chunk async for chunk in streaming(question=QUESTION)]

    found: list[Any] = in_loop(lm, collect)
    return found


def streamed(program: Any, lm: Any) -> Any:
    return chunks(program, lm, is_async=False)[-1]


def streamed_async(program: Any, lm: Any) -> Any:
    return chunks(program, lm, is_async=True)[-1]


def run(program: Any, lm: Any) -> Any:
    return program.run({"question": QUESTION})


def arun(program: Any, lm: Any) -> Any:
    return in_loop(lm, lambda: program.arun({"question": QUESTION}))


def ways(*functions: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", functions, ids=lambda way: way.__name__)


@pytest.fixture
def served() -> Iterator[Serve]:
    """Starts a server and sets an LM that talks to it: `server, lm = served(answer, num_retries=1)`."""
    with ExitStack() as stack:

        def serve(answer: Callable[[Messages], str] = texts, **settings: Any) -> tuple[OpenAIServer, Any]:
            server = stack.enter_context(OpenAIServer(answer))
            lm = server.lm(**settings)
            stack.callback(lm.close)
            stack.enter_context(dspy.context(lm=lm))
            return server, lm

        yield serve


@ways(in_sync, in_async, streamed, streamed_async)
def test_a_fork_and_its_join(way: Way, served: Serve) -> None:
    server, lm = served()
    assert dict(way(fork(), lm)) == TEXTS
    assert asked(server) == EACH_ONCE
    last = prompt_of(server.requests[-1]["messages"])
    assert last.inputs == {"north": NORTH, "south": SOUTH}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_tokens_of_both_branches_come_in_order(is_async: bool, served: Serve) -> None:
    server, lm = served()
    *parts, last = chunks(fork(), lm, is_async)

    words: dict[str, list[str]] = {}
    for part in parts:
        if isinstance(part, StreamResponse) and part.chunk.strip():
            words.setdefault(part.signature_field_name, []).append(part.chunk.strip())
    assert {name: " ".join(found) for name, found in words.items()} == TEXTS
    assert all(len(found) > 2 for found in words.values()), "word by word, not at once"
    assert dict(last) == TEXTS
    assert asked(server) == EACH_ONCE
    assert all(body["stream"] for body in server.requests)


@ways(in_sync, in_async, streamed, streamed_async)
def test_requests_of_both_branches_are_in_flight_at_once(way: Way, served: Serve) -> None:
    """The server answers neither branch before it has the requests of both."""
    both = threading.Barrier(2)

    def answer(messages: Messages) -> str:
        if "answer" not in prompt_of(messages).asks:
            both.wait(PATIENCE)
        return texts(messages)

    server, lm = served(answer)
    assert way(fork(), lm).answer == ANSWER
    assert asked(server) == EACH_ONCE


class Failures(dspy.utils.callback.BaseCallback):
    """Says when a call of the LM has failed, on the side of the caller."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    def on_lm_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
        if exception is not None:
            self.seen.set()


@ways(run, arun)
@pytest.mark.parametrize(("status", "kind"), [(500, LMServerError), (400, LMInvalidRequestError)])
def test_a_branch_that_fails_lets_the_other_finish(status: int, kind: type[LMError], way: Way, served: Serve) -> None:
    """The north is answered only when the failure of the south has come back; nothing new starts, nothing is lost."""
    failures = Failures()

    def answer(messages: Messages) -> str:
        if "south" in prompt_of(messages).asks:
            raise HTTPFailureError(status, "the line is closed")
        assert failures.seen.wait(PATIENCE)
        return texts(messages)

    server, lm = served(answer)
    with dspy.context(callbacks=[failures]):
        found = way(fork(), lm)

    assert found.status == "failed"
    assert type(found.error) is kind
    assert found.error.status == status
    assert "the line is closed" in str(found.error)
    assert any("go_south" in note for note in found.error.__notes__)
    with pytest.raises(kind) as raised:
        found.prediction
    assert raised.value is found.error
    assert [commit.node for commit in found.commits if "north" in commit.patch] == ["go_north"]
    assert [dict(prediction) for _, _, prediction in found.trace if prediction.get("north")] == [{"north": NORTH}]
    assert found.usage["openai/local"]["completion_tokens"] == len(texts(server.requests[0]["messages"]).split())
    assert asked(server) == {"north": 1, "south": 1}


@ways(in_sync, in_async, streamed, streamed_async)
def test_a_failure_comes_out_as_it_was_raised(way: Way, served: Serve) -> None:
    def answer(messages: Messages) -> str:
        if "south" in prompt_of(messages).asks:
            raise HTTPFailureError(503, "come back later")
        return texts(messages)

    server, lm = served(answer)
    with pytest.raises(LMServerError, match="come back later") as caught:
        way(fork(), lm)

    assert type(caught.value) is LMServerError
    assert any("go_south" in note for note in caught.value.__notes__)
    assert asked(server) == {"north": 1, "south": 1}


@ways(in_sync, in_async, streamed, streamed_async)
def test_only_what_failed_is_asked_again(way: Way, served: Serve) -> None:
    """Retries are DSPy's own: the node is called once, its request sent twice."""
    waiting = [HTTPFailureError(503, "busy", Retry_After="0")]

    def answer(messages: Messages) -> str:
        if "south" in prompt_of(messages).asks and waiting:
            raise waiting.pop()
        return texts(messages)

    server, lm = served(answer, num_retries=1)
    assert dict(way(fork(), lm)) == TEXTS
    assert asked(server) == {**EACH_ONCE, "south": 2}


def spent(server: OpenAIServer) -> dict[str, int]:
    """The tokens of all requests, as the server counts them."""
    total: Counter[str] = Counter()
    for body in server.requests:
        total.update(usage(body["messages"], server.answer(body["messages"])))
    return dict(total)


@ways(in_sync, in_async, streamed, streamed_async)
def test_a_prediction_knows_the_tokens_of_all_branches(way: Way, served: Serve) -> None:
    server, lm = served()
    with dspy.context(track_usage=True):
        found = way(fork(), lm).get_lm_usage()["openai/local"]
    assert {name: found[name] for name in spent(server)} == spent(server)
    assert asked(server) == EACH_ONCE


@ways(run, arun)
def test_a_run_knows_the_tokens_of_all_branches(way: Way, served: Serve) -> None:
    server, lm = served()
    found = way(fork(), lm)
    assert {name: found.usage["openai/local"][name] for name in spent(server)} == spent(server)
    assert found.prediction.answer == ANSWER
    assert asked(server) == EACH_ONCE


def not_train_1(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    return bool(prediction.north != "north of Train 1?")


def test_demonstrations_reach_the_server() -> None:
    """What an optimizer has found is in the prompts of the tuned program, each node with its own."""

    def answer(prompt: Prompt) -> dict[str, str]:
        said = prompt.inputs.get("question") or " and ".join(prompt.inputs.values())
        return {name: f"{name} of {said}" for name in prompt.asks}

    examples = [dspy.Example(question=f"Train {n}?").with_inputs("question") for n in range(3)]
    with OpenAIServer(lambda messages: answer_text(messages, answer)) as server:
        lm = server.lm()
        optimizer = dspy.BootstrapFewShot(metric=not_train_1, max_bootstrapped_demos=2, max_labeled_demos=0)
        with dspy.context(lm=lm):
            tuned = optimizer.compile(fork(), trainset=examples)
            bootstrapping = asked(server)
            server.requests.clear()
            tuned(question=QUESTION)
        lm.close()

    assert bootstrapping == {"north": 3, "south": 3, "answer": 3}
    assert asked(server) == EACH_ONCE
    prompts = {prompt.asks[0]: prompt for prompt in (prompt_of(body["messages"]) for body in server.requests)}
    for name in ("north", "south"):
        assert [(dict(demo.inputs), dict(demo.outputs)) for demo in prompts[name].demos] == [
            ({"question": f"Train {n}?"}, {name: f"{name} of Train {n}?"}) for n in (0, 2)
        ]
    assert [demo.inputs["south"] for demo in prompts["answer"].demos] == ["south of Train 0?", "south of Train 2?"]


@pytest.fixture
def memory_cache(own_dspy_cache: None) -> None:
    """DSPy's cache in memory alone, empty."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)


@ways(run, arun)
def test_an_equal_run_asks_nothing(way: Way, served: Serve, memory_cache: None) -> None:
    server, lm = served(cache=True)
    program = fork()
    first, second = way(program, lm), way(program, lm)
    assert dict(first.prediction) == dict(second.prediction) == TEXTS
    assert asked(server) == EACH_ONCE
    assert first.usage["openai/local"]["total_tokens"] == spent(server)["total_tokens"]
    assert second.usage == {}, "nothing was spent"
    assert [commit.node for commit in second.commits] == [commit.node for commit in first.commits]


@pytest.mark.slow("an example as its users run it, over HTTP")
def test_an_example_runs_with_a_model_that_the_environment_names(tmp_path: Path) -> None:
    """`DSPYER_MODEL=openai/... python examples/quickstart.py`: the desk asks that model, and no other."""
    writer = NearestLM()
    with OpenAIServer(lambda messages: text_by(writer, messages)) as server:
        environment = {"DSPYER_MODEL": "openai/desk", "OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "test"}
        output = tmp_path / "output.txt"

        def example() -> None:
            dspy.configure_cache(disk_cache_dir=str(tmp_path / "cache"))
            run_as_a_program(ROOT / "examples" / "quickstart.py", output, environment)

        assert end_of(process(example)) == 0, output.read_text()

    printed = output.read_text()
    assert "Support desk with openai/desk" in printed
    assert "12 tickets" in printed
    counts = asked(server)
    assert {body["model"] for body in server.requests} == {"desk"}
    assert counts.keys() == {"category", "wish", "urgency", "step"}
    assert counts["category"] == counts["wish"] == counts["urgency"] == 12, "a ticket seen twice comes from the cache"
