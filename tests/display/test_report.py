"""Reports and pictures of runs: forks and joins, conflicts with their authors, failures, and the width of lines."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Annotated, Any
from xml.etree import ElementTree

import dspy
from pydantic import BaseModel

from dspyer import DELETE, END, START, Budget, Context, Graph, Replace, Run, Send, Updates, agents, reducers
from dspyer.testing import ScriptedLM
from tests.rows import each

SVG = "{http://www.w3.org/2000/svg}"


class Found(BaseModel):
    n: int = 0
    found: Annotated[list[str], reducers.extend] = []
    docs: list[str] = []


def research(merge: str = "raise", fail: str = "") -> Run:
    """A fork whose branches both write `tags`; branch 1 is two nodes long."""

    def answer(n: int) -> dict[str, Any]:
        if fail == "answer":
            raise ValueError("no such thing,\n\x1b[31mreally")
        return {"tags": ["a", "x"], "answer": "because"}

    def judge(tags: list[str]) -> dict[str, Any]:
        return {"done": 1 / (fail != "judge")}

    graph = Graph(merge=merge, name="research")
    graph.add_node("search", lambda question: {"tags": ["a"], "n": 1})
    graph.add_node("answer", answer)
    graph.add_node("audit", lambda n: {"tags": ["b"]})
    graph.add_node("more", lambda n: {"risk": {"level": "low"}})
    graph.add_node("judge", judge)
    graph.add_path(START, "search")
    graph.add_edge("search", ["answer", "audit"])
    graph.add_edge("audit", "more")
    graph.add_edge(["answer", "more"], "judge")
    graph.add_edge("judge", END)
    return graph.compile().run({"question": "why?"})


def wrote(name: str) -> dict[str, list[str]]:
    return {"found": [name]}


def letters(graph: Graph, names: str) -> Graph:
    for name in names:
        graph.add_node(name, partial(wrote, name))
    return graph


def crossing() -> Run:
    """Two of three branches join first; the third one forks, and one of its children joins the two."""
    graph = letters(Graph(Found), "abcdefz")
    graph.add_edge(START, ["a", "b", "c"]).add_edge(["a", "c"], "d").add_edge("b", ["e", "f"])
    graph.add_edge(["d", "e"], "z").add_edge(["f", "z"], END)
    return graph.compile().run({})


def rounds() -> Run:
    """A fork in a loop of two rounds; one branch forks again."""
    graph = letters(Graph(Found), "abcd").add_node("plan", lambda n: {"n": n + 1}).add_node("j", lambda found: None)
    graph.add_path(START, "plan").add_edge("plan", ["a", "b"]).add_edge("b", ["c", "d"]).add_edge(["a", "c", "d"], "j")
    graph.add_conditional_edges("j", lambda n: "again" if n < 2 else "done", {"again": "plan", "done": END})
    return graph.compile().run({})


def sends(count: int, fail: bool = False) -> Run:
    def work(doc: int) -> dict[str, Any]:
        if fail and doc == 0:
            raise ValueError("no")
        return {"found": [str(doc)]}

    graph = Graph(Found).add_node("work", work).add_node("end", lambda found: {"n": len(found)})
    graph.add_conditional_edges(START, lambda: [Send("work", {"doc": i}) for i in range(count)], ["work"])
    graph.add_path("work", "end", END)
    return graph.compile().run({})


RUNS = {
    "resolved": lambda: research("last_write_wins"),
    "made": lambda: research("combine_lists"),
    "raised": research,
    "failed in a branch": lambda: research(fail="answer"),
    "failed on the trunk": lambda: research("last_write_wins", fail="judge"),
    "crossing": crossing,
    "rounds": rounds,
    "sends": lambda: sends(30),
    "many sends": lambda: sends(600),
    "many sends, one fails": lambda: sends(600, fail=True),
}


def shown(run: Run) -> str:
    return re.sub(r"\d[\d.]* (µs|ms|s)\b", "T", run.report())


def test_the_report_of_a_resolved_conflict() -> None:
    assert shown(research("last_write_wins")) == (
        "Run completed in T: graph 'research', 7 commits, 5 node calls, 1 conflict\n"
        "\n"
        "● v0 START → search  (step 0, T)\n"
        "    question: 'why?'\n"
        "● v1 search → answer, audit  (step 1, T)\n"
        "    tags: ['a']\n"
        "    n: 1\n"
        "  ● v2 answer → judge  (step 2, branch 0, T)\n"
        "      tags: ['a', 'x']\n"
        "      answer: 'because'\n"
        "  ● v3 audit → more  (step 2, branch 1, T)\n"
        "      tags: ['b']\n"
        "  ● v4 more → judge  (step 3, branch 1, T)\n"
        "      risk: replaced by {'level': 'low'}\n"
        "● v5 join:judge  (step 4)\n"
        "    joins v2 answer, v4 more\n"
        "    ! conflict at tags: audit won by policy 'last_write_wins'\n"
        "      answer wrote ['a', 'x']\n"
        "      audit wrote ['b']\n"
        "● v6 judge → END  (step 5, T)\n"
        "    done: 1.0"
    )


def test_the_report_of_a_value_that_a_policy_made() -> None:
    assert "! conflict at tags: ['x', 'b'], made of them by policy 'combine_lists'" in shown(research("combine_lists"))


def test_the_report_of_an_unresolved_conflict() -> None:
    text = shown(research())
    assert text.startswith("Run failed after T: graph 'research', 5 commits, 4 node calls\n")
    assert (
        "  ✗ join:judge failed  (step 4, branch 0)\n"
        "      joins 0:0 answer, 1:1 more\n"
        "      MergeConflictError: Conflict detected at key 'tags'"
    ) in text


def test_the_report_of_a_failed_node_and_one_that_was_not_started() -> None:
    text = shown(research(fail="answer"))
    assert (
        "  ● 1:0 audit → more  (step 2, branch 1, T)\n"
        "      tags: ['b']\n"
        "  ✗ answer failed  (step 2, branch 0)\n"
        "      ValueError: no such thing, [31mreally\n"
        "  ○ more was not started  (step 3, branch 1)\n"
        "\n"
        "ValueError: no such thing, [31mreally\n"
        "in node 'answer' (branch 0, visit 1, attempt 1)"
    ) in text
    assert "\x1b" not in text


def test_a_branch_that_was_not_started_is_named_by_its_own_target() -> None:
    def fail() -> None:
        raise ValueError("no")

    graph = Graph(Found).add_node("a", fail).add_node("b", partial(wrote, "b")).add_edge(START, ["a", "b"])
    text = graph.add_edge(["a", "b"], END).compile(max_concurrency=1).run({}).report()
    assert "  ✗ a failed  (step 1, branch 0)\n" in text
    assert "○ b was not started  (step 1, branch 1)\n" in text


def test_a_map_that_was_stopped_at_work_was_started() -> None:
    graph = Graph(inputs=["words"])
    graph.add_map("each", dspy.Predict("word -> rhyme"), over="words", item="word", into="rhymes", max_concurrency=1)
    program = graph.add_path(START, "each", END).compile(budget=Budget(requests=1))
    with dspy.context(lm=ScriptedLM(lambda _: {"rhyme": "sea"})):
        run = program.run({"words": ["tea", "key"]})
    assert "○ each was stopped  (step 1)\n" in run.report()


def test_each_join_has_its_own_conflicts() -> None:
    graph = Graph(merge="last_write_wins").add_node("s", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_node("a", lambda n: {"x": n}, writes=["x"]).add_node("b", lambda n: {"x": -n}, writes=["x"])
    graph.add_node("j", lambda x: None, writes=[]).add_path(START, "s").add_edge("s", ["a", "b"])
    graph.add_edge(["a", "b"], "j").add_conditional_edges("j", lambda n: "s" if n < 3 else END, ["s", END])
    joins = shown(graph.compile().run({"n": 0})).split("join:j")[1:]
    assert [re.findall(r"(?:won|wrote) .*", join) for join in joins] == [
        ["won by policy 'last_write_wins'", f"wrote {n}", f"wrote -{n}"] for n in (1, 2, 3)
    ]


def test_what_a_fork_leads_to_is_further_to_the_right() -> None:
    tree = [line for line in shown(crossing()).splitlines() if "●" in line]
    assert [line.partition(" (")[0].rstrip() for line in tree] == [
        "● v0 START → a, b, c",
        "  ● v1 a → d",
        "  ● v2 b → e, f",
        "  ● v3 c → d",
        "  ● v4 join:d",
        "    ● v5 e → z",
        "    ● v6 f → END",
        "  ● v7 d → z",
        "  ● v8 join:z",
        "  ● v9 z → END",
        "● v10 join:END",
    ]
    assert "      joins v7 d, v5 e\n" in shown(crossing())


def test_the_report_shows_reasons_visits_and_attempts() -> None:
    run = rounds()
    record = run.record()
    steps = [
        replace(step, reason="there is more\n\x07to find " * 20, commit=replace(step.commit, attempt=2))
        if step.node == "j" and step.commit is not None
        else step
        for step in record.steps
    ]
    run.record = lambda: replace(record, steps=tuple(steps))  # type: ignore[method-assign]
    text = shown(run)
    assert "because: there is more to find there is more" in text
    assert "j → plan  (step 5, attempt 2, T)" in text
    assert "plan → a, b  (step 6, visit 2, T)" in text
    assert "\x07" not in text


def test_the_report_sums_up_tokens() -> None:
    run = crossing()
    run.usage = {"one": {"total_tokens": 1200, "prompt_tokens": 1000}, "two": {"total_tokens": 34}, "three": {}}
    assert ", 1,234 tokens\n" in run.report()


@each("make", RUNS.values(), ids=RUNS)
def test_no_line_of_a_report_is_wider_than_100_columns(make: Any) -> None:
    lines = make().report().splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)


def test_a_long_run_is_shortened_in_the_middle() -> None:
    lines = sends(600).report().splitlines()
    assert "... 203 more: run.commits has them all" in lines
    assert "● v601 join:end  (step 2)" in lines
    assert len(lines) < 900


def search(query: str) -> str:
    """Searches."""
    raise LookupError(f"no {query}")


def test_what_runs_inside_of_nodes_is_below_them() -> None:
    agent = agents.tool_loop("topic -> finding", [search], name="Reader")
    graph = Graph(name="Desk").add_node("read", agent)
    graph.add_map("rate", grade, over="pages", item="page", into="grades", failures="lost")
    graph.add_node("pages", lambda: {"pages": [1, 0, 2]}, writes=["pages"])
    program = graph.add_path(START, "read", "pages", "rate", END).compile()
    turns = [("search", {"query": "ants"}), ("submit", {"finding": "a trail"})]
    script = [{"next_thought": "", "tool_calls": {"tool_calls": [{"name": n, "args": a}]}} for n, a in turns]
    with ScriptedLM(script):
        text = shown(program.run({"topic": "ants"}))
    assert [line.split("  (")[0] for line in text.splitlines() if re.match(r"\s*[●✗]", line)] == [
        "● v0 START → read",
        "● v1 read → pages",
        "  ● begin → react",
        "  ● react → search",
        "  ● search failed → settle",
        "  ● settle → react",
        "  ● react → settle",
        "  ● settle → END",
        "● v2 pages → rate",
        "● v3 rate → END",
        "  ✗ rate[1] failed",  # of items those that failed
    ]
    assert "      LookupError: no ants\n" in text


def grade(page: int) -> float:
    return 1 / page


HOSTILE = "\x1b[2J" + "long " * 20_000


@each("place", ["value", "field", "failure", "question", "node"])
def test_no_text_makes_a_report_long(place: str) -> None:
    def work(ctx: Context) -> dict[str, Any]:
        if place == "failure":
            raise ValueError(HOSTILE)
        if place == "question":
            ctx.interrupt(HOSTILE, HOSTILE)
        return {HOSTILE if place == "field" else "out": HOSTILE}

    name = 60_000 * "x" if place == "node" else "work"
    run = Graph().add_node(name, work).add_path(START, name, END).compile().run({})
    lines = run.report().splitlines()
    assert len(lines) < 60
    assert all(len(line) <= 100 and line.isprintable() for line in lines)


def test_a_notebook_shows_the_report_of_a_run() -> None:
    run = sends(2)
    assert run.report() == run.report()
    assert run._repr_html_() == f"<pre>{run.report()}</pre>".replace("'", "&#x27;")


def titles_of(run: Run) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(run.to_svg()).iter(f"{SVG}title")]


@each("make", RUNS.values(), ids=RUNS)
def test_the_picture_of_a_run_counts_visits_and_edges(make: Any) -> None:
    run = make()
    visits = Counter(commit.node for commit in run.commits)
    ways = Counter((commit.node, target) for commit in run.commits for target in commit.route)
    titles = titles_of(run)
    assert titles[0] == f"run {run.status}"
    for node in filter(str.isidentifier, {*visits} - {"START"}):
        (found,) = [title for title in titles if title.startswith(f"{node}: ")]
        times = visits[node]
        assert f"ran {times:,} time{'s' * (times > 1)}" in found
    for (source, target), times in ways.items():
        if not source.startswith("join:"):
            (found,) = [title for title in titles if title.startswith(f"{source} to {target}")]
            assert found.endswith(f"taken {times:,} time{'s' * (times > 1)}")
    for failure in run.failures:
        assert any(re.match(f"{failure.node.removeprefix('join:')}: .*failed", title) for title in titles)
    assert run.to_svg() == make().to_svg()


def test_the_picture_of_a_run_tells_what_it_has_not_reached() -> None:
    graph = letters(Graph(), "ab").add_interrupt("ask", question="Go on?", into="done")
    graph.add_edge(START, "a").add_conditional_edges("a", lambda: "ask", ["ask", "b"]).add_edge("ask", "b")
    titles = titles_of(graph.add_edge("b", END).compile().run({}))
    assert "a to b: not taken" in titles
    assert "ask: interrupt, waits for an answer" in titles
    assert "b: function, did not run" in titles


def written(**patch: Any) -> list[str]:
    """What the report says that a commit wrote."""
    run = Graph().add_node("write", lambda: None, writes=[]).add_path(START, "write", END).compile().run({})
    record = run.record()
    first, last = record.steps
    assert last.commit is not None
    last = replace(last, commit=replace(last.commit, patch=patch))
    run.record = lambda: replace(record, steps=(first, last))  # type: ignore[method-assign]
    return [line.strip() for line in run.report().partition("v1 write")[2].splitlines()[1:]]


def test_the_words_for_writes() -> None:
    patch = {"gone": DELETE, "whole": Replace({"a": 1}), "folded": Updates(["a"], ["b"]), "plain": {"deep": DELETE}}
    assert written(**patch, **{f"f{i}": i for i in range(1, 10)}) == [
        "gone: deleted",
        "whole: replaced by {'a': 1}",
        "folded: ['a'], then ['b']",
        "plain: {'deep': DELETE}",
        *(f"f{i}: {i}" for i in range(1, 9)),
        "and 1 more fields",
    ]


def test_only_a_replaced_mapping_is_called_replaced() -> None:
    assert written(a=Replace(None), b=Replace([1]), c=Replace({})) == ["a: None", "b: [1]", "c: replaced by {}"]


def test_the_report_of_a_resumed_run_has_the_commits_of_all_attempts() -> None:
    """Its forks, joins and conflicts are those of the process that crashed."""
    fail = [True]

    def judge(tags: list[str]) -> dict[str, Any]:
        if fail.pop():
            raise ConnectionError
        return {"done": tags}

    graph = Graph(merge="last_write_wins", name="desk").add_node("a", lambda: {"tags": ["a"]}, writes=["tags"])
    graph.add_node("b", lambda: {"tags": ["b"]}, writes=["tags"]).add_node("judge", judge)
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "judge").add_edge("judge", END)
    thread = graph.compile(store=":memory:").thread("t")
    assert thread.run({}).status == "failed"
    fail.append(False)
    run = thread.resume()
    assert shown(run).partition("\n\n")[2] == (
        "● v0 START → a, b  (step 0, T)\n"
        "  ● v1 a → judge  (step 1, branch 0, T)\n"
        "      tags: ['a']\n"
        "  ● v2 b → judge  (step 1, branch 1, T)\n"
        "      tags: ['b']\n"
        "● v3 join:judge  (step 2)\n"
        "    joins v1 a, v2 b\n"
        "    ! conflict at tags: b won by policy 'last_write_wins'\n"
        "      a wrote ['a']\n"
        "      b wrote ['b']\n"
        "● v4 judge → END  (step 3, T)\n"
        "    done: ['b']"
    )


def test_the_report_of_a_run_that_fails_after_a_manual_commit() -> None:
    def fail(x: int) -> None:
        raise ConnectionError

    graph = Graph().add_node("a", lambda x: {"x": x + 1}, writes=["x"]).add_node("b", fail, writes=[])
    thread = graph.add_path(START, "a", "b", END).compile(store=":memory:").thread("t")
    thread.run({"x": 1})
    thread.update({"x": 10})
    run = thread.resume()
    assert re.findall("^[✗○?] .*", run.report(), re.MULTILINE) == ["✗ b failed  (step 3)"]


def test_fields_that_begin_empty_share_a_line() -> None:
    class Desk(BaseModel):
        text: str
        tries: int = 0
        remarks: list[str] = []
        reply: str | None = None

    graph = (
        Graph(Desk).add_node("answer", lambda text: {"reply": text}, writes=["reply"]).add_path(START, "answer", END)
    )
    run = graph.compile().run({"text": "hello"})
    assert "answer  (step 0, T)\n    text: 'hello'\n    tries: 0\n    empty: remarks, reply\n●" in shown(run)


def test_a_failure_that_an_error_edge_wrote_is_shown_as_its_line() -> None:
    def fetch(q: str) -> None:
        raise ConnectionError("no route to the host")

    graph = Graph().add_node("fetch", fetch).add_node("sorry", lambda problem: {"a": ""}, writes=["a"])
    graph.add_path(START, "fetch", END).add_error_edge("fetch", "sorry", into="problem").add_edge("sorry", END)
    text = graph.compile().run({"q": "x"}).report()
    assert "problem: fetch (execution trunk:1, attempt 1): ConnectionError: no route to the host" in text


@each(
    ("update", "text"),
    [
        ({"role": "user", "content": "Why?\n\x1b[31mNow"}, "user: Why? [31mNow"),
        ([{"role": "tool", "name": "look", "content": "no entry", "error": True}], "look (error): no entry"),
        (
            [
                {
                    "role": "assistant",
                    "name": "react",
                    "content": "Look.",
                    "tool_calls": [{"function": {"name": name, "arguments": '{"word": "sea"}'}} for name in "ab"],
                }
            ],
            'react: Look. -> a({"word": "sea"}), b({"word": "sea"})',
        ),
        ([{"role": "user", "content": "x" * 90}] * 6, " | ".join(["user: ..."] * 4) + " | and 2 more"),
        ([{"role": "user", "content": [1, 2]}, {"role": "tool"}], "user: [1, 2] | tool:"),
        ([{"role": "captain", "content": "Why?"}], "[{'role': 'captain', 'content': 'Why?'}]"),
        ([{"role": "user", "tool_calls": ["?"]}, {"role": "user", "tool_calls": 3}], "user: '?' | user:"),
    ],
    ids=["one", "a result", "calls", "many", "odd content", "another role", "odd calls"],
)
def test_messages_are_shown_in_a_few_words(update: Any, text: str) -> None:
    assert written(items=update) == [f"items: {text}"]
