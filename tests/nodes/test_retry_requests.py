"""What a later attempt of a node asks the LM, counted at an HTTP server behind DSPy's real cache."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any
from uuid import uuid4

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError, LMRateLimitError, LMServerError
from pydantic import BaseModel, Field

from dspyer import END, START, CompiledGraph, Graph, Retry, Run
from dspyer.errors import NodeOutputError
from dspyer.search import best_of
from dspyer.testing import no_pauses
from tests.http_faults import Cut, Drop, Fault, Status, Text
from tests.openai_server import OpenAIServer, text_of
from tests.rows import each

GOOD = "[[ ## answer ## ]]\n7\n\n[[ ## completed ## ]]"
REASONED = "[[ ## reasoning ## ]]\nso\n\n" + GOOD
BAD = Text("I would rather not.")
MODES = ["sync", "async"]
STRIDE = 10**6  # between the rollout ids of two attempts; another one would miss the responses in the caches of users


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


def program_of(module: Any, retry: Any = 3, **options: Any) -> CompiledGraph:
    graph = Graph().add_node("ask", module, retry=retry, **options)
    return graph.add_path(START, "ask", END).compile()


def run(program: CompiledGraph, lm: Any, mode: str, question: str | None = None, **settings: Any) -> Run:
    inputs = {"question": question or uuid4().hex}  # a text that no cache has
    with dspy.context(lm=lm, **settings):
        return program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))


class Answers(BaseModel):
    question: str
    answer: Annotated[int, Field(ge=7)] = 7


class Rollouts(BaseCallback):
    """The rollout ids and temperatures with which LMs are called."""

    def __init__(self) -> None:
        self.asked: list[tuple[int | None, float | None]] = []

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        given = {**instance.kwargs, **inputs["kwargs"]}
        self.asked.append((given.get("rollout_id"), given.get("temperature")))


def int_answer() -> dspy.Predict:
    return dspy.Predict("question -> answer: int")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "adapter", [None, dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()], ids=lambda one: type(one).__name__
)
def test_an_unusable_response_is_asked_for_anew(mode: str, adapter: Any) -> None:
    """Rule 2, C5. DSPy caches the response that did not parse: the same request would get it again."""
    good = {"JSONAdapter": '{"answer": 7}', "XMLAdapter": "<answer>7</answer>"}.get(type(adapter).__name__, GOOD)
    each = 1 if isinstance(adapter, dspy.JSONAdapter) else 2  # DSPy's fallback to JSON
    rollouts, question = Rollouts(), uuid4().hex
    with OpenAIServer(lambda messages: good, faults=[BAD] * 2 * each) as server:
        lm = server.lm(cache=True)
        ran = run(program_of(int_answer()), lm, mode, question, adapter=adapter, callbacks=[rollouts])
        assert ran.state["answer"] == 7
        assert len(server.requests) == 2 * each + 1
        expected = [(None, None)] * each + [(STRIDE, 1.0)] * each + [(2 * STRIDE, 1.0)]
        assert rollouts.asked == expected
        again = run(program_of(int_answer()), lm, mode, question, adapter=adapter)  # all of it from the cache
        assert (again.state["answer"], again.commits[1].attempt) == (7, 3)
        assert len(server.requests) == 2 * each + 1
        lm.close()


class OwnAdapter(dspy.Module):
    """A module that sets an adapter for its predictor."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = int_answer()

    def forward(self, question: str) -> Any:
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            return self.ask(question=question)

    async def aforward(self, question: str) -> Any:
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            return await self.ask.acall(question=question)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("far", [False, True], ids=["here", "in a worker"])
def test_a_module_with_an_adapter_of_its_own_asks_anew(far: bool, mode: str) -> None:
    """C5. Without that, each attempt would get the response from the cache that could not be used."""
    rollouts = Rollouts()
    with OpenAIServer(lambda messages: GOOD, faults=[BAD] * 2) as server, ThreadPoolExecutor(1) as pool:
        lm = server.lm(cache=True)
        inner = Graph(name="In").add_node("ask", OwnAdapter()).add_path(START, "ask", END).compile()
        program = program_of(inner.with_executor(pool) if far else OwnAdapter())
        ran = run(program, lm, mode, callbacks=[rollouts])
        lm.close()
    assert (ran.state["answer"], len(server.requests)) == (7, 3)
    if not far:
        assert [rollout for rollout, _ in rollouts.asked] == [None, STRIDE, 2 * STRIDE]


