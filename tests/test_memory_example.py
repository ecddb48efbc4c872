"""The class `Memory` of examples/memory.py: what is read and written once, after a crash too; what is forgotten."""

from __future__ import annotations

import runpy
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph.store.sqlite import SqliteStore

from dspyer import END, START, CompiledGraph, Context, Graph
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork

EXAMPLE = Path(__file__).parent.parent / "examples" / "memory.py"
PATIENCE = 20.0


@pytest.fixture(scope="module")
def classes() -> dict[str, Any]:
    """The classes and functions of the example."""
    return runpy.run_path(str(EXAMPLE))


class Counting:
    """A store of the example that notes its calls; may fail or end the process after a write has taken effect."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.calls: list[str] = []
        self.after_put: Callable[[], None] = lambda: None

    def search(self, user: str, query: str, limit: int) -> list[str]:
        self.calls.append("search")
        found: list[str] = self.store.search(user, query, limit)
        return found

    def put(self, user: str, key: str, text: str) -> None:
        self.calls.append("put")
        self.store.put(user, key, text)
        self.after_put()

    def delete(self, user: str) -> None:
        self.store.delete(user)


class Service(NamedTuple):
    """A program with a memory."""

    program: CompiledGraph
    memory: Any
    store: Counting
    runs: FailingSQLite
    opened: Callable[[], tuple[Any, sqlite3.Connection]]
    connection: sqlite3.Connection

    def reopen(self) -> None:
        """In another process: SQLite's connections are not for both."""
        self.store.store, _ = self.opened()

    def texts(self, user: str) -> list[str]:
        return sorted(self.store.store.search(user, "likes drinks", 100))


def opened(kind: str, path: Path, classes: dict[str, Any]) -> tuple[Any, sqlite3.Connection]:
    """A store of the example, and its connection. Nothing waits for the disk: no test cuts the power."""
    if kind == "words":
        found = classes["InSQLite"](path / "words.db")
        connection = found.db
    else:
        connection = sqlite3.connect(path / "memories.db", check_same_thread=False, isolation_level=None)
        store = SqliteStore(connection)
        store.setup()
        found = classes["InLangGraph"](store)
    connection.execute("PRAGMA synchronous = OFF")
    return found, connection


def program_of(memory_class: type, runs: FailingSQLite, bank: list[bool]) -> CompiledGraph:
    """Recalls, remembers, and may then fail, all in one node: whatever is repeated is repeated together."""

    def talk(user: str, said: str, memory: Any, ctx: Context) -> dict[str, Any]:
        known = memory.recall(ctx, user, "likes drinks")
        memory.remember(ctx, user, said)
        if not bank[0]:
            raise ConnectionError("no line")
        agreed = ctx.interrupt("agree", "Is that right?")
        return {"known": known, "agreed": agreed}

    talk.__annotations__["memory"] = memory_class
    graph = Graph(inputs=["user", "said"], name="Talk").add_node(talk, writes=["known", "agreed"])
    return graph.add_path(START, "talk", END).compile(store=runs)


@pytest.fixture(params=["langgraph", "words"])
def service(request: pytest.FixtureRequest, tmp_path: Path, classes: dict[str, Any]) -> Iterator[Service]:
    another = partial(opened, request.param, tmp_path, classes)
    store, connection = another()
    counting = Counting(store)
    memory = classes["Memory"](counting)
    with closing(connection), FailingSQLite(tmp_path / "runs.db") as runs:
        yield Service(program_of(classes["Memory"], runs, [True]), memory, counting, runs, another, connection)


def test_what_was_read_and_written_is_not_repeated(classes: dict[str, Any], service: Service) -> None:
    bank = [False]
    program = program_of(classes["Memory"], service.runs, bank)
    service.store.put("ada", "0" * 64, "likes old books")
    service.store.calls.clear()
    thread, given = program.thread("ada/1"), [service.memory]
    assert thread.run({"user": "ada", "said": "likes tea"}, resources=given).status == "failed"
    service.store.put("ada", "f" * 64, "likes what came later")
    assert thread.resume(resources=given).status == "failed"
    bank[0] = True
    assert thread.resume(resources=given).status == "interrupted"
    copied = thread.copy(to="ada/2")
    for one in (thread, copied):
        run = one.resume({"agree": True}, resources=given)
        assert (run.status, list(run.state["known"])) == ("completed", ["likes old books"])
        assert one.replay() == run.state
    assert service.store.calls == ["search", "put", "put"]  # the second put is the test's own
    assert service.texts("ada") == ["likes old books", "likes tea", "likes what came later"]
    again = thread.rerun(from_version=0, resources=given)
    assert (again.status, service.store.calls[3:]) == ("interrupted", ["search", "put"])
    assert len(service.texts("ada")) == 3, "an equal text is kept once"


