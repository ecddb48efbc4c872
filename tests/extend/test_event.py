"""An event of a user's own: a named tuple, made by public names alone, that goes wherever events go."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from dataclasses import dataclass
from typing import Any

from dspyer import END, START, Graph
from dspyer.extend import Call, Event, Layer
from tests.rows import each


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
