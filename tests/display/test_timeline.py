"""A run by time: bars at the times of the commits, who waited for whom, attempts and failures, and long runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from dspyer import END, START, Failure, Graph, Run
from tests.display.test_report import RUNS
from tests.rows import each

SVG = "{http://www.w3.org/2000/svg}"
PLOT = 900  # pixels of the axis


def forked(problem: str = "") -> tuple[Run, float]:
    """A fork: `quick` is there after 1 s, `slow` after 4 s with two attempts; `judge` starts 0.5 s after that."""

    def judge() -> None:
        if problem:
            raise ValueError(problem)

    graph = Graph()
    for name in ("quick", "slow"):
        graph.add_node(name, lambda: None, writes=[])
    graph.add_node("judge", judge, writes=[]).add_edge(START, ["quick", "slow"])
    run = graph.add_edge(["quick", "slow"], "judge").add_edge("judge", END).compile().run({})
    began = run.commits[0].started - 6
    lost = Failure(node="slow", type="ConnectionError", message="reset <by> peer", attempt=1)
    times = {"START": (0, 0), "quick": (0, 1), "slow": (0.25, 3.75), "join:judge": (4, 0), "judge": (4.5, 1)}
    again: dict[str, Any] = {"attempt": 2, "failed_attempts": (lost,)}
    run.commits = tuple(
        replace(
            commit,
            started=began + times[commit.node][0],
            duration=times[commit.node][1],
            **(again if commit.node == "slow" else {}),
        )
        for commit in run.commits
    )
    return run, began


def test_bars_are_where_the_commits_were_and_say_what_they_waited_for() -> None:
    run, began = forked()
    timeline = run.timeline()
    bars = {bar.node: bar for bar in timeline.bars}
    assert [(bar.node, round(bar.start, 3), bar.seconds, bar.lane) for bar in timeline.bars] == [
        ("quick", 0, 1, 0),
        ("slow", 0.25, 3.75, 1),
        ("judge", 4.5, 1, 0),
    ]
    assert (bars["judge"].after, round(bars["judge"].waited, 3)) == (("0:0", "1:0"), 0.5)
    assert (bars["quick"].after, round(bars["slow"].waited, 3)) == ((), 0.25)
    (wait,) = timeline.waits
    assert (wait.branch, wait.id, wait.waits_for) == ((0,), "0:0", "1:0")
    assert (wait.start, round(wait.seconds, 3)) == (1, 3)
    assert (bars["slow"].attempts, bars["slow"].failure) == (2, "attempts that failed before: ConnectionError")
    assert timeline.started == began
    assert (round(timeline.seconds, 3), timeline.lanes) == (5.5, ("trunk", "1"))


def test_what_failed_lasts_from_what_came_before_it_to_the_end_of_the_run() -> None:
    run, _ = forked("no <b>such</b>\n\x1b[31mthing")
    timeline = run.timeline()
    last = timeline.bars[-1]
    assert (last.id, last.node, last.status, round(last.start, 3)) == ("trunk:2", "judge", "failed", 4)
    assert last.seconds == pytest.approx(2 + run.duration, abs=0.02)
    assert last.failure == "ValueError: no <b>such</b> [31mthing"
    drawn = ElementTree.fromstring(timeline.to_svg())
    assert any("no <b>such</b>" in (title.text or "") for title in drawn.iter(f"{SVG}title"))
    assert "judge " in str(timeline)
    assert "waited 3.0 s for slow" in str(timeline)


@each("make", RUNS.values(), ids=RUNS)
def test_every_execution_is_a_bar_inside_of_the_picture(make: Any) -> None:
    run = make()
    timeline = run.timeline()
    commits = {c.id for c in run.commits if c.node != "START" and not c.node.startswith("join:")}
    assert {bar.id for bar in timeline.bars if bar.status == "committed"} == commits
    assert sum(bar.status == "failed" for bar in timeline.bars) == len(run.failures)
    assert json.loads(json.dumps(timeline.to_dict()))["bars"][0]["node"] == timeline.bars[0].node
    drawn = ElementTree.fromstring(timeline.to_svg())
    width, height = float(drawn.get("width", "0")), float(drawn.get("height", "0"))
    for box in drawn.iter(f"{SVG}rect"):
        assert 0 <= float(box.get("x", "0")) <= float(box.get("x", "0")) + float(box.get("width", "0")) <= width
        assert 0 <= float(box.get("y", "0")) <= float(box.get("y", "0")) + float(box.get("height", "0")) <= height


def chain(starts: list[float], took: float) -> Run:
    """A run of one node again and again, at these times."""
    run = Graph().add_node("turn", lambda: None, writes=[]).add_path(START, "turn", END).compile().run({})
    first, turn = run.commits
    run.commits = (
        replace(first, started=0.0, duration=0.0),
        *(
            replace(turn, id=f"trunk:{at}", step=at, parents=(f"trunk:{at - 1}",), started=start, duration=took)
            for at, start in enumerate(starts, 1)
        ),
    )
    return run


def boxes(svg: str) -> list[tuple[float, float]]:
    """Where the bars begin and end."""
    drawn = [box for box in ElementTree.fromstring(svg).iter(f"{SVG}rect") if "module" in box.get("class", "")]
    lefts, widths = ([float(box.get(name, "nan")) for box in drawn] for name in ("x", "width"))
    return [(left, left + width) for left, width in zip(lefts, widths, strict=True)]


def test_a_day_between_two_processes_is_cut_out_of_the_picture() -> None:
    timeline = chain([0, 2, 86_402], 2).timeline()
    assert [(pause.start, pause.seconds) for pause in timeline.pauses] == [(4, 86_398)]
    drawn = boxes(timeline.to_svg())
    assert len(drawn) == 3
    assert min(right - left for left, right in drawn) > 200
    assert "23:59:58 later" in timeline.to_svg()


def test_a_long_run_is_drawn_in_part() -> None:
    svg = chain([float(i) for i in range(10_000)], 0.9).timeline().to_svg()
    assert "9,500 more in 2:38:20" in svg
    assert svg.count("<rect") == 500 + 2
    assert len(svg) < 200_000


def test_the_axis_keeps_order_and_fills_the_picture() -> None:
    """Of two pauses each is 30 pixels wide, and no time is marked inside of them."""
    timeline = chain([*range(10), *range(60, 70), *range(90, 100)], 1.0).timeline()
    assert [(pause.start, pause.seconds) for pause in timeline.pauses] == [(10, 50), (70, 20)]
    drawn = boxes(timeline.to_svg())
    assert drawn == sorted(drawn)
    assert drawn[-1][1] - drawn[0][0] == pytest.approx(PLOT, abs=0.2)
    assert [round(drawn[at][0] - drawn[at - 1][1]) for at in (10, 20)] == [30, 30]
    times = re.findall(r">(?:(\d+):)?(\d+)(?: s)?</text>", timeline.to_svg())
    marked = [60 * int(minutes or 0) + int(seconds) for minutes, seconds in times]
    assert len(marked) >= 3
    assert not [at for at in marked if 10 < at < 60 or 70 < at < 90]


def test_a_run_without_any_commit_of_a_node() -> None:
    timeline = chain([], 0).timeline()
    assert (timeline.bars, timeline.seconds) == ((), 0)
    assert "0 executions" in str(timeline)
    ElementTree.fromstring(timeline.to_svg())


def test_one_execution_is_in_the_singular() -> None:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    timeline = graph.compile().run({"n": 1}).timeline()
    assert str(timeline).partition("\n")[0].endswith(", 1 execution of a node")
    assert "<title>1 execution of a node in " in timeline.to_svg()
