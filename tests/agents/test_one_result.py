"""Each tool call has exactly one result, whatever else happens in its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dspyer import to_chat
from tests.agents.hostile_turns import KINDS, Drawn, Played, expected_calls, expected_turns, play, turns
from tests.agents.parity import ADAPTERS
from tests.messages.providers import problems_of
from tests.rows import in_turn


def check(played: Played, drawn: Sequence[Sequence[Drawn]]) -> None:
    """One result per call, in a chat that providers accept; each function called as often as its call says."""
    assert played.run.state["answer"] == "end"
    assert played.calls == expected_calls(drawn)
    assert played.lm_calls == len(drawn) + 1
    called = [call["id"] for message in played.messages for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in played.messages if message["role"] == "tool"]
    assert len(called) == sum(map(len, drawn)) + 1
    assert Counter(called) == Counter(results) == Counter(set(called))
    errors = {message["tool_call_id"]: message["error"] for message in played.messages if message["role"] == "tool"}
    turns = [message for message in played.messages if message["role"] == "assistant"]
    found = [(turn["name"], [errors[call["id"]] for call in turn["tool_calls"]]) for turn in turns]
    assert found[:-1] == expected_turns(drawn)
    assert not problems_of(to_chat(played.messages))


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_each_kind_alone_and_beside_others(kind: str) -> None:
    for drawn, mode in in_turn([[[Drawn(kind)]], [[Drawn("good"), Drawn(kind), Drawn("good")]], [[Drawn(kind)] * 2]]):
        check(play(drawn, mode, "chat, native"), drawn)


@settings(max_examples=settings().max_examples // 5)  # two runs of many calls each
@given(turns, st.sampled_from(sorted(ADAPTERS)), st.lists(st.integers(0, 5), min_size=1, max_size=3))
@example([[Drawn("mail", n) for n in range(4)]], "chat", [2])
def test_one_result_per_call_sync_and_async(drawn: list[list[Drawn]], adapter: str, picks: list[int]) -> None:
    """Questions are answered in parts and in any order; both ways to run it give equal messages."""
    played = play(drawn, "sync", adapter, picks)
    check(played, drawn)
    again = play(drawn, "async", adapter, picks[::-1])
    check(again, drawn)
    assert again.messages == played.messages
