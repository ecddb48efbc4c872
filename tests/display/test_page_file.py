"""`run.to_html`: one file with the page and the record of the run, redacted, and with no way out of its data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, Graph, Run, live, reducers
from dspyer.stores import Memory
from dspyer.testing import no_pauses

HOSTILE = '</script><script>window.hacked=1</script><!--\u2028"&amp;\u2029<img src=x onerror=window.hacked=1>'


def data_in(path: Path) -> Any:
    """What the file holds as JSON."""
    (text,) = re.findall(r'<script type="application/json" id="embedded">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(text)


def record_in(path: Path) -> Any:
    """The record in the file, as `to_dict` has it: without drawings, and with lists whole."""
    record = data_in(path)["record"]
    lists = record.pop("lists")

    def value(name: str) -> Any:
        return list(map(value, lists[name])) if name in lists else record["values"][name]

    for graph in record["graphs"].values():
        assert graph.pop("drawing")["nodes"]
        graph.pop("examples")
    text = json.dumps([record["run"], record["steps"]])
    values = {name: value(name) for name in (*record["values"], *lists)}
    return {**record, "values": {name: one for name, one in values.items() if f'"{name}"' in text}}


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


def test_the_file_holds_the_record(tmp_path: Path) -> None:
    store = Memory()
    run = forked(store)
    path = run.to_html(tmp_path / "run.html")
    assert path == tmp_path / "run.html"
    assert data_in(path)["about"] == {"store": "", "version": "", "programs": [], "acts": False}
    assert record_in(path) == json.loads(json.dumps(run.record().to_dict()))
    stored = Archive(store).thread("t")
    assert record_in(stored.to_html(tmp_path / "stored.html")) == json.loads(json.dumps(stored.record().to_dict()))


def test_no_text_ends_its_script(tmp_path: Path) -> None:
    path = forked().to_html(tmp_path / "run.html")
    text = path.read_text()
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 2
    assert "<!--" not in text
    assert "\u2028" not in text
    assert HOSTILE in record_in(path)["values"].values()


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
    assert data_in(path)["record"]["run"]["failure"]["node"] == "fail"


def steps_of(count: int, text: str = "") -> Run:
    """A run of a loop, whose steps append to a list if there is a text."""
    graph = Graph(Pad).add_node(
        "step", lambda left: {"left": left + 1, "notes": [f"{left} {text}"] if text else []}, writes=["left", "notes"]
    )
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda left: END if left >= count else "step", [END, "step"])
    return graph.compile(max_steps=10_000).run({"text": ""})


def test_a_list_that_grows_is_not_in_the_file_once_for_each_step(tmp_path: Path) -> None:
    run = steps_of(60, 1000 * "x")
    path = run.to_html(tmp_path / "run.html")
    assert path.read_text().count(1000 * "x") == 2 * 60  # in the list and in the post
    assert record_in(path) == json.loads(json.dumps(run.record().to_dict()))


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


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    with pytest.raises(IsADirectoryError, match=r"is a folder: name the file, for example '.*run\.html'"):
        graph.compile().run({"n": 1}).to_html(tmp_path)
    assert not list(tmp_path.iterdir())