def test_the_adapter_of_a_module_is_replaced_for_its_calls_alone() -> None:
    """What it sets stays what it sees, and its calls have a copy of that which asks anew."""
    found: list[Any] = []

    class Notes(dspy.Module):
        def forward(self) -> None:
            found.append(dspy.settings.adapter)

    class Own(dspy.ChatAdapter):
        pass

    own = Own(use_native_function_calling=True)

    def asks(notes: dspy.Module) -> dict[str, Any]:
        with dspy.context(adapter=own):
            notes()
            found.append(dspy.settings.adapter)
        return {"answer": 1}

    graph = Graph(name="In").add_node("asks", asks, modules={"notes": Notes()}, writes=["answer"])
    graph.add_path(START, "asks", END)
    assert best_of(graph, 1, lambda answer: 1.0).compile().run({}).status == "completed"
    inside, after = found
    assert after is own
    assert inside is not own
    assert (type(inside).__name__, isinstance(inside, Own), inside.use_native_function_calling) == ("Own", True, True)


@pytest.mark.parametrize("mode", MODES)
def test_trials_of_a_module_with_an_adapter_of_its_own_ask_for_different_responses(mode: str) -> None:
    with OpenAIServer(lambda messages: GOOD) as server:
        lm = server.lm(cache=True, temperature=0.5)
        run(best_of(OwnAdapter(), 3, lambda answer: 0.0, writes=["answer"]).compile(), lm, mode)
        lm.close()
    assert len(server.requests) == 3


@each(("lm_options", "added"), [({"rollout_id": 5, "temperature": 0.4}, 0.4), ({"temperature": 0}, 1.0)])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_the_rollout_id_counts_from_that_of_the_lm(
    mode: str, pinned: bool, lm_options: dict[str, Any], added: float
) -> None:
    rollouts = Rollouts()
    with OpenAIServer(lambda messages: GOOD, faults=[BAD] * 2) as server:
        lm = server.lm(cache=True, **lm_options)
        module = int_answer()
        module.lm = lm if pinned else None
        other = dspy.LM("openai/never-called", api_key="test")
        program = program_of(module)
        ran = run(program, other if pinned else lm, mode, callbacks=[rollouts])
        lm.close()
    assert ran.state["answer"] == 7
    first = lm_options.get("rollout_id", 0)
    assert rollouts.asked[-1] == (first + STRIDE, added)
    assert [predictor is program.ask for predictor, _, _ in ran.trace] == [True]


