"""Policies of LangGraph's nodes: each case is run by both engines, with the calls of its node counted."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError
from langgraph.errors import NodeError
from langgraph.errors import NodeTimeoutError as LangGraphTimeoutError
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, TimeoutPolicy, interrupt
from typing_extensions import TypedDict

from dspyer.errors import GraphError, NodeTimeoutError
from dspyer.events import NodeFailed
from dspyer.migrate import from_langgraph
from dspyer.testing import no_pauses
from tests.http_faults import Status
from tests.openai_server import OpenAIServer
from tests.rows import each
from tests.timeouts import TimeIsOver


class Log(TypedDict):
    log: Annotated[list[str], operator.add]
    n: int


class Flaky:
    """A node that raises each of some errors once, then returns; it counts its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, state: Log) -> dict[str, Any]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return {"log": ["done"]}


def flaky_graph(*errors: Exception, **policies: Any) -> tuple[Any, Flaky]:
    node = Flaky(*errors)
    builder: Any = StateGraph(Log)
    builder.add_node("flaky", node, **policies)
    builder.add_edge(START, "flaky")
    return builder, node


def without_waiting(policy: RetryPolicy) -> RetryPolicy:
    return policy._replace(initial_interval=0.0, jitter=False)


class OddError(Exception):
    """An error that the default policy of LangGraph retries."""


RETRIES: dict[str, tuple[list[Exception], Any]] = {
    "by default, an error of its own class": ([OddError(), OddError()], RetryPolicy()),
    "by default, no ValueError": ([ValueError("x")], RetryPolicy()),
    "by default, no TimeoutError": ([TimeoutError("x")], RetryPolicy()),
    "a type": ([ValueError("x")], RetryPolicy(retry_on=ValueError)),
    "types": ([ValueError("x"), KeyError("y")], RetryPolicy(retry_on=[ValueError, KeyError])),
    "a function": ([ValueError("again"), ValueError("no")], RetryPolicy(retry_on=lambda error: "again" in str(error))),
    "too many": ([OddError(), OddError(), OddError()], RetryPolicy(max_attempts=3)),
    "the first policy that matches": (
        [KeyError("x"), OddError(), OddError()],
        [RetryPolicy(max_attempts=2, retry_on=KeyError), RetryPolicy(max_attempts=4, retry_on=OddError)],
    ),
    "the policy of the last error counts": (
        [OddError(), KeyError("x"), OddError()],
        [RetryPolicy(max_attempts=2, retry_on=KeyError), RetryPolicy(max_attempts=4, retry_on=OddError)],
    ),
}


@each(("errors", "policy"), RETRIES.values(), ids=RETRIES)
def test_retries_are_those_of_langgraph(errors: list[Exception], policy: Any) -> None:
    quick = without_waiting(policy) if isinstance(policy, RetryPolicy) else list(map(without_waiting, policy))
    builder, node = flaky_graph(*errors, retry_policy=quick)
    expected = None
    try:
        builder.compile().invoke({})
    except Exception as error:  # noqa: BLE001 - of any class
        expected = error
    calls = node.calls

    builder, node = flaky_graph(*errors, retry_policy=policy)
    with no_pauses() as pauses:
        run = from_langgraph(builder).compile().run({})
    assert node.calls == calls
    assert len(pauses) == calls - 1
    assert type(run.error) is type(expected)
    assert ("log" in run.state and list(run.state["log"])) == ([] if expected else ["done"])


class Desk(TypedDict):
    letter: str
    desk: str


