"""`run.to_html`: one file with the page and what it asks for, bounded, redacted, and with no way out of its data."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, Graph, Run, live, reducers
from dspyer.stores import Memory
from dspyer.testing import no_pauses

LARGEST = 500  # steps that a file has
HOSTILE = '</script><script>window.hacked=1</script><!--\u2028"&amp;\u2029<img src=x onerror=window.hacked=1>'


def data_in(path: Path) -> Any:
    """What the file holds as JSON."""
    (text,) = re.findall(r'<script type="application/json" id="embedded">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(text)


def value_at(data: Any, place: int) -> Any:
    """The value at a place of the table."""
    entry = data["values"][place]
    if isinstance(entry, dict):
        return {name: value_at(data, part) for name, part in entry.items()}
    return [value_at(data, part) for part in entry] if isinstance(entry, list) else entry


def steps_in(path: Path) -> dict[str, Any]:
    """The steps as the page sees them: with whole states."""
    data = data_in(path)
    found = {}
    for commit, place in data["steps"].items():
        step = value_at(data, place)
        states = {
            name: refs and {field: value_at(data, part) for field, part in refs.items()}
            for name, refs in step.pop("states").items()
        }
        found[commit] = {**step, **states}
    return found


class Pad(BaseModel):
    text: str
    left: int = 0
    right: int = 0
    both: list[str] = []
    notes: Annotated[list[str], reducers.extend, live] = []


def forked(store: Any = None) -> Run:
    """A run with a loop, a fork, a conflict that a policy decides, and live posts."""

    def write_left(left: int, ctx: Any) -> dict[str, Any]:
        ctx.post("notes", [f"left {left}"])
        return {"left": left + 1, "both": ["left"]}

    graph = Graph(Pad, name="Forked", inputs=["text"], merge={"both": "last_write_wins"})
    graph.add_node("begin", lambda text: {"text": text + "!"}, writes=["text"])
    graph.add_node("left", write_left, reads=["left"], writes=["left", "both", "notes"])
    graph.add_node("right", lambda right: {"right": right + 1, "both": ["right"]}, writes=["right", "both"])
    graph.add_node("end", lambda left: {"left": left}, writes=["left"])
    graph.add_path(START, "begin").add_edge("begin", ["left", "right"]).add_edge(["left", "right"], "end")
    graph.add_conditional_edges("end", lambda left: "begin" if left < 3 else END, ["begin", END])
    program = graph.compile(store=store)
    return program.run({"text": HOSTILE}) if store is None else program.thread("t").run({"text": HOSTILE})


def test_the_file_holds_what_the_run_has(tmp_path: Path) -> None:
    run = forked()
    path = run.to_html(tmp_path / "run.html")
    assert path == tmp_path / "run.html"
    data, steps = data_in(path), steps_in(path)
    assert [row["id"] for row in data["rows"]] == [commit.id for commit in run.commits] == list(steps)
    assert data["between"] == 0
    assert data["run"]["info"]["status"] == "completed"
    assert {node["name"] for node in data["run"]["graph"]["nodes"]} == {START, "begin", "left", "right", "end", END}
    assert [one["node"] for one in data["run"]["stats"]["nodes"]] == ["begin", "left", "right", "end"]
    for commit in run.commits:
        step = steps[commit.id]
        assert step["after"] == run.at(commit.id).to_dict()
        assert step["before"] == (run.at(commit.parents[0]).to_dict() if commit.parents else None)
        assert "patch" not in step["commit"]
    lists = {name: value_at(data, place) for name, place in data["lists"].items()}
    assert [post["value"] for post in lists["posts"]] == [["left 0"], ["left 1"], ["left 2"]]
    assert [found["conflict"]["path"] for found in lists["conflicts"]] == [["both"]]


def test_the_file_has_questions_whole(tmp_path: Path) -> None:
    """Nothing can be loaded later."""
    graph = Graph(inputs=["text"]).add_interrupt("ask", question="{text}?", answer=bool, into="ok")
    run = graph.add_path(START, "ask", END).compile().run({"text": "x" * 30_000})
    path = run.to_html(tmp_path / "run.html")
    assert [one["text"] for one in data_in(path)["run"]["questions"]] == ["x" * 30_000 + "?"]
    assert steps_in(path)["trunk:0"]["after"]["text"]["length"] == 30_000


def test_blame_is_that_of_each_step(tmp_path: Path) -> None:
    """It equals what the archive reads of the same run in a store."""
    store = Memory()
    run = forked(store)
    steps = steps_in(run.to_html(tmp_path / "run.html"))
    archived = Archive(store).thread("t")
    for commit in archived.history():
        expected = {name: archived.blame((name,), at=commit.id).node for name in archived.at(commit.id)}
        blame = steps[commit.id]["blame"]
        assert {name: one["node"] for name, one in blame.items()} == expected, commit.id


def test_a_stored_run_gives_the_same_file(tmp_path: Path) -> None:
    store = Memory()
    live_steps = steps_in(forked(store).to_html(tmp_path / "live.html"))
    path = Archive(store).thread("t").to_html(tmp_path / "stored.html")
    assert path == tmp_path / "stored.html"
    stored_steps = steps_in(path)
    assert list(stored_steps) == list(live_steps)
    for label, step in stored_steps.items():
        same = live_steps[label]
        assert (step["after"], step["diff"]) == (same["after"], same["diff"])
    data = data_in(path)
    lists = {name: value_at(data, place) for name, place in data["lists"].items()}
    assert [found["conflict"]["path"] for found in lists["conflicts"]] == [["both"]]
    assert len(lists["posts"]) == 3


def test_no_text_ends_its_script(tmp_path: Path) -> None:
    path = forked().to_html(tmp_path / "run.html")
    text = path.read_text()
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 2
    assert "<!--" not in text
    assert "\u2028" not in text
    assert steps_in(path)["trunk:0"]["after"]["text"] == HOSTILE


@pytest.mark.parametrize("redact", ["text", lambda path, value: "gone" if path == ("text",) else value])
def test_values_are_redacted_as_in_events(tmp_path: Path, redact: Any) -> None:
    def fail(text: str) -> dict[str, Any]:
        raise ValueError(f"cannot read {text}")

    graph = Graph(Pad).add_node("begin", lambda: {"both": ["seen s3cret-token"]}, writes=["both"])
    graph.add_node("fail", fail, reads=["text"], writes=["left"], retry=2).add_path(START, "begin", "fail", END)
    with no_pauses():
        run = graph.compile(redact=redact).run({"text": "s3cret-token"})
    path = run.to_html(tmp_path / "run.html")
    assert "s3cret-token" not in path.read_text()
    assert data_in(path)["run"]["failures"][0]["node"] == "fail"
    assert steps_in(path)["trunk:1"]["after"]["left"] == 0


def steps_of(count: int, text: str = "") -> Run:
    """A run of a loop, whose steps append to a list if there is a text."""
    graph = Graph(Pad).add_node(
        "step", lambda left: {"left": left + 1, "notes": [f"{left} {text}"] if text else []}, writes=["left", "notes"]
    )
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda left: END if left >= count else "step", [END, "step"])
    return graph.compile(max_steps=10_000).run({"text": ""})


def test_a_long_run_is_bounded_and_says_what_is_missing(tmp_path: Path) -> None:
    data = data_in(steps_of(520).to_html(tmp_path / "run.html"))
    assert len(data["rows"]) == len(data["steps"]) == LARGEST
    assert data["between"] == 521 - LARGEST
    assert data["run"]["info"]["steps"] == 521
    assert [data["rows"][at]["id"] for at in (0, 249, 250, -1)] == ["trunk:0", "trunk:249", "trunk:271", "trunk:520"]


def test_a_list_that_grows_is_not_in_the_file_once_for_each_step(tmp_path: Path) -> None:
    path = steps_of(60, 1000 * "x").to_html(tmp_path / "run.html")
    assert path.read_text().count(1000 * "x") == 60


def test_equal_values_have_one_place(tmp_path: Path) -> None:
    values = {"a": {"a": [1, 2]}, "b": [1, 2], "c": [1.0, True], "d": {"a": [1, 2]}, "e": 1, "f": 1.0, "g": True}
    run = Graph(inputs=[*values]).add_edge(START, END).compile().run(values)
    path = run.to_html(tmp_path / "run.html")
    table = [json.dumps(entry) for entry in data_in(path)["values"]]
    assert len(set(table)) == len(table)
    after = steps_in(path)["trunk:0"]["after"]
    assert json.dumps(after) == json.dumps(values)  # 1, 1.0 and true are equal in Python


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    run = (
        Graph()
        .add_node("add", lambda n: {"n": n + 1}, writes=["n"])
        .add_path(START, "add", END)
        .compile()
        .run({"n": 1})
    )
    with pytest.raises(OSError):
        run.to_html(tmp_path / "nowhere" / "run.html")
    (tmp_path / "run.html").mkdir()
    with pytest.raises(OSError):
        run.to_html(tmp_path / "run.html")
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


def test_the_time_of_a_resumed_run_begins_with_its_first_step(tmp_path: Path) -> None:
    """The timeline has the steps of earlier processes too."""
    graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_interrupt("ask", question="continue?", answer=bool, into="go").add_path(START, "add", "ask", END)
    thread = graph.compile(store=Memory()).thread("t")
    first = thread.run({"n": 1})
    resumed = thread.resume({"ask": True})
    info = data_in(resumed.to_html(tmp_path / "run.html"))["run"]["info"]
    assert datetime.fromisoformat(info["started"]).timestamp() == pytest.approx(first.commits[0].started, abs=1.0)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    with pytest.raises(IsADirectoryError, match=r"is a folder: name the file, for example '.*run\.html'"):
        graph.compile().run({"n": 1}).to_html(tmp_path)
    assert not list(tmp_path.iterdir())
