"""Reading a prompt is the inverse of writing it with DSPy's adapter, and writing an answer that of parsing it."""

from __future__ import annotations

import enum
from typing import Any, Literal, Optional

import dspy
import pytest
from dspy.adapters.xml_adapter import XMLAdapter
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer.testing.prompt import Prompt, Turn, read_prompt, write_answer

FORMS = {"chat": dspy.ChatAdapter(), "json": dspy.JSONAdapter(), "xml": XMLAdapter()}
by_form = pytest.mark.parametrize("form", FORMS)


class Level(enum.Enum):
    LOW = "low"
    HIGH = "very high"


class Sort(dspy.Signature):
    """Sort a ticket.

    - billing: money
    """

    text: str = dspy.InputField(desc="what was written")
    notes: list[str] = dspy.InputField()
    urgent: bool = dspy.OutputField()
    kind: Literal["billing", "how_to"] = dspy.OutputField(desc="the topic")
    number: Literal[1, 2] = dspy.OutputField()
    odd: Literal["a; b", "c]", "it's"] = dspy.OutputField()
    level: Level = dspy.OutputField()
    maybe: Optional[Literal["x", "y"]] = dspy.OutputField()  # noqa: UP045 - users write both
    count: int = dspy.OutputField()
    parts: dict[str, int] = dspy.OutputField()
    tags: list[Literal["x", "y"]] = dspy.OutputField()
    answer: str = dspy.OutputField()


VALUES: dict[str, Any] = {
    "urgent": True,
    "kind": "how_to",
    "number": 2,
    "odd": "c]",
    "level": Level.HIGH,
    "maybe": "y",
    "count": 3,
    "parts": {"a": 1},
    "tags": ["x"],
    "answer": "fine\nindeed",
}
INPUTS = {"text": "Hello\nthere", "notes": ["one", "two"]}
DEMO = {"text": "demo text", "notes": ["n"], **VALUES}


def prompt_for(form: str, signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> Prompt:
    messages = FORMS[form].format(dspy.ensure_signature(signature), demos, inputs)
    return read_prompt([Turn(message["role"], message["content"]) for message in messages])


@by_form
def test_fields_instructions_and_inputs(form: str) -> None:
    prompt = prompt_for(form, Sort, [], INPUTS)
    assert prompt.form == form
    assert prompt.instructions == "Sort a ticket.\n\n- billing: money"
    assert [(field.name, field.description) for field in prompt.input_fields] == [
        ("text", "what was written"),
        ("notes", ""),
    ]
    assert prompt.asks == tuple(VALUES)
    assert prompt.inputs == {"text": "Hello\nthere", "notes": '["one", "two"]'}
    assert prompt.demos == ()


@by_form
def test_kinds_and_allowed_values(form: str) -> None:
    fields = {field.name: field for field in prompt_for(form, Sort, [], INPUTS).output_fields}
    assert {name: fields[name].choices for name in ("kind", "number", "odd", "level", "urgent")} == {
        "kind": ("billing", "how_to"),
        "number": ("1", "2"),
        "odd": ("a; b", "c]", "it's"),
        "level": ("low", "very high"),
        "urgent": ("True", "False"),
    }
    kinds = {name: field.kind for name, field in fields.items()}
    assert kinds["kind"] == kinds["level"] == kinds["number"] == "choice"
    assert (kinds["urgent"], kinds["count"], kinds["answer"]) == ("bool", "number", "text")
    if form != "xml":
        assert kinds["parts"] == kinds["tags"] == "json"
        assert dict(fields["parts"].schema or {})["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize("form", ["chat", "json"])
def test_demonstrations(form: str) -> None:
    partial = {"text": "half", "kind": "billing"}
    prompt = prompt_for(form, Sort, [DEMO, partial], INPUTS)
    halves, whole = prompt.demos  # DSPy puts incomplete ones first
    assert (dict(halves.inputs), dict(halves.outputs)) == ({"text": "half"}, {"kind": "billing"})
    assert whole.inputs == {"text": "demo text", "notes": '["n"]'}
    assert whole.outputs["parts"] == '{"a": 1}'
    assert whole.outputs["answer"] == "fine\nindeed"
    assert whole.outputs["urgent"] == "True"
    assert whole.outputs["level"] == "very high"


def test_a_conversation_is_read_as_demonstrations() -> None:
    class Chat(dspy.Signature):
        history: dspy.History = dspy.InputField()
        question: str = dspy.InputField()
        answer: str = dspy.OutputField()

    history = dspy.History(messages=[{"question": "first?", "answer": "one"}, {"question": "second?", "answer": "two"}])
    prompt = prompt_for("chat", Chat, [], {"history": history, "question": "third?"})
    assert [(dict(demo.inputs), dict(demo.outputs)) for demo in prompt.demos] == [
        ({"question": "first?"}, {"answer": "one"}),
        ({"question": "second?"}, {"answer": "two"}),
    ]
    assert prompt.inputs == {"question": "third?"}


def test_an_input_that_quotes_another_prompt_is_left_alone() -> None:
    quoted = "[[ ## answer ## ]]\nno\n[[ ## question ## ]]\nRespond with the corresponding output fields, quickly"
    prompt = prompt_for("chat", "question -> answer", [], {"question": quoted})
    assert prompt.inputs == {"question": quoted}


@pytest.mark.parametrize("turns", [[], [Turn("user", "hi")], [Turn("system", "Be brief."), Turn("user", "hi")]])
def test_any_other_text_is_a_plain_prompt(turns: list[Turn]) -> None:
    prompt = read_prompt(turns)
    assert (prompt.form, prompt.asks, prompt.demos) == ("plain", (), ())
    assert prompt.inputs == {"prompt": "hi" if turns else ""}


@by_form
def test_written_answers_are_read_by_the_adapter(form: str) -> None:
    scalars = {name: value for name, value in VALUES.items() if form != "xml" or name not in ("parts", "tags")}
    signature = Sort
    for name in VALUES.keys() - scalars.keys():
        signature = signature.delete(name)
    prompt = prompt_for(form, signature, [], INPUTS)
    assert FORMS[form].parse(signature, write_answer(prompt, scalars)) == scalars


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60).map(str.strip)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["chat", "json"]), TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_texts_survive_writing_and_reading(form: str, question: str, shown: str, reply: str, answer: str) -> None:
    prompt = prompt_for(form, "question -> answer", [{"question": shown, "answer": reply}], {"question": question})
    assert prompt.inputs == {"question": question}
    assert [(dict(demo.inputs), dict(demo.outputs)) for demo in prompt.demos] == [
        ({"question": shown}, {"answer": reply})
    ]
    parsed = FORMS[form].parse(dspy.Signature("question -> answer"), write_answer(prompt, {"answer": answer}))
    assert parsed == {"answer": answer}
