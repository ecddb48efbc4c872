"""Encrypted stores: without the key, no user value can be read or tested for."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, reducers
from dspyer.errors import StoreError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change, Row
from dspyer.stores.encrypted import VARIABLE, Encrypted
from dspyer.stores.postgres import Postgres
from dspyer.testing import StoreConformance
from tests.stores.bodies import unpacked
from tests.stores.kit import begin, content, run

pytestmark = pytest.mark.usefixtures("fork_server")

KEY = Encrypted.new_key()
OTHER = Encrypted.new_key()


class TestEncryptedSQLite(StoreConformance):
    test_every_kind_of_value_is_read_back: Any = None  # below, for the other stores

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with Encrypted(tmp_path / "runs.db", key=KEY) as store:
            yield store

    def opener(self, store: Store) -> Callable[[], Store]:
        return partial(Encrypted, store.address, key=KEY)


OTHERS = (
    pytest.param(
        StoreConformance.test_every_kind_of_value_is_read_back,
        marks=pytest.mark.slow("values of every kind, in two stores"),
    ),
    StoreConformance.test_no_mutable_data_is_shared_with_the_caller,
    StoreConformance.test_blobs_are_kept_while_something_refers_to_them,
)
"""The tests of what encryption changes: bytes, blobs, and what is equal."""


@pytest.mark.parametrize("test", OTHERS)
def test_other_stores_encrypted(test: Callable[[StoreConformance, Store], None], postgres: str) -> None:
    test(StoreConformance(), Encrypted(Memory(), key=KEY))
    with Encrypted(Postgres(postgres), key=KEY) as store:
        test(OnServer(), store)


class OnServer(StoreConformance):
    __test__ = False

    def opener(self, store: Store) -> Callable[[], Store]:
        return partial(Encrypted, store.address, key=KEY)


# --- what a lost file reveals

SECRETS: dict[str, Any] = {
    "input": "SECRET-in-an-input",
    "output": "SECRET-in-an-output",
    "long": "SECRET-in-a-long-text " * 2_000,
    "bytes": b"SECRET-in-bytes" * 2_000,
    "effect": "SECRET-in-an-effect",
    "question": "SECRET-in-a-question",
    "answer": "SECRET-in-an-answer",
    "item": "SECRET-in-an-item",
    "error": "SECRET-in-an-error",
    "list": "SECRET-in-a-list",
}


class State(BaseModel):
    q: str
    out: str = ""
    long: str = ""
    raw: bytes = b""
    effect: str = ""
    given: str = ""
    things: list[str] = []
    results: list[str] = []
    many: Annotated[list[str], reducers.extend] = []


def program_with_secrets(store: Store) -> CompiledGraph:
    def work(q: str, ctx: Any) -> dict[str, Any]:
        effect = ctx.once("charge", lambda: SECRETS["effect"])
        return {
            "out": SECRETS["output"],
            "long": SECRETS["long"],
            "raw": SECRETS["bytes"],
            "effect": effect,
            "things": [SECRETS["item"], "b"],
            "many": [SECRETS["list"]] * 600,
        }

    def ask(ctx: Any) -> dict[str, Any]:
        return {"given": ctx.interrupt("key", str(SECRETS["question"]), str)}

    def fail(given: str) -> dict[str, Any]:
        if given != "fine":
            raise RuntimeError(SECRETS["error"])
        return {}

    graph = Graph(State, inputs=["q"]).add_node("work", work, writes=["out", "long", "raw", "effect", "things", "many"])
    graph.add_map("each", lambda obj: obj + "!", over="things", item="obj", into="results")
    graph.add_node("ask", ask, writes=["given"]).add_node("fail", fail, writes=[])
    return graph.add_path(START, "work", "each", "ask", "fail", END).compile(store=store)


def write_secrets(store: Store) -> None:
    t = program_with_secrets(store).thread("t-42")
    assert t.run({"q": SECRETS["input"]}).status == "interrupted"
    assert t.resume({"key": SECRETS["answer"]}).status == "failed"
    u = program_with_secrets(store).thread("u")
    assert u.run({"q": SECRETS["input"]}).status == "interrupted"
    assert u.resume({"key": "fine"}).status == "completed"


def raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def test_the_file_contains_no_user_value(tmp_path: Path) -> None:
    plain, encrypted = tmp_path / "plain.db", tmp_path / "sealed.db"
    with SQLite(plain) as plainly:
        write_secrets(plainly)
    with Encrypted(encrypted, key=KEY) as store:
        write_secrets(store)
        assert program_with_secrets(store).thread("u").state["long"] == SECRETS["long"]
        assert program_with_secrets(store).thread("t-42").history()[1].patch["out"] == SECRETS["output"]

    def found(path: Path) -> set[str]:
        data = b"".join(part.read_bytes() for part in path.parent.glob(f"{path.name}*"))
        connection = sqlite3.connect(path)
        for (body,) in connection.execute("SELECT body FROM entry UNION ALL SELECT body FROM snapshot"):
            data += unpacked(body)
        connection.close()
        return {
            name for name, text in SECRETS.items() if (text if isinstance(text, bytes) else text.encode())[:30] in data
        }

    assert found(plain) == SECRETS.keys(), "the search finds what is there"
    assert not found(encrypted)
    ids = [blake2b(raw(value), digest_size=16).hexdigest() for value in SECRETS.values()]
    with SQLite(plain) as found_by_id:
        assert len(found_by_id.blobs(ids)) == 2
    with SQLite(encrypted) as not_found:
        assert not not_found.blobs(ids), "a known value is found by its id"
        assert not_found.threads() == ["t-42", "u"]


def test_the_structure_is_readable_without_the_key(tmp_path: Path) -> None:
    address = tmp_path / "sealed.db"
    with Encrypted(address, key=KEY) as store:
        write_secrets(store)
        names = [(commit.id, commit.node) for commit in program_with_secrets(store).thread("u").history()]
    with SQLite(address) as plainly:
        t = program_with_secrets(plainly).thread("u")
        assert t.status == "completed"
        assert [(commit.id, commit.node) for commit in t.history()] == names
        assert "<unreadable: commit trunk:0 of 'START' cannot be read" in repr(t.history()[0].patch)
        with pytest.raises(StoreError, match="cannot be read"):
            t.run({"q": "again"})


@pytest.mark.parametrize("key", [None, OTHER, [OTHER]], ids=["none", "another", "other ones"])
def test_a_wrong_or_missing_key_is_an_error(tmp_path: Path, key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    address = tmp_path / "sealed.db"
    with Encrypted(address, key=KEY) as store:
        write_secrets(store)
    with Encrypted(address, key=key) as store:
        t = program_with_secrets(store).thread("u")
        assert t.status == "completed"
        ways: list[dict[str, Any]] = [{}, {"if_open": "abandon"}]
        for way in ways:  # none of them may begin from nothing
            with pytest.raises(StoreError, match="there is no key" if key is None else "the key is not the one"):
                t.run({"q": "again"}, **way)
        with pytest.raises(StoreError, match="there is no key" if key is None else "the key is not the one"):
            _ = t.state  # an empty state would be a lie
        assert len(t.history()) == 5


def test_a_program_that_forgets_the_encryption_is_told_so(tmp_path: Path) -> None:
    address = tmp_path / "sealed.db"
    with Encrypted(address, key=KEY) as store:
        write_secrets(store)
    with SQLite(address) as plain:
        t = program_with_secrets(plain).thread("u")
        with pytest.raises(StoreError, match=r"the value is encrypted: give compile\(store=Encrypted"):
            _ = t.state
        with pytest.raises(StoreError, match="the value is encrypted"):
            t.run({"q": "again"})


def test_keys_are_changed_by_a_new_first_key(tmp_path: Path) -> None:
    address = tmp_path / "sealed.db"
    with Encrypted(address, key=KEY) as store:
        write_secrets(store)
    with Encrypted(address, key=[OTHER, KEY]) as store:
        t = program_with_secrets(store).thread("u")
        assert t.state["long"] == SECRETS["long"]
        assert t.run({"q": "again"}).status == "interrupted"
        assert t.resume({"key": "fine"}).status == "completed"
    with Encrypted(address, key=[KEY]) as store, pytest.raises(StoreError, match="the key is not the one"):
        program_with_secrets(store).thread("u").run({"q": "again"})


def test_keys_come_from_the_environment_and_are_not_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "sealed.db"
    with Encrypted(address, key=KEY) as store:
        write_secrets(store)
        pickled = pickle.dumps(store)
    assert KEY.encode() not in pickled
    monkeypatch.setenv(VARIABLE, f"{OTHER},{KEY}")
    with pickle.loads(pickled) as store:
        assert program_with_secrets(store).thread("u").state["out"] == SECRETS["output"]


def test_keys_of_another_length_are_errors() -> None:
    keys: list[Any] = ["short", b"short", "x" * 44, b"\xff" * 31]
    for key in keys:
        with pytest.raises(ValueError, match=r"a key has 32 bytes.*Encrypted.new_key\(\)"):
            Encrypted(":memory:", key=key)


def test_contents_moved_to_another_row_are_refused() -> None:
    """To another place, and to the same place of another run."""
    inner = Memory()
    store = Encrypted(inner, key=KEY)
    begin(store, "t", "a", 2)
    first, second = inner.rows("a")
    swapped = first._replace(content=second.content), second._replace(content=first.content)
    for name, rows in {"b": swapped, "c": (first, second)}.items():
        inner.write(Change(run=run(name), rows_of=name, rows=rows))
    for row in (*store.rows("b"), *store.rows("c")):
        assert row.content is not None
        with pytest.raises(StoreError, match="the key is not the one that encrypted it, or its bytes were"):
            row.content.value(store.blobs)


def test_equal_values_differ_by_row_and_repeated_writes_are_recognized() -> None:
    inner = Memory()
    store = Encrypted(inner, key=KEY)
    same = content({"a": "same"})
    change = Change(run=run("a"), rows_of="a", rows=(Row(0, "x", {}, same), Row(1, "x", {}, same)))
    store.write(change)
    store.write(change)
    first, second = [row.content for row in inner.rows("a")]
    assert first != second


def test_unencrypted_contents_are_an_error(tmp_path: Path) -> None:
    address = tmp_path / "plain.db"
    with SQLite(address) as plain:
        write_secrets(plain)
    with Encrypted(address, key=KEY) as store, pytest.raises(StoreError, match=r"written without Encrypted\(...\)"):
        program_with_secrets(store).thread("u").run({"q": "again"})
