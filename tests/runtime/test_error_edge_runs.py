"""A run goes on along an error edge: what the edge takes, what is committed, and what the handler gets."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from typing import Annotated, Any, Literal

import dspy
import pytest
from dspy.utils.exceptions import LMTimeoutError
from pydantic import BaseModel, Field, ValidationError

from dspyer import (
    END,
    START,
    Command,
    CompiledGraph,
    Context,
    Failure,
    Graph,
    Retry,
    Send,
    fill,
    reducers,
    view,
)
from dspyer.errors import (
    AttemptError,
    CheckError,
    GraphError,
    LimitError,
    MergeConflictError,
    NodeOutputError,
    RouteError,
    RunStoppedError,
    StepLimitError,
    StoreError,
    ThreadError,
)
from dspyer.events import Committed, NodeFailed
from dspyer.testing import ScriptedLM, no_pauses
from tests.runtime.conftest import Play


class State(BaseModel):
    q: str = ""
    a: str = ""
    n: int = 0
    problem: Failure | None = None
    problems: Annotated[list[Failure], reducers.append] = []
    log: Annotated[list[str], reducers.append] = []
    text: str = ""


def logs(name: str) -> Any:
    return lambda: {"log": name}


def texts(name: str) -> Any:
    return lambda: {"text": name}


def graph_of(ask: Any, *, into: str | None = "problem", on: Any = Exception, **options: Any) -> Graph:
    """`ask`, whose failures go to `handle`, which logs them."""
    graph = Graph(State, inputs=["q"])
    graph.add_node("ask", ask, writes=["a", "log", "n"], **options)
    graph.add_node("handle", logs("handle"), writes=["log"])
    graph.add_path(START, "ask", END).add_edge("handle", END)
    return graph.add_error_edge("ask", "handle", on=on, into=into)


def broken(q: str) -> dict[str, Any]:
    raise ValueError(f"cannot do {q}")


async def abroken(q: str) -> dict[str, Any]:
    raise ValueError(f"cannot do {q}")


def test_the_branch_goes_on_at_the_handler(play: Play) -> None:
    for ask in (broken, abroken):
        run = play(graph_of(ask).compile(), {"q": "it"})
        assert (run.status, run.error, run.failures) == ("completed", None, ())
        failed = run.commits[1]
        failure = Failure(node="ask", execution="trunk:1", type="ValueError", message="cannot do it")
        assert failed.failure == run.state["problem"] == failure
        assert (failed.node, failed.route, dict(failed.patch)) == ("ask", ("handle",), {"problem": failure})
        assert list(run.state["log"]) == ["handle"]
        assert run.blame("problem") == failed


def test_the_failure_is_reported_before_its_commit(play: Play) -> None:
    run = play(graph_of(broken).compile(), {"q": "it"})
    kinds = [type(event) for event in run.events if getattr(event, "execution", "") == "trunk:1"]
    assert kinds[-1] is NodeFailed
    (event,) = [event for event in run.events if isinstance(event, NodeFailed)]
    assert isinstance(event.error, ValueError)
    assert event.error.__notes__ == ["in node 'ask' (branch trunk, visit 1, attempt 1)"]
    at = run.events.index(event)
    assert [event.commit.node for event in run.events[at:] if isinstance(event, Committed)] == ["ask", "handle"]


# --- which edge takes what


class BusyError(ConnectionError):
    """An error of a user."""


def is_busy(error: BaseException) -> bool:
    return "busy" in str(error)


TAKEN: dict[str, tuple[Exception, str]] = {
    "by type": (KeyError("x"), "first"),
    "by a predicate of a tuple": (OSError("too busy"), "second"),
    "by a base class": (BusyError("gone"), "second"),
    "the first that matches, in the order of declaration": (KeyError("busy"), "first"),
    "by the last": (ValueError("x"), "third"),
    "StopIteration": (StopIteration("x"), "third"),
}


def test_the_first_edge_that_takes_the_error_wins(play: Play) -> None:
    def ask(q: str) -> dict[str, Any]:
        raise TAKEN[q][0]

    graph = Graph(State).add_node("ask", ask, writes=[]).add_path(START, "ask", END)
    for name, on in (
        ("first", KeyError),
        ("second", (is_busy, ConnectionError)),
        ("third", (ValueError, StopIteration)),
    ):
        graph.add_node(name, logs(name), writes=["log"]).add_edge(name, END)
        graph.add_error_edge("ask", name, on=on, into="problem")
    program = graph.compile()
    for case, (error, handler) in TAKEN.items():
        run = play(program, {"q": case})
        assert (case, list(run.state["log"])) == (case, [handler])
        assert run.state["problem"].type == type(error).__name__


def test_what_no_edge_takes_fails_the_run_unchanged(play: Play) -> None:
    error = ValueError("other")

    def ask() -> dict[str, Any]:
        raise error

    program = graph_of(ask, on=(KeyError, is_busy)).compile()
    run = play(program, {})
    assert run.error is error
    assert (run.status, [str(failure) for failure in run.failures]) == (
        "failed",
        ["ask (execution trunk:1, attempt 1): ValueError: other"],
    )
    assert run.state["problem"] is None


PASSES = [
    GraphError("x"),
    RouteError("x"),
    LimitError("x"),
    RunStoppedError("x"),
    StoreError("x"),
    ThreadError("x"),
    AttemptError("x"),
    ExceptionGroup("x", [TimeoutError("x"), StoreError("x")]),
]
FAILS = [NodeOutputError("x"), MergeConflictError("x"), CheckError("x"), TimeoutError("x")]


def test_some_errors_pass_every_error_edge() -> None:
    def ask(q: str) -> dict[str, Any]:
        raise errors[int(q)]

    errors = [*PASSES, *FAILS]
    program = graph_of(ask).compile()
    for place, error in enumerate(errors):
        run = program.run({"q": str(place)})
        assert (error, run.error) == (error, error if error in PASSES else None)
        assert list(run.state["log"]) == ([] if error in PASSES else ["handle"])


def test_the_edge_takes_errors_of_the_validation_of_the_output(play: Play) -> None:
    run = play(graph_of(lambda: {"n": "no number"}).compile(), {})
    assert run.state["problem"].type == "NodeOutputError"
    assert "no number" in run.state["problem"].message
    run = play(graph_of(lambda: {"unknown": 1}).compile(), {})
    assert run.state["problem"].type == "NodeOutputError"


def test_the_edge_takes_errors_of_condensers(play: Play) -> None:
    graph = graph_of(lambda: {"a": "long"}, condense={"a": dspy.Predict("text -> short")})
    with ScriptedLM([LMTimeoutError("no answer")]):
        run = play(graph.compile(), {})
    assert (run.state["problem"].node, run.state["problem"].type) == ("ask", "LMTimeoutError")
    assert run.state["a"] == ""


def test_the_edge_takes_what_remains_after_all_attempts(play: Play) -> None:
    calls = Counter[str]()

    def ask() -> dict[str, Any]:
        calls["ask"] += 1
        raise TimeoutError(f"attempt {calls['ask']}")

    with no_pauses():
        run = play(graph_of(ask, retry=Retry(3)).compile(), {})
    assert calls["ask"] == 3
    failed = run.commits[1]
    assert (failed.attempt, run.state["problem"].attempt, run.state["problem"].message) == (3, 3, "attempt 3")
    assert [each.attempt for each in failed.failed_attempts] == [1, 2]
    assert run.state["problem"].retryable


def test_errors_of_routers_fail_the_run(play: Play) -> None:
    def route(a: str) -> str:
        raise ValueError("the router")

    graph = Graph(State).add_node("ask", lambda: {"a": "x"}, writes=["a"]).add_node("handle", logs("handle"))
    graph.add_edge(START, "ask").add_conditional_edges("ask", route, [END]).add_edge("handle", END)
    program = graph.add_error_edge("ask", "handle").compile()
    assert str(play(program, {}).error) == "the router"


def test_conflicts_of_the_join_before_a_node_fail_the_run() -> None:
    graph = Graph(State, merge={"text": "raise"})
    for name in ("left", "right"):
        graph.add_node(name, texts(name), writes=["text"])
    graph.add_node("ask", lambda q: {}, writes=[]).add_node("handle", logs("handle"), writes=["log"])
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "ask").add_edge(["ask", "handle"], END)
    run = graph.add_error_edge(["ask", "left"], "handle").compile().run({})
    assert isinstance(run.error, MergeConflictError)


def test_an_error_of_a_predicate_fails_the_run() -> None:
    def careless(error: BaseException) -> bool:
        return bool(error.status > 500)  # type: ignore[attr-defined]

    run = graph_of(broken, on=careless).compile().run({"q": "it"})
    assert isinstance(run.error, AttributeError)
    assert isinstance(run.error.__context__, ValueError)


def test_a_question_passes_and_its_answer_counts(play: Play) -> None:
    def ask(ctx: Context) -> dict[str, Any]:
        if not ctx.interrupt("ok", "Go on?", answer=bool):
            raise ValueError("refused")
        return {}

    program = graph_of(ask).compile()
    assert play(program, {}, answers={"ok": True}).state["problem"] is None
    assert play(program, {}, answers={"ok": False}).state["problem"].message == "refused"
    run = play(program, {})
    assert (run.status, [question.key for question in run.questions]) == ("interrupted", ["ok"])


# --- what is committed


def test_a_failed_node_commits_nothing_but_the_failure(play: Play) -> None:
    def ask(ctx: Context) -> dict[str, Any]:
        ctx.post("log", "posted")
        raise ValueError("broken")

    run = play(graph_of(ask).compile(), {})
    assert list(run.state["log"]) == ["handle"]
    assert list(run.commits[1].patch) == ["problem"]
    run = play(graph_of(ask, into=None).compile(), {})
    assert not run.commits[1].patch
    assert run.commits[1].failure is not None


def test_end_as_the_target_ends_the_branch(play: Play) -> None:
    graph = Graph(State).add_node("ask", broken, writes=["a"]).add_path(START, "ask", END)
    run = play(graph.add_error_edge("ask", END, into="problem").compile(), {"q": "it"})
    assert (run.status, run.state["problem"].message, len(run.commits)) == ("completed", "cannot do it", 2)


def test_siblings_of_a_failed_node_run_to_their_end(play: Play) -> None:
    """LangGraph raises the error although it was handled if another node still runs (#8277, #8608)."""
    failed = threading.Event()

    def slow() -> dict[str, Any]:
        assert failed.wait(20)
        return {"log": "slow"}

    def handle(problem: Failure) -> dict[str, Any]:
        failed.set()  # the handler runs while the sibling does
        return {"log": "handle"}

    graph = Graph(State).add_node("ask", broken, writes=["a"]).add_node("slow", slow, writes=["log"])
    graph.add_node("handle", handle, writes=["log"]).add_node("last", logs("last"), writes=["log"])
    graph.add_edge(START, ["ask", "slow"]).add_edge(["ask", "slow", "handle"], "last").add_edge("last", END)
    run = play(graph.add_error_edge("ask", "handle", into="problem").compile(), {"q": "it"})
    assert run.status == "completed"
    assert list(run.state["log"]) == ["handle", "slow", "last"]


def test_a_join_waits_for_a_branch_that_may_fail_into_it(play: Play) -> None:
    """`join` runs once, after the branch whose failure leads to it."""
    graph = Graph(State).add_node("ask", broken, writes=["a"]).add_node("join", logs("join"), writes=["log"])
    graph.add_node("other", logs("other"), writes=["log"]).add_edge(START, ["ask", "other"])
    graph.add_edge("other", "join").add_edge("ask", END).add_edge("join", END)
    run = play(graph.add_error_edge("ask", "join", into="problem").compile(), {"q": "it"})
    assert list(run.state["log"]) == ["other", "join"]
    assert [commit.node for commit in run.commits].count("join") == 1


def test_a_loop_may_go_back_along_an_error_edge(play: Play) -> None:
    def ask(n: int) -> dict[str, Any]:
        if n < 3:
            raise ValueError(f"{n} is too small")
        return {"a": "done"}

    graph = Graph(State).add_node("ask", ask, writes=["a"])
    graph.add_node("grow", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "ask", END)
    graph.add_edge("grow", "ask").add_error_edge("ask", "grow", into="problems")
    run = play(graph.compile(), {})
    assert run.state["a"] == "done"
    assert [failure.execution for failure in run.state["problems"]] == ["trunk:1", "trunk:3", "trunk:5"]
    assert run.stats().nodes["ask"].visits == 4
    assert isinstance(play(graph.compile(max_steps=5), {}).error, StepLimitError)


def test_a_node_may_lead_its_failures_to_itself(play: Play) -> None:
    graph = Graph(State).add_node("ask", lambda problems: {"n": 1 // len(problems)}, writes=["n"])
    graph.add_path(START, "ask", END).add_error_edge("ask", "ask", into="problems")
    run = play(graph.compile(), {})
    assert run.state["problems"][0].type == "ZeroDivisionError"
    assert run.stats().nodes["ask"].visits == 2


def test_a_long_message_is_cut_and_a_wrong_one_is_described() -> None:
    class Odd(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise KeyError("no text")

    def ask(q: str) -> dict[str, Any]:
        raise Odd if q == "odd" else ValueError("x" * 2000)

    program = graph_of(ask).compile()
    assert len(program.run({"q": ""}).state["problem"].message) == 500
    assert len(Failure.of(ValueError("\ud800" * 500), node="ask").message) == 500
    assert program.run({"q": "odd"}).state["problem"].message == "<Odd.__str__ raised KeyError>"


# --- what the handler gets


def test_a_handler_gets_the_failure_itself(play: Play) -> None:
    seen: list[Any] = []

    def handle(problem: Failure, problems: list[Failure]) -> dict[str, Any]:
        seen.extend([problem, problems])
        with pytest.raises(ValidationError):
            problem.message = "changed"  # type: ignore[misc]
        return {"text": str(problem)}

    graph = Graph(State).add_node("ask", broken, writes=["a"]).add_node("handle", handle, writes=["text"])
    graph.add_path(START, "ask", END).add_edge("handle", END).add_error_edge("ask", "handle", into="problem")
    run = play(graph.compile(), {"q": "it"})
    assert isinstance(seen[0], Failure)
    assert seen[1] == []
    assert run.state["text"] == "ask (execution trunk:1, attempt 1): ValueError: cannot do it"


def test_a_module_handler_sees_it_in_its_prompt(play: Play) -> None:
    class Apologize(dspy.Signature):
        """Apologize."""

        problem: Failure = dspy.InputField()
        text: str = dspy.OutputField()

    def graph(module: Any, **options: Any) -> CompiledGraph:
        made = Graph(State).add_node("ask", broken, writes=["a"]).add_node("handle", module, **options)
        made.add_path(START, "ask", END).add_edge("handle", END)
        return made.add_error_edge("ask", "handle", into="problem").compile()

    with ScriptedLM([{"text": "sorry"}] * 2) as lm:
        run = play(graph(dspy.Predict(Apologize)), {"q": "it"})
        line = fill("What went wrong: {problem}")
        play(graph(dspy.Predict("about -> text"), reads={"about": line}), {"q": "it"})
    assert run.state["text"] == "sorry"
    whole, filled = [call.prompt.inputs for call in lm.calls]
    assert '"type": "ValueError", "message": "cannot do it"' in whole["problem"]
    assert "traceback" not in whole["problem"]
    assert filled["about"] == "What went wrong: ask (execution trunk:1, attempt 1): ValueError: cannot do it"


def test_an_lm_call_that_fails_is_retried_and_then_handled(play: Play) -> None:
    graph = Graph(State).add_node("ask", dspy.Predict("q -> a"), retry=2).add_node("handle", logs("handle"))
    graph.add_path(START, "ask", END).add_edge("handle", END).add_error_edge("ask", "handle", into="problem")
    with ScriptedLM([LMTimeoutError("one"), LMTimeoutError("two")]), no_pauses():
        run = play(graph.compile(), {"q": "it"})
    assert (run.state["problem"].message, list(run.state["log"])) == ("two", ["handle"])
    assert not run.trace


def test_an_output_that_was_refused_is_no_step_of_the_trace(play: Play) -> None:
    """Else an optimizer would make a demo of it. It was paid for, so it is among all steps, and its usage counts."""

    class Short(State):
        a: Annotated[str, Field(max_length=3)] = ""

    graph = Graph(Short).add_node("ask", dspy.Predict("q -> a")).add_node("handle", dspy.Predict("q -> text"))
    graph.add_path(START, "ask", END).add_edge("handle", END).add_error_edge("ask", "handle", into="problem")
    with ScriptedLM([{"a": "too long"}, {"text": "sorry"}]):
        run = play(graph.compile(), {"q": "it"})
    assert run.state["problem"].type == "NodeOutputError"
    assert run.state["problem"].retryable, "a model may give another output"
    assert [dict(outputs) for _, _, outputs in run.trace] == [{"text": "sorry"}]
    assert [(step.node, step.status) for step in run.trace_steps] == [("ask", "lost"), ("handle", "used")]


# --- sends, maps, programs inside


def sends(q: str) -> list[Send]:
    return [Send("ask", {"q": letter}) for letter in q]


def send_graph(handler: str = "handle", source: str = START) -> Graph:
    """`ask` for each letter, sent by a router of `source`."""

    def ask(q: str) -> dict[str, Any]:
        if q.isupper():
            raise ValueError(q)
        return {"log": q}

    graph = Graph(State).add_node("ask", ask, writes=["log"]).add_node("last", logs("last"), writes=["log"])
    if handler == "handle":
        told = lambda problems: {"text": "".join(str(each.index) for each in problems)}  # noqa: E731
        graph.add_node("handle", told, writes=["text"]).add_edge(["ask", "handle"], "last")
    else:
        graph.add_edge("ask", "last")
    if source:
        graph.add_conditional_edges(source, sends, ["ask"])
    return graph.add_edge("last", END).add_error_edge("ask", handler, into="problems")


def test_failed_branches_of_a_send_join_at_their_handler(play: Play) -> None:
    program = send_graph().compile()
    for q, text, log in (
        ("aBcD", "13", ["a", "c", "last"]),
        ("ABC", "012", ["last"]),
        ("abc", "", ["a", "b", "c", "last"]),
        ("A", "0", ["last"]),
    ):
        run = play(program, {"q": q})
        assert (q, run.state["text"], list(run.state["log"])) == (q, text, log)
        assert [commit.node for commit in run.commits].count("handle") == (1 if text else 0)
        assert [each.message for each in run.state["problems"]] == [letter for letter in q if letter.isupper()]


def test_failed_branches_of_a_send_may_go_where_the_others_go(play: Play) -> None:
    run = play(send_graph("last").compile(), {"q": "aBcD"})
    assert [commit.node for commit in run.commits].count("last") == 1
    assert [each.index for each in run.state["problems"]] == [1, 3]


def test_the_index_is_the_position_among_all_targets_of_a_command() -> None:
    def start() -> Command[Literal["ask", "other"] | Send]:
        return Command(goto=["other", Send("ask", {"q": "A"}), Send("ask", {"q": "b"}), Send("ask", {"q": "C"})])

    graph = send_graph(source="").add_node("start", start, goto=["ask", "other"], writes=[])
    graph.add_node("other", logs("other"), writes=["log"]).add_edge("other", "last").add_edge(START, "start")
    run = graph.compile().run({})
    assert run.status == "completed", run.error
    assert [(each.index, each.message) for each in run.state["problems"]] == [(1, "A"), (3, "C")]


def test_a_view_shows_failures_by_their_node() -> None:
    def handle(ones: list[Failure], text: str) -> dict[str, Any]:
        return {"text": text, "n": len(ones)}

    graph = Graph(State).add_node("one", broken, writes=[]).add_node("two", broken, writes=[])
    reads = {"ones": view("problems").by("one"), "text": fill("{problems}")}
    graph.add_node("handle", handle, reads=reads, writes=["text", "n"]).add_edge(START, ["one", "two"])
    graph.add_edge(["one", "two", "handle"], END).add_error_edge(["one", "two"], "handle", into="problems")
    run = graph.compile().run({"q": "it"})
    assert run.status == "completed", run.error
    assert run.state["n"] == 1
    assert run.state["text"].count("cannot do it") == 2


def test_the_only_send_of_a_branch_has_the_index_0() -> None:
    graph = send_graph(source="start").add_node("other", logs("other"), writes=["log"]).add_edge("other", "last")
    graph.add_node("start", logs("start"), writes=["log"])
    run = graph.add_edge(START, ["other", "start"]).compile().run({"q": "A"})
    assert [(each.branch, each.index) for each in run.state["problems"]] == [((1,), 0)]


def test_only_the_node_that_a_send_starts_has_an_index() -> None:
    def later(n: int) -> dict[str, Any]:
        raise ValueError("later")

    graph = Graph(State).add_node("ask", lambda q: {}, writes=[]).add_node("later", later, writes=[])
    graph.add_node("handle", logs("handle"), writes=["log"]).add_conditional_edges(START, sends, ["ask"])
    graph.add_edge("ask", "later").add_edge(["later", "handle"], END)
    run = graph.add_error_edge("later", "handle", into="problems").compile().run({"q": "ab"})
    assert [each.index for each in run.state["problems"]] == [None]


def test_a_map_whose_item_fails_is_a_source(play: Play) -> None:
    def measure(doc: str) -> str:
        raise ValueError(doc)

    class Docs(State):
        docs: list[str] = []
        sizes: list[str] = []

    graph = Graph(Docs).add_map("measure", measure, over="docs", item="doc", into="sizes")
    graph.add_node("handle", logs("handle"), writes=["log"]).add_path(START, "measure", END).add_edge("handle", END)
    run = play(graph.add_error_edge("measure", "handle", into="problem").compile(), {"docs": ["x", "y"]})
    assert (run.state["problem"].node, run.state["problem"].message) == ("measure", "x")
    assert list(run.state["sizes"]) == []


def test_a_question_node_is_a_source(play: Play) -> None:
    def question(q: str) -> str:
        raise ValueError("no question")

    graph = Graph(State).add_interrupt("approve", question=question, answer=bool, into="n")
    graph.add_node("handle", logs("handle"), writes=["log"]).add_path(START, "approve", END).add_edge("handle", END)
    run = play(graph.add_error_edge("approve", "handle", into="problem").compile(), {"q": "x"})
    assert list(run.state["log"]) == ["handle"]


def test_inner_and_outer_error_edges(play: Play) -> None:
    """The inner graph takes a ValueError itself; the outer one takes what the inner one lets through."""

    def ask(q: str) -> dict[str, Any]:
        raise KeyError(q) if q == "key" else ValueError(q)

    inner = graph_of(ask, on=ValueError).compile()
    graph = Graph(State, inputs=["q"]).add_node("inner", inner, reads=["q"], writes=["log", "problem"])
    graph.add_node("outer", logs("outer"), writes=["log"]).add_path(START, "inner", END).add_edge("outer", END)
    program = graph.add_error_edge("inner", "outer", into="problems").compile()
    run = play(program, {"q": "value"})
    assert (list(run.state["log"]), run.state["problem"].node) == (["handle"], "ask")
    assert [failure.node for failure in run.state["problems"]] == []
    run = play(program, {"q": "key"})
    assert (list(run.state["log"]), run.state["problem"]) == (["outer"], None)
    (failure,) = run.state["problems"]
    assert (failure.node, failure.type) == ("inner", "KeyError")
    failed = [(event.node, event.scope) for event in run.events if isinstance(event, NodeFailed)]
    assert failed == [("ask", ("trunk:1",)), ("inner", ())]


class Checked(State):
    issues: list[str] = []


def checked_graph(*, max_fixes: int = 0, fix: Any = None) -> Graph:
    """`ask`, whose output may have three letters. It and its check lead their failures to `handle`."""

    def ask(q: str) -> dict[str, Any]:
        if not q:
            raise ValueError("no question")
        return {"a": q}

    graph = Graph(Checked, merge="last_write_wins").add_node("ask", ask, writes=["a"])
    problems = lambda a: ["too long"] if len(a) > 3 else []  # noqa: E731
    graph.add_check("short", problems, of="ask", max_fixes=max_fixes, fix=fix, into="issues")
    graph.add_node("handle", logs("handle"), writes=["log"]).add_edge(["ask", "handle"], END)
    return graph.add_error_edge(["ask", "short"], "handle", into="problems")


def test_the_check_error_of_a_check_goes_to_its_handler(play: Play) -> None:
    program = checked_graph().add_edge(START, "ask").compile()
    assert play(program, {"q": "abc"}).state["problems"] == []
    for q, node, kind in (("abcd", "short", "CheckError"), ("", "ask", "ValueError")):
        run = play(program, {"q": q})
        (failure,) = run.state["problems"]
        assert (failure.node, failure.type, failure.index) == (node, kind, None)
        assert list(run.state["log"]) == ["handle"]


class Fix(dspy.Module):
    """Shortens by one letter, and fails at four."""

    def forward(self, a: str, issues: list[str]) -> dspy.Prediction:
        if len(a) == 4:
            raise ValueError("cannot be shortened")
        return dspy.Prediction(a=a[:-1])


def test_an_error_edge_of_a_fix_takes_its_failures(play: Play) -> None:
    graph = checked_graph(max_fixes=1, fix=Fix()).add_edge(START, "ask")
    program = graph.add_error_edge("ask_fix", "handle", into="problems").compile()
    assert [failure.node for failure in play(program, {"q": "abcd"}).state["problems"]] == ["ask_fix"]
    run = play(program, {"q": "abcdef"})
    assert [(failure.node, failure.index) for failure in run.state["problems"]] == [("short", None)]


def test_a_check_after_a_send_has_its_index() -> None:
    graph = checked_graph().add_conditional_edges(START, words, ["ask"])
    run = graph.compile().run({"q": "a abcd ab abcde"})
    assert [(failure.node, failure.index) for failure in run.state["problems"]] == [("short", 1), ("short", 3)]


@pytest.mark.parametrize("first", ["late", "early"])
def test_which_failure_of_a_graph_inside_is_committed_depends_on_what_had_started(first: str) -> None:
    """No node starts after a failure: `late`, which comes first in branch order, may not be called any more."""
    failed = threading.Event()

    def before() -> None:
        assert first == "late" or failed.wait(20)

    def late() -> None:
        raise KeyError("late")

    def early() -> None:
        assert first == "early" or failed.wait(20)
        raise ValueError("early")

    inner = Graph(State)
    for node in (before, late, early):
        inner.add_node(node, writes=[])
    inner.add_edge(START, ["before", "early"]).add_path("before", "late", END).add_edge("early", END)
    graph = Graph(State).add_node("part", inner).add_path(START, "part", END)
    stream = graph.add_error_edge("part", END, into="problem").compile().stream({})
    for event in stream:
        if isinstance(event, NodeFailed):
            failed.set()
    assert stream.run is not None
    assert stream.run.state["problem"].type == {"late": "KeyError", "early": "ValueError"}[first]


def words(q: str) -> list[Send]:
    return [Send("ask", {"q": word}) for word in q.split()]


def test_a_failed_run_leaves_no_garbage() -> None:
    """A failure that was taken is freed with its frames, without the cyclic garbage collector."""

    class Big:
        pass

    freed: list[int] = []

    def ask(q: str) -> dict[str, Any]:
        big = Big()
        weakref.finalize(big, freed.append, 1)
        raise ValueError("broken")

    program = graph_of(ask).compile()
    program.run({"q": "it"})
    gc.collect()
    freed.clear()
    gc.disable()
    try:
        prediction = program(q="it")
        assert freed == [1]
        assert prediction.problem.type == "ValueError"
    finally:
        gc.enable()
