"""Processes that are killed at any write of a run, and others that resume it."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest

from dspyer import END, START, Graph
from dspyer.errors import ThreadError
from dspyer.stores import SQLite
from tests.log.equality import finished
from tests.log.failing import kill
from tests.log.kinds import CALLS, KINDS, State, read_calls
from tests.log.places import MODES, Place, start
from tests.log.processes import end_of, fork

SLOW = pytest.mark.slow("a process is killed at every write of a run: 20 to 50 of them, forked")


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("fork", "sync, sqlite"),
        ("policy", "sync, sqlite"),
        pytest.param("subgraph", "async, sqlite", marks=SLOW),
        ("map", "sync, sqlite"),
        pytest.param("ctx.call", "sync, sqlite", marks=SLOW),
        ("Send", "async, sqlite"),
        ("LM router", "sync, sqlite"),
        pytest.param("error edges", "sync, sqlite", marks=SLOW),
        pytest.param("failed Sends", "async, sqlite", marks=SLOW),
    ],
)
def test_kill_9_at_any_write(kind: str, mode: str, tmp_path: Path) -> None:
    place = Place(KINDS[kind], MODES[mode], tmp_path)
    for after in (False, True):
        for at in count(1, 4):  # `test_crashes` tries all lengths of the log, without processes
            name, calls = f"t {at} {after}", tmp_path / f"calls {at} {after}"

            def child(name: str = name, calls: Path = calls, at: int = at, after: bool = after) -> None:
                CALLS.file = os.open(calls, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                place.arm(kill, at, after)
                with KINDS[kind].lm():
                    assert start(place.first.thread(name), place.call_mode).status == "completed"

            ended = end_of(fork(child))
            called = read_calls(calls.read_text())
            assert called <= place.whole.calls
            if ended == 0:
                assert called == place.whole.calls
                break
            assert ended == -signal.SIGKILL
            for execution in finished(place.store, name):
                assert all(called[call] == n for call, n in place.whole.calls.items() if call.execution == execution)
            place.check_the_rest(name)


def test_a_zombie_process_is_replaced_at_once(tmp_path: Path) -> None:
    """A killed child of a supervisor that does not wait for it is still in the system's list of processes."""
    place = Place(KINDS["chain"], MODES["sync, sqlite"], tmp_path)

    def child() -> None:
        place.arm(kill, 3, after=False)
        start(place.first.thread("t"), "sync")

    pid = fork(child)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    place.check_the_rest("t")
    assert end_of(pid) == -signal.SIGKILL


def test_a_node_that_kills_its_process_is_stopped_by_max_resumes(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    deadly = tmp_path / "deadly"
    deadly.touch()

    def works(state: State) -> dict[str, list[str]]:
        return {"log": ["works"]}

    def kills(state: State) -> dict[str, list[str]]:
        if deadly.exists():
            kill()
        return {"log": ["kills"]}

    graph = Graph(State).add_node("works", works).add_node("kills", kills).add_path(START, "works", "kills", END)
    thread = graph.compile(store=SQLite(path)).thread("t")
    assert end_of(fork(lambda: thread.run({}))) == -signal.SIGKILL
    for _ in range(3):
        assert end_of(fork(lambda: thread.resume(max_resumes=3))) == -signal.SIGKILL
    with pytest.raises(ThreadError, match=r"resumed 3 times without progress; open: kills.*max_resumes=6"):
        thread.resume(max_resumes=3)
    assert (thread.status, thread.state["log"]) == ("crashed", ["works"])
    deadly.unlink()
    assert thread.resume(max_resumes=6).state["log"] == ["works", "kills"]


def test_resumes_that_make_progress_do_not_count(tmp_path: Path) -> None:
    """A loop whose every round kills its process comes to its end with max_resumes=1."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def round_of(state: State) -> dict[str, int]:
        mark = marks / str(state.n)
        if not mark.exists():
            mark.touch()
            kill()
        return {"n": 1}

    graph = Graph(State).add_node("round_of", round_of).add_edge(START, "round_of")
    graph.add_conditional_edges("round_of", lambda n: "round_of" if n < 4 else END, ["round_of", END])
    thread = graph.compile(store=SQLite(tmp_path / "runs.db")).thread("t")
    assert end_of(fork(lambda: thread.run({}))) == -signal.SIGKILL
    for _ in range(3):
        assert end_of(fork(lambda: thread.resume(max_resumes=1))) == -signal.SIGKILL
    assert thread.resume(max_resumes=1).state["n"] == 4
