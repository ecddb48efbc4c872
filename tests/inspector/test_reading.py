"""What the inspector answers: valid JSON that equals what the archive gives, for any graph, and bounded in size."""

from __future__ import annotations

import json
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import dspy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, Archive, CompiledGraph, Context, Graph, live, reducers
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM, no_pauses
from tests.inspector.asking import TOKEN, get, request

TEXT, ITEMS, FEW = 20_000, 1_000, 20
"""Characters of a text and items of a list that are shown; the same once the whole answer is long."""
NASTY = "</script><img src=x onerror=alert(1)>\u2028\u202e\x00\x1b[31m'\"`"


def stored(graph: Graph, inputs: dict[str, Any], name: str = "t", runs: int = 1) -> tuple[Memory, CompiledGraph]:
    store = Memory()
    program = graph.compile(store=store)
    for _ in range(runs):
        program.thread(name).run(inputs, if_open="abandon")
    return store, program


def app_of(store: Memory) -> Any:
    return dspyer.inspector.app(store, token=TOKEN)


# --- any graph


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.sampled_from(["$type", "a", "", "ü", "\ud800"]) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    edges=st.lists(st.sampled_from([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")]), unique=True),
    values=st.lists(VALUES, min_size=4, max_size=4),
    raises=st.sampled_from([None, "b", "d"]),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.just(NASTY),
)
@settings(max_examples=settings().max_examples // 4)
def test_every_answer_is_json_and_says_what_the_archive_says(
    edges: list[tuple[str, str]], values: list[Any], raises: str | None, name: str
) -> None:
    graph = Graph(name="any", merge="first_write_wins")
    for node, value in zip("abcd", values, strict=True):

        def write(node: str = node, value: Any = value) -> dict[str, Any]:
            if node == raises:
                raise ValueError(NASTY)
            return {"shared": value, node: value}

        graph.add_node(node, write, writes=["shared", node])
    sources, targets = {source for source, _ in edges}, {target for _, target in edges}
    for source, target in edges:
        graph.add_edge(source, target)
    for node in "abcd":
        if node not in targets:
            graph.add_edge(START, node)
        if node not in sources:
            graph.add_edge(node, END)
    store, _ = stored(graph, {}, name)
    app, thread = app_of(store), Archive(store).thread(name)
    info = get(app, "runs")["items"][0]
    assert info == thread.info().to_dict()
    assert get(app, "threads", thread=name)["items"] == [info]
    run = get(app, "run", thread=name, run=info["run_id"])
    drawing = thread.graph()
    assert drawing is not None
    assert run["graph"] == drawing.drawing().to_dict()
    assert run["count"] == len(thread.history())
    assert run["failures"] == [failure.to_dict() for failure in thread.failures()]
    rows = get(app, "commits", thread=name)["items"]
    assert [row["id"] for row in rows] == [commit.id for commit in thread.history()]
    assert [row["writes"] for row in rows] == [list(commit.patch) for commit in thread.history()]
    for row in rows:
        found = get(app, "commit", thread=name, id=row["id"])
        assert found["after"] == json.loads(thread.at(row["id"]).to_json())
        assert {field: one["node"] for field, one in found["blame"].items()} == {
            field: thread.blame((field,), at=row["id"]).node for field in thread.at(row["id"])
        }
    assert get(app, "stats", thread=name) == thread.stats().to_dict()
    assert get(app, "posts", thread=name) == {"items": [], "next": None}
    conflicts = get(app, "conflicts", thread=name)["items"]
    assert [found["conflict"]["path"] for found in conflicts] == [
        conflict.to_dict()["path"] for step in thread.record().steps for conflict in step.conflicts
    ]


# --- pages


def counting(steps: int) -> Graph:
    graph = Graph().add_node("step", lambda n: {"n": n + 1}).add_path(START, "step")
    return graph.add_conditional_edges("step", lambda n: "step" if n % steps else END, ["step", END])


def test_pages_of_each_run_in_both_orders() -> None:
    store, _ = stored(counting(20), {"n": 0}, runs=2)
    app = app_of(store)
    for info in get(app, "runs")["items"]:
        run = info["run_id"]
        whole = [row["id"] for row in get(app, "commits", thread="t", run=run)["items"]]
        assert len(whole) == get(app, "run", thread="t", run=run)["count"] == 21
        for first in range(0, 25, 4):
            page = get(app, "commits", thread="t", run=run, first=first, count=4)
            assert [row["id"] for row in page["items"]] == whole[first : first + 4]
            assert page["next"] == (first + 4 if first + 4 <= 21 else None)
            page = get(app, "commits", thread="t", run=run, first=first, count=4, newest=1)
            assert [row["id"] for row in page["items"]] == whole[::-1][first : first + 4]


def test_pages_reach_the_commits_of_a_fork_that_has_not_joined() -> None:
    graph = Graph(merge="first_write_wins")
    graph.add_node("left", lambda: {"left": 1}, writes=["left"]).add_node("far", lambda: {"far": 1}, writes=["far"])
    graph.add_interrupt("ask", question="?", answer=bool, into="ok").add_node("end", lambda: None, writes=[])
    graph.add_edge(START, ["left", "ask"]).add_edge("left", "far").add_edge(["far", "ask"], "end").add_edge("end", END)
    store, _ = stored(graph, {})
    app = app_of(store)
    whole = get(app, "commits", thread="t")["items"]
    assert [(row["node"], row["version"]) for row in whole] == [("START", 0), ("left", None), ("far", None)]
    found = [get(app, "commits", thread="t", first=first, count=1)["items"] for first in range(4)]
    assert found == [[whole[0]], [whole[1]], [whole[2]], []]


def test_lists_are_filtered_and_paged() -> None:
    store, program = stored(counting(2), {"n": 0}, "a")
    program.thread("b").run({"n": 0})
    app = app_of(store)
    first = get(app, "runs", limit=1)
    second = get(app, "runs", limit=1, after=first["next"])
    assert sorted(info["thread"] for page in (first, second) for info in page["items"]) == ["a", "b"]
    assert [info["thread"] for info in get(app, "runs", text="A")["items"]] == ["a"]
    assert get(app, "runs", status="failed")["items"] == []
    assert get(app, "threads", until="2001-01-01T00:00")["items"] == []
    assert len(get(app, "threads", since="2001-01-01", until="4000000000")["items"]) == 2


# --- live fields, conflicts, figures


def without_calls(stats: Any) -> list[dict[str, Any]]:
    """The figures of the nodes without those of LM calls, which only one of the two may know."""
    unknown = ("lm_calls", "lm_cached", "fallbacks", "tokens")
    return [{name: figure for name, figure in node.items() if name not in unknown} for node in stats["nodes"]]


class Board(BaseModel):
    notes: Annotated[list[str], reducers.append, live()] = []
    done: bool = False


def test_posts_to_live_fields() -> None:
    def write(ctx: Context) -> dict[str, Any]:
        ctx.post("notes", "first")
        ctx.post("notes", "second")
        return {}

    graph = Graph(Board).add_node("write", write, writes=["notes"]).add_path(START, "write", END)
    store, _ = stored(graph, {})
    app = app_of(store)
    posts = get(app, "posts", thread="t")["items"]
    assert [(post["field"], post["node"], post["value"]) for post in posts] == [
        ("notes", "write", "first"),
        ("notes", "write", "second"),
    ]
    row = get(app, "commits", thread="t")["items"][1]
    assert posts[0]["execution"] == row["id"]
    pages = [get(app, "posts", thread="t", first=first, count=1) for first in range(3)]
    assert [(page["items"], page["next"]) for page in pages] == [([posts[0]], 1), ([posts[1]], None), ([], None)]
    assert row["started"] - 1 <= posts[0]["time"] <= posts[1]["time"] <= row["started"] + row["duration"] + 1
    assert get(app, "run", thread="t")["fields"][0]["live"]


def test_posts_of_a_failed_attempt_stay() -> None:
    calls = []

    def write(ctx: Context) -> dict[str, Any]:
        calls.append(1)
        ctx.post("notes", f"attempt {len(calls)}")
        if len(calls) == 1:
            raise ConnectionError("once")
        return {}

    graph = Graph(Board).add_node("write", write, writes=["notes"], retry=2)
    with no_pauses():
        store, _ = stored(graph.add_path(START, "write", END), {})
    posts = get(app_of(store), "posts", thread="t")["items"]
    assert [post["value"] for post in posts] == ["attempt 1", "attempt 2"]


def test_conflicts_and_figures() -> None:
    graph = Graph(merge="first_write_wins").add_node("left", lambda: {"n": 1}, writes=["n"])
    graph.add_node("right", lambda: {"n": 2}, writes=["n"]).add_node("end", lambda n: {"m": 1 / 0}, writes=["m"])
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "end").add_edge("end", END)
    store, program = stored(graph, {})
    app = app_of(store)
    (found,) = get(app, "conflicts", thread="t")["items"]
    assert (found["conflict"]["path"], found["conflict"]["winner"]) == (["n"], "left")
    assert found["commit"] in [row["id"] for row in get(app, "commits", thread="t")["items"]]
    assert without_calls(get(app, "stats", thread="t")) == without_calls(program.thread("t").stats().to_dict())
    figures = {node["node"]: node for node in get(app, "stats", thread="t")["nodes"]}
    assert figures["end"]["exceptions"] == {"ZeroDivisionError": 1}


def test_the_items_of_maps() -> None:
    for over, done, failed in (([1, 2, 3], 3, 0), ([1, 2, 0, 3], 2, 1)):
        graph = Graph().add_map("half", lambda n: 6 // n, over="ns", item="n", into="halves", max_concurrency=1)
        app = app_of(stored(graph.add_path(START, "half", END), {"ns": over})[0])
        (found,) = get(app, "run", thread="t")["maps"]
        assert found == {"node": "half", "total": len(over), "done": done, "failed": failed, "waiting": 0}
        items = get(app, "items", thread="t")["items"]
        assert [(one["node"], one["status"], one["value"]) for one in items[:2]] == [
            ("half[0]", "done", 6),
            ("half[1]", "done", 3),
        ]


def test_figures_of_checks_and_maps_are_those_of_the_program() -> None:
    def find(text: str) -> list[str]:
        return [] if text.endswith("!") else ["no mark"]

    graph = Graph().add_map(
        "read", lambda doc: {"fact": doc / 2}, over="docs", item="doc", into="facts", failures="bad"
    )
    graph.add_node("draft", lambda facts: {"text": "hello"}, writes=["text"])
    graph.add_check("loud", find, of="draft", max_fixes=1, fix=lambda text: {"text": f"{text}!"})
    graph.add_path(START, "read", "draft", END)
    store, program = stored(graph, {"docs": [1, "x"]})
    figures = without_calls(get(app_of(store), "stats", thread="t"))
    assert figures == without_calls(program.thread("t").stats().to_dict())
    assert {node["node"]: node["corrected"] for node in figures}["draft"] == 1


def test_lm_calls_of_each_step_and_of_the_figures() -> None:
    lm = ScriptedLM([{"answer": word} for word in ("one", "two", "three", "four")])
    graph = Graph().add_node("first", dspy.Predict("n -> answer")).add_node("plain", lambda n: {"m": n}, writes=["m"])
    graph.add_map("each", dspy.Predict("doc -> answer"), over="docs", item="doc", into="answers", max_concurrency=1)
    graph.add_node("last", lambda m: {"k": 1 / 0}, writes=["k"]).add_path(START, "first", "plain", "each", "last", END)
    with dspy.context(lm=lm):
        store, _ = stored(graph, {"n": 1, "docs": ["a", "b"]})
    app = app_of(store)
    rows = {row["node"]: row for row in get(app, "commits", thread="t")["items"]}
    assert {node: row["lm"] and row["lm"]["calls"] for node, row in rows.items()} == {
        "START": None,
        "first": 1,
        "plain": None,
        "each": 2,
    }
    for node in ("first", "each"):
        calls = get(app, "commit", thread="t", id=rows[node]["id"])["lm_calls"]
        assert sum(call["tokens"] for call in calls) == rows[node]["lm"]["tokens"] > 0
        page = get(app, "commits", thread="t", first=rows[node]["version"], count=1)["items"]
        assert page == [rows[node]]
    figures = {node["node"]: node for node in get(app, "stats", thread="t")["nodes"]}
    assert {name: node["lm_calls"] for name, node in figures.items()} == {"first": 1, "plain": 0, "each": 2, "last": 0}
    assert figures["each"]["tokens"] == rows["each"]["lm"]["tokens"]


def test_texts_of_lm_calls_are_shown_as_the_program_has_decided() -> None:
    shown = []
    for redact in (None, "answer"):
        graph = Graph().add_node("ask", dspy.Predict("n -> answer")).add_path(START, "ask", END)
        store = Memory()
        with dspy.context(lm=ScriptedLM([{"answer": "secret"}])):
            graph.compile(store=store, record_lm_calls="full", redact=redact).thread("t").run({"n": 1})
        app = app_of(store)
        execution = get(app, "commits", thread="t")["items"][1]["id"]
        (call,) = get(app, "commit", thread="t", id=execution)["lm_calls"]
        shown.append((call["messages"] is not None, "secret" in str(call["response"])))
    assert shown == [(True, True), (False, False)]


# --- sizes


def test_a_large_value_is_cut_and_can_be_had_in_parts() -> None:
    text = "".join(chr(97 + i % 26) for i in range(2_500_000))
    graph = Graph().add_node("big", lambda: {"essay": text, "list": list(range(2_500))}, writes=["essay", "list"])
    store, _ = stored(graph.add_path(START, "big", END), {})
    app = app_of(store)
    row = get(app, "commits", thread="t")["items"][1]
    response = request(app, "GET", f"/api/commit?thread=t&id={row['id']}", headers={"X-Dspyer-Token": TOKEN})
    assert len(response.content) < 300_000
    after = response.json()["after"]
    mark = after["essay"]
    assert (mark["$type"], mark["kind"], mark["length"], mark["value"]) == ("cut", "text", len(text), text[:TEXT])
    joined = ""
    first: int | None = 0
    while first is not None:
        path = json.dumps(mark["path"])
        part = get(app, "value", of="commit", thread="t", id=row["id"], path=path, first=first)
        joined, first = joined + part["value"], part["next"]
    assert joined == text
    mark = after["list"]
    assert mark["value"] == list(range(ITEMS))
    part = get(app, "value", of="commit", thread="t", id=row["id"], path=json.dumps(mark["path"]), first=ITEMS)
    assert part["value"] == list(range(ITEMS, 2 * ITEMS))
    for path in ("odd", "{}", "[null]", '["after","none"]', '["after","list",-1]', '["after","essay",0]'):
        params = {"of": "commit", "thread": "t", "id": row["id"], "path": path}
        refused = request(app, "GET", "/api/value", headers={"X-Dspyer-Token": TOKEN}, params=params)
        assert refused.status_code in (400, 404), path


def answer_with(values: dict[str, Any]) -> tuple[Any, str, int]:
    """An app with a run whose inputs are these values, the id of its first commit, and the size of the answer."""
    graph = Graph(inputs=[*values]).add_edge(START, END)
    store, _ = stored(graph, values)
    app = app_of(store)
    row = get(app, "commits", thread="t")["items"][0]
    response = request(app, "GET", f"/api/commit?thread=t&id={row['id']}", headers={"X-Dspyer-Token": TOKEN})
    return app, row["id"], len(response.content)


def test_a_list_is_bounded_as_one_answer() -> None:
    """Also a part of it: the place of each item is that in the whole list."""

    def write(ctx: Context) -> dict[str, Any]:
        for _ in range(60):
            ctx.post("notes", "x" * TEXT)
        return {}

    store, _ = stored(Graph(Board).add_node("write", write, writes=["notes"]).add_path(START, "write", END), {})
    app = app_of(store)
    shown = get(app, "posts", thread="t", first=5)["items"]
    assert len(json.dumps(shown)) < 700_000
    mark = shown[-1]["value"]
    assert (shown[0]["value"], mark["path"], mark["value"]) == ("x" * TEXT, ["items", 59, "value"], "x" * FEW)
    part = get(app, "value", of="posts", thread="t", path=json.dumps(mark["path"]))
    assert part["value"] == "x" * TEXT


def test_an_answer_has_a_largest_size() -> None:
    rows = [{"text": "x" * TEXT, "list": ["y" * 50] * 100} for _ in range(100)]
    app, commit, size = answer_with({"rows": rows})
    assert size < 1_500_000
    mark = get(app, "commit", thread="t", id=commit)["after"]["rows"]["value"][-1]["text"]
    assert mark["value"] == "x" * FEW
    part = get(app, "value", of="commit", thread="t", id=commit, path=json.dumps(mark["path"]))
    assert part["value"] == "x" * TEXT


FIELDS = [f"field-{number}" for number in range(60)]  # more than are shown of a mapping once an answer is large
OPTIONS = {f"option-{number}": number for number in range(1_100)}


def wide_answer() -> Graph:
    """A graph with long names, many fields and calls, and a question of which all is long."""
    choice = Enum("choice", OPTIONS)  # type: ignore[misc]
    graph = Graph(name="g" * 2 * TEXT)
    graph.add_node("n" * 2 * TEXT, lambda: dict.fromkeys(FIELDS, "v" * 10_000), writes=FIELDS)
    graph.add_map("each", dspy.Predict("doc -> answer"), over="docs", item="doc", into="answers")
    graph.add_interrupt("ask", question="{text}?", answer=choice, into="chosen")
    return graph.add_path(START, "n" * 2 * TEXT, "each", "ask", END)


def test_names_lists_and_schemas_are_whole_and_texts_can_be_had_in_parts() -> None:
    text = "\N{PARTY POPPER}" * (TEXT + 7)
    with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "a"})):
        store, _ = stored(wide_answer(), {"text": text, "docs": list(range(30))})
    app = app_of(store)
    run = get(app, "run", thread="t")
    assert [node["name"] for node in run["graph"]["nodes"]] == [START, "n" * 2 * TEXT, "each", "ask", END]
    (question,) = run["questions"]
    assert question["answer"]["enum"] == [*OPTIONS.values()]
    mark = question["text"]
    assert (mark["$type"], mark["path"]) == ("cut", ["questions", 0, "text"])
    part = get(app, "value", of="run", thread="t", path=json.dumps(mark["path"]), first=TEXT)
    assert mark["value"] + part["value"] == f"{text}?"
    assert get(app, "runs")["items"][0]["questions"][0]["text"]["value"] == text[:TEXT]
    rows = get(app, "commits", thread="t")["items"]
    step = get(app, "commit", thread="t", id=rows[2]["id"])
    assert len(step["before"]) == len(FIELDS) + 2 == len(step["after"]) - 1 == len(step["blame"]) - 1
    assert step["after"]["field-59"]["value"] == "v" * FEW
    assert list(step["diff"]) == ["answers"]
    assert [call["predictor"] for call in step["lm_calls"]] == ["each"] * 30
    assert step["blame"]["field-7"] == {"node": "n" * 2 * TEXT, "commit": rows[1]["id"]}


