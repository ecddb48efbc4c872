"""What rows and snapshots hold: what is written is read, in few bytes, within limits, and by older versions.

A part of dspyer that no user sees: what it gets wrong shows in few states, or only in what another version reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import ImmutableState
from dspyer.errors import StateError, StoreError
from dspyer.events import Exchange, LMCall
from dspyer.ids import is_within
from dspyer.log import rows
from dspyer.log.execution_records import calls_in, decode_call, encode_call
from dspyer.log.reader import SnapshotState, latest_snapshot, snapshot_content
from dspyer.log.rows import (
    AnswerRow,
    CommitContent,
    CommitRow,
    EffectRow,
    EndRow,
    ItemRow,
    LayerRow,
    LMCallsRow,
    MapItems,
    OpenRow,
    PostRow,
    QuestionRow,
    ResumeRow,
    SentRow,
    StoredRow,
    StoredTrace,
    content_names,
    encode_content,
)
from dspyer.schema.schema import Schema
from dspyer.stores import Memory, content
from dspyer.stores.base import Change, Row, RunRow, Snapshot
from dspyer.stores.base import Point as RowPoint
from dspyer.stores.content import Content, ReadBudget, blob_id
from dspyer.stores.sql import DAMAGED, decode_body, encode_body
from dspyer.threads.graph_changes import decoder, named_classes
from dspyer.values import json as encoding
from dspyer.values.freezing import Opaque
from dspyer.values.frozen import FrozenDict
from dspyer.values.scalars import MAX_DEPTH
from tests.plain_values import frozen, plain

texts = st.text(max_size=400) | st.sampled_from(["$", "$$x", "$" + 32 * "A"])
numbers = st.integers(0, 10**9)
parts = st.recursive(st.none() | st.booleans() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner))
messages = st.dictionaries(st.sampled_from(["role", "content", "$type", "name"]), texts | parts)


@st.composite
def lm_calls(draw: st.DrawFn) -> LMCall:
    """Calls with whatever a server or an LM of the user may give."""
    return LMCall(
        draw(st.sampled_from(["trunk:1", "0.1:2[3]/trunk:1"])),
        draw(st.sampled_from(["answer", "a b"])),
        draw(st.sampled_from(["answer", "answer.predict", "a b.react", "other", "", "~x"])),
        draw(st.sampled_from(["openai/gpt", "gpt", "", "x/y/z"]) | texts),
        draw(st.none() | st.sampled_from(["gpt", "gpt-2", "openai/gpt", "~x", ""]) | texts),
        draw(numbers),
        draw(numbers),
        draw(st.none() | numbers.map(lambda n: n / 10**12)),
        draw(numbers) / 10**6,
        draw(st.integers(1_600_000_000_000, 2_000_000_000_000)) / 1_000,
        draw(st.booleans()),
        draw(st.sampled_from([None, "stop", "length", ""])),
        draw(st.integers(1, 5)),
        draw(st.none() | texts),
        draw(st.none() | st.lists(messages, max_size=3)),
        draw(st.none() | texts | st.lists(parts, max_size=2)),
        draw(st.integers(0, 5)),
        draw(st.booleans()),
    )


def written_and_read(call: LMCall) -> tuple[LMCall, dict[str, bytes]]:
    """A call, through JSON."""
    blobs: dict[str, bytes] = {}
    stored = json.loads(json.dumps(encode_call(call, blobs)))
    return decode_call(stored, call.execution, call.node, lambda names: {name: blobs[name] for name in names}), blobs


@given(lm_calls())
def test_a_call_is_read_as_it_was_written(call: LMCall) -> None:
    found, _ = written_and_read(call)
    assert replace(found, cost=0, started=0, seconds=0) == replace(call, cost=0, started=0, seconds=0)
    assert (found.cost or 0) == pytest.approx(call.cost or 0, abs=1e-12)
    assert (found.cost is None) == (call.cost is None)
    assert found.started == pytest.approx(call.started, abs=0.0011)
    assert found.seconds == pytest.approx(call.seconds, abs=1.1e-6)


USUAL = LMCall(
    "trunk:3",
    "answer",
    "answer",
    "openai/gpt-4o-mini",
    "gpt-4o-mini-2024-07-18",
    1812,
    143,
    0.00035760,
    1.234567,
    1_790_000_000.123,
    finish_reason="stop",
)


def test_a_usual_call_takes_few_bytes_and_no_blob() -> None:
    blobs: dict[str, bytes] = {}
    calls = [encode_call(USUAL, blobs)]
    header = CommitRow(id="trunk:3", node="answer", patch={"n": 1}).header()
    alone, both = [Content(CommitContent({"n": 1}, lm_calls=one), encode_content) for one in ((), calls)]
    size = len(encode_body(header, both)) - len(encode_body(header, alone))
    assert (size < 200, blobs) == (True, {}), size


def test_a_long_text_is_stored_once_and_not_read_with_its_row() -> None:
    system = "You answer questions about the sea. " * 20
    blobs: dict[str, bytes] = {}
    prompts = [[{"role": "system", "content": system}, {"role": "user", "content": f"{n}?"}] for n in range(3)]
    calls = [replace(USUAL, messages=prompt, response="Yes.") for prompt in prompts]
    row = LMCallsRow("trunk:3", "answer", [encode_call(call, blobs) for call in calls]).row(blobs).numbered(0)
    assert [json.loads(blob) for blob in blobs.values()] == [prompts[0][0]]
    assert row.content is not None
    assert list(row.content.refs) == list(blobs)
    assert not any(name.encode() in row.content.data for name in blobs), "Content.value would read it with each commit"
    read = calls_in(row, lambda names: {name: blobs[name] for name in names})
    assert [call.messages for call in read] == prompts


def test_a_damaged_call_is_named() -> None:
    usual = encode_call(USUAL, {})
    for damage in ({"model": 1}, {"cached": 1}, {"odd": 1}, {"messages": [{"$": "00"}]}):
        with pytest.raises(StoreError, match=r"an LM call of execution 'trunk:1' is stored as"):
            decode_call({**usual, **damage}, "trunk:1", "answer", lambda _: {})


def test_what_is_inside_of_an_execution() -> None:
    inside = ["trunk:2", "trunk:2[0]", "trunk:2/trunk:1", "trunk:2[a]/trunk:1"]
    assert [is_within(one, "trunk:2") for one in [*inside, "trunk:21", "trunk:2+1", "0:2"]] == [True] * 4 + [False] * 3


# --- rows

RECORDS: list[StoredRow] = [
    OpenRow(node="START", patch={"n": 1}, made={"log": [1]}),
    OpenRow(node="fix", created=5),
    CommitRow(id="trunk:3", node="a", route=("a",), times=(5, 7), patch=FrozenDict({"n": 1})),
    CommitRow(id="trunk:0", node="START", visit=1, patch=None),
    CommitRow(
        kind="join", id="0.1:2", node="join:b", step=7, visit=1, settled=False, parents=(3, 4), scope=("trunk:1",)
    ),
    CommitRow(kind="update", id="trunk:3+1", node="fix", attempt=2, cached=True, calls=(1, 0), reason="why"),
    CommitRow(id="trunk:1", node="m", items=MapItems("notes", 2, (1,)), live=Exchange({"notes": (1, 2)}, {"notes": 3})),
    ItemRow("trunk:1[0]", FrozenDict({"a": 1})),
    EffectRow("trunk:1", "key", None),
    QuestionRow("trunk:1", "before", "a", (0, 1), "t.1", "Go on?", {"type": "string"}),
    AnswerRow("trunk:1", "before", True),
    AnswerRow("trunk:1", "before", retracted=True),
    PostRow("trunk:1", (), "a", "notes", 3, "x", (1, 2), 5.25, {"notes": 1}),
    LayerRow("trunk:1", "attempts", FrozenDict({"n": (1, None)})),
    SentRow("5c1f", 3.5, "Leave out Hull.", "ada", "team/lead", "m-17"),
    LMCallsRow("trunk:1[0]", "a", [encode_call(USUAL, {})]),
    StoredTrace({"traceparent": "00"}, 5, "t"),
    ResumeRow(2),
    EndRow("failed", usage={"lm": {"cost": None}}, ended=5, steps=3, failures=[{"node": "a"}]),
]
"""Records of every kind, with and without what may be left out."""


def stored_row(record: StoredRow) -> Row:
    """The row of a record, from a column of a store."""
    row = record.row().numbered(7)
    return Row(7, row.kind, *decode_body(encode_body(row.header, row.content)))


def test_a_record_is_read_as_it_was_written() -> None:
    assert {record.kind for record in RECORDS} == set(rows.RECORDS) - {"merge"}
    for record in RECORDS:
        for row in (record.row().numbered(7), stored_row(record)):
            read = type(record).read(row, lambda _: {})
            assert (read, row.kind) == (record, record.kind)
            bare = type(record).of(row)
            assert bare.header() == record.header(), "without its content"


def test_what_is_equal_to_its_default_is_not_stored() -> None:
    row = stored_row(RECORDS[2])
    assert row.header == {"id": "trunk:3", "node": "a", "to": ["a"], "at": [5, 7]}
    assert row.content is not None
    assert row.content.data == b'{"patch":{"n":1}}'
    assert stored_row(RECORDS[8]).content is None


def test_a_body_of_which_one_or_two_bytes_are_others_is_damaged() -> None:
    row = RECORDS[2].row()
    body = encode_body(row.header, row.content)
    number, bits = int.from_bytes(body), 8 * len(body)
    for damage in (1, 0x81, 0x8001):
        for place in range(bits - damage.bit_length() + 1):
            header, content = decode_body((number ^ damage << place).to_bytes(len(body)))
            assert (list(header), content) == ([DAMAGED], None), (place, damage)
    assert list(decode_body(body[:-1])[0]) == list(decode_body(body + b"x")[0]) == [DAMAGED]


DAMAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a name that no such row has": lambda header: {**header, "odd": 1},
    "a content in it": lambda header: {**header, "patch": {}},
    "of another type": lambda header: dict.fromkeys(header, 1.5),
    "items of another type": lambda header: {**header, "scope": [1]},
    "nothing": lambda _: {},
    "damaged": lambda _: {"damaged": "it is truncated"},
}


def test_a_malformed_row_is_named() -> None:
    for record in RECORDS:
        row = stored_row(record)
        for name, damage in DAMAGES.items():
            spoiled = row._replace(header=damage(dict(row.header)))
            if spoiled.header or not isinstance(record, ResumeRow):  # whose attributes have defaults
                with pytest.raises(StoreError, match=r"row 7.*(changed after dspyer wrote it|truncated)"):
                    pytest.fail(f"{name}: {type(record).of(spoiled)}")
        for data in (b"[]", b'{"odd":1}', b"{", b'{"patch":1,"value":{"$type":1},"lm_calls":1,"failures":1}'):
            if content_names(type(record)):
                with pytest.raises((StoreError, StateError)):
                    type(record).read(row._replace(content=Content.stored(data)), lambda _: {})


# --- values of classes that a reader does not know


class Colour(Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: Colour


@dataclass
class Point:
    x: int


class Draft(BaseModel):
    title: str
    points: list[Point] = []


class Text(str):
    __slots__ = ()


UNKNOWN = decoder(Schema.of(None))


VALUES_OF_CLASSES: dict[str, tuple[Any, bool]] = {
    "a model": (Draft(title="a", points=[Point(1)]), True),
    "a dataclass": (Point(2), True),
    "an enum": (Colour.RED, True),
    "a namedtuple": (Pair(1, Colour.RED), True),
    "a subclass of a scalar": (Text("a"), True),
    "inside": ({"a": [Point(1), 2]}, False),
    "a key makes its mapping opaque": ({Colour.RED: 1}, True),
    "a member makes its set opaque": ({Colour.RED}, True),
    "beside a long text": ((Point(1), "x" * 20_000), False),
}


def test_an_opaque_value_is_written_unchanged() -> None:
    for name, (value, whole) in VALUES_OF_CLASSES.items():
        written = encoding.encode(frozen(value))
        read = UNKNOWN(written)
        assert isinstance(plain(read), Opaque) is whole, name
        assert encoding.encode(read) == written, name
        assert encoding.encode(frozen(plain(read))) == written, f"{name}: also through a node that passes it on"
        assert "<opaque " in repr(read), name


USES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda value: value.title,
    "text": str,
    "f-string": lambda value: f"{value}",
    "truth": bool,
    "iteration": list,
    "length": len,
    "item": lambda value: value["title"],
    "assignment": lambda value: setattr(value, "title", "b"),
}


def test_using_an_opaque_value_raises() -> None:
    read = plain(UNKNOWN(encoding.encode(frozen(Draft(title="a")))))
    for use in USES.values():
        with pytest.raises(StateError, match=r"test_codec:Draft, which cannot be read here.*register_value_type"):
            use(read)


def test_the_schema_names_what_may_be_read() -> None:
    class State(BaseModel):
        draft: Draft | None = None
        pairs: dict[str, tuple[Pair, ...]] = {}

    schema = Schema.of(State)
    assert set(named_classes(schema)) == {State, Draft, Point, Pair, Colour}
    value = {"draft": Draft(title="a", points=[Point(1)]), "pairs": {"a": (Pair(1, Colour.RED),)}}
    assert plain(decoder(schema)(encoding.encode(frozen(value)))) == value


UNREADABLE: dict[str, tuple[Any, str]] = {
    "a member is gone": ({"$type": "enum", "class": f"{__name__}:Colour", "value": "BLUE"}, "BLUE"),
    "a tag of a later version": ({"$type": "quaternion", "value": [1]}, "does not know"),
    "a text that would grow": ({"$type": "fraction", "value": "1e999999999"}, "ValueError"),
    "no number": ({"$type": "decimal", "value": "x"}, "InvalidOperation"),
    "an unnamed class": ({"$type": "model", "class": "os:system", "value": {}}, "os:system"),
}


def test_what_cannot_be_read_is_opaque() -> None:
    for name, (form, words) in UNREADABLE.items():
        read = plain(encoding.decoder([Colour], Opaque.of)(form))
        assert isinstance(read, Opaque), name
        assert words in read.reason, name
        assert json.loads(read.text) == form, name


def test_json_that_is_too_deep_is_opaque() -> None:
    form: Any = "bottom"
    for _ in range(MAX_DEPTH * 50):
        form = [form]
    with pytest.raises(StateError, match=f"deeper than {MAX_DEPTH} levels"):
        UNKNOWN(form)


# --- snapshots


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$type", "é"]), inner, max_size=9)
        | st.tuples(inner, inner)
    ),
    max_leaves=15,
)


@given(state=st.dictionaries(st.text(max_size=2) | st.sampled_from(["$type", "é"]), VALUES, max_size=8))
def test_any_state_is_restored_from_a_snapshot(state: dict[str, Any]) -> None:
    for long in ({}, {"text": "x" * 20_000, "deep": [{"bytes": b"y" * 20_000}]}):
        frozen_state = ImmutableState({**state, **long})
        taken = snapshot_content(SnapshotState(frozen_state, 7))
        assert len(taken.data) < 20_000 + len(repr(state)) * 20
        assert len(taken.blobs) == 2 * bool(long)
        with Memory() as store:
            kept = Snapshot(RowPoint("r", 3), Content.stored(taken.data, taken.refs, taken.blobs))
            store.write(Change(run=RunRow("r", "", (), {}), snapshot=kept))
            loaded = latest_snapshot(store, RowPoint("r", 9), encoding.decode)
            assert loaded is not None
            assert (loaded.at, loaded.content.commit_index, loaded.size) == (RowPoint("r", 3), 7, len(taken.data))
            assert encoding.to_json(loaded.content.state) == encoding.to_json(frozen_state)


# --- limits


def test_references_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text that many references name is not brought in more often than fits."""
    monkeypatch.setattr(content, "MAX_EXPANDED_BYTES", 100_000)
    data = b"x" * 30_000
    form = json.dumps([{"$type": "blob bytes", "value": blob_id(data)}] * 4).encode()
    with pytest.raises(StateError, match="more than the 100,000 bytes"):
        Content.stored(form, [blob_id(data)]).value(lambda ids: {blob_id(data): data})
    assert ReadBudget().expand(data) == data


def test_sizes_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_JSON_BYTES", 1_000)
    with pytest.raises(StateError, match=r"1,002 bytes of JSON besides .*; 1,000 are stored and read at most"):
        Content.stored(b'"' + b"a" * 1_000 + b'"').value(lambda ids: {})
