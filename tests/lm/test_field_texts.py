"""The readers of responses: however a response is cut, what they show is what the adapter makes of the whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from hypothesis import assume, given
from hypothesis import strategies as st

from dspyer.lm.token_stream import CallTexts, reader_for, text_of_value
from tests.rows import each

TWO = dspy.Signature("question -> one, two")
PIECES = [
    "a",
    "b c",
    " ",
    "\n",
    "\r\n",
    "\r",
    "\u2028",
    "[[",
    "[[ ## ",
    " ## ]]",
    "[[ ## one ## ]]",
    "{",
    "}",
    '"',
    "\\",
]
PIECES += ["é", "\U0001f30a", "\ud7ff", "\t", "<", ">", "&", "</one>", "\\u00e9", ","]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
cuts = st.lists(st.integers(0, 7), max_size=200)


def as_chat(one: str, two: str) -> str:
    return f"Sure!\n[[ ## one ## ]] {one}\n\n[[ ## two ## ]]\n{two}\n\n[[ ## completed ## ]]"


def as_json(one: str, two: str) -> str:
    return f"```json\n{json.dumps({'one': one, 'two': two}, indent=2)}\n```"


def as_json_of_characters(one: str, two: str) -> str:
    return json.dumps({"one": one, "two": two}, ensure_ascii=False)


def as_xml(one: str, two: str) -> str:
    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;")

    return f"<one>\n{escaped(one)}\n</one>\n\n<two>{escaped(two)}</two>"


FORMS: dict[str, tuple[dspy.Adapter, Callable[[str, str], str]]] = {
    "chat": (dspy.ChatAdapter(), as_chat),
    "json": (dspy.JSONAdapter(), as_json),
    "json with characters": (dspy.JSONAdapter(), as_json_of_characters),
    "xml": (dspy.XMLAdapter(), as_xml),
}
forms = pytest.mark.parametrize("form", FORMS)


def read(adapter: dspy.Adapter, response: str, lengths: list[int]) -> dict[str, str]:
    """What a reader shows of a response in pieces of these lengths."""
    found: dict[str, str] = {}
    done: set[str] = set()

    def show(field: str, text: str, is_last: bool) -> None:
        assert field not in done
        found[field] = found.get(field, "") + text
        done.update([field] if is_last else [])

    reader = reader_for(adapter, ["one", "two"], show)
    assert reader is not None
    at = 0
    for length in [*lengths, len(response)]:
        if response[at : at + length]:
            reader.feed(response[at : at + length])
        at += length
    return found


@forms
@given(one=texts, two=texts, lengths=cuts)
def test_what_is_shown_is_what_the_adapter_parses(form: str, one: str, two: str, lengths: list[int]) -> None:
    adapter, write = FORMS[form]
    response = write(one, two)
    try:
        expected = adapter.parse(TWO, response)
    except AdapterParseError:
        assume(False)
    found = read(adapter, response, lengths)
    for name, whole in expected.items():  # the rest is shown when the call has ended
        assert whole.startswith(found.get(name, ""))
    assert found.get("one", "") == expected["one"] or form == "xml"


@forms
def test_text_is_shown_as_soon_as_it_is_certain(form: str) -> None:
    """All but the white space at the end, and what may be the beginning of a header, an escape or a tag."""
    adapter, write = FORMS[form]
    response = write("first words and then", "more")
    end = response.index("and then") + 3
    assert read(adapter, response[:end], [1] * end)["one"].rstrip() == "first words and"


@pytest.mark.parametrize("line", ["[", "[[", "[[ ## two", "[[ ## two ## ]"])
def test_a_line_that_may_become_a_header_is_held_back(line: str) -> None:
    shown: list[str] = []
    reader = reader_for(dspy.ChatAdapter(), ["one"], lambda _field, text, _done: shown.append(text))
    assert reader is not None
    reader.feed(f"[[ ## one ## ]]\nyes\n{line}")
    assert shown == ["yes"]
    reader.feed(" none")
    assert "".join(shown) == f"yes\n{line} none"


@each("response", ["", "no JSON", '{"one": tru', '{"one": "a" "two"}', "<one>a", "<one>a</two>", '{"one": "a\nb"}'])
@forms
def test_a_malformed_response_raises_nothing(form: str, response: str) -> None:
    read(FORMS[form][0], response, [1] * len(response))


def test_a_response_of_100_kb_is_read_in_time() -> None:
    """As linear as it can be: 25,000 pieces take seconds at most, and an LM some minutes."""
    response = as_chat("word " * 20_000, "x")
    assert read(FORMS["chat"][0], response, [4] * (len(response) // 4))["two"] == "x"


class OwnParse(dspy.ChatAdapter):
    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return {}


class OwnFormat(dspy.JSONAdapter):
    """An adapter that parses as the class above it does."""


def test_the_reader_is_that_of_the_code_that_parses() -> None:
    assert reader_for(OwnParse(), ["one"], print) is None
    assert type(reader_for(OwnFormat(), ["one"], print)) is type(reader_for(dspy.JSONAdapter(), ["one"], print))
    assert reader_for(dspy.TwoStepAdapter(dspy.LM("openai/x")), ["one"], print) is None


# --- the calls of an agent

CALLS: dict[str, Any] = {
    "an object": {"tool_calls": [{"name": "look", "args": {"one": "no"}}, {"name": "submit", "args": "ARGS"}]},
    "a list": [{"id": "c1", "name": "submit", "args": "ARGS"}],
    "one call": {"name": "submit", "args": "ARGS"},
    "other names": {"tool_calls": [{"name": "submit", "arguments": "ARGS"}]},
    "a second call": {"tool_calls": [{"name": "submit", "args": "ARGS"}, {"name": "submit", "args": {"one": "no"}}]},
}


@pytest.mark.parametrize("form", CALLS)
def test_the_arguments_of_submit_are_read_from_every_form(form: str) -> None:
    args = {"one": 'a "quoted"\ntext', "two": [1, {"x": 2}], "three": "end"}
    response = json.dumps(CALLS[form]).replace('"ARGS"', json.dumps(args))
    shown: list[tuple[str, str, bool]] = []
    others: list[Any] = []
    reader = CallTexts(["one", "two", "three"], lambda at, *piece: (shown if at < 0 else others).append(piece))
    for end in range(len(response)):
        reader.update(response[: end + 1])
    assert others == (
        [("look.one", "n", False), ("look.one", "o", False), ("look.one", "", True)] * ("look" in response)
    )
    joined = {name: "".join(text for field, text, _ in shown if field == name) for name in args}
    assert joined == {name: text_of_value(value) for name, value in args.items()}
    assert [(field, done) for field, _, done in shown if done][:2] == [("one", True), ("two", True)]
    assert len(shown) > 10


@pytest.mark.parametrize("name", ["submitted", "submi", "report"])
def test_other_calls_are_not_taken_for_submit(name: str) -> None:
    shown: list[Any] = []
    calls = json.dumps([{"args": {"one": "no"}, "name": name}, {"name": name, "args": {"one": "no", "two": 2}}])
    reader = CallTexts(["one"], lambda *piece: shown.append(piece))
    for end in range(len(calls)):
        reader.update(calls[: end + 1])
    # One call after the other, each with an end; a number is no text.
    field = f"{name}.one"
    assert [one for one in shown if one[0] == 0] == [(0, field, "no", True)]
    assert shown[1:] == [(1, field, "n", False), (1, field, "o", False), (1, field, "", True)]
    shown.clear()
    reader = CallTexts(["one"], lambda *piece: shown.append(piece))
    for index in (3, 7):  # whatever numbers a provider gives them
        for piece in (name, '{"one": ', '"no"}'):
            reader.add_native(index, piece if piece == name else "", "" if piece == name else piece)
    assert shown == [(0, field, "no", False), (0, field, "", True), (1, field, "no", False)]
