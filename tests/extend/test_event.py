"""An event of a user's own: one class, made by public names alone, that goes wherever events go."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any

import pytest

import dspyer
from dspyer import END, START, Context, Graph
from dspyer.__main__ import main
from dspyer.extend import Call, Event, Layer
from dspyer.testing import no_pauses
from tests.rows import each
from tests.runtime.test_progress import Terminal
from tests.runtime.traces import tracing


@dataclass(frozen=True)
class Seen(Event):
    """What a layer has seen."""

    node: str
    execution: str
    text: str


class Watching(Layer):
    """Publishes what each node is given."""

    def around(self, call: Call, inner: Any) -> Any:
        output = yield from inner(call)
        call.publish(Seen(call.node, call.execution, call.read("text")))
        return output


def program(**options: Any) -> Any:
    inner = Graph(name="Inner").add_node("shout", lambda text: {"loud": text.upper()}, layers=[Watching()])
    part = inner.add_path(START, "shout", END).compile()
    return Graph().add_node("part", part, layers=[Watching()]).add_path(START, "part", END).compile(**options)


def test_it_is_in_the_events_of_the_run_with_its_place() -> None:
    run = program().run({"text": "hey"})
    shown = [event.to_dict() for event in run.events if isinstance(event, Seen)]
    assert all(time.time() - 60 < one.pop("at") <= time.time() for one in shown)
    assert shown == [
        {"event": "Seen", "node": "shout", "execution": "trunk:1/trunk:1", "text": "hey", "scope": ["trunk:1"]},
        {"event": "Seen", "node": "part", "execution": "trunk:1", "text": "hey", "scope": []},
    ]
    assert pickle.loads(pickle.dumps(run.events)) == run.events


@each("mode", ["stream", "stored", "sse"])
def test_it_goes_wherever_events_go_and_shows_nothing_that_is_hidden(mode: str) -> None:
    made = program(redact=["text"], store=":memory:")

    async def sent() -> list[str]:
        parts = [part async for part in made.astream({"text": "a secret"}).sse()]
        return [json.loads(part.decode().split("data: ")[1])["text"] for part in parts if b"event: Seen" in part]

    if mode == "sse":
        found = asyncio.run(sent())
    else:
        with (made.thread("t") if mode == "stored" else made).stream({"text": "a secret"}) as stream:
            found = [event.text for event in stream if isinstance(event, Seen)]
    assert found == ["[redacted]", "[redacted]"]


def test_it_shows_no_number_that_is_hidden() -> None:
    def pay(card: int, ctx: Context) -> dict[str, bool]:
        ctx.emit(Length("pay", "trunk:1", card))
        return {"paid": True}

    made = Graph().add_node("pay", pay).add_path(START, "pay", END).compile(redact="card")
    with made.stream({"card": 47110815}) as stream:
        assert [str(event.characters) for event in stream if isinstance(event, Length)] == ["[redacted]"]


@dataclass(frozen=True)
class Length(Event):
    """How long a text is."""

    node: str
    execution: str
    characters: int

    def label(self) -> str:
        return f"{self.characters} characters"


class Measuring(Layer):
    """Publishes an event for each step, item of a map, and attempt."""

    place = "attempt"

    def around(self, call: Call, inner: Any) -> Any:
        call.publish(Length(call.node, call.execution, len(str(call.read("text")))))
        return (yield from inner(call))


def retried(colour: str) -> Any:
    """A graph inside of a step, whose step fails once, and a map, all with the layer."""
    failing = [True]

    def shout(text: str) -> dict[str, str]:
        if failing and failing.pop():
            raise ConnectionError("no line")
        return {"loud": text.upper()}

    async def ashout(text: str) -> dict[str, str]:
        return shout(text)

    def length(text: str) -> int:
        return len(text)

    layers = [Measuring()]
    inner = Graph(name="Inner").add_node("shout", ashout if colour == "async" else shout, retry=2, layers=layers)
    graph = Graph(inputs=["text", "words"]).add_node("part", inner.add_path(START, "shout", END).compile())
    graph.add_map("each", length, over="words", item="text", into="lengths", layers=layers)
    return graph.add_path(START, "part", "each", END).compile()


INPUTS = {"text": "hey", "words": ["a", "bcd"]}


@each("colour", ["sync", "async"])
def test_it_is_seen_under_retry_in_a_map_and_in_a_nested_graph(colour: str) -> None:
    program = retried(colour)

    async def sent() -> list[Any]:
        return [event async for event in program.astream(INPUTS)]

    with no_pauses():
        found = asyncio.run(sent()) if colour == "async" else list(program.stream(INPUTS))
    lengths = [event for event in found if isinstance(event, Length)]
    assert [(one.node, one.scope, one.label()) for one in lengths[:2]] == [("shout", ("trunk:1",), "3 characters")] * 2
    assert sorted((one.node, one.scope, one.label()) for one in lengths[2:]) == [
        ("each", (), "1 characters"),
        ("each", (), "3 characters"),
    ]
    others = [event.label().partition(";")[0] for event in found if event.scope and not isinstance(event, Length)]
    assert others == [
        "run of Inner started",
        "committed text",
        "started",
        "attempt 1 failed: ConnectionError: no line",
        "committed loud",
        "completed",
    ]


def test_spans_have_it_as_an_event_of_its_execution() -> None:
    with tracing() as traces, no_pauses():
        retried("sync").run(INPUTS)
    found = [
        (span.name, (span.attributes or {})["dspyer.execution"], (event.attributes or {})["label"])
        for span in traces.spans
        for event in span.events
        if event.name == "Length"
    ]
    assert sorted(found) == [
        ("invoke_node shout", "trunk:1/trunk:1", "3 characters"),
        ("invoke_node shout", "trunk:1/trunk:1", "3 characters"),
        ("item 0", "trunk:2[0]", "1 characters"),
        ("item 1", "trunk:2[1]", "3 characters"),
    ]


measured = retried("sync")


@each("shown_by", ["progress", "run"])
def test_progress_and_the_command_line_show_it(shown_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with redirect_stderr(terminal), no_pauses():
        if shown_by == "progress":
            with dspyer.progress():
                measured.run(INPUTS)
        else:
            with pytest.raises(SystemExit) as ended:
                main(["run", f"{__name__}:measured", "--input", json.dumps(INPUTS)])
            assert ended.value.code == 0
    lines = [line.lstrip("├└─ ") for line in terminal.closed_with.splitlines()]
    # The last three events are shown: the first attempt's may be above them.
    assert "shout: 3 characters" in lines
    assert {"each: 1 characters", "each: 3 characters"} <= set(lines)


def test_an_event_has_a_plain_label_of_its_own() -> None:
    assert Seen("a", "trunk:1", "hey").label() == "seen: text 'hey'"


def test_it_is_copied_when_it_is_published() -> None:
    """So one object can be published again, and has the time and scope of each time."""
    same = Length("a", "", 1)

    def node(ctx: Context) -> None:
        ctx.emit(same)
        ctx.emit(same)

    graph = Graph(inputs=[]).add_node("a", node, writes=[]).add_path(START, "a", END)
    run = graph.compile().run({})
    first, second = [event for event in run.events if isinstance(event, Length)]
    assert (same.at, first, second) == (0.0, same, same)
    assert first.at <= second.at
    assert first.at > 0


class Bare(Event):
    """No dataclass."""


@dataclass(frozen=True)
class Labelled(Event):
    """A field has the name of a method."""

    label: str  # type: ignore[assignment]


@each("event, error", [(Bare(), "@dataclass"), (Labelled("x"), "a field 'label'")])
def test_a_class_that_cannot_be_shown_is_refused_when_it_is_published(event: Event, error: str) -> None:
    graph = Graph(inputs=[]).add_node("a", lambda ctx: ctx.emit(event), writes=[]).add_path(START, "a", END)
    with pytest.raises(TypeError, match=error):
        graph.compile()()


@dataclass(frozen=True)
class Scoped(Event):
    scope: str  # type: ignore[assignment]


@dataclass(frozen=True)
class Timed(Event):
    at: float


@dataclass(frozen=True)
class Titled(Event):
    label: str  # type: ignore[assignment]


@dataclass(frozen=True)
class Worded(Event):
    label = "words"  # type: ignore[assignment]


@each(
    "event, words",
    [
        (Scoped("here"), "class Scoped has a field 'scope', which every event has: rename it"),
        (Timed(3.0), "class Timed has a field 'at', which every event has: rename it"),
        (Titled("words"), "class Titled has a field 'label', which every event has: rename it"),
        (Worded(), r"class Worded has a label that is no method: write def label\(self\)"),
    ],
)
def test_a_class_that_takes_the_place_of_what_every_event_has_is_refused(event: Event, words: str) -> None:
    def emits(text: str, ctx: Context) -> None:
        ctx.emit(event)

    run = Graph().add_node("emits", emits).add_path(START, "emits", END).compile().run({"text": "hey"})
    with pytest.raises(TypeError, match=words):
        run.raise_error()
