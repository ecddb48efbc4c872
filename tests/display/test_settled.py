"""A text that arrives in pieces is redacted as it would be in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
from dspy.lm15 import StreamDeltaEvent, StreamEndEvent, StreamStartEvent, TextDelta, Usage
from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START, Context, Graph
from dspyer.events import Emitted, Token
from tests.rows import each

letters = st.text("ab ", min_size=0, max_size=20)
hidden = st.lists(st.text("ab ", min_size=4, max_size=9), max_size=5)
cuts = st.lists(st.integers(1, 9), max_size=60)


class InPieces:
    """The engine of an LM that streams an answer as it is cut."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = ["[[ ## answer ## ]]\n", *pieces, "\n\n[[ ## completed ## ]]"]

    def complete(self, request: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to close."""

    def stream(self, request: Any) -> Iterator[Any]:
        yield StreamStartEvent(id=None, model="in pieces")
        for piece in self.pieces:
            yield StreamDeltaEvent(delta=TextDelta(text=piece, part_index=0))
        yield StreamEndEvent(finish_reason="stop", usage=Usage(input_tokens=1, output_tokens=1))


def shown(secrets: list[str], pieces: list[str]) -> tuple[list[str], str]:
    """The tokens of an answer, and the whole of it as a node emits it."""

    def repeat(answer: str, ctx: Context) -> None:
        ctx.emit(answer)

    graph = Graph(inputs=["question", "secrets"]).add_node("ask", dspy.Predict("question -> answer"))
    graph.add_node("repeat", repeat, writes=[])
    program = graph.add_path(START, "ask", "repeat", END).compile(redact=["secrets"])

    with dspy.context(lm=dspy.LM("in pieces", engine=InPieces(pieces), cache=False)):
        events = list(program.stream({"question": "?", "secrets": secrets}, tokens=True))
    (whole,) = [event.value for event in events if isinstance(event, Emitted)]
    return [event.text for event in events if isinstance(event, Token)], whole


@given(secrets=hidden, told=st.lists(st.integers(0, 4), max_size=4), text=letters, lengths=cuts)
def test_pieces_are_redacted_as_the_whole_text_is(
    secrets: list[str], told: list[int], text: str, lengths: list[int]
) -> None:
    rest, pieces = f"-{text.join(secrets[at] for at in told if at < len(secrets)) or text}-", list[str]()
    for length in [*lengths, len(rest)]:
        pieces.append(rest[:length])
        rest = rest[length:]
    tokens, whole = shown(secrets, [piece for piece in pieces if piece])
    assert "".join(tokens) == whole


@each(
    ("text", "begun"),
    [
        ("open ses", "open "),
        ("sesame street", "sesame street"),
        ("a s", "a "),
        ("a sesame-op", "a "),
        ("a sesame-opens-it, s", "a [redacted], "),
    ],
)
def test_only_what_may_begin_a_hidden_text_is_held_back(text: str, begun: str) -> None:
    tokens, _ = shown(["sesame-opens-it"], [text, ".", "."])
    assert tokens[0] == begun