def test_killed_between_the_write_and_its_record(service: Service) -> None:
    """The write had taken effect: it is made again under the same id. What was read is not read again."""
    inputs, given = {"user": "ada", "said": "likes tea"}, [service.memory]

    def child() -> None:
        service.reopen()
        service.store.after_put = kill
        service.program.thread("ada/1").run(inputs, resources=given)

    assert end_of(fork(child)) == -signal.SIGKILL
    assert service.texts("ada") == ["likes tea"]
    run = service.program.thread("ada/1").resume(resources=given)
    assert (run.status, service.store.calls) == ("interrupted", ["put"])
    assert service.texts("ada") == ["likes tea"]
    run = service.program.thread("ada/1").resume({"agree": True}, resources=given)
    assert (list(run.state["known"]), service.store.calls) == ([], ["put"])


@pytest.mark.slow("as many killed processes as a run has writes")
@pytest.mark.parametrize("service", ["words"], indirect=True)  # which runs are killed does not depend on it
def test_killed_after_every_write_to_the_store_of_runs(service: Service) -> None:
    given = [service.memory]
    for at in range(1, 100):
        user = f"user{at}"
        thread = service.program.thread(f"{user}/1")

        def child(at: int = at, thread: Any = thread, user: str = user) -> None:
            service.reopen()
            service.runs.arm(kill, at, after=True)
            thread.run({"user": user, "said": "likes tea"}, resources=given)

        if end_of(fork(child)) == 0:
            break
        if thread.status == "crashed":
            service.store.calls.clear()
            run = thread.resume(resources=given)
            assert run.status == "interrupted"
            assert len(service.store.calls) == len(set(service.store.calls))
        run = thread.resume({"agree": True}, resources=given)
        assert (run.status, list(run.state["known"]), service.texts(user)) == ("completed", [], ["likes tea"])
    assert at > 4


def test_users_are_kept_apart_and_equal_texts_of_two_users_too(service: Service) -> None:
    for user in ("ada", "ada2", "ad", "Ada"):
        service.program.thread(f"{user}/1").run({"user": user, "said": "likes tea"}, resources=[service.memory])
    assert [service.texts(user) for user in ("ada", "ada2", "ad", "Ada")] == [["likes tea"]] * 4
    service.memory.forget("ada")
    assert [service.texts(user) for user in ("ada", "ada2", "ad", "Ada")] == [[]] + [["likes tea"]] * 3


def test_two_users_never_share_the_id_of_a_text(service: Service) -> None:
    for user, said in (("ada", "likes\ntea"), ("ada\nlikes", "tea")):
        service.program.thread(f"{user}/1").run({"user": user, "said": said}, resources=[service.memory])
    assert (service.store.store.search("ada", "likes", 9), service.store.store.search("ada\nlikes", "tea", 9)) == (
        ["likes\ntea"],
        ["tea"],
    )


def test_the_key_of_an_effect_as_the_id(service: Service, classes: dict[str, Any]) -> None:
    def keep(said: str, store: Any, ctx: Context) -> dict[str, Any]:
        for number in range(3):
            ctx.once(f"text {number}", lambda key, number=number: store.put("ada", key, f"{said} {number}"))
        return {}

    keep.__annotations__["store"] = Counting
    graph = Graph(inputs=["said"], name="Keep").add_node(keep, writes=[]).add_path(START, "keep", END)
    graph.compile(store=":memory:").thread("ada/1").run({"said": "likes"}, resources=[service.store])
    assert service.texts("ada") == ["likes 0", "likes 1", "likes 2"]


def test_forgotten_while_another_process_is_about_to_remember(
    service: Service, tmp_path: Path, classes: dict[str, Any]
) -> None:
    """The node that is at work keeps one text, and the next `forget` deletes it."""
    forget = partial(classes["forget"], program=service.program, memory=service.memory)
    inside, go = tmp_path / "inside", tmp_path / "go"

    def wait_for(path: Path) -> None:
        until = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < until
            time.sleep(0.01)

    def child() -> None:
        service.reopen()
        put = service.store.put

        def late(user: str, key: str, text: str) -> None:
            inside.touch()
            wait_for(go)
            put(user, key, text)

        service.store.put = late  # type: ignore[method-assign]
        inputs = {"user": "ada", "said": "likes tea"}
        run = service.program.thread("ada/1").run(inputs, resources=[service.memory])
        assert "does not exist any more" in str(run.error)

    process = fork(child)
    wait_for(inside)
    assert (forget("ada"), service.program.threads()) == ([], [])
    go.touch()
    assert end_of(process) == 0
    assert (service.program.threads(), service.texts("ada")) == ([], ["likes tea"])
    assert (forget("ada"), service.texts("ada")) == ([], [])


