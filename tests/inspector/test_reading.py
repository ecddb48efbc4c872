"""What the inspector answers: valid JSON of the record that the archive gives, for any graph, by pages and changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import dspy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, Archive, CompiledGraph, Context, Graph, agents, live, reducers
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM, no_pauses
from tests.inspector.asking import TOKEN, get, request

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
    assert_shown(app, thread, info["run_id"])


def assert_shown(app: Any, thread: ArchivedThread, run: str | None = None) -> list[dict[str, Any]]:
    """The pages of a run and its values are its record; returns the steps."""
    expected = json.loads(json.dumps(thread.record(run).to_dict()))
    named = {"thread": thread.name} | ({} if run is None else {"run": run})
    pages = [get(app, "record", **named)]
    while (first := pages[-1]["next"]) is not None:
        pages.append(get(app, "record", **named, first=first, position=pages[0]["position"]))
    steps = [step for page in pages for step in page["items"]]
    assert steps == expected["steps"]
    drawn = pages[0]["graphs"]
    assert {name: {key: drawn[name][key] for key in graph} for name, graph in expected["graphs"].items()} == (
        expected["graphs"]
    )
    for page in pages:
        assert page["run"] == {**expected["run"], "unread": []}
        assert (page["count"], page["position"]) == (len(steps), pages[0]["position"])
    names = [*expected["values"]]
    for at in range(0, len(names), 50):
        some = names[at : at + 50]
        assert get(app, "values", **named, id=some)["values"] == {name: expected["values"][name] for name in some}
    return steps


# --- pages


def counting(steps: int) -> Graph:
    graph = Graph().add_node("step", lambda n: {"n": n + 1}).add_path(START, "step")
    return graph.add_conditional_edges("step", lambda n: "step" if n % steps else END, ["step", END])


def test_a_long_run_comes_in_pages_and_another_server_finds_its_values() -> None:
    store = Memory()
    counting(2_500).compile(store=store, max_steps=2_501).thread("t").run({"n": 0})
    thread = Archive(store).thread("t")
    steps = assert_shown(app_of(store), thread)
    assert len(steps) == 2_501
    for step in (steps[-1], steps[0]):
        written = step["wrote"]["n"]["value"]
        assert get(app_of(store), "values", thread="t", id=written)["values"] == {written: thread.at(step["id"])["n"]}


def test_lists_are_filtered_and_paged() -> None:
    store, program = stored(counting(2), {"n": 0}, "a")
    program.thread("b").run({"n": 0})
    app = app_of(store)
    first = get(app, "runs", limit=1)
    second = get(app, "runs", limit=1, after=first["next"])
    assert sorted(info["thread"] for page in (first, second) for info in page["items"]) == ["a", "b"]
    assert [info["thread"] for info in get(app, "runs", contains="2")["items"]] == ["b", "a"]
    assert get(app, "runs", status="failed")["items"] == []
    assert get(app, "runs", until="2001-01-01T00:00")["items"] == []
    assert len(get(app, "runs", since="2001-01-01", until="4000000000")["items"]) == 2


# --- changes


class Board(BaseModel):
    notes: Annotated[list[str], reducers.append, live()] = []
    ns: list[int] = []
    halves: list[float] = []
    bad: list[Any] = []
    ok: bool = False
    text: str = ""


def changing() -> Graph:
    """A graph that forks, posts, maps, repeats, asks and fails."""

    def write(ctx: Context) -> dict[str, Any]:
        ctx.post("notes", "posted")
        return {"ns": [0, 1, 2]}

    def fail(text: str) -> dict[str, Any]:
        raise ConnectionError(text)

    graph = Graph(Board, name="changing", inputs=["text"]).add_node("write", write, writes=["notes", "ns"])
    graph.add_map("half", lambda n: 6 / n, over="ns", item="n", into="halves", failures="bad", max_concurrency=1)
    graph.add_interrupt("ask", question="Go on with {text}?", answer=bool, into="ok")
    graph.add_node("loud", lambda text: {"text": text + "!"}, reads=["text"], writes=["text"])
    graph.add_node("fail", fail, reads=["text"], writes=["text"], retry=2)
    graph.add_edge(START, ["write", "loud"]).add_edge("write", "half").add_edge(["half", "loud"], "ask")
    return graph.add_path("ask", "fail", END)


def applied(shown: list[dict[str, Any]], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps that a page shows after an answer."""
    if "removed" not in answer:
        return list(answer["items"])
    gone = {*answer["removed"], *[step["id"] for step in answer["items"]]}
    shown = [step for step in shown if step["id"] not in gone]
    for step in answer["items"]:
        before, places = step.pop("previous"), [one["id"] for one in shown]
        shown.insert(places.index(before) + 1 if before else 0, step)
    return shown


