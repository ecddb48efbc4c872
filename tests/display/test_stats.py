"""`run.stats()` and `t.stats()`: what is counted for each node, and what is said to be unknown."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMServerError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import END, START, Budget, CompiledGraph, Context, Failure, Graph, Retry, Run
from dspyer.display.stats import NodeStats, Stats
from dspyer.lms import reliable
from dspyer.testing import ScriptedLM, no_pauses
from tests.rows import each
from tests.timeouts import TimeIsOver

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
NOW = Retry(3, wait=wait_none())


def play(program: CompiledGraph, inputs: dict[str, Any], mode: str) -> Run:
    return program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))


def outcomes(one: NodeStats) -> tuple[int, ...]:
    return one.visits, one.first_try, one.retried, one.corrected, one.accepted, one.failed, one.attempts


class Desk(BaseModel):
    n: int = 0
    docs: list[str] = []
    notes: list[str] = []
    unread: list[Failure] = []
    answer: str = ""
    problems: list[str] = []
    fault: Failure | None = None


def failing(times: int, error: type[Exception] = ConnectionError) -> Any:
    def work(n: int, ctx: Context) -> dict[str, int]:
        if ctx.attempt <= times:
            raise error("no")
        return {"n": n + 1}

    return work


@each(
    ("node", "retry", "expected", "exceptions"),
    [
        (failing(0), NOW, (1, 1, 0, 0, 0, 0, 1), {}),
        (failing(2), NOW, (1, 0, 1, 0, 0, 0, 3), {"ConnectionError": 2}),
        (failing(3), NOW, (1, 0, 0, 0, 0, 1, 3), {"ConnectionError": 3}),
        (failing(1, KeyError), NOW, (1, 0, 0, 0, 0, 1, 1), {"KeyError": 1}),
        (failing(1), None, (1, 0, 0, 0, 0, 1, 1), {"ConnectionError": 1}),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
@MODES
def test_attempts_of_a_node(
    node: Any, retry: Any, expected: tuple[int, ...], exceptions: dict[str, int], caught: bool, mode: str
) -> None:
    graph = Graph(Desk, inputs=["n"]).add_node("work", node, writes=["n"], retry=retry).add_path(START, "work", END)
    if caught:
        graph.add_error_edge("work", END, into="fault")
    one = play(graph.compile(), {"n": 1}, mode).stats().nodes["work"]
    assert outcomes(one) == expected
    assert one.exceptions == exceptions


def drafting(caught: bool = False, **options: Any) -> CompiledGraph:
    graph = Graph(Desk, inputs=["n"]).add_node("draft", dspy.Predict("n: int -> answer"))
    graph.add_check("short", lambda answer: ["too long"] if len(answer) > 3 else [], of="draft", **options)
    if caught:
        graph.add_error_edge("short", END, into="fault")
    return graph.add_path(START, "draft", END).compile(store=":memory:")


@each(
    ("answers", "accept", "expected", "problems", "rejected"),
    [
        (["one"], False, (1, 1, 0, 0, 0, 0, 1), 0, 0),
        (["four", "one"], False, (1, 0, 0, 1, 0, 0, 1), 1, 1),
        (["four", "five", "six"], False, (1, 0, 0, 1, 0, 0, 1), 2, 2),
        (["four", "five", "seven"], False, (1, 0, 0, 0, 0, 1, 1), 2, 3),
        (["four", "five", "seven"], True, (1, 0, 0, 0, 1, 0, 1), 3, 2),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
@MODES
def test_corrections_of_a_checked_node(
    answers: list[str], accept: bool, expected: tuple[int, ...], problems: int, rejected: int, caught: bool, mode: str
) -> None:
    program = drafting(caught, accept=accept)
    t = program.thread("t")
    with ScriptedLM([{"answer": answer} for answer in answers]):
        run = t.run({"n": 1}) if mode == "sync" else asyncio.run(t.arun({"n": 1}))
    for stats in (run.stats(), t.stats()):
        assert outcomes(stats.nodes["draft"]) == expected
        assert stats.nodes["short"].problems.get("too long", 0) == problems
        refused = sum(one.rejected_seconds > 0 for one in stats.nodes.values())
        assert refused == min(rejected, 2)
    stats = run.stats()
    total = sum(tokens["total_tokens"] for tokens in run.usage.values())
    assert sum(one.tokens or 0 for one in stats.nodes.values()) == total
    assert [stats.nodes[name].lm_calls for name in stats.nodes] == [
        {"draft": 1, "short": 0, "draft_fix": len(answers) - 1}[name] for name in stats.nodes
    ]
    spent = sum(one.rejected_tokens or 0 for one in stats.nodes.values())
    assert spent == sum(call.tokens for call in run.lm_calls[:rejected])
    assert (spent == total) == (expected[5] == 1)


@MODES
def test_items_of_a_map(mode: str) -> None:
    def read(doc: str, ctx: Context) -> str:
        if doc == "bad" or ctx.attempt <= (doc == "flaky"):
            raise ConnectionError(doc)
        return doc

    graph = Graph(Desk, inputs=["docs"])
    graph.add_map("read", read, over="docs", item="doc", into="notes", failures="unread", retry=NOW)
    t = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    inputs = {"docs": ["a", "bad", "flaky", "flaky", "b"]}
    run = t.run(inputs) if mode == "sync" else asyncio.run(t.arun(inputs))
    for one in (run.stats().nodes["read"], t.stats().nodes["read"]):
        assert outcomes(one) == (1, 2, 2, 0, 0, 1, 9)
        assert (one.items, one.total, one.mean_attempts) == (5, 5, 1.8)
        assert one.exceptions == {"ConnectionError": 5}


@MODES
def test_timeouts_and_loops(mode: str, time_is_over: TimeIsOver) -> None:
    async def slow(n: int, ctx: Context) -> dict[str, int]:
        if ctx.attempt == 1 and n == 1:
            await asyncio.sleep(0.02)
            time_is_over()
            await asyncio.Event().wait()
        return {"n": n + 1}

    graph = Graph(Desk, inputs=["n"]).add_node("slow", slow, writes=["n"], timeout=0.05, retry=NOW)
    graph.add_edge(START, "slow").add_conditional_edges("slow", lambda n: END if n > 3 else "slow", [END, "slow"])
    one = play(graph.compile(), {"n": 0}, mode).stats().nodes["slow"]
    assert (outcomes(one), one.timeouts) == ((4, 3, 1, 0, 0, 0, 5), 1)
    p50, p95 = one.percentile(0.5), one.percentile(0.95)
    assert p50 is not None
    assert p95 is not None
    assert p50 <= p95 == max(one.durations)
    assert p95 > 0.01  # that of the attempt which timed out


@MODES
def test_tokens_belong_to_the_node_whose_code_made_the_call(mode: str) -> None:
    """In parallel branches, in a graph inside a node, in a program that a node calls, and after it."""
    ask = dspy.Predict("n: int -> answer")
    inner = (
        Graph(Desk, inputs=["n"]).add_node("a", dspy.Predict("n: int -> answer")).add_path(START, "a", END).compile()
    )
    other = (
        Graph(Desk, inputs=["n"]).add_node("b", dspy.Predict("n: int -> answer")).add_path(START, "b", END).compile()
    )

    def calls(n: int, ask: Any, other: Any) -> dict[str, str]:
        with dspy.context(lm=dspy.settings.lm):
            other(n=n)
            other.run({"n": n})
            return {"one": ask(n=n).answer}

    graph = Graph(inputs=["n"]).add_node("left", inner, writes={"answer": "left"})
    graph.add_node("right", calls, modules={"ask": ask, "other": other}, writes=["one"])
    graph.add_node("alone", dspy.Predict("n: int -> last"))
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "alone").add_edge("alone", END)
    with ScriptedLM(lambda prompt: {field.name: "x" for field in prompt.output_fields}):
        run = play(graph.compile(), {"n": 1}, mode)
    stats = run.stats()
    assert {name: one.lm_calls for name, one in stats.nodes.items()} == {"left": 1, "right": 3, "alone": 1}
    assert sum(one.tokens or 0 for one in stats.nodes.values()) == sum(
        tokens["total_tokens"] for tokens in run.usage.values()
    )
    assert stats.unknown == ()


def test_a_resumed_run_is_counted_from_its_beginning() -> None:
    def ask(ctx: Context) -> dict[str, Any]:
        return {"answer": ctx.interrupt("ok", "?", answer=str)}

    graph = Graph(Desk, inputs=["n"]).add_node("work", lambda n: {"n": n}, writes=["n"])
    graph.add_node("ask", ask, writes=["answer"]).add_path(START, "work", "ask", END)
    t = graph.compile(store=":memory:").thread("t")
    t.run({"n": 1})
    stats = t.resume({"ok": "yes"}).stats()
    assert t.run({"n": 1}, if_open="abandon").stats().unknown == ()
    assert stats.unknown == ()
    assert [one.visits for one in stats.nodes.values()] == [1, 1]


def test_items_of_a_resumed_map_that_had_ended_before_count_as_first_tries() -> None:
    def read(doc: int, ctx: Context) -> int:
        if doc == 0 and ctx.attempt == 1:
            raise ConnectionError("reset")
        if doc == 1 and not mended:
            raise ValueError("bad")
        return doc

    mended: list[bool] = []
    graph = Graph().add_map("read", read, over="docs", item="doc", into="out", retry=Retry(2, wait=wait_none()))
    t = graph.add_path(START, "read", END).compile(store=":memory:", max_concurrency=1).thread("t")
    assert t.run({"docs": [0, 1]}).status == "failed"
    mended.append(True)
    stats = t.resume().stats()
    assert (stats.nodes["read"].first_try, stats.nodes["read"].retried) == (2, 0)


def test_problems_are_redacted() -> None:
    graph = Graph(Desk, inputs=["n"]).add_node("draft", lambda n: {"answer": "s3cret"}, writes=["answer"])
    graph.add_check("safe", lambda answer: [f"names {answer}"], of="draft", max_fixes=0, accept=True)
    run = graph.add_path(START, "draft", END).compile(redact=["problems.*"]).run({"n": 1})
    assert "s3cret" not in f"{run.stats()} {run.stats().to_dict()}"


def test_the_table() -> None:
    with ScriptedLM([{"answer": "four"}, {"answer": "<b>"}]):
        stats = drafting().run({"n": 1}).stats()
    lines = str(stats).splitlines()
    assert lines[0].split() == [
        "node",
        "visits",
        "first",
        "try",
        "corrected",
        "failed",
        "attempts",
        "p50",
        "s",
        "p95",
        "s",
        "seconds",
        "LM",
        "calls",
        "tokens",
    ]
    assert [line.split()[:2] for line in lines[1:4]] == [["draft", "1"], ["short", "2"], ["draft_fix", "1"]]
    assert lines[4] == "short: 1 x 'too long'"
    assert lines[5].startswith("spent on outputs that a check refused: 0.")
    assert stats._repr_html_() == f"<pre>{stats}</pre>".replace("'", "&#x27;")
    assert json.loads(json.dumps(stats.to_dict())) == stats.to_dict()


def test_costs_and_responses_from_the_cache(own_dspy_cache: None) -> None:
    def asks(ask: Any, ctx: Context) -> dict[str, Any]:
        return {"third": [ask(question="Go on?"), ctx.interrupt("ok", "?", answer=str)]}

    graph = Graph(inputs=["question"]).add_node("first", dspy.Predict("question -> answer"))
    graph.add_node("again", dspy.Predict("question -> answer"), writes={"answer": "second"})
    graph.add_node("asks", asks, modules={"ask": dspy.Predict("question -> answer")}, writes=["third"])
    graph.add_path(START, "first", "again", "asks", END)
    program = graph.compile(store=":memory:", budget=Budget(cost=1e9, prices={"scripted": (1e6, 1e6)}))
    with ScriptedLM([{"answer": "yes"}, {"answer": "no"}], cache=True):
        run = program.thread("t").run({"question": "Costs of the cache?"})
    stats, tokens = run.stats(), [call.tokens for call in run.lm_calls]
    figures = [(one.lm_calls, one.lm_cached, one.tokens, one.cost) for one in stats.nodes.values()]
    assert figures == [(1, 0, tokens[0], float(tokens[0])), (1, 1, 0, 0.0)]
    assert stats.unknown == (f"{tokens[2]} tokens were used by visits that have not finished",)
    assert str(stats).splitlines()[1].endswith(f"  {tokens[0]}.00")


def test_a_cost_of_which_a_part_is_not_known_is_not_known() -> None:
    graph = Graph().add_node("ask", dspy.Predict("q -> a"), retry=Retry(2, wait=wait_none()))
    program = graph.add_path(START, "ask", END).compile()
    with dspy.context(lm=ScriptedLM([LMServerError("down"), {"a": "b"}])):
        run = program.run({"q": "?"})
    assert ([call.cost for call in run.lm_calls], run.cost) == ([0.0, None], None)
    assert run.stats().nodes["ask"].cost is None


def test_a_model_that_has_never_responded_is_not_listed_with_no_tokens() -> None:
    graph = Graph().add_node("ask", dspy.Predict("question -> answer")).add_error_edge("ask", END, into="problem")
    with ScriptedLM([LMServerError("broken")]):
        stats = graph.add_path(START, "ask", END).compile().run({"question": "one"}).stats()
    assert str(stats).splitlines()[2:] == ["ask: 1 x LMServerError"]


@pytest.mark.parametrize("keeps_history", [True, False])
@pytest.mark.parametrize("nested", [False, True])
def test_responses_of_a_backup(nested: bool, keeps_history: bool) -> None:
    """Also while the main LM is skipped, where one of the LMs is a reliable one, and if DSPy keeps no history."""
    main = ScriptedLM([LMServerError("broken")])
    backup = ScriptedLM([{"answer": "a"}, {"answer": "b"}])
    lm = reliable(main, backup, retry=1) if not nested else reliable(reliable(main, backup, retry=1))
    program = Graph().add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END).compile()
    with dspy.context(lm=lm, disable_history=not keeps_history):
        runs = [program.run({"question": question}) for question in ("one", "two")]
    found = [run.stats().nodes["ask"] for run in runs]
    # The call that failed is one, too; the second run does not ask the main LM.
    assert [(one.lm_calls, one.fallbacks) for one in found] == [(2, 1), (1, 1)]
    assert "fallbacks" in str(runs[0].stats()).splitlines()[0]
    assert found[0].to_dict()["fallbacks"] == 1
    with dspy.context(lm=ScriptedLM([{"answer": "c"}])):
        assert program.run({"question": "three"}).stats().nodes["ask"].fallbacks == 0


@given(
    visits=st.lists(st.lists(st.sampled_from(["good", "long", "gone", "odd"]), min_size=1, max_size=6), max_size=4),
    max_fixes=st.integers(0, 2),
    accept=st.booleans(),
    caught=st.booleans(),
)
def test_each_visit_is_counted_once(visits: list[list[str]], max_fixes: int, accept: bool, caught: bool) -> None:
    """Whatever nodes and checks do: outcomes add up to visits, and a thread counts from its rows what a run counts."""
    left = [list(steps) for steps in visits]

    def step(n: int) -> dict[str, str]:
        what = left[n].pop(0) if n < len(left) and left[n] else "good"
        if what == "gone":
            raise ConnectionError(what)
        if what == "odd":
            raise ValueError(what)
        return {"answer": "ok" if what == "good" else "too long"}

    def fix(n: int, problems: list[str]) -> dict[str, str]:
        return step(n)

    graph = Graph(Desk, inputs=["n"]).add_node("draft", step, writes=["answer"], retry=Retry(2, wait=wait_none()))
    graph.add_check(
        "short",
        lambda answer: ["long"] if len(answer) > 3 else [],
        of="draft",
        max_fixes=max_fixes,
        fix=fix if max_fixes else None,
        accept=accept,
    )
    graph.add_node("next", lambda n: {"n": n + 1, "problems": []}, writes=["n", "problems"])
    graph.add_path(START, "draft", "next").add_conditional_edges(
        "next", lambda n: "draft" if n < len(visits) else END, ["draft", END]
    )
    if caught:
        graph.add_error_edge(["draft", "short"], "next", into="fault")
    t = graph.compile(store=":memory:").thread("t")
    run = t.run({"n": 0})
    for stats in (run.stats(), t.stats()):
        for one in stats.nodes.values():
            assert sum(outcomes(one)[1:6]) == one.visits, one
            assert one.attempts >= one.visits
    known = ("visits", "first_try", "retried", "corrected", "accepted", "failed", "attempts", "problems")
    stored = t.stats().nodes
    for name, one in run.stats().nodes.items():
        assert [getattr(one, field) for field in known] == [getattr(stored[name], field) for field in known]


@pytest.mark.parametrize("caught", [False, True])
@MODES
def test_a_map_that_fails_as_a_whole_is_seen(caught: bool, mode: str) -> None:
    def read(doc: str, ctx: Context) -> str:
        if doc == "bad" or ctx.attempt <= (doc == "flaky"):
            raise ConnectionError(doc)
        return doc

    graph = Graph(Desk, inputs=["docs"])
    graph.add_map("read", read, over="docs", item="doc", into="notes", failures="unread", min_success=0.9, retry=NOW)
    graph.add_path(START, "read", END)
    if caught:
        graph.add_error_edge("read", END, into="fault")
    t = graph.compile(store=":memory:", max_concurrency=1).thread("t")
    inputs = {"docs": ["a", "flaky", "bad", "b", "c"]}
    run = t.run(inputs) if mode == "sync" else asyncio.run(t.arun(inputs))
    one = run.stats().nodes["read"]
    assert (one.failed_visits, one.items, one.first_try, one.retried, one.failed, one.attempts) == (
        *(1, 3, 1, 1, 1),
        6 - caught,  # what the error edge has taken names no item
    )
    assert one.exceptions["MapError"] == 1
    assert "failed visits" in str(run.stats())
    stored = t.stats().nodes["read"]
    assert (stored.failed_visits, stored.items) == (1, 3)
    assert "failed visits" in str(t.stats())


# --- values that a patch does not repeat, and redaction


class Readings(BaseModel):
    docs: list[int] = []
    sizes: list[int] = []
    unread: list[Failure] = []
    n: int = 0


def reading(**options: Any) -> CompiledGraph:
    """A map of which the second item fails, and the third one is retried; it runs `n` times."""

    def measure(doc: int, ctx: Context) -> int:
        if doc == 2:
            raise ValueError("secret")
        if doc == 3 and ctx.attempt == 1:
            raise ConnectionError("secret")
        return doc

    graph = Graph(Readings, inputs=["docs", "n"]).add_map(
        "measure", measure, over="docs", item="doc", into="sizes", failures="unread", retry=2
    )
    graph.add_node("count", lambda n: {"n": n - 1}, writes=["n"]).add_path(START, "measure", "count")
    graph.add_conditional_edges("count", lambda n: "measure" if n > 0 else END, ["measure", END])
    return graph.compile(store=":memory:", **options)


def of_items(stats: Stats) -> tuple[Any, ...]:
    one = stats.nodes["measure"]
    return one.visits, one.items, one.first_try, one.retried, one.failed, one.attempts


def test_items_count_in_each_visit_and_run_although_their_results_are_those_of_before() -> None:
    """A patch holds what has changed: no result, if all are equal to those that the state has."""
    thread = reading().thread("t")
    with no_pauses():
        run = thread.run({"docs": [1, 2, 3], "n": 3})
        assert of_items(run.stats()) == of_items(thread.stats()) == (3, 9, 3, 3, 3, 12)
        run = thread.run({"docs": [1, 2, 3], "n": 1})
        assert of_items(run.stats()) == (1, 3, 1, 1, 1, 4)
        assert of_items(thread.stats()) == (4, 12, 4, 4, 4, 16)


@pytest.mark.parametrize("hidden", ["sizes", "unread", "unread.*.message"])
def test_items_of_redacted_fields_are_counted(hidden: str) -> None:
    thread = reading(redact=[hidden]).thread("t")
    with no_pauses():
        run = thread.run({"docs": [1, 2, 3], "n": 2})
    assert of_items(run.stats()) == of_items(thread.stats()) == (2, 6, 2, 2, 2, 8)
    assert run.stats().nodes["measure"].exceptions == {"ValueError": 2, "ConnectionError": 2}
    assert "secret" not in f"{run.stats()} {run.stats().to_dict()} {thread.stats()}"


@pytest.mark.parametrize("hidden", ["problems", "problems.*"])
def test_a_check_with_redacted_problems_is_counted(hidden: str) -> None:
    graph = Graph(Checked).add_node("write", lambda n: {"text": "bad"}, writes=["text"])
    graph.add_check(
        "good", lambda text: ["secret"], of="write", fix=lambda text: {"text": "worse"}, max_fixes=1, accept=True
    )
    graph.add_path(START, "write", END)
    thread = graph.compile(store=":memory:", redact=[hidden]).thread("t")
    run = thread.run({})
    for stats in (run.stats(), thread.stats()):
        assert (stats.nodes["write"].accepted, stats.nodes["write"].first_try) == (1, 0)
        assert sum(stats.nodes["good"].problems.values()) == 2
        assert "secret" not in f"{stats} {stats.to_dict()}"


class Checked(BaseModel):
    text: str = ""
    n: int = 0
    problems: list[str] = []


class OrNone(BaseModel):
    docs: list[str] | None = None
    texts: list[str] | None = None


def test_items_of_a_field_that_may_be_none_are_counted() -> None:
    """None is no list, neither at the beginning nor as the update of a node."""
    graph = Graph(OrNone).add_map("read", lambda doc: doc.upper(), over="docs", item="doc", into="texts")
    graph.add_node("forget", lambda: {"texts": None}, writes=["texts"]).add_path(START, "read", "forget", END)
    assert graph.compile().run({"docs": ["a", "b"]}).stats().nodes["read"].items == 2
