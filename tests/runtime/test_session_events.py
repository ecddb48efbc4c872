"""Watchers see the events of every run in the process while their block is active."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dspyer import END, START, Graph
from dspyer.events import Event
from dspyer.runtime.session_events import watching


def counter(name: str = "counter") -> Graph:
    graph = Graph(name=name, inputs=["n"], outputs=["n"])
    return graph.add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)


def names(events: list[tuple[str, Event]]) -> list[str]:
    return [type(event).__name__ for _, event in events]


ONE_RUN = ["RunStarted", "Committed", "NodeStarted", "Committed", "RunEnded"]


def test_a_watcher_sees_the_runs_of_its_block_alone() -> None:
    program, seen, outer = counter().compile(), list[tuple[str, Event]](), list[tuple[str, Event]]()
    program.run({"n": 1})
    with watching(lambda *found: outer.append(found)), watching(lambda *found: seen.append(found)):
        run = program.run({"n": 1})
        assert program(n=1).n == 2  # no `Run` is made of it, and yet it is seen
        assert next(run_id for run_id, _ in seen) == run.run_id
    program.run({"n": 1})
    assert names(seen) == names(outer) == ONE_RUN * 2
    assert len({run_id for run_id, _ in seen}) == 2


def test_runs_inside_of_nodes_are_seen_once_under_the_outermost_run() -> None:
    inner = counter("inner").compile()
    program = Graph().add_node("inner", inner).add_path(START, "inner", END).compile()
    seen: list[tuple[str, Event]] = []
    with watching(lambda *found: seen.append(found)):
        run = program.run({"n": 1})
    assert {run_id for run_id, _ in seen} == {run.run_id}
    assert [event for _, event in seen] == list(run.events)
    assert [event.scope for _, event in seen if type(event).__name__ == "RunStarted"] == [(), ("trunk:1",)]


def test_runs_at_once_are_told_apart() -> None:
    program, seen = counter().compile(), list[tuple[str, Event]]()
    with watching(lambda *found: seen.append(found)), ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda n: program.run({"n": n}), range(8)))
    for run in runs:
        assert [event for run_id, event in seen if run_id == run.run_id] == list(run.events)
