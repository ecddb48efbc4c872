"""Promises of the project about stored runs, each over an SQLite file. The numbers are those of the project's list."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, ImmutableState, Kept, Replace, Thread, reducers
from dspyer.events import Commit
from dspyer.stores import SQLite, Store
from dspyer.stores.base import Row
from tests.log.processes import end_of, fork

AGENTS = ("read", "check", "write")


class Pad(BaseModel):
    """A scratchpad of three agents."""

    topic: str
    notes: Kept[Annotated[list[str], reducers.append]] = []
    seen: Kept[Annotated[int, reducers.increment]] = 0
    found: Kept[dict[str, str]] = {}
    text: str = ""


class Desk:
    """Agents who note what they do, and can be made to fail or to kill their process."""

    def __init__(self, path: Path) -> None:
        self.path = path / "runs.db"
        self.calls: list[str] = []
        self.fails = ""
        self.kills = ""

    def _call(self, agent: str) -> None:
        self.calls.append(agent)
        if agent == self.fails:
            raise ConnectionError(agent)
        if agent == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self, topic: str) -> dict[str, Any]:
        self._call("read")
        return {"notes": f"{topic} read", "seen": 1, "found": {"read": topic}}

    def check(self, topic: str) -> dict[str, Any]:
        self._call("check")
        return {"notes": f"{topic} checked", "seen": 1, "found": {"check": topic}}

    def write(self, notes: list[str]) -> dict[str, Any]:
        self._call("write")
        return {"notes": "written", "seen": 1, "text": "; ".join(notes[-2:])}

    def program(self) -> CompiledGraph:
        """A program of its own, with a connection of its own, as another process has it."""
        graph = Graph(Pad, inputs=["topic"])
        for agent in (self.read, self.check, self.write):
            graph.add_node(agent, writes=["notes", "seen", "text" if agent == self.write else "found"])
        graph.add_edge(START, ["read", "check"]).add_edge(["read", "check"], "write").add_edge("write", END)
        return graph.compile(store=SQLite(self.path))

    def thread(self) -> Thread:
        """The thread, as another process finds it."""
        return self.program().thread("t")

    def rows(self) -> Iterator[Row]:
        """All that is stored of the thread's runs."""
        store = SQLite(self.path)
        for run in store.runs("t"):
            yield from store.rows(run.id)

    def forget(self) -> None:
        """Drops all snapshots: what is read then is computed from the log alone."""
        SQLite(self.path).drop_snapshots()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "notes": lambda had, new: [*had, new],
    "seen": lambda had, new: had + new,
    "found": lambda had, new: {**had, **new},
}
"""What the state has of a field after an update by an agent."""


def after(before: ImmutableState, commit: Commit) -> dict[str, Any]:
    found = before.to_dict()
    for name, update in commit.patch.items():
        if isinstance(update, Replace):
            found[name] = update.value
        elif name in FOLDS and commit.node != "START":
            found[name] = FOLDS[name](found[name], plain({name: update})[name])
        else:
            found[name] = plain({name: update})[name]
    return found


def folded(thread: Thread) -> list[ImmutableState]:
    """The state after each version, computed here: S(t+1) = S(t) ⊕ Δ(t) along the parents."""
    states: list[ImmutableState] = []
    for commit in thread.history():
        before = thread.at(commit.parents[0]) if commit.parents else ImmutableState()
        if len(commit.parents) < 2:
            assert after(before, commit) == thread.at(commit.id).to_dict()
        states.append(thread.at(commit.id))
    return states


def test_every_update_makes_one_version_and_earlier_ones_stay_readable(desk: Desk) -> None:
    """S000-12, S000-13."""
    desk.thread().run({"topic": "tides"})
    before = [desk.thread().at(version) for version in range(5)]
    desk.thread().run({"topic": "moons"})
    thread = desk.thread()
    assert [commit.version for commit in thread.history()] == list(range(10))
    assert [thread.at(version) for version in range(5)] == before
    assert thread.at(0) != thread.at(4) != thread.at(9) == thread.state


def test_every_update_is_an_event_with_agent_version_deltas_and_time(desk: Desk) -> None:
    """S000-14, S000-30, S004-14: the event is the delta, and the same commit is read back from the file."""
    run = desk.thread().run({"topic": "tides"})
    known = {commit.node: commit for commit in desk.thread().history()}
    assert set(known) == {"START", "read", "check", "join:write", "write"}
    assert dict(known["read"].patch) == {"notes": "tides read", "seen": 1, "found": {"read": "tides"}}
    for commit in run.commits:
        stored = known[commit.node]
        assert (stored.version, stored.patch, stored.branch) == (commit.version, commit.patch, commit.branch)
        assert abs(stored.started - commit.started) < 0.01
        assert stored.started > 1_600_000_000 or stored.node == "join:write", "a join is no agent's update"


