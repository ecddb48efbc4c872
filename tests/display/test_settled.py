"""A text that arrives in pieces is redacted as it would be in one piece."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspyer.display.redaction import Redaction, Redactor

letters = st.text("ab ", min_size=0, max_size=60)
hidden = st.lists(st.text("ab ", min_size=4, max_size=9), max_size=5)
cuts = st.lists(st.integers(0, 9), max_size=60)


def redactor_of(texts: list[str]) -> Redactor:
    redaction = Redaction.of("secrets")
    assert redaction is not None
    return Redactor(redaction, {"secrets": texts})


@given(secrets=hidden, text=letters, lengths=cuts)
def test_pieces_are_redacted_as_the_whole_text_is(secrets: list[str], text: str, lengths: list[int]) -> None:
    redactor = redactor_of(secrets)
    shown, held, at = "", "", 0
    for length in [*lengths, len(text)]:
        held += text[at : at + length]
        at += length
        settled = redactor.settled(held)
        shown += redactor.redact(held[:settled])
        held = held[settled:]
    assert shown + redactor.redact(held) == redactor.redact(text)


def test_only_what_may_begin_a_hidden_text_is_held_back() -> None:
    redactor = redactor_of(["sesame-opens-it"])
    held = {
        text: text[redactor.settled(text) :] for text in ("open ses", "sesame street", "a s", "a sesame-opens-it, s")
    }
    assert held == {"open ses": "ses", "sesame street": "", "a s": "s", "a sesame-opens-it, s": "s"}