def test_changes_lead_to_the_same_steps_as_the_whole_record() -> None:
    store = Memory()
    thread = changing().compile(store=store).thread("t")
    app, shown, known, sent = app_of(store), list[dict[str, Any]](), "", 0

    def look() -> None:
        nonlocal shown, known, sent
        answer = get(app, "record", thread="t", after=known)
        known, sent = answer["position"], sent + len(answer["items"])
        shown = applied(shown, answer)
        assert shown == get(app, "record", thread="t", position=known)["items"]  # the run goes on meanwhile

    with no_pauses():
        asks: list[Callable[[], Any]] = [
            lambda: thread.stream({"text": "x" * 2_000}),
            lambda: thread.stream_resume({"ask": True}),
        ]
        for begun in asks:
            with suppress(ConnectionError):
                for _ in begun():
                    look()
            look()
    count = len(shown)
    assert shown == assert_shown(app, Archive(store).thread("t"))
    assert {step["status"] for step in shown} == {"done", "failed"}
    assert get(app, "record", thread="t", after=known)["items"] == []
    assert sent < 4 * count  # each step is sent when it runs, and once more when it has ended
    again = get(app, "record", thread="t", after="another server's", first=5)
    assert (again["first"], len(again["items"]), again["next"]) == (0, count, None)
    assert get(app, "runs")["items"][0]["failure"]["message"] == again["run"]["failure"]["message"]


def test_long_texts_have_one_form_everywhere() -> None:
    store = Memory()
    graph = Graph(inputs=["text"], name="ask").add_interrupt("ask", question="{text}?", answer=bool, into="ok")
    graph.add_path(START, "ask", END).compile(store=store).thread("t").run({"text": "x" * 60_000})
    app = app_of(store)
    (step,) = [one for one in get(app, "record", thread="t")["items"] if one["asked"]]
    (question,) = get(app, "runs")["items"][0]["questions"]
    assert question["text"] == step["asked"]["text"]
    assert question["text"]["text"] == "x" * 1_000
    for one in (app, app_of(store)):
        assert [*get(one, "values", thread="t", id=question["text"]["more"])["values"].values()] == ["x" * 60_000 + "?"]


def test_a_change_of_a_long_run_costs_what_changed() -> None:
    """Counted, not timed: the steps that are written as JSON."""
    store = Memory()
    thread = counting(600).compile(store=store, max_steps=601).thread("t")
    app = app_of(store)
    known, items = "", []
    for number, _ in enumerate(thread.stream({"n": 0})):
        if number % 100 == 0:
            found = get(app, "record", thread="t", after=known)
            known = found["position"]
            items.append(len(found["items"]))
    assert sum(items[1:]) < 601 + 2 * len(items)


# --- over runs