def test_the_log_only_grows(desk: Desk) -> None:
    """S000-15: no later run, failure, manual commit or merge changes a line of it."""
    thread = desk.thread()
    thread.run({"topic": "tides"})
    commits, rows = thread.history(), list(desk.rows())
    desk.fails = "write"
    thread.run({"topic": "moons"})
    desk.fails = ""
    thread.run({"topic": "winds"}, if_open="abandon")
    thread.update({"text": "manual"}, as_node="write")
    other = thread.copy("other")
    other.update({"notes": "there"})
    thread.merge(other)
    assert desk.thread().history()[: len(commits)] == commits
    assert list(desk.rows())[: len(rows)] == rows


@pytest.mark.parametrize("forget", [False, True], ids=["with snapshots", "from the log alone"])
def test_on_resume_state_and_version_come_from_the_deltas(desk: Desk, forget: bool) -> None:
    """S000-16, S004-20."""
    desk.thread().run({"topic": "tides"})
    desk.fails = "write"
    run = desk.thread().run({"topic": "moons"})
    desk.fails = ""
    if forget:
        desk.forget()
    thread = desk.thread()
    assert thread.state == run.state == thread.at(8)
    resumed = thread.resume()
    assert [commit.version for commit in resumed.commits] == [5, 6, 7, 8, 9]
    assert resumed.state["notes"] == [
        *("tides read", "tides checked", "written"),
        *("moons read", "moons checked", "written"),
    ]
    assert sorted(desk.calls) == sorted([*AGENTS, *AGENTS, "write"])


def test_replay_is_deterministic_and_leads_to_any_version(desk: Desk) -> None:
    """S000-17, S000-18: other objects, with and without snapshots, compute the same states, and call no node."""
    for topic in ("tides", "moons", "winds"):
        desk.thread().run({"topic": topic})
    states = folded(desk.thread())
    calls = list(desk.calls)
    desk.forget()
    assert folded(desk.thread()) == states
    assert desk.thread().replay() == desk.thread().replay() == states[-1]
    assert [desk.thread().at(version) for version in range(len(states))] == states
    assert desk.calls == calls


def test_the_log_says_which_agent_changed_which_field_and_when(desk: Desk) -> None:
    """S000-19."""
    desk.thread().run({"topic": "tides"})
    desk.thread().run({"topic": "moons"})
    thread = desk.thread()
    for path, agent, version in [("text", "write", 9), ("found.read", "read", 6), ("found.check", "check", 7)]:
        commit = thread.blame(path)
        assert (commit.node, commit.version) == (agent, version), path
    written = {
        field: [(commit.version, commit.node) for commit in thread.history() if field in commit.patch and commit.branch]
        for field in ("notes", "found")
    }
    assert written == {field: [(1, "read"), (2, "check"), (6, "read"), (7, "check")] for field in ("notes", "found")}


def test_parallel_agents_share_the_state_and_reducers_lose_no_update(desk: Desk) -> None:
    """S000-24, S000-25: branches of one run, and concurrent runs of one thread."""
    for topic in ("tides", "moons"):
        desk.thread().run({"topic": topic})
    assert desk.thread().state["seen"] == 6
    children = [
        fork(lambda: [desk.thread().run({"topic": "winds"}, on_conflict="wait") for _ in range(4)]) for _ in range(2)
    ]
    assert [end_of(child) for child in children] == [0, 0]
    assert desk.thread().state["seen"] == 6 + 2 * 4 * 3
    assert len(desk.thread().state["notes"]) == 6 + 2 * 4 * 3


def size(value: Any) -> int:
    return len(json.dumps(value))


def plain(patch: Mapping[str, Any]) -> Any:
    return ImmutableState(patch).to_dict()


def test_an_agent_given_only_what_is_new_saves_tokens(desk: Desk) -> None:
    """S000-26, S000-27: three agents, each of which has last looked at another version."""
    thread = desk.thread()
    for turn in range(30):
        thread.run({"topic": f"topic {turn}"})
    last = thread.history()[-1].version
    assert last is not None
    for agent, behind in zip(AGENTS, (1, 2, 5), strict=True):
        looked = last - behind
        new = [commit for commit in thread.history() if (commit.version or 0) > looked]
        assert len(new) == behind, agent
        deltas = sum(size(plain(commit.patch)) for commit in new)
        assert deltas * 5 < size(thread.state.to_dict()), agent