@pytest.mark.parametrize("mode", MODES)
def test_best_of_n_in_a_retried_node_makes_all_its_requests(mode: str) -> None:
    """C5: with ids that count up by 1, the trials of one attempt had the ids of those of the next one."""
    with OpenAIServer(lambda messages: GOOD) as server:
        lm = server.lm(cache=True)
        counted: list[int] = []

        def reward(args: Any, prediction: Any) -> float:
            return 0.0

        class Trials(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.best = dspy.BestOfN(int_answer(), N=3, reward_fn=reward, threshold=1.0)

            def forward(self, question: str) -> Any:
                before = len(server.requests)
                found = self.best(question=question)
                counted.append(len(server.requests) - before)
                return found if len(counted) == 3 else dspy.Prediction(answer="seven")

        graph = Graph(Answers).add_node("ask", Trials(), retry=3, writes=["answer"]).add_path(START, "ask", END)
        ran = run(graph.compile(), lm, mode)
        lm.close()
    assert ran.state["answer"] == 7
    assert counted == [3, 3, 3]


@pytest.mark.parametrize("mode", MODES)
def test_modules_of_several_calls_ask_anew_for_all_of_them(mode: str) -> None:
    """ChainOfThought and ReAct make their requests through the adapter."""

    def answer(messages: Any) -> str:
        if "next_tool_name" in text_of(messages[0]):
            return (
                "[[ ## next_thought ## ]]\nI look.\n\n[[ ## next_tool_name ## ]]\nfinish\n\n"
                "[[ ## next_tool_args ## ]]\n{}\n\n[[ ## completed ## ]]"
            )
        return REASONED

    def count(number: Any) -> Fault | None:
        return BAD if len(server.requests) in (1, 2) else None  # the answer of the first attempt, in both formats

    module = dspy.ReAct("question -> answer: int", tools=[])
    rollouts = Rollouts()
    with OpenAIServer(answer, faults=count) as server:
        lm = server.lm(cache=True)
        ran = run(program_of(module), lm, mode, callbacks=[rollouts])
        lm.close()
    assert ran.state["answer"] == 7
    assert [rollout for rollout, _ in rollouts.asked] == [None, None, None, STRIDE, STRIDE]
    assert len(ran.trace) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_transport_error_repeats_the_requests_as_they_were(mode: str) -> None:
    """What has succeeded comes from the cache: 2 + 1 requests, not 2 + 2."""

    class Two(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = int_answer(), dspy.Predict("draft, question -> answer: int")

        def forward(self, question: str) -> Any:
            return self.two(draft=str(self.one(question=question).answer), question=question)

    with OpenAIServer(lambda messages: GOOD, faults=[None, Drop()]) as server:
        lm = server.lm(cache=True)
        ran = run(program_of(Two()), lm, mode)
        lm.close()
    assert (ran.state["answer"], len(server.requests)) == (7, 3)
    assert [failed.type for failed in ran.commits[1].failed_attempts] == ["LMTransportError"]


@pytest.mark.parametrize("mode", MODES)
def test_a_transport_error_after_an_unusable_response_repeats_the_second_request(mode: str) -> None:
    rollouts = Rollouts()
    with OpenAIServer(lambda messages: GOOD, faults=[BAD, BAD, Drop()]) as server:
        lm = server.lm(cache=True)
        ran = run(program_of(int_answer()), lm, mode, callbacks=[rollouts])
        lm.close()
    assert (ran.state["answer"], ran.commits[1].attempt) == (7, 3)
    assert [rollout for rollout, _ in rollouts.asked] == [None, None, STRIDE, STRIDE]


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_the_schema_refuses_is_asked_for_anew(mode: str) -> None:
    """Rule 2: `NodeOutputError` of a module node; that of a function is an error of its code."""
    texts = iter(["5", "7"])
    with OpenAIServer(lambda messages: GOOD.replace("7", next(texts))) as server:
        lm = server.lm(cache=True)
        module = int_answer()
        ran = run(Graph(Answers).add_node("ask", module, retry=2).add_path(START, "ask", END).compile(), lm, mode)
        lm.close()
    assert (ran.state["answer"], len(server.requests)) == (7, 2)
    calls = []

    def ask(question: str) -> dict[str, int]:
        calls.append(question)
        return {"answer": 5}

    graph = Graph(Answers).add_node("ask", ask, retry=2)
    failed = run(graph.add_path(START, "ask", END).compile(), None, mode)
    assert isinstance(failed.error, NodeOutputError)
    assert not failed.error.of_module
    assert len(calls) == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_the_users_function_asks_anew(mode: str) -> None:
    """The node has read a response that it cannot use: the same one would not help."""

    def ask(question: str, draft: dspy.Module) -> dict[str, Any]:
        answer = draft(question=question).answer
        if answer != 7:
            raise ValueError(f"{answer} is not 7")
        return {"answer": answer}

    texts = iter(["5", "6", "7"])
    with OpenAIServer(lambda messages: GOOD.replace("7", next(texts))) as server:
        lm = server.lm(cache=True)
        made = program_of(ask, Retry(3, on=ValueError), modules={"draft": int_answer()}, writes=["answer"])
        ran = run(made, lm, mode)
        lm.close()
    assert (ran.state["answer"], len(server.requests)) == (7, 3)


# --- no layer retries what the one below has retried


ROWS = [  # the fault, what the LM retries itself, requests of a node with 3 attempts
    (Status(500), 0, 3, LMServerError),
    (Status(500, Retry_After="0"), 2, 3, LMServerError),  # 1 + 2 by the LM, at once; none by the node
    (Status(429, Retry_After="3600"), 0, 1, LMRateLimitError),  # longer than max_wait
    (BAD, 2, 6, AdapterParseError),
]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("mode", MODES)
@each(("fault", "lm_retries", "requests", "error"), ROWS, ids=repr)
def test_requests_are_not_multiplied(
    fault: Fault,
    lm_retries: int,
    requests: int,
    error: type[Exception],
    mode: str,
    pinned: bool,
) -> None:
    """Rules 1 and 2."""
    seen: list[Any] = []

    class Users(BaseCallback):
        def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
            seen.append(exception)

    users = Users()
    with OpenAIServer(lambda messages: GOOD, faults=itertools.repeat(fault)) as server:
        lm = server.lm(num_retries=lm_retries)
        module = int_answer()
        module.lm = lm if pinned else None
        with dspy.context(callbacks=[users]):
            ran = run(program_of(module), None if pinned else lm, mode)
            assert dspy.settings.callbacks == [users]
        lm.close()
    assert isinstance(ran.error, error)
    assert len(server.requests) == requests
    assert len(seen) == requests if error is AdapterParseError else len(seen) >= 1


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
@pytest.mark.parametrize("mode", MODES)
def test_an_lm_of_ones_own_that_retries_nothing_is_retried(mode: str) -> None:
    """`BaseLM` has `num_retries=3`, which DSPy obeys for its own `dspy.LM` only."""
    calls = []

    class Own(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            calls.append(kwargs)
            raise LMServerError("busy", model="own")

        async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            return self.forward(prompt, messages, **kwargs)

    ran = run(program_of(int_answer()), Own("own"), mode)
    assert isinstance(ran.error, LMServerError), ran.error
    assert len(calls) == 3


def streamed(program: CompiledGraph, lm: Any, mode: str) -> tuple[list[str], Any]:
    """The tokens that `dspy.streamify` shows, and the result."""

    async def main() -> tuple[list[str], Any]:
        tokens: list[str] = []
        found = None
        stream: Callable[..., Any] = dspy.streamify(
            program,
            stream_listeners=[dspy.streaming.StreamListener("answer", predict=program.ask, allow_reuse=True)],
            is_async_program=mode == "async",
        )
        with dspy.context(lm=lm):
            async for item in stream(question=uuid4().hex):
                if isinstance(item, dspy.Prediction):
                    found = item
                else:
                    tokens.append(item.chunk)
        await lm.aclose()
        return tokens, found

    return asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_breaks_off_after_a_token_is_retried_by_the_node(mode: str) -> None:
    """Rule 7: not by the LM, although it may repeat requests."""
    good = GOOD.replace("7", "one two three")
    with OpenAIServer(lambda messages: good, faults=[Cut(8)]) as server:
        lm = server.lm(num_retries=3, cache=True)
        tokens, found = streamed(program_of(dspy.Predict("question -> answer")), lm, mode)
    assert found.answer == "one two three"
    assert len(server.requests) == 2
    assert "".join(tokens).endswith("one two three")


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_streamed_from_a_later_attempt(mode: str) -> None:
    """The stream listeners know an adapter by the name of its class."""
    with OpenAIServer(lambda messages: GOOD.replace("7", "one two three"), faults=[BAD]) as server:
        lm = server.lm(cache=True)
        made = program_of(dspy.Predict("question -> answer"), Retry(3, on=AdapterParseError))
        tokens, found = streamed(made, lm, mode)
    assert found.answer == "one two three"
    assert "".join(tokens).strip() == "one two three"
