"""Rule 21 of the contract, and what `dspy.streamify` needs: tokens of branches that run at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import dspy
import pytest
from dspy.streaming import StatusMessage, StatusMessageProvider, StreamListener, StreamResponse

from dspyer import END, START, Graph, events
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import PAIRS, Pair
from tests.rows import each

modes = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def streamed(program: Any, fields: list[str], is_async: bool, **options: Any) -> list[Any]:
    """Everything that one streamed call gives."""

    async def collect() -> list[Any]:
        listeners = [StreamListener(signature_field_name=field, allow_reuse=True) for field in fields]
        streaming = dspy.streamify(program, stream_listeners=listeners, is_async_program=is_async, **options)
        return [chunk async for chunk in streaming(question="When does the train leave, and from where?")]

    return asyncio.run(collect())


def fan() -> Any:
    graph = Graph(name="Fan")
    for name in ("one", "two", "three"):
        graph.add_node(name, dspy.Predict(f"question -> {name}")).add_edge(START, name).add_edge(name, END)
    return graph.compile()


@modes
def test_tokens_of_parallel_branches_stream(is_async: bool, lm: NotingLM) -> None:
    found = streamed(fan(), ["one", "two", "three"], is_async)
    texts: dict[str, str] = {}
    for chunk in found:
        if isinstance(chunk, StreamResponse):
            texts[chunk.signature_field_name] = texts.get(chunk.signature_field_name, "") + chunk.chunk

    assert isinstance(found[-1], dspy.Prediction)
    assert {name: text.strip() for name, text in texts.items()} == dict(found[-1])
    counts = Counter(type(chunk).__name__ for chunk in found)
    assert counts["StreamResponse"] > 6
    assert counts["Prediction"] == 1


@modes
@each("pair", [pair for pair in PAIRS if pair.field == "question"], ids=lambda pair: pair.name)
def test_streamed_program_gives_the_same_prediction(pair: Pair, is_async: bool, lm: NotingLM) -> None:
    program = pair.graph()
    found = streamed(program, ["label"], is_async)

    assert isinstance(found[-1], dspy.Prediction)
    assert dict(found[-1]) == dict(program(question="When does the train leave, and from where?"))
    chunks = "".join(chunk.chunk for chunk in found if isinstance(chunk, StreamResponse))
    assert found[-1].label in chunks


@modes
def test_chunks_name_the_predictor_of_the_node(is_async: bool, lm: NotingLM) -> None:
    found = streamed(PAIRS[1].graph(), ["topic", "mood"], is_async)
    named = {(chunk.predict_name, chunk.signature_field_name) for chunk in found if isinstance(chunk, StreamResponse)}
    assert named == {("topic.predict", "topic"), ("mood", "mood")}


class Nodes(StatusMessageProvider):
    def module_start_status_message(self, instance: Any, inputs: dict[str, Any]) -> str:
        return type(instance).__name__


@modes
def test_status_messages_show_the_modules_of_branches(is_async: bool, lm: NotingLM) -> None:
    found = streamed(PAIRS[1].graph(), ["topic"], is_async, status_message_provider=Nodes())
    messages = Counter(chunk.message for chunk in found if isinstance(chunk, StatusMessage))
    assert messages == {"ChainOfThought": 1, "Predict": 3} | ({"Fork": 1} if "Fork" in messages else {})


@modes
def test_tokens_of_a_graph_in_a_graph_stream(is_async: bool, lm: NotingLM) -> None:
    graph = Graph(name="Outer").add_node("inner", fan()).add_node("four", dspy.Predict("one, two -> four"))
    program = graph.add_path(START, "inner", "four", END).compile()
    found = streamed(program, ["one", "three", "four"], is_async)
    fields = {chunk.signature_field_name for chunk in found if isinstance(chunk, StreamResponse)}
    assert fields == {"one", "three", "four"}


@modes
def test_every_round_of_a_loop_streams(is_async: bool, lm: NotingLM) -> None:
    found = streamed(PAIRS[2].graph(), ["draft"], is_async)
    last = [chunk for chunk in found if isinstance(chunk, StreamResponse) and chunk.is_last_chunk]
    assert len(last) == found[-1].rounds


class Reading(dspy.Module):
    """A module that streams the events of a program itself."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.program, self.tokens = fan(), tokens

    def forward(self, question: str) -> dspy.Prediction:
        stream = self.program.stream({"question": question}, tokens=self.tokens)
        return self._prediction(list(stream), stream.run)

    async def aforward(self, question: str) -> dspy.Prediction:
        stream = self.program.astream({"question": question}, tokens=self.tokens)
        return self._prediction([event async for event in stream], stream.run)

    def _prediction(self, found: list[Any], run: Any) -> dspy.Prediction:
        joined = dict.fromkeys(("one", "two", "three"), "")
        for event in found:
            if isinstance(event, events.Token):
                joined[event.field] += event.text
        return dspy.Prediction(**run.prediction, joined=joined)


@modes
@pytest.mark.parametrize("tokens", [False, True], ids=["events", "tokens"])
def test_a_stream_around_the_program_gets_every_chunk(is_async: bool, tokens: bool, lm: NotingLM) -> None:
    found = streamed(Reading(tokens), ["one", "three"], is_async)
    texts: dict[str, str] = {}
    for chunk in found:
        if isinstance(chunk, StreamResponse):
            texts[chunk.signature_field_name] = texts.get(chunk.signature_field_name, "") + chunk.chunk
    values = {name: found[-1][name] for name in ("one", "two", "three")}
    assert {name: text.strip() for name, text in texts.items()} == {name: values[name] for name in ("one", "three")}
    assert found[-1].joined == (values if tokens else dict.fromkeys(values, ""))
