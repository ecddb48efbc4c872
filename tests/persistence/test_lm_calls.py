"""The rows of LM calls: what is written is read, in few bytes, and a reader of version 0.4 passes over it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer.errors import StoreError
from dspyer.events import LMCall
from dspyer.persistence.lm_calls import PackedCalls, calls_in, is_within, lm_call_row, pack_call, unpack_call
from dspyer.persistence.rows import CommitContent, decode_commit_content, encode_commit_content

SINCE = 1_600_000_000_000

texts = st.text(max_size=400)
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


def written_and_read(call: LMCall, hidden: bool = False) -> tuple[LMCall, dict[str, bytes]]:
    """A call, through JSON."""
    blobs: dict[str, bytes] = {}
    packed = json.loads(json.dumps(pack_call(call, blobs, SINCE, hidden)))
    return unpack_call(
        packed, call.execution, call.node, SINCE, lambda names: {name: blobs[name] for name in names}
    ), blobs


@given(lm_calls())
def test_a_call_is_read_as_it_was_written(call: LMCall) -> None:
    found, _ = written_and_read(call)
    assert found._replace(cost=0, started=0, seconds=0) == call._replace(cost=0, started=0, seconds=0)
    assert (found.cost or 0) == pytest.approx(call.cost or 0, abs=1e-12)
    assert (found.cost is None) == (call.cost is None)
    assert found.started == pytest.approx(call.started, abs=0.0011)
    assert found.seconds == pytest.approx(call.seconds, abs=1.1e-6)


@given(lm_calls())
def test_of_a_hidden_call_usage_alone_is_read(call: LMCall) -> None:
    found, _ = written_and_read(call, hidden=True)
    assert (found.messages, found.response) == (None, None)
    if call.failed is not None:
        assert found.failed == call.failed.partition(":")[0]


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


def test_a_usual_call_takes_less_than_100_bytes() -> None:
    blobs: dict[str, bytes] = {}
    packed = pack_call(USUAL, blobs, int(USUAL.started * 1000) - 250)
    plain = encode_commit_content(CommitContent({"n": 1}))
    both = encode_commit_content(CommitContent({"n": 1}, lm_calls=(packed,)))
    size = len(json.dumps(both, separators=(",", ":"))) - len(json.dumps(plain, separators=(",", ":")))
    assert (size < 100, blobs) == (True, {})
    row = lm_call_row("trunk:3[17]", "answer", PackedCalls((packed,))).numbered(0)
    assert row.content is not None
    assert len(row.content.data) < 90


def test_a_long_text_is_stored_once_and_not_read_with_its_row() -> None:
    system = "You answer questions about the sea. " * 20
    blobs: dict[str, bytes] = {}
    prompts = [[{"role": "system", "content": system}, {"role": "user", "content": f"{n}?"}] for n in range(3)]
    calls = [USUAL._replace(messages=prompt, response="Yes.") for prompt in prompts]
    row = lm_call_row("trunk:3", "answer", PackedCalls(tuple([pack_call(call, blobs) for call in calls]), blobs))
    assert list(blobs.values()) == [system.encode()]
    content = row.numbered(0).content
    assert content is not None
    assert list(content.refs) == list(blobs)
    assert not any(name.encode() in content.data for name in blobs), "Content.value would read it with each commit"
    read = calls_in(row.numbered(0), lambda names: {name: blobs[name] for name in names})
    assert [call.messages for call in read] == prompts


def test_version_0_4_reads_a_commit_with_lm_calls() -> None:
    encoded = encode_commit_content(CommitContent({"n": 1}, reason="why", lm_calls=(pack_call(USUAL, {}),)))
    _, _, _, _, *failures = encoded
    failure, failed = failures[0] if failures else (None, ())  # as `decode_commit_content` of version 0.4 does
    assert (failure, [*failed]) == (None, [])
    assert decode_commit_content(encoded) == CommitContent({"n": 1}, reason="why")


@pytest.mark.parametrize("packed", [[], [0, "m"], ["~x", None, 0, 1, 1, 0, 0, 0], [0, "m", 0, 1, 1, 0, "now", 0]])
def test_a_damaged_call_is_named(packed: list[object]) -> None:
    with pytest.raises(StoreError, match=r"an LM call of execution 'trunk:1' is stored as"):
        unpack_call(packed, "trunk:1", "answer")


def test_what_is_inside_of_an_execution() -> None:
    inside = ["trunk:2", "trunk:2[0]", "trunk:2/trunk:1", "trunk:2[a]/trunk:1"]
    assert [is_within(one, "trunk:2") for one in [*inside, "trunk:21", "trunk:2+1", "0:2"]] == [True] * 4 + [False] * 3
