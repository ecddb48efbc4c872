"""The JSON form of a `Record`: whole, or its run, some of its steps and some of its values apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

from dspyer.events import LMCall, MergedConflict, Posted
from dspyer.failure import Failure
from dspyer.patch import DELETE, encode_update
from dspyer.record.making import RecordStep, StepQuestion
from dspyer.record.turns import ToolCall, tool_calls
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenList

if TYPE_CHECKING:
    from dspyer.record.record import Record

FORMAT = 1

LONGEST = 1_000
"""Characters of a text up to which it is in the JSON form as it is."""

HASH = 12
"""Characters of the id of a value, but for short numbers, which are shorter."""

BATCH = 1_000
"""Steps that are written at once when a value is looked for."""

FIGURES = frozenset({int, float, bool, type(None)})
"""Types of items of which a list is kept as it is."""

STEP = ("id", "parent", "kind", "node", "visit", "status", "started", "seconds", "waited")
CALL = ("seconds", "predictor", "model", "cost", "attempt", "cached")
POST = ("field", "seq", "size", "operation")
"""What the JSON form has of a step, an LM call and a post as it is."""


def plain(encoded: Any) -> Any:
    """A JSON form of a value (`values.json.encode`) without the names of types: what a reader shows."""
    if type(encoded) is list:
        return [plain(item) for item in encoded]
    if type(encoded) is not dict:
        return encoded
    if encoding.TAG not in encoded:
        return {key: plain(item) for key, item in encoded.items()}
    value: Any = encoded.get("value")
    if encoded[encoding.TAG] in ("datetime", "time"):
        return value[0]
    if encoded[encoding.TAG] in ("dict", "patch"):
        pairs = [(plain(key), plain(item)) for key, item in value]
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else [list(pair) for pair in pairs]
    found = plain(value)
    return encoding.model_parts(found) if encoded[encoding.TAG] == "model" and type(found) is dict else found


class RecordWriter:
    """Writes records of one run as JSON values. Of what it has written it keeps the values, each once, by their ids.

    A list of texts or of other lists and mappings is kept as the ids of its items: one that grows by a step, such as a
    conversation, has those before it in common with the list of the step before.
    """

    def __init__(self) -> None:
        self._named: dict[str, None] = {}  # the ids that were given out
        self._values: dict[str, Any] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._known: dict[int, tuple[Any, str]] = {}  # by identity, with the value: its id is not used again meanwhile
        self._searched: Record | None = None  # with the steps among which no value was looked for yet
        self._left: Iterator[RecordStep] = iter(())

    def whole(self, record: Record, *, shared: bool = False) -> dict[str, Any]:
        """A record with all values; `shared` for lists as the ids of their items, in `lists`."""
        found = {
            "format": FORMAT,
            "run": self.run(record),
            "graphs": {path: graph.to_dict() for path, graph in record.graph.within()},
            "steps": self.steps(record, record.steps),
        }
        if shared:
            return {**found, "values": self._values, "lists": self._lists}
        return {**found, "values": {name: self._json(name) for name in self._named}}

    def value(self, record: Record, id: str) -> Any:  # noqa: A002 - the name of the key
        """A value by its id; raises `LookupError` if the record has none."""
        if id not in self._named and self._searched is not record:
            self._searched, self._left = record, iter(record.steps)
            self.run(record)
        while id not in self._named:
            if not (some := list(islice(self._left, BATCH))):
                raise LookupError(f"the run {record.id!r} has no value {id!r}: ask for its steps again")
            self.steps(record, some)
        return self._json(id)

    def _json(self, name: str) -> Any:
        items = self._lists.get(name)
        return self._values[name] if items is None else list(map(self._json, items))

    def run(self, record: Record) -> dict[str, Any]:
        """The run as a whole."""
        asked = [step.asked for step in record.steps if step.asked is not None]
        origin, hidden, is_open = record.origin, record.hidden, record.status != "completed"
        return {
            "id": record.id,
            "thread": record.thread,
            "graph": record.graph.name,
            "status": record.status,
            "started": _time(record.started),
            "ended": None if record.ended is None else _time(record.ended),
            "tokens": list(record.tokens),
            "cost": record.cost,
            "requests": record.requests,
            "models": list(record.usage),
            "questions": [one.question.id for one in asked if is_open and one.answer is None],
            "failure": self._failure(record.failures[0]) if record.failures else None,
            "origin": None if origin is None else {**origin._asdict(), "wrote": list(origin.wrote)},
            "hidden": list(hidden) if isinstance(hidden, tuple) else hidden,
            "lm_calls": record.lm_calls,
        }

    def steps(self, record: Record, steps: Sequence[RecordStep]) -> list[dict[str, Any]]:
        """Some steps of a record, without their values."""
        inside = {step.parent for step in steps}  # a call is in a step beside that of its result
        calls = tool_calls([step for step in record.steps if step.parent in inside])
        messages: dict[str, list[dict[str, Any]]] = {}
        for one in record.messages(steps):
            sent = {"number": one["number"], "text": self.text(one["text"]), "by": one["by"], "at": one["at"]}
            messages.setdefault(one["step"], []).append(sent)
        return [self._step(step, calls.get(step.id), messages.get(step.id, [])) for step in steps]

    def _step(self, step: RecordStep, call: ToolCall | None, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **{name: getattr(step, name) for name in STEP},
            "branch": list(step.branch),
            "after": list(step.after),
            "to": list(step.to),
            "reason": None if step.reason is None else self.text(step.reason),
            "wrote": {name: {"value": self._value(one.value), "by": one.by} for name, one in step.wrote.items()},
            "call": None if call is None else self._called(call),
            "lm": list(map(self._call, step.lm)),
            "failed": list(map(self._failure, step.failed)),
            "failure": None if step.failure is None else self._failure(step.failure),
            "asked": None if step.asked is None else self._asked(step.asked),
            "conflicts": list(map(self._conflict, step.conflicts)),
            "posts": list(map(self._post, step.posts)),
            "messages": messages,
        }

    def _called(self, call: ToolCall) -> dict[str, Any]:
        return {"id": call.id, "args": call.args, "result": self._value(freeze(call.value)), "error": call.error}

    def _value(self, value: Any) -> str | None:
        """The id of a frozen value; None for no value."""
        if value is DELETE:
            return None
        name = self._place(value)
        self._named[name] = None
        return name

    def _add(self, plain_value: Any) -> str:
        name = self._keep(plain_value)
        self._named[name] = None
        return name

    def _place(self, value: Any) -> str:
        # Steps share what they did not change: by identity, a large state is encoded once and not at each step.
        known = self._known.get(id(value))
        if known is None:
            items = value.raw_items() if type(value) is FrozenList else ()
            if not items or not FIGURES.isdisjoint(map(type, items)):
                name = self._keep(plain(encoding.encode(value)))
            else:
                places = tuple(map(self._place, items))
                name = _hash(f"list {' '.join(places)}")
                self._lists.setdefault(name, places)
            known = self._known[id(value)] = value, name
        return known[1]

    def _keep(self, plain_value: Any) -> str:
        # Sorted: values that are equal have one id, whatever order their keys came in.
        text = json.dumps(plain_value, ensure_ascii=False, sort_keys=True)
        # A short number is its own id: half of what a long loop of counters would send are ids.
        name = text if len(text) < HASH and not isinstance(plain_value, str | list | dict) else _hash(text)
        self._values.setdefault(name, plain_value)
        return name

    def text(self, text: str) -> Any:
        """A text; of a long one its beginning, and the id of the whole."""
        return text if len(text) <= LONGEST else {"text": text[:LONGEST], "more": self._add(text)}

    def _failure(self, failure: Failure) -> dict[str, Any]:
        found = failure.to_dict()
        return {**found, **{name: self.text(found[name]) for name in ("message", "traceback") if name in found}}

    def _call(self, call: LMCall) -> dict[str, Any]:
        messages = call.messages if isinstance(call.messages, Sequence) else ()
        return {
            **{name: getattr(call, name) for name in CALL},
            "at": call.started,
            "tokens": [call.prompt_tokens, call.response_tokens],
            "failed": None if call.failed is None else self.text(call.failed),
            "finish": call.finish_reason,
            "messages": list(map(self._add, messages)),
            "response": None if call.response is None else self._add(call.response),
        }

    def _asked(self, asked: StepQuestion) -> dict[str, Any]:
        answer = asked.answer
        given = None
        if answer is not None:
            given = {
                "value": self._value(answer.value),
                "by": answer.by,
                "comment": answer.comment and self.text(answer.comment),
                "at": answer.at,
            }
        question = asked.question
        call = None if question.call is None else question.call.to_dict()
        told = {"id": question.id, "text": self.text(question.text), "at": asked.at, "call": call}
        return {**told, "expires": question.expires, "answer": given}

    def _conflict(self, conflict: MergedConflict) -> dict[str, Any]:
        def value(given: Any) -> str | None:
            return None if given is DELETE else self._add(plain(encode_update(given)))

        return {
            "path": [str(key) for key in conflict.path],
            "base": value(conflict.base),
            "values": [[author, value(side)] for author, side in conflict.values],
            "policy": conflict.policy,
            "value": value(conflict.value),
            "winner": conflict.winner,
        }

    def _post(self, post: Posted) -> dict[str, Any]:
        value = self._add(plain(post.to_dict()["value"]))
        return {**{name: getattr(post, name) for name in POST}, "at": post.time, "value": value}


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH // 2).hexdigest()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