@pytest.mark.parametrize(
    ("policy", "num_retries", "status", "requests"),
    [
        (RetryPolicy(), 1, 503, 2),
        (RetryPolicy(), 0, 503, 3),
        (RetryPolicy(), 0, 401, 1),
        (RetryPolicy(retry_on=LMAuthError), 0, 401, 3),
        ([RetryPolicy(retry_on=KeyError), RetryPolicy()], 0, 401, 1),
    ],
)
def test_what_replaces_a_node_repeats_no_request_that_its_lm_has_repeated(
    policy: Any, num_retries: int, status: int, requests: int
) -> None:
    builder: Any = StateGraph(Desk)
    builder.add_node("desk", lambda state: {"desk": "support"}, retry_policy=policy).add_edge(START, "desk")
    program = from_langgraph(builder, nodes={"desk": dspy.Predict("letter -> desk")}).compile()
    with no_pauses(), OpenAIServer(lambda messages: "", faults=[Status(status, Retry_After="0")] * 9) as server:
        with dspy.context(lm=server.lm(cache=False, num_retries=num_retries)):
            assert program.run({"letter": "Hello"}).status == "failed"
        assert len(server.requests) == requests


def test_pauses_grow_as_in_langgraph() -> None:
    def pauses_of(count: int, **options: Any) -> list[float]:
        policy = RetryPolicy(max_interval=10.0, max_attempts=count + 1, **options)
        builder, _ = flaky_graph(*[OddError() for _ in range(count)], retry_policy=policy)
        with no_pauses() as pauses:
            from_langgraph(builder).compile().run({}).raise_error()
        return pauses

    assert pauses_of(4, initial_interval=2.0, backoff_factor=3.0, jitter=False) == [2.0, 6.0, 10.0, 10.0]
    longest = pauses_of(12)[8:]
    assert len(set(longest)) > 1
    assert all(10.0 <= pause <= 11.0 for pause in longest)


def test_defaults_of_a_graph_hold_for_its_nodes_and_the_graph_is_not_changed() -> None:
    builder, node = flaky_graph(OddError())
    builder.set_node_defaults(retry_policy=RetryPolicy(), error_handler=lambda state: {"log": ["handled"]})
    before = dict(builder.nodes)
    with no_pauses():
        assert list(from_langgraph(builder).compile().run({}).state["log"]) == ["done"]
    assert node.calls == 2
    assert builder.nodes == before
    assert builder.nodes["flaky"].retry_policy is None
    builder.compile()  # adds its own handler, and would refuse one that is there
    assert list(from_langgraph(builder).compile().run({}).state["log"]) == ["done"]


# --- error handlers


def told(state: Log, error: NodeError) -> dict[str, Any]:
    return {"log": [f"{error.node}: {type(error.error).__name__} {error.error} {state.get('n')}"]}


def gone(state: Log, error: NodeError) -> Command[Literal["other"]]:
    return Command(update={"log": [str(error.error)]}, goto="other")


def fails(state: Log) -> dict[str, Any]:
    raise OddError("no")


def async_form(node: Callable[[Log], dict[str, Any]]) -> Any:
    async def called(state: Log) -> dict[str, Any]:
        return node(state)

    return called


def after(state: Log) -> dict[str, Any]:
    return {"log": ["after"]}


def other(state: Log) -> dict[str, Any]:
    return {"log": ["other"]}


def fork(state: Log) -> list[Send]:
    return [Send("fails", {"log": [], "n": number}) for number in (1, 2, 3)]


def handled(handler: Callable[..., Any], *, several: bool = False, node: Any = fails, **options: Any) -> Any:
    builder: Any = StateGraph(Log)
    builder.add_node("fails", node, error_handler=handler, **options)
    builder.add_node("after", after)
    builder.add_node("other", other)
    builder.add_edge("fails", "after")
    if several:
        builder.add_conditional_edges(START, fork, ["fails"])
    else:
        builder.add_edge(START, "fails")
        builder.add_edge("other", END)
    return builder


def both(builder: Any, inputs: Any) -> tuple[Any, Any]:
    return builder.compile().invoke(inputs)["log"], list(from_langgraph(builder).compile().run(inputs).state["log"])


