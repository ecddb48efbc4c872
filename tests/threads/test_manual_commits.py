"""Manual commits: after a finished run, in an open run, with a node as author, at the start of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import DELETE, END, START, CompiledGraph, Context, Graph, Kept, Run, Thread, reducers
from dspyer.errors import ConcurrentRunError, NodeOutputError, OpenRunError, ThreadError
from dspyer.stores import Memory
from dspyer.stores.base import Change


class Mail(BaseModel):
    q: str = "q"
    draft: Kept[str] = ""
    n: Kept[Annotated[int, reducers.increment]] = 0
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    log: Kept[Annotated[list[str], reducers.extend]] = []


class Office:
    """A graph that a test can let fail at a node: write, then send or write again, and send next to a copy."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bad: set[str] = set()
        self.charged = 0
        self.store: Memory = Memory()

    def node(self, name: str, update: dict[str, Any]) -> Any:
        def work(draft: str, ctx: Context) -> dict[str, Any]:
            self.calls.append(name)
            if name == "send":
                ctx.once("charge", self.charge)
            if name in self.bad:
                raise RuntimeError(name)
            return {**update, "log": [f"{name} {draft}"]}

        return work

    def charge(self) -> int:
        self.charged += 1
        return self.charged

    def program(self) -> CompiledGraph:
        graph = Graph(Mail)
        graph.add_node("write", self.node("write", {"draft": "v1", "n": 1}), writes=["draft", "n", "log"])
        graph.add_node("send", self.node("send", {}), writes=["log"])
        graph.add_node("file", self.node("file", {}), writes=["log"])
        graph.add_node("done", self.node("done", {}), writes=["log"])
        graph.add_edge(START, "write").add_conditional_edges(
            "write", lambda draft: "write" if draft == "again" else "send", ["write", "send"]
        )
        graph.add_edge("send", ["file", "done"]).add_edge(["file", "done"], END)
        return graph.compile(store=self.store)

    def thread(self) -> Thread:
        return self.program().thread("t")

    def failed(self, node: str) -> Thread:
        thread = self.thread()
        self.bad.add(node)
        assert thread.run({}).status == "failed"
        self.bad.clear()
        self.calls.clear()
        return thread


def test_a_manual_commit_after_a_finished_run_opens_no_run() -> None:
    thread = Office().thread()
    made = thread.update({"draft": "v0"})  # a thread without any run gets its defaults with it
    assert (made.version, made.node, thread.status, thread.state["n"]) == (0, "update", "completed", 0)
    thread.run({})
    before = thread.history()
    made = thread.update({"draft": "v2", "n": 5})
    assert (made.id, made.node, made.version, made.patch) == ("t.3/trunk:0", "update", 7, {"draft": "v2", "n": 5})
    assert made.started > before[-1].started
    assert thread.status == "completed"
    assert (thread.state["draft"], thread.state["n"]) == ("v2", 6)
    assert thread.blame("draft") == made
    assert thread.history() == [*before, made]
    assert thread.run({}).state["n"] == 7
    assert thread.replay() == thread.state


def test_manually_added_messages_have_unique_ids() -> None:
    office = Office()
    thread = office.failed("send")
    for _ in range(2):
        thread.update({"said": [{"role": "user", "content": "hi"}]})
    assert thread.resume().status == "completed"
    thread.update({"said": [{"role": "user", "content": "hi"}]})
    assert len({message["id"] for message in thread.state["said"]}) == 3


@pytest.mark.parametrize("patch", [{"draft": 3}, {"unknown": 1}, {"n": "many"}])
def test_a_manual_commit_is_validated_like_the_output_of_a_node(patch: dict[str, Any]) -> None:
    office = Office()
    thread = office.failed("send")
    before = thread.history()
    for change in (
        lambda: thread.update(patch),
        lambda: thread.update(patch, as_node="write"),
        lambda: thread.copy("c", patch=patch),
    ):
        with pytest.raises(NodeOutputError):
            change()
    assert thread.history() == before
    assert office.program().thread("c").status == "new"


def test_in_an_open_run_a_manual_commit_comes_before_the_next_node() -> None:
    office = Office()
    thread = office.failed("send")
    assert office.charged == 1
    first = thread.update({"draft": "v2"})
    second = thread.update({"draft": "v3"})
    assert (first.id, second.id, second.parents) == ("t.2/trunk:1+1", "t.3/trunk:1+2", ("t.2/trunk:1+1",))
    assert (second.version, second.node, thread.status) == (3, "update", "failed")
    assert thread.state["draft"] == "v3"
    with pytest.raises(OpenRunError):
        thread.run({})
    run = thread.resume()
    assert office.calls == ["send", "file", "done"] or office.calls == ["send", "done", "file"]
    assert office.charged == 1  # the execution is the same, and so are its effects
    assert run.state["log"] == ["write ", "send v3", "file v3", "done v3"]
    assert [commit.version for commit in thread.history()] == list(range(8))
    assert run.at(3) == thread.at(3)
    assert thread.replay() == thread.state


def test_a_manual_commit_inside_a_fork_is_refused() -> None:
    office = Office()
    thread = office.failed("file")
    for node in (None, "write"):
        with pytest.raises(ThreadError, match=r"2 branches .* Nearest versions with one branch: 1"):
            thread.update({"draft": "x"}, as_node=node)
    run = thread.resume()
    with pytest.raises(ThreadError, match=r"branches .* Nearest versions with one branch: 1 and 5"):
        thread.copy("c", at=3, patch={"draft": "x"})
    assert run.status == "completed"
    assert thread.copy("c", at=3).resume().state == run.state


