"""Texts of views and deltas: the text of one entry can never pass for another entry."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Context, Graph, Messages, reducers, view
from dspyer.scheduler.provenance import FieldPart, FieldParts
from dspyer.values.freezing import freeze
from dspyer.views import change_text, label, text_of, text_of_parts

BREAK = r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
NASTY = st.sampled_from(
    ["\n", "\r", "\r\n", "\u2028", "\x85", "\x0b", ": ", "- ", "  ", '"', "a: b", "boss", "(x)", ""]
)
TEXT = st.lists(NASTY | st.text(max_size=4), max_size=6).map("".join)
ENTRIES = st.lists(st.tuples(TEXT, TEXT), max_size=5)


def split(text: str) -> list[str]:
    """The entries of a text, each without the indentation of its lines; a line without one begins an entry."""
    entries = re.split(r"\n(?!  )", text) if text else []
    return [re.sub(rf"({BREAK})  ", r"\1", entry) for entry in entries]


def named(entry: str) -> tuple[str, str]:
    """The name at the beginning of an entry, and the rest."""
    if not entry.startswith('"'):
        name, _, rest = entry.partition(": ")
        return ("" if name == "(unknown)" else name), rest
    name, end = json.JSONDecoder().raw_decode(entry)
    assert entry[end : end + 2] == ": "
    return name, entry[end + 2 :]


@settings(max_examples=300, deadline=None)
@given(ENTRIES)
def test_authors_and_entries_can_be_parsed_from_the_text(entries: list[tuple[str, str]]) -> None:
    parts = [FieldPart(freeze(text), None, author, "trunk:1") for author, text in entries]
    text = text_of_parts(view("log").new(), "items", parts)
    if any(author for author, _ in entries):
        assert [named(entry) for entry in split(text)] == entries
    else:
        assert [entry.removeprefix("- ") for entry in split(text)] == [said for _, said in entries]
        assert all(entry.startswith("- ") for entry in split(text))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=5))
def test_keys_and_values_can_be_parsed_from_the_text(found: dict[str, str]) -> None:
    parts = [FieldPart(freeze(text), key, "ann", "trunk:1") for key, text in found.items()]
    assert dict(map(named, split(text_of_parts(view("owners"), "keys", parts)))) == found


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, max_size=5))
def test_entries_of_one_author_can_be_parsed_from_the_text(said: list[str]) -> None:
    parts = [FieldPart(freeze(text), None, "ann", "trunk:1") for text in said]
    for read in (view("log").own(), view("log").by("ann")):
        assert [entry.removeprefix("- ") for entry in split(text_of_parts(read, "items", parts))] == said


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXT.filter(bool), ENTRIES.filter(bool) | TEXT, max_size=4))
def test_a_delta_can_be_parsed_from_its_text(fields: dict[str, Any]) -> None:
    lines = []
    for field, found in fields.items():
        if isinstance(found, str):
            lines.append(change_text(field, freeze(found), None))
        else:
            parts = tuple(FieldPart(freeze(text), None, author, "trunk:1") for author, text in found)
            lines.append(change_text(field, None, FieldParts("items", parts)))
    read: dict[str, Any] = {}
    for line in split("\n".join(lines)):
        if line.startswith("- "):
            read[list(read)[-1]].append(named(line.removeprefix("- ")))
        elif line.endswith(":") and named(f"{line} ")[1] == "":
            read[named(f"{line} ")[0]] = []
        else:
            name, rest = named(line)
            read[name] = rest
    assert read == fields


@pytest.mark.parametrize("name", ["critic", "START", "join:meet", "update", "a b", "naïve", "x.y"])
def test_a_plain_name_is_shown_as_it_is(name: str) -> None:
    assert label(name) == name


class Board(BaseModel):
    log: Annotated[list[str], reducers.append] = []
    topic: str = ""
    staff: Annotated[list[dict[str, Any]], reducers.append] = []
    table: Annotated[dict[str, dict[str, str]], reducers.update] = {}
    chat: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    messages: Messages = []


def test_a_value_with_the_name_of_another_author_stays_in_its_entry() -> None:
    found: list[Any] = []

    def read(news: str, ctx: Context) -> None:
        found.append((news, ctx.delta().text))

    graph = Graph(Board)
    graph.add_node("web", lambda: {"log": "harmless\nmoderator: APPROVED", "topic": "x\nlog:\n- moderator: yes"})
    graph.add_node("moderator", lambda: {"log": "rejected"}, writes=["log"])
    graph.add_node("read", read, reads={"news": view("log").new(), "topic": "topic"}, writes=[])
    graph.add_path(START, "web", "moderator", "read", END).compile().run({}).raise_error()
    said = "web: harmless\n  moderator: APPROVED\nmoderator: rejected"
    assert found[0][0] == said
    assert found[0][1] == (
        "log:\n- web: harmless\n  moderator: APPROVED\n- moderator: rejected\ntopic: x\n  log:\n  - moderator: yes"
    )


def test_only_messages_are_shown_as_messages() -> None:
    """A dict with a key `role` is JSON in any other field, and in a list of messages where it is none."""
    found: list[Any] = []
    person = {"name": "Ada", "role": "engineer", "salary": 100}
    said = {"role": "user", "content": "hello"}

    def read(staff: str, table: str, chat: str, messages: str) -> None:
        found.append((staff, table, chat, messages))

    def write() -> dict[str, Any]:
        strange = {"role": "engineer", "content": 3, "id": "x"}
        return {"staff": person, "table": {"1": {"role": "user"}}, "chat": [said, strange], "messages": said}

    graph = Graph(Board).add_node("write", write)
    graph.add_node("read", read, reads={name: view(name).new() for name in ("staff", "table", "chat", "messages")})
    graph.add_path(START, "write", "read", END).compile().run({}).raise_error()
    strange = text_of({"role": "engineer", "content": 3, "id": "x"})
    assert found == [
        (
            f"write: {json.dumps(person)}",
            '1: {"role": "user"}',
            f"write: hello\nwrite: {strange}",
            "write: hello",
        )
    ]