def judged() -> tuple[Memory, CompiledGraph]:
    """A store with a run, a copy of it that was edited, and runs that failed and that wait."""
    graph = Graph(name="judge", inputs=["text"]).add_node("judge", dspy.Predict("text -> label"))
    graph.add_interrupt("ask", question="Is {label} right?", answer=bool, into="ok")
    graph.add_node("end", lambda label, ok: {"left": len(label) // (label != "bad")}, writes=["left"])
    store = Memory()
    program = graph.add_path(START, "judge", "ask", "end", END).compile(store=store)
    with dspy.context(lm=ScriptedLM(lambda prompt: {"label": prompt.inputs["text"]})):
        for text in ("good", "bad", "x" * 1_500):
            program.thread(text[:4]).run({"text": text})
        for name in ("good", "bad"):
            program.thread(name).resume({"ask": True})
        copy = program.thread("good").copy("copy", at=1, patch={"label": "fine"})
        copy.resume()
        copy.resume({"ask": False})
    return store, program


def test_two_runs_are_compared() -> None:
    store, _ = judged()
    archive = Archive(store)
    a, b = (archive.thread(name).record() for name in ("good", "copy"))
    found = get(app_of(store), "compare", thread="good", other_thread="copy", other_run=b.id)
    assert found == {**json.loads(json.dumps(a.compare(b).to_dict())), "a": found["a"], "b": found["b"]}
    assert (found["a"]["id"], found["b"]["id"], found["b"]["origin"]["run"]) == (a.id, b.id, a.id)
    assert "answer" in [name for pair in found["pairs"] for name in pair["changed"]]


def test_runs_are_summed_up_and_what_waits_is_listed() -> None:
    store, program = judged()
    for name, app in {"reads": app_of(store), "acts": dspyer.inspector.app(store, program, token=TOKEN)}.items():
        (question,) = get(app, "questions")["items"]
        assert (question["thread"], question["program"]) == ("xxxx", name == "acts")
        assert question["question"]["text"]["text"] == "Is " + 997 * "x"
        more = question["question"]["text"]["more"]
        assert get(app, "values", thread="xxxx", run=question["run_id"], id=more)["values"][more].endswith("x right?")
    found = get(app_of(store), "overview", graph="judge")
    assert found == json.loads(json.dumps(Archive(store).overview(graph="judge").to_dict()))
    assert (found["runs"], found["failed"]) == (4, 1)
    assert get(app_of(store), "overview", until="2001-01-01")["runs"] == 0


def test_examples_come_from_some_runs_at_a_time_or_from_one() -> None:
    store, _ = judged()
    app = app_of(store)
    pages = [get(app, "examples", node="judge", limit=2, status="completed")]
    while pages[-1]["next"] is not None:
        pages.append(get(app, "examples", node="judge", limit=2, after=pages[-1]["next"], status="completed"))
    found = [one for page in pages for one in page["items"]]
    assert [(one["inputs"], one["outputs"], one["thread"], one["step"]) for one in found] == [
        ({"text": "good"}, {"label": "good"}, "copy", "good.1/trunk:1")  # a step that two runs share counts once
    ]
    (one,) = get(app, "examples", node="judge", thread="bad", run="bad.1")["items"]
    assert one["inputs"] == {"text": "bad"}
    assert get(app, "examples", node="judge", contains="nowhere")["items"] == []
    auth = {"X-Dspyer-Token": TOKEN}
    for node, status in (("odd", 404), ("", 400)):
        assert request(app, "GET", f"/api/examples?node={node}", headers=auth).status_code == status


def test_a_long_message_that_no_turn_has_taken_is_sent_as_its_beginning() -> None:
    store = Memory()
    thread = agents.tool_loop("q -> a", []).compile(store=store).thread("t")
    with ScriptedLM([{"next_thought": "", "tool_calls": {"tool_calls": [{"name": "submit", "args": {"a": "x"}}]}}]):
        thread.run({"q": "?"})
    sent = thread.send("long " * 12_000)
    (unread,) = get(app := app_of(store), "record", thread="t")["run"]["unread"]
    assert unread["text"]["text"] == sent.text[:1_000]
    more = unread["text"]["more"]
    assert get(app, "values", thread="t", id=more)["values"] == {more: sent.text}


# --- wrong requests


def test_a_request_that_is_wrong_is_refused_with_words() -> None:
    store, _ = stored(counting(2), {"n": 0})
    app, long = app_of(store), "9" * 5_000
    rows: list[tuple[str, dict[str, Any], int]] = [
        *[("record", {"first": number}, 400) for number in (long, "-1", "1.5", "x", "\u0661")],
        *[(name, {"run": long}, 404) for name in ("record", "values")],
        *[("values", {"id": name}, 404) for name in (long, "odd", "")],
        ("values", {"id": ["x"] * 51}, 400),
        *[("compare", {"other_thread": name}, 404 if name else 400) for name in ("odd", "")],
        *[
            ("runs", {name: "x"}, 400)
            for name in ("status", "since", "until", "after", "limit", "min_cost", "min_seconds")
        ],
        *[("overview", {name: "x"}, 400) for name in ("since", "until")],
        ("runs", {"min_cost": "-1"}, 400),
    ]
    for name, params, status in rows:
        refused = request(
            app, "GET", f"/api/{name}", headers={"X-Dspyer-Token": TOKEN}, params={"thread": "t", **params}
        )
        assert refused.status_code == status, (name, params, refused.text)
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