def test_a_commit_as_the_node_that_forked_begins_all_branches_anew() -> None:
    office = Office()
    office.bad = {"file", "done"}
    thread = office.thread()
    assert thread.run({}).status == "failed"  # both branches, before any commit of theirs
    office.bad.clear()
    for one in (None, "file"):
        with pytest.raises(ThreadError, match=r"2 branches .* Or correct what 'send' has written: .*as_node='send'"):
            thread.update({"n": 5}, as_node=one)
    copy = thread.copy("c", at=2)
    for corrected in (thread, copy):
        corrected.update({"draft": "v2"}, as_node="send")
        office.calls.clear()
        run = corrected.resume()
        assert sorted(office.calls) == ["done", "file"]
        assert run.state["log"] == ["write ", "send v1", "file v2", "done v2"]
        assert corrected.blame("draft").node == "send"
        assert corrected.replay() == run.state


def test_after_a_commit_as_a_node_the_next_resume_asks_its_routers() -> None:
    office = Office()
    thread = office.failed("send")
    before = thread.history()
    made = thread.update({"draft": "again"}, as_node="write")
    assert (made.node, made.version, thread.status) == ("write", 2, "stopped")
    assert thread.state["draft"] == "again"
    assert office.calls == []
    assert thread.history() == [*before, made]
    with pytest.raises(OpenRunError):
        thread.run({})
    run = thread.resume()
    assert [commit.node for commit in run.commits][:3] == ["write", "write", "send"]
    assert thread.history()[: len(before)] == before
    after = thread.history()[len(before)]
    assert (after.id, after.version, after.patch, after.started) == (made.id, 2, made.patch, made.started)
    assert thread.state["log"][0] == "write "
    assert thread.replay() == thread.state == run.state


def test_as_node_starts_a_new_thread_in_the_middle() -> None:
    office = Office()
    thread = office.thread()
    thread.update({"draft": "mine"}, as_node="write")
    assert thread.resume().state["log"] == ["send mine", "file mine", "done mine"]
    thread.update({}, as_node="write")
    assert thread.resume().status == "completed"
    with pytest.raises(ThreadError, match=r"no node of graph .* did you mean 'write'|no node of graph"):
        thread.update({}, as_node="wrote")


def test_a_copy_can_begin_with_a_manual_commit() -> None:
    office = Office()
    thread = office.thread()
    whole = thread.run({})
    thread.run({})
    state = thread.state
    inside = thread.copy("inside", at=1, patch={"draft": "other"})
    assert (inside.status, inside.state["draft"]) == ("stopped", "other")
    assert [commit.node for commit in inside.history()] == ["START", "write", "update"]
    assert inside.resume().state["log"] == ["write ", "send other", "file other", "done other"]
    end = next(commit.version for commit in thread.history() if commit.id == f"t.1/{whole.commits[-1].id}")
    rest = thread.copy("rest", at=end, patch={"draft": DELETE})
    assert (rest.status, rest.state["draft"]) == ("completed", "")
    assert rest.at(end or 0) == thread.at(end or 0)
    assert rest.blame("draft").version == (end or 0) + 1
    assert rest.run({}).status == "completed"
    now = thread.copy("now", patch={"n": 1})
    assert now.state["n"] == state["n"] + 1
    assert thread.state == state


def test_a_running_run_refuses_manual_commits() -> None:
    office = Office()
    found: list[Exception] = []
    changes: list[Callable[[], object]] = [lambda: office.thread().update({"n": 1}), lambda: office.thread().rerun(0)]

    def meddle(draft: str) -> dict[str, Any]:
        for change in changes:
            try:
                change()
            except ConcurrentRunError as error:
                found.append(error)
        return {}

    graph = Graph(Mail).add_node("write", meddle).add_path(START, "write", END)
    run: Run = graph.compile(store=office.store).thread("t").run({})
    assert run.status == "completed"
    assert len(found) == 2


class Between(Memory):
    """Calls a function of the test once, before the next write."""

    before: Callable[[], object] | None = None

    def write(self, change: Change) -> int:
        act, self.before = self.before, None
        if act is not None:
            act()
        return super().write(change)


def test_of_two_concurrent_manual_commits_the_first_wins() -> None:
    office = Office()
    office.store = store = Between()
    thread = office.thread()
    thread.run({})
    store.before = lambda: office.thread().update({"n": 1})
    with pytest.raises(ConcurrentRunError):
        thread.update({"n": 10})
    assert thread.state["n"] == 2


def test_a_run_that_forks_at_once_has_no_version_to_change() -> None:
    graph = (
        Graph(inputs=["n"]).add_node("bad", lambda n: n / 0, writes=["a"]).add_node("good", lambda n: None, writes=[])
    )
    graph.add_edge(START, ["bad", "good"]).add_edge(["bad", "good"], END)
    thread = graph.compile(store=Memory()).thread("t")
    assert thread.run({"n": 1}).status == "failed"
    with pytest.raises(ThreadError, match=r"No version has one branch alone: .*start another run with thread\.run"):
        thread.copy("c", at=0, patch={"n": 2})
