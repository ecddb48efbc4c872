"""Reading a prompt is the inverse of writing it with DSPy's adapter, and writing an answer that of parsing it."""

from __future__ import annotations

import enum
from typing import Any, Literal, Optional

import dspy
import pytest
from dspy.adapters.xml_adapter import XMLAdapter
from dspy.lm15 import Message, Request, TextPart
from hypothesis import given
from hypothesis import strategies as st

from dspyer.testing import Prompt, ScriptedLM

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


def asked(
    form: str, signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any], answer: Any = "ok"
) -> tuple[Prompt, str]:
    """What an LM that answers so has read from the messages of an adapter, and the text that it gives."""
    return answered(FORMS[form].format(dspy.ensure_signature(signature), demos, inputs), answer)


def answered(messages: list[dict[str, str]], answer: Any = "ok") -> tuple[Prompt, str]:
    system = "".join(message["content"] for message in messages if message["role"] == "system") or None
    turns = [Message(m["role"], (TextPart(text=m["content"]),)) for m in messages if m["role"] != "system"]
    lm = ScriptedLM([answer])
    response = lm(Request(model="scripted", system=system, messages=tuple(turns)))
    return lm.calls[0].prompt, response.message.text


def prompt_for(form: str, signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> Prompt:
    return asked(form, signature, demos, inputs)[0]


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


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]], ids=["alone", "with a system"])
def test_any_other_text_is_a_plain_prompt(system: list[Any]) -> None:
    prompt, _ = answered([*system, {"role": "user", "content": "hi"}])
    assert (prompt.form, prompt.asks, prompt.demos, prompt.inputs) == ("plain", (), (), {"prompt": "hi"})


@by_form
def test_written_answers_are_read_by_the_adapter(form: str) -> None:
    scalars = {name: value for name, value in VALUES.items() if form != "xml" or name not in ("parts", "tags")}
    signature = Sort
    for name in VALUES.keys() - scalars.keys():
        signature = signature.delete(name)
    _, text = asked(form, signature, [], INPUTS, scalars)
    assert FORMS[form].parse(signature, text) == scalars


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60).map(str.strip)


@given(st.sampled_from(["chat", "json"]), TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_texts_survive_writing_and_reading(form: str, question: str, shown: str, reply: str, answer: str) -> None:
    demos = [{"question": shown, "answer": reply}]
    prompt, text = asked(form, "question -> answer", demos, {"question": question}, {"answer": answer})
    assert prompt.inputs == {"question": question}
    assert [(dict(demo.inputs), dict(demo.outputs)) for demo in prompt.demos] == [
        ({"question": shown}, {"answer": reply})
    ]
    assert FORMS[form].parse(dspy.Signature("question -> answer"), text) == {"answer": answer}