def test_a_handler_runs_in_place_of_the_node_and_its_edges_are_not_followed() -> None:
    expected, found = both(handled(told), {"n": 7})
    assert found == expected == ["fails: OddError no 7"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_error_that_a_handler_takes_is_an_event_and_redacted(mode: str) -> None:
    def leaks(state: Log) -> dict[str, Any]:
        raise OddError(f"no {state['n']}")

    graph = from_langgraph(handled(told, node=leaks if mode == "sync" else async_form(leaks)))
    (event,) = [each for each in graph.compile(redact=["n"]).stream({"n": 12345}) if isinstance(each, NodeFailed)]
    assert (event.node, type(event.error), str(event.error)) == ("fails", OddError, "no [redacted]")


def test_a_handler_may_go_somewhere() -> None:
    expected, found = both(handled(gone), {})
    assert found == expected == ["no", "other"]


def test_a_handler_runs_once_for_each_send_that_fails_and_gets_its_value() -> None:
    expected, found = both(handled(told, several=True), {})
    assert found == expected == [f"fails: OddError no {number}" for number in (1, 2, 3)]


def test_a_handler_runs_after_the_last_attempt() -> None:
    node = Flaky(OddError("1"), OddError("2"), OddError("3"))
    with no_pauses() as pauses:
        run = from_langgraph(handled(told, node=node, retry_policy=RetryPolicy(max_attempts=3))).compile().run({})
    assert list(run.state["log"]) == ["fails: OddError 3 None"]
    assert (node.calls, len(pauses)) == (3, 2)


def test_a_handler_that_raises_fails_the_run() -> None:
    def raising(state: Log) -> dict[str, Any]:
        raise KeyError("the handler")

    run = from_langgraph(handled(raising)).compile().run({})
    assert (run.status, type(run.error)) == ("failed", KeyError)


def test_a_handler_may_ask() -> None:
    def asking(state: Log, error: NodeError) -> dict[str, Any]:
        return {"log": [interrupt(f"{error.error}?")]}

    program = from_langgraph(handled(asking)).compile(store=":memory:")
    thread = program.thread("1")
    run = thread.run({})
    assert [(question.key, question.text) for question in run.questions] == [("fails_error_handler-0", "no?")]
    assert list(thread.resume({"fails_error_handler-0": "yes"}).state["log"]) == ["yes"]


def test_a_question_of_the_node_is_no_error() -> None:
    def ask(state: Log) -> dict[str, Any]:
        return {"log": [interrupt("ok?")]}

    assert from_langgraph(handled(told, node=ask)).compile().run({}).status == "interrupted"


def test_a_graph_with_a_handler_is_refused_and_one_of_a_replaced_node_is_noted(caplog: Any) -> None:
    inner = flaky_graph()[0].compile()
    with pytest.raises(GraphError, match="node 'fails' is a graph with an error_handler: handle the error in a node"):
        from_langgraph(handled(told, node=inner))
    caplog.set_level("INFO", logger="dspyer.migrate")
    from_langgraph(handled(told), nodes={"fails": lambda n=0: {"log": ["new"]}})
    assert "the error_handler of 'fails', which nodes= replaces, is left out" in caplog.text


# --- timeouts


async def stuck(state: Log) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("timeout", [0.01, timedelta(seconds=0.01), TimeoutPolicy(run_timeout=0.01, idle_timeout=5)])
def test_an_attempt_takes_no_longer_than_the_run_timeout(timeout: Any) -> None:
    builder: Any = StateGraph(Log)
    builder.add_node("stuck", stuck, timeout=timeout).add_edge(START, "stuck")
    run = asyncio.run(from_langgraph(builder).compile().arun({}))
    assert type(run.error) is NodeTimeoutError


def test_a_timeout_is_retried_where_langgraph_retries_it(time_is_over: TimeIsOver) -> None:
    calls: list[int] = []

    async def slow_once(state: Log) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            time_is_over()
            await asyncio.Event().wait()
        return {"log": ["done"]}

    builder: Any = StateGraph(Log)
    builder.add_node("slow", slow_once, timeout=0.05, retry_policy=RetryPolicy()).add_edge(START, "slow")
    with no_pauses():
        run = asyncio.run(from_langgraph(builder).compile().arun({}))
    assert (list(run.state["log"]), len(calls)) == (["done"], 2)


def test_a_handler_gets_the_timeout_of_its_node() -> None:
    def late(state: Log, error: NodeError) -> dict[str, Any]:
        assert isinstance(error.error, LangGraphTimeoutError)
        return {"log": [f"late: {error.error.timeout}"]}

    builder = handled(late, node=stuck, timeout=0.01)
    expected = asyncio.run(builder.compile().ainvoke({}))["log"]
    assert list(asyncio.run(from_langgraph(builder).compile().arun({})).state["log"]) == expected == ["late: 0.01"]


# --- what is left out, and what nodes get beside the state


def test_what_is_left_out_is_noted(caplog: Any) -> None:
    builder, _ = flaky_graph(cache_policy=CachePolicy(ttl=3))
    caplog.set_level("INFO", logger="dspyer.migrate")
    from_langgraph(builder)
    assert "the cache policy of 'flaky' is left out" in caplog.text


def test_nodes_get_context_and_configurable() -> None:
    def read(state: Log, runtime: Runtime[dict[str, str]], config: Any) -> dict[str, Any]:
        return {"log": [runtime.context["user"], config["configurable"]["tone"]]}

    read.__annotations__["config"] = "RunnableConfig"
    builder: Any = StateGraph(Log, context_schema=dict)
    builder.add_node("read", read).add_edge(START, "read")
    graph = from_langgraph(builder, context={"user": "ada"}, configurable={"tone": "dry"})
    assert list(graph.compile().run({}).state["log"]) == ["ada", "dry"]


class Part(TypedDict):
    n: int


def fails_on_part(state: Part) -> dict[str, Any]:
    raise OddError(str(state))


def told_input(state: Any, error: NodeError) -> dict[str, Any]:
    return {"log": [f"{error.node} {state}"]}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_default_handler_runs_for_each_node_that_fails_with_what_the_node_got(mode: str) -> None:
    builder: Any = StateGraph(Log)
    builder.set_node_defaults(error_handler=told_input)
    builder.add_node("fails", fails).add_node("part", fails_on_part).add_node("after", after)
    for name in ("fails", "part"):
        builder.add_edge(START, name)
        builder.add_edge(name, "after")
    expected = builder.compile().invoke({"n": 7})["log"]
    program = from_langgraph(builder, asynchronous=mode == "async").compile()
    run = asyncio.run(program.arun({"n": 7})) if mode == "async" else program.run({"n": 7})
    assert list(run.state["log"]) == expected
    assert len(expected) == 2


def test_a_handler_may_end_the_run_and_a_router_of_the_node_is_not_asked() -> None:
    builder: Any = StateGraph(Log)
    builder.add_node("fails", fails, error_handler=lambda state: Command(update={"log": ["ended"]}, goto=END))
    builder.add_node("after", after)
    builder.add_edge(START, "fails")
    builder.add_conditional_edges("fails", lambda state: "after", ["after"])
    expected, found = both(builder, {})
    assert found == expected == ["ended"]


def test_a_result_that_is_refused_goes_to_the_handler_too() -> None:
    expected, found = both(handled(lambda state: {"log": ["handled"]}, node=lambda state: 7), {})
    assert found == expected == ["handled"]


def test_the_targets_of_a_handler_are_noted_as_its_own(caplog: Any) -> None:
    caplog.set_level("INFO", logger="dspyer.migrate")
    from_langgraph(handled(lambda state: Command(goto="other")))
    assert "the error handler of 'fails' may go to other: read from its code" in caplog.text


def test_an_error_that_no_step_can_mend_is_not_handled() -> None:
    def away(state: Log) -> Any:
        return Command(graph="other")

    run = from_langgraph(handled(told, node=away)).compile().run({})
    assert str(run.error).startswith("node 'fails' returns Command(graph='other')")
