"""`program.recover()`: the runs of killed processes go on, each once, whoever asks."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, CompiledGraph, Graph
from dspyer.errors import ThreadError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import ListedRun, RunQuery
from tests.children import Child, run_python
from tests.threads.owned_runs import BackgroundRun, Clock, Gate, gated
from tests.threads.test_leases import set_owner_on_another_host

MAILS = """
import json, os, signal, sys
from dspyer import END, START, Graph

def note(line):
    with open("calls", "a") as file:
        file.write(line + "\\n")

def write(customer):
    note("write " + customer)
    return {"draft": "Dear " + customer}

def send(customer):
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    note("send " + customer)
    if customer == "Mallory":
        raise ConnectionError("no answer")
    return {"sent": True}

def program(name="Mails"):
    graph = Graph(name=name, inputs=["customer"]).add_node("write", write, writes=["draft"])
    graph.add_node("send", send, writes=["sent"])
    path = ["write", "send"]
    if sys.argv[-1] == "Old":  # a version of the graph that the later one does not fit
        graph.add_node("log", lambda: {}, writes=[])
        path.append("log")
    return graph.add_path(START, *path, END).compile(store="runs.db")

if sys.argv[1] == "die":
    program(sys.argv[2]).thread(sys.argv[3]).run({"customer": sys.argv[4]})
if sys.argv[1] == "recover":
    print("ready")
    sys.stdin.readline()
    print(json.dumps(program().recover()))
"""


def crash(folder: Path, thread: str, customer: str = "Ada", graph: str = "Mails") -> None:
    assert run_python(MAILS, "die", graph, thread, customer, cwd=folder).returncode == -9


def recovered(child: Child) -> list[str]:
    child.stdin.write("\n")
    child.stdin.flush()
    found: list[str] = json.loads(child.stdout.readline())
    assert child.wait() == 0
    return found


def begun(folder: Path) -> Child:
    child = Child(MAILS, "recover", cwd=folder)
    assert child.stdout.readline() == "ready\n"
    return child


def calls(folder: Path) -> Counter[str]:
    return Counter((folder / "calls").read_text().splitlines())


def letters(store: Any, send: Any = None) -> CompiledGraph:
    graph = Graph(name="Mails", inputs=["customer"]).add_node("write", lambda customer: {}, writes=["draft"])
    graph.add_node("send", send or (lambda customer: {"sent": True}), writes=["sent"])
    return graph.add_path(START, "write", "send", END).compile(store=store)


def test_crashed_runs_of_the_graph_go_on_and_all_others_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crash(tmp_path, "a")
    crash(tmp_path, "b", "Mallory")
    crash(tmp_path, "of another graph", graph="Letters")
    program = letters(SQLite(tmp_path / "runs.db"))
    program.thread("a").copy(to="copy of a")

    def fails(customer: str) -> dict[str, Any]:
        raise ConnectionError

    letters(SQLite(tmp_path / "runs.db"), fails).thread("failed").run({"customer": "Eve"})
    program.thread("done").run({"customer": "Eve"})
    others = ("copy of a", "of another graph", "failed", "done")
    before = {name: program.thread(name).status for name in others}
    assert before == {"copy of a": "crashed", "of another graph": "crashed", "failed": "failed", "done": "completed"}
    assert sorted(recovered(begun(tmp_path))) == ["a", "b"]  # also the one that fails
    assert (program.thread("a").status, program.thread("b").status) == ("completed", "failed")
    assert calls(tmp_path) == {"write Ada": 2, "write Mallory": 1, "send Ada": 1, "send Mallory": 1}  # Ada's: two runs
    assert {name: program.thread(name).status for name in others} == before
    caplog.clear()
    assert (program.recover(), caplog.records) == ([], [])


def test_each_run_goes_to_one_of_two_processes(tmp_path: Path) -> None:
    names = [f"m-{number}" for number in range(8)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: crash(tmp_path, name, name), names))
    children = [begun(tmp_path) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(recovered, children)
    assert sorted(first + second) == names
    assert calls(tmp_path) == Counter([f"{call} {name}" for name in names for call in ("write", "send")])


class LateStore(Memory):
    """Lets another process be faster: between the list of the crashed runs and the resume of one."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Any = lambda: None

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        found = super().list_runs(query)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return found


def crashed_store() -> LateStore:
    """A store with a run whose owner, on another host, has 30 s left."""
    gate, store = Gate(), LateStore()
    running = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    set_owner_on_another_host(store)
    gate.opened.set()
    running.wait()
    return store


@pytest.mark.parametrize("status", ["failed", "completed"])
def test_a_run_that_another_process_takes_first_is_left_out(status: str, late_clock: Clock) -> None:
    """Also if it has failed there since: it would be called again without a crash."""
    store = crashed_store()
    made: list[int] = []

    def work(state: Any) -> dict[str, Any]:
        made.append(1)
        if status == "failed":
            raise ConnectionError
        return {"log": ["gate"]}

    program = gated(Gate(), store, work)
    assert program.recover() == []  # its lease has not ended
    late_clock.ahead += 31
    store.meanwhile = lambda: program.thread("t").resume()
    assert program.recover() == []
    assert (program.thread("t").status, made) == (status, [1])


def test_a_run_that_cannot_go_on_is_logged_and_keeps_no_other_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, customer in (("a", "Ada"), ("b", "Old"), ("c", "Ada")):
        crash(tmp_path, name, customer)
    assert sorted(letters(SQLite(tmp_path / "runs.db")).recover()) == ["a", "c"]
    assert "the run of thread 'b' cannot be resumed" in caplog.text


def test_a_program_without_a_store_has_nothing_to_recover() -> None:
    with pytest.raises(ThreadError, match="compiled without a store"):
        letters(None).recover()