def test_a_killed_run_is_resumed_from_the_recorded_deltas(desk: Desk) -> None:
    """S000-28, S004-28: the process is gone, the scratchpad is there, finished agents are not called again."""
    desk.thread().run({"topic": "tides"})
    desk.kills = "write"
    assert end_of(fork(lambda: desk.thread().run({"topic": "moons"}))) == -signal.SIGKILL
    desk.kills = ""
    desk.calls.clear()
    thread = desk.thread()
    assert thread.status == "crashed"
    assert thread.state["notes"] == ["tides read", "tides checked", "written", "moons read", "moons checked"]
    assert thread.resume().state["text"].endswith("moons read; moons checked")
    assert desk.calls == ["write"]


async def later(text: str) -> dict[str, Any]:
    return {"text": f"{text}!"}


def test_agents_of_stored_runs_may_be_async(tmp_path: Path) -> None:
    """S000-29."""
    graph = Graph().add_node("later", later, writes=["text"]).add_path(START, "later", END)
    thread = graph.compile(store=tmp_path / "runs.db").thread("t")
    assert thread.run({"text": "hey"}).state["text"] == "hey!"
    assert thread.run({"text": "you"}).state["text"] == "you!"


def test_no_state_is_written_in_addition_to_the_deltas(tmp_path: Path) -> None:
    """S000-30, S004-14: what no node touches is stored once, what grows is stored item by item."""
    mark = "a text that no node touches"

    class Log(BaseModel):
        about: str
        n: int = 0
        lines: Annotated[list[str], reducers.append] = []

    graph = Graph(Log).add_node("add", lambda n: {"n": n + 1, "lines": f"line {n}"}, writes=["n", "lines"])
    graph.add_edge(START, "add").add_conditional_edges("add", lambda n: "add" if n < 40 else END, ["add", END])
    store: Store = SQLite(tmp_path / "runs.db")
    thread = graph.compile(store=store).thread("t")
    thread.run({"about": mark})
    (run,) = store.runs("t")
    contents = [row.content.data.decode() for row in store.rows(run.id) if row.content is not None]
    assert sum(mark in content for content in contents) == 1
    assert [sum(f'"line {n}"' in content for content in contents) for n in range(40)] == [1] * 40
    store.close()


def test_events_are_json(desk: Desk) -> None:
    """S000-31: kinds are words, what they say is JSON, and it comes back equal."""
    desk.thread().run({"topic": "tides"})
    for row in desk.rows():
        assert row.kind.isidentifier()
        assert json.loads(json.dumps(row.header)) == row.header
        if row.content is not None:
            assert json.loads(row.content.data) is not None
    assert desk.thread().state == ImmutableState.from_json(desk.thread().state.to_json())


def test_a_finished_agent_and_the_main_agent_can_be_given_more_and_continue(tmp_path: Path) -> None:
    """S002-12, S002-13: multi-turn, each turn by another program; what was said before is there."""

    class Talk(BaseModel):
        said: Kept[Annotated[list[str], reducers.extend]] = []

    def reply(said: list[str]) -> dict[str, Any]:
        return {"said": [f"reply {len(said)}"]}

    helper = Graph(Talk, inputs=["said"]).add_node(reply, writes=["said"]).add_path(START, "reply", END)
    main = Graph(Talk, inputs=["said"]).add_node("helper", helper.compile()).add_path(START, "helper", END)
    for graph, name in ((helper, "helper"), (main, "main")):
        for turn in range(3):
            thread = graph.compile(store=tmp_path / "runs.db").thread(name)
            assert thread.status == ("completed" if turn else "new")
            assert thread.run({"said": [f"turn {turn}"]}).status == "completed"
        assert thread.state["said"] == ["turn 0", "reply 1", "turn 1", "reply 3", "turn 2", "reply 5"]


def test_a_long_run_is_branched_many_times_without_being_run_again(desk: Desk) -> None:
    """S002-17: from the end and from the middle; the source stays as it is."""
    for turn in range(10):
        desk.thread().run({"topic": f"topic {turn}"})
    source = desk.thread()
    before = source.state
    desk.calls.clear()
    branches = [source.copy(to=f"branch {n}", at=source.history()[5 * n].version) for n in range(10)]
    assert desk.calls == []
    assert [len(branch.history()) for branch in branches] == [5 * n + 1 for n in range(10)]
    for n, branch in enumerate(branches):
        desk.calls.clear()
        assert branch.resume().state["found"]["read"] == f"topic {n}"
        assert sorted(desk.calls) == sorted(AGENTS)
    assert desk.thread().state == before


def test_rewind_and_rerun(desk: Desk) -> None:
    """S002-37."""
    desk.thread().run({"topic": "tides"})
    desk.calls.clear()
    thread = desk.thread()
    run = thread.rerun(from_version=3)
    assert desk.calls == ["write"]
    assert run.status == "completed"
    assert [commit.version for commit in thread.history()] == [0, 1, 2, 3, 4]
    assert thread.at("t.1/trunk:2") == thread.state, "the old end can still be read"
