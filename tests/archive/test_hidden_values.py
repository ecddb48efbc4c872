"""An archive hides what the program of each run hides, or what it is told to; the store has it whole."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import END, START, Archive, Context, Graph, Retry, live, reducers
from dspyer.stores import Memory
from tests.children import run_python
from tests.log.counting import Counting
from tests.rows import each

SECRET = "s3cret-key"


def by_function(path: tuple[Any, ...], value: Any) -> Any:
    return "***" if path == ("key",) else value


def refuse(copied: str) -> None:
    raise ValueError(copied)


def graph() -> Graph:
    def login(key: str, ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise ConnectionError(f"{key} is refused")
        return {"user": "Ada", "copied": f"<{key}>"}

    made = Graph(name="Login", inputs=["key"]).add_node(
        "login", login, writes=["user", "copied"], retry=Retry(2, wait=wait_none())
    )
    made.add_interrupt("ok", question="Is {user} right?", answer=str, into="said")
    made.add_node("end", refuse, writes=[])
    return made.add_path(START, "login", "ok", "end", END)


def shown(archive: Archive) -> dict[str, Any]:
    record = archive.thread("t").record()
    values = [{name: one.value for name, one in step.wrote.items()} for step in record.steps]
    return {
        "values": values,
        "failed": [failure.message for step in record.steps for failure in step.failed],
        "listed": [info.failure and (info.failure.type, info.failure.message) for info in archive.runs()],
        "answered": [answer.value for answer in record.answers()],
        "found": len(archive.runs(contains="<")),
    }


HIDDEN = "[redacted]"
ALL = {"key": HIDDEN}, {"user": HIDDEN, "copied": HIDDEN}, {"said": HIDDEN}
BY_PATTERN = {"key": HIDDEN}, {"user": "Ada", "copied": f"<{HIDDEN}>"}
BY_FUNCTION = {"key": "***"}, BY_PATTERN[1]
WHOLE = {"key": SECRET}, {"user": "Ada", "copied": f"<{SECRET}>"}

ROWS: dict[str, tuple[Any, Any, tuple[Any, ...], str, int]] = {
    "what the program hides": (["key"], None, BY_PATTERN, f"{HIDDEN} is refused", 1),
    "of a function, no values": (by_function, None, ALL, HIDDEN, 0),
    "another rule": (["user"], ["key"], BY_PATTERN, f"{HIDDEN} is refused", 1),
    "a function": (
        ["user"],
        by_function,
        ({"key": "***"}, {"user": "Ada", "copied": f"<{HIDDEN}>"}),
        f"{HIDDEN} is refused",
        1,
    ),
    "nothing": (["key"], False, WHOLE, f"{SECRET} is refused", 1),
    "nothing of a function": (by_function, False, WHOLE, f"{SECRET} is refused", 1),
    "a rule for a program without one": (None, "key", BY_PATTERN, f"{HIDDEN} is refused", 1),
}


@each(("redact", "rule", "values", "message", "found"), ROWS.values(), ROWS)
def test_an_archive_hides_what_the_program_hides_or_what_it_is_told(
    redact: Any, rule: Any, values: tuple[Any, ...], message: str, found: int
) -> None:
    store = Memory()
    thread = graph().compile(store=store, redact=redact).thread("t")
    thread.run({"key": SECRET})
    thread.resume({"ok": "yes, Ada"}, by="ada")
    archive = Archive(store, redact=rule)
    seen = shown(archive)
    assert tuple(seen["values"][: len(values)]) == values
    assert seen["failed"][:1] == [message]
    hides_all = values is ALL
    assert seen["listed"] == [("ValueError", HIDDEN if hides_all else f"<{HIDDEN}>")]
    assert seen["found"] == found
    record = archive.thread("t").record()
    assert [step.kind for step in record.steps] == ["start", "function", "question", "function"]
    assert archive.thread("t").state()["copied"] == thread.state["copied"] == f"<{SECRET}>"
    assert (record.hidden is None) == (rule is False)
    if rule is None and not callable(redact):
        assert record == thread.record()


def test_another_rule_is_no_changed_graph() -> None:
    store = Memory()
    graph().compile(store=store, redact=["key"]).thread("t").run({"key": SECRET})
    other = graph().compile(store=store, redact=["user"]).thread("t")
    assert other.resume({"ok": "yes"}).status == "failed"
    assert [run.header["hidden"] for run in store.runs("t")] == [["key"]]
    assert (other.record().hidden, Archive(store).thread("t").record().hidden) == (("user",), ("key",))


def test_a_list_of_failed_runs_reads_no_more_rows_to_hide_their_failures() -> None:
    read, shown = list[int](), list[str]()
    for redact in (None, ["key"], by_function):
        store = Counting()
        thread = graph().compile(store=store, redact=redact).thread("t")
        thread.run({"key": SECRET})
        thread.resume({"ok": "yes"})
        store.read = 0
        archive = Archive(store)
        shown += [info.failure.message for info in archive.runs() if info.failure]
        assert archive.overview().failures[0].message == shown[-1].replace("3", "#")
        read.append(store.read)
        assert f"<{SECRET}>" not in str(Archive(store, redact=["copied"]).runs()[0].to_dict())
    assert shown == [f"<{SECRET}>", f"<{HIDDEN}>", HIDDEN]
    assert read[1:] == read[:1] * 2


def test_a_malformed_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed pattern"):
        Archive(Memory(), redact=["a..b"])


SECRETS: dict[str, Any] = {
    "a text": "a \"b\" 'c'\\",
    "a number": 918_273,
    "a float": 91.8273,
    "a decimal": Decimal("9182.73"),
    "a time": datetime(2031, 5, 6, 7, 8, tzinfo=UTC),
    "a UUID": UUID("cafecafe-1234-5678-9abc-deadbeef0001"),
    "bytes": b"\xff canary",
}


@each("value", SECRETS.values(), SECRETS)
def test_copies_of_a_hidden_value_of_any_type_are_hidden_in_any_form(value: Any) -> None:
    def copy(key: Any, ctx: Context) -> dict[str, Any]:
        ctx.post("posts", key)
        text = json.dumps({"key": [key]}, default=str)
        iso = value.isoformat() if isinstance(value, datetime) else ""
        texts = [repr(key), text, json.dumps({"text": text}), repr({"text": text}), iso]
        return {"same": key, "inside": [{"a": key}, {key: (key,)}], "texts": texts}

    class State(BaseModel):
        key: str | int | float | bytes | Decimal | datetime | UUID
        same: Any = None
        inside: list[Any] = []
        texts: list[str] = []
        posts: Annotated[list[Any], reducers.append, live] = []

    made = Graph(State, inputs=["key"]).add_node("copy", copy, writes=["same", "inside", "texts", "posts"])
    store = Memory()
    run = made.add_path(START, "copy", END).compile(store=store, redact=["key"]).thread("t").run({"key": value})
    record = Archive(store).thread("t").record()
    assert record == run.record()
    exits = f"{record.to_dict()} {[event.to_dict() for event in run.events]} {run.report()}"
    iso = value.isoformat() if isinstance(value, datetime) else ""
    assert [text for text in (str(value), repr(value)[1:-1], iso) if text and text in exits] == []
    assert json.dumps(record.to_dict()).count("canary") == 0
    assert run.state["same"] == value


READ = """
from dspyer import Archive
((card, _),) = Archive({path!r}).thread("t").record().steps[0].wrote.values()
assert dict(card) == {{"name": "Ada", "pin": "[redacted]"}}, card
"""


def test_a_part_of_a_model_that_its_class_does_not_declare_is_hidden_where_the_class_is_not_known(
    tmp_path: Path,
) -> None:
    class Card(BaseModel, extra="allow"):
        name: str

    class State(BaseModel):
        card: Card

    made = Graph(State, inputs=["card"]).add_node("keep", lambda: None, writes=[]).add_path(START, "keep", END)
    path = str(tmp_path / "runs.db")
    made.compile(store=path, redact=["card.pin"]).thread("t").run({"card": Card(name="Ada", pin=SECRET)})
    read = run_python(READ.format(path=path))
    assert read.returncode == 0, read.stderr
