"""Converted graphs on stored threads: what a second graph, a second process or days between change nothing about."""

import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.errors import NodeError
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, interrupt
from pydantic import BaseModel

from dspyer.errors import NodeOutputError
from dspyer.migrate import explain_langgraph, from_langgraph


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    n: int
    unit: str


# --- threads that are read without their program

READ = """
import sys
from dspyer import Archive
with Archive(sys.argv[1]) as archive:
    state = archive.thread("t").state()
print([message.content for message in state["messages"]], repr(state["words"]))
"""


def update(left: str, right: str) -> str:
    """A reducer with the name of one of dspyer's."""
    return f"{left} {right}"


class Talk(MessagesState):
    words: Annotated[str, update]


@pytest.mark.slow("a process that has not imported the program")
def test_another_process_reads_messages_without_the_program_that_wrote_them(tmp_path: Path) -> None:
    def answer(state: Talk) -> Any:
        removed = RemoveMessage(id=str(state["messages"][0].id))
        return {"messages": [removed, AIMessage("Hello")], "words": "hello"}

    graph = StateGraph(Talk).add_node("answer", answer).add_edge(START, "answer")
    store = tmp_path / "runs.db"
    from_langgraph(graph).compile(store=store).thread("t").run({"messages": ["Hi", "Who is there?"], "words": "hi"})
    read = subprocess.run([sys.executable, "-c", READ, store], capture_output=True, text=True, check=False)
    assert read.stdout == "['Who is there?', 'Hello'] ' hi hello'\n", read.stderr


# --- the classes of a graph that a function has made


def with_own_class(given: str) -> Any:
    """A graph with a class of its own, as a service makes one for each of its customers."""

    class Part(BaseModel):
        size: int = 0
        unit: str = given

    class State(TypedDict, total=False):
        parts: Annotated[list[Part], operator.add]
        own: bool
        unit: str

    def cut(state: Any) -> Any:
        return {"parts": [Part(size=len(state["parts"]))], "own": all(isinstance(one, Part) for one in state["parts"])}

    return StateGraph(State).add_node("cut", cut).add_edge(START, "cut")


def test_a_graph_reads_values_of_its_own_classes_whatever_graph_was_converted_later(tmp_path: Path) -> None:
    first = from_langgraph(with_own_class("cm")).compile(store=tmp_path / "runs.db")
    first.thread("t").run({})
    explain_langgraph(with_own_class("inch"))
    from_langgraph(with_own_class("inch"))
    run = first.thread("t").run({})
    assert run.state["own"]
    assert [part.unit for part in run.state["parts"]] == ["cm", "cm"]


def test_a_graph_inside_reads_values_of_its_own_classes_too(tmp_path: Path) -> None:
    def ask(state: Any) -> Any:
        return {"unit": f"{state['parts'][0].unit} {interrupt('more?')}"}

    inner = with_own_class("cm").add_node("ask", ask).add_edge("cut", "ask").compile()
    outer = StateGraph(Log).add_node("inner", inner).add_edge(START, "inner")
    from_langgraph(outer).compile(store=tmp_path / "runs.db").thread("t").run({})
    run = from_langgraph(outer).compile(store=tmp_path / "runs.db").thread("t").resume({"ask-0": "no"})
    assert (run.error, run.state["unit"]) == (None, "cm no")


# --- a node that has failed for good


def asking_handler(calls: list[object], make_error: Callable[[], Exception]) -> Any:
    def pay(_: Any) -> Any:
        calls.append("pay")
        interrupt("pay now?")
        if calls.count("handler"):
            return {"log": ["paid after all"]}
        raise make_error()

    @task
    def refund(amount: int) -> int:
        calls.append("refund")
        return amount

    def handler(state: Any, error: NodeError) -> Any:
        calls.append("handler")
        found = refund(state["n"]).result()
        answer = interrupt("what now?")
        calls.append(error.error)
        return {"log": [answer, found]}

    retry = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)
    node = StateGraph(Log).add_node("pay", pay, error_handler=handler, retry_policy=retry)
    return node.add_edge(START, "pay")


def asynchronous(graph: Any) -> Any:
    """The same graph, whose nodes are coroutines."""
    return from_langgraph(graph, asynchronous=True)


class UnknownError(Exception):
    pass


@pytest.mark.parametrize("convert", [from_langgraph, asynchronous])
@pytest.mark.parametrize(
    ("make_error", "later"),
    [
        (lambda: KeyError("card"), KeyError("card")),
        (lambda: UnknownError("card", 2), Exception("UnknownError: ('card', 2)")),
        (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), Exception("UnicodeDecodeError: 'utf-8' codec")),
    ],
)
def test_a_node_that_failed_is_not_called_again_when_its_handler_is(
    tmp_path: Path, convert: Any, make_error: Callable[[], Exception], later: Exception
) -> None:
    calls: list[object] = []

    def program() -> Any:
        return convert(asking_handler(calls, make_error)).compile(store=tmp_path / "runs.db")

    program().thread("t").run({"n": 3})
    calls.clear()
    run = program().thread("t").resume({"pay-0": True})
    failing = [call for call in calls if call == "pay"]
    assert [question.key for question in run.questions] == ["pay_error_handler-0"]
    run = program().thread("t").resume({"pay_error_handler-0": "wait"})
    assert (run.error, run.state["log"]) == (None, ["wait", 3])
    assert calls[:-1] == [*failing, "handler", "refund", "handler"]
    assert type(calls[-1]) is type(later)
    assert str(calls[-1]).startswith(str(later))


def test_the_retry_policy_of_a_node_is_not_that_of_its_handler() -> None:
    calls = []

    def pay(_: Any) -> Any:
        calls.append("pay")
        raise ValueError("no card")

    def handler(_: Any) -> Any:
        calls.append("handler")
        raise ConnectionError("no net")

    retry = RetryPolicy(max_attempts=3, initial_interval=0.001)
    graph = StateGraph(Log).add_node("pay", pay, error_handler=handler, retry_policy=retry).add_edge(START, "pay")
    run = from_langgraph(graph).compile().run({})
    assert isinstance(run.error, ConnectionError)
    assert calls == ["pay", "handler"]


# --- what is given to a thread


def test_the_values_of_a_thread_are_given_by_field(tmp_path: Path) -> None:
    graph = StateGraph(Annotated[list[int], operator.add]).add_node("count", lambda state: [len(state)])
    thread = from_langgraph(graph.add_edge(START, "count")).compile(store=tmp_path / "runs.db").thread("t")
    with pytest.raises(NodeOutputError, match="a mapping of fields"):
        thread.update([1, 2])  # type: ignore[arg-type]
    thread.update({"root": [1, 2]})
    assert thread.run({}).state["root"] == [1, 2, 2]