def test_no_byte_of_a_forgotten_text_is_left(service: Service, tmp_path: Path) -> None:
    """After `VACUUM`, also in the index of words."""
    service.program.thread("ada/1").run({"user": "ada", "said": "likes zyxwvut"}, resources=[service.memory])
    service.program.thread("bob/1").run({"user": "bob", "said": "likes tea"}, resources=[service.memory])
    files = [path for name in ("memories.db", "words.db") for path in tmp_path.glob(f"{name}*")]
    assert any(b"zyxwvut" in path.read_bytes() for path in files)
    service.memory.forget("ada")
    service.connection.execute("VACUUM")
    service.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not any(b"zyxwvut" in path.read_bytes() for path in files if path.exists())
    assert service.texts("bob") == ["likes tea"]


def test_many_memories_of_one_user_are_forgotten(service: Service) -> None:
    for number in range(205):
        service.store.store.put("ada", f"{number:064x}"[::-1], f"likes {number}")
    assert len(service.store.store.search("ada", "likes", 1000)) == 205
    service.memory.forget("ada")
    assert service.store.store.search("ada", "likes", 1000) == []


def test_writes_of_several_threads_at_once(service: Service) -> None:
    def run(number: int) -> None:
        thread = service.program.thread(f"ada/{number}")
        thread.run({"user": "ada", "said": f"likes {number % 10}"}, resources=[service.memory])

    runs = [threading.Thread(target=run, args=[number]) for number in range(20)]
    for one in runs:
        one.start()
    for one in runs:
        one.join(PATIENCE)
    assert service.texts("ada") == [f"likes {number}" for number in range(10)]


@pytest.mark.parametrize("query", ['"', "a AND", "NEAR(", "", "?*", "user:bob", "-tea", "l'été; DROP TABLE memories"])
def test_any_text_is_a_query(query: str, tmp_path: Path, classes: dict[str, Any]) -> None:
    words = classes["InSQLite"](tmp_path / "words.db")
    with closing(words.db):
        words.put("bob", "1" * 64, "tea table user bob été")
        assert words.search("ada", query, 5) == []
        assert words.search("bob", "ÉTÉ", 5) == ["tea table user bob été"]


def test_forget_deletes_threads_and_memories_and_names_what_is_left(service: Service, classes: dict[str, Any]) -> None:
    """The function `forget` of the example, over threads of one user, of others, at work, and copies."""
    forget = partial(classes["forget"], program=service.program, memory=service.memory)
    for name in ("ada/1", "ada/2", "ada2/1", "ad/1", "x/ada/1"):
        user = name.partition("/")[0]
        service.program.thread(name).run({"user": user, "said": "likes tea"}, resources=[service.memory])
    other = Graph(name="Other").add_node("echo", lambda said: {"reply": said}, writes=["reply"])
    other.add_path(START, "echo", END).compile(store=service.runs).thread("ada/other").run({"said": "likes tea"})
    service.program.thread("ada/1").copy(to="ada/1 copy")
    service.program.thread("ada/2").copy(to="to look at")
    assert forget("ada") == ["to look at"]
    assert service.program.threads() == ["ad/1", "ada2/1", "to look at", "x/ada/1"]
    assert (service.texts("ada"), service.texts("ada2")) == ([], ["likes tea"])
    assert forget("ada") == []

    inside, go = threading.Event(), threading.Event()
    recall = service.store.search

    def search(user: str, query: str, limit: int) -> list[str]:
        inside.set()
        assert go.wait(PATIENCE)
        return recall(user, query, limit)

    service.store.search = search  # type: ignore[method-assign]
    inputs = {"user": "ad", "said": "likes milk"}
    thread = service.program.thread("ad/2")
    run = threading.Thread(target=lambda: thread.run(inputs, resources=[service.memory]))
    run.start()
    assert inside.wait(PATIENCE)
    service.program.thread("ad/1").copy(to="of ad, to look at")
    assert forget("ad") == ["of ad, to look at"]
    go.set()
    run.join(PATIENCE)
    assert [name for name in service.program.threads() if name.startswith("ad/")] == []
    assert (service.texts("ad"), service.store.calls.count("put")) == ([], 5), "it remembers nothing more"
