"""A run by time: bars at the times of the commits, who waited for whom, attempts and failures, and long runs."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

from dspyer import END, START, Failure, Graph
from dspyer.display.run_rows import DisplayRow, ErrorText
from dspyer.display.timeline import PLOT, Timeline, _Axis
from dspyer.events import BranchPath, Commit
from tests.display.test_report import RUNS
from tests.rows import each

SVG = "{http://www.w3.org/2000/svg}"
BEGAN = 1_700_000_000.0


def commit(identity: str, node: str, start: float, took: float, parents: tuple[str, ...], **facts: Any) -> Commit:
    path, _, _ = identity.rpartition(":")
    branch: BranchPath = () if path == "trunk" else tuple(map(int, path.split(".")))
    step = facts.pop("step")
    return Commit(identity, None, node, branch, 1, step, {}, parents, started=BEGAN + start, duration=took, **facts)


def row(made: Commit, came: tuple[BranchPath, ...], children: tuple[BranchPath, ...] = ()) -> DisplayRow:
    return DisplayRow(made.node, made.branch, made.step, came, made.parents, children, made)


def forked(error: ErrorText | None = None) -> list[DisplayRow]:
    """A fork: `quick` is there after 1 s, `slow` after 4 s with two attempts; `judge` starts 0.5 s after that."""
    lost = Failure(node="slow", type="ConnectionError", message="reset <by> peer", attempt=1)
    commits = [
        commit("trunk:0", "START", 0, 0, (), step=0, route=("quick", "slow")),
        commit("0:0", "quick", 0, 1, ("trunk:0",), step=1),
        commit("1:0", "slow", 0.25, 3.75, ("trunk:0",), step=1, attempt=2, failed_attempts=(lost,)),
        commit("trunk:1", "join:judge", 4, 0, ("0:0", "1:0"), step=2),
    ]
    rows = [
        row(commits[0], (), ((0,), (1,))),
        row(commits[1], ((0,),)),
        row(commits[2], ((1,),)),
        row(commits[3], ((0,), (1,))),
    ]
    if error is None:
        return [*rows, row(commit("trunk:2", "judge", 4.5, 1, ("trunk:1",), step=3), ((),))]
    failed = DisplayRow("judge", (), 3, ((),), ("trunk:1",), error=error, execution="trunk:2")
    return [*rows, failed]


def test_bars_are_where_the_commits_were_and_say_what_they_waited_for() -> None:
    timeline = Timeline(forked())
    bars = {bar.node: bar for bar in timeline.bars}
    assert [(bar.node, bar.start, bar.seconds, bar.lane) for bar in timeline.bars] == [
        ("quick", 0, 1, 0),
        ("slow", 0.25, 3.75, 1),
        ("judge", 4.5, 1, 0),
    ]
    assert (bars["judge"].after, bars["judge"].waited) == (("0:0", "1:0"), 0.5)
    assert (bars["quick"].after, bars["slow"].waited) == ((), 0.25)
    (wait,) = timeline.waits
    assert (wait.branch, wait.id, wait.waits_for, wait.start, wait.seconds) == ((0,), "0:0", "1:0", 1, 3)
    assert (bars["slow"].attempts, bars["slow"].failure) == (2, "attempts that failed before: ConnectionError")
    assert (timeline.started, timeline.seconds, timeline.lanes) == (BEGAN, 5.5, ("trunk", "1"))


def test_what_failed_lasts_from_what_came_before_it_to_the_end_of_the_run() -> None:
    timeline = Timeline(forked(ErrorText("ValueError", "no <b>such</b>\n\x1b[31mthing")), ended=BEGAN + 6)
    last = timeline.bars[-1]
    assert (last.id, last.node, last.status, last.start, last.seconds) == ("trunk:2", "judge", "failed", 4, 2)
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


def chain(starts: list[float], took: float) -> list[DisplayRow]:
    commits = [
        commit(f"trunk:{i}", "turn" if i else "START", at, took if i else 0, (f"trunk:{i - 1}",) if i else (), step=i)
        for i, at in enumerate(starts)
    ]
    return [row(made, ((),) if made.step else ()) for made in commits]


def test_a_day_between_two_processes_is_cut_out_of_the_picture() -> None:
    timeline = Timeline(chain([0, 0, 2, 86_402], 2))
    assert [(pause.start, pause.seconds) for pause in timeline.pauses] == [(4, 86_398)]
    boxes = [
        box for box in ElementTree.fromstring(timeline.to_svg()).iter(f"{SVG}rect") if "module" in box.get("class", "")
    ]
    assert len(boxes) == 3
    assert min(float(box.get("width", "0")) for box in boxes) > 200
    assert "23:59:58 later" in timeline.to_svg()


def test_a_long_run_is_drawn_in_part() -> None:
    svg = Timeline(chain([float(i) for i in range(10_001)], 0.9)).to_svg()
    assert "9,500 more in 2:38:20" in svg
    assert svg.count("<rect") == 500 + 2
    assert len(svg) < 200_000


def test_the_axis_keeps_order_and_fills_the_picture() -> None:
    axis = _Axis(100.0, [(10.0, 50.0), (70.0, 20.0)], 30.0, PLOT)
    places = [axis.x(at / 2) for at in range(201)]
    assert places == sorted(places)
    assert (places[0], round(places[-1], 6)) == (0, PLOT)
    assert round(axis.x(60.0) - axis.x(10.0), 6) == 30
    assert not [at for at in axis.ticks() if 10 < at < 60 or 70 < at < 90]


def test_a_run_without_any_commit_of_a_node() -> None:
    timeline = Timeline(chain([0], 0))
    assert (timeline.bars, timeline.seconds) == ((), 0)
    assert "0 executions" in str(timeline)
    ElementTree.fromstring(timeline.to_svg())


def test_one_execution_is_in_the_singular() -> None:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    timeline = graph.compile().run({"n": 1}).timeline()
    assert str(timeline).partition("\n")[0].endswith(", 1 execution of a node")
    assert "<title>1 execution of a node in " in timeline.to_svg()