def test_a_request_that_is_wrong_is_refused_with_words() -> None:
    store, _ = stored(counting(2), {"n": 0})
    app, long = app_of(store), "9" * 5_000
    value = {"of": "commit", "id": "t.1/trunk:1"}
    rows: list[tuple[str, dict[str, str]]] = [
        *[("value", {**value, "path": path}) for path in ("[" * 3_000, "[1.5]", '["after","n",0]', long)],
        *[("commit", {"id": name}) for name in (long, "t.1/trunk:" + "9" * 30, "trunk:", "²")],
        *[("execution", {"id": name}) for name in (long, "/", "t.1/" + "trunk:1/" * 500)],
        *[("lm_calls", {"execution": name}) for name in (long, "12:30", "0-1:2", "t.1/trunk:" + "9" * 30)],
        *[("commits", {name: number}) for name in ("first", "count") for number in (long, "-1", "1.5", "x")],
        *[(name, {"run": long}) for name in ("run", "commits", "stats", "posts", "conflicts")],
        *[("runs", {name: "x"}) for name in ("status", "since", "until", "after", "limit")],
    ]
    for name, params in rows:
        refused = request(
            app, "GET", f"/api/{name}", headers={"X-Dspyer-Token": TOKEN}, params={"thread": "t", **params}
        )
        assert refused.status_code in (400, 404, 409), (name, params, refused.text)
        assert refused.json()["error"]["message"], (name, params)


# --- without DSPy, and without the extra


def test_reading_imports_no_dspy(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    counting(2).compile(store=store).thread("t").run({"n": 0})
    code = (
        "import sys, dspyer.inspector\n"
        f"dspyer.inspector.app({store!r}, token='x')\n"
        "assert 'dspy' not in sys.modules and 'litellm' not in sys.modules\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'starlette' or 'inspector.' in name]:\n"
        "    del sys.modules[name]\n"
        "sys.modules['starlette.applications'] = None\n"
        "try:\n"
        f"    dspyer.inspector.app({store!r}, token='x')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.stdout) == (
        "",
        "the inspector needs Starlette and uvicorn: pip install starlette uvicorn\n",
    )
