"""`Record`: a run for people to read, as one immutable value, and its JSON form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dspyer.errors import StoreError, brief
from dspyer.events import Answer, Commit, LMCall, MergedConflict, Posted
from dspyer.failure import Failure
from dspyer.ids import full_id
from dspyer.log.rows import total_cost
from dspyer.patch import DELETE, encode_update
from dspyer.record.compare import Comparison
from dspyer.record.drawn import DrawnGraph
from dspyer.record.making import RecordStep, RunEnding, RunSteps, StepQuestion, Wrote, covered, span_of
from dspyer.record.step_examples import examples_of
from dspyer.record.turns import ToolCall, sent_messages, tool_calls
from dspyer.redaction import HIDDEN, Redaction
from dspyer.state import ImmutableState
from dspyer.values import json as encoding
from dspyer.values.freezing import find_opaque, freeze
from dspyer.values.frozen import FrozenList, thaw

if TYPE_CHECKING:
    import dspy

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

KEPT = 64
"""Steps of which all fields are kept: a reader goes on to the next one."""


class Origin(NamedTuple):
    """The origin of a copy or a rerun: the run, its last step that counts, and the fields that were edited then."""

    run: str
    at: str
    wrote: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Record:
    """A run: what it did, step by step. `run.record()`, `thread.record()` and `archive.thread(name).record()` give it.

    Attributes:
        id: the name of the run, with which the ids of its steps begin; of a run without a store its id.
        run_id: its id, as `Run.run_id`.
        thread: the name of its thread; "" for none.
        graph: its graph.
        status: as in `Thread.status`.
        started: when it was started, seconds since the epoch.
        ended: when it ended; None if it has not.
        usage: what it used by language model, as `run.usage`.
        steps: its steps, each before those inside of it.
        failures: those with which it ended.
        origin: where it has begun as a copy or a rerun; None for neither.
        hidden: what is redacted in it: patterns, or `"function"`; None for nothing.
        lm_calls: how much of LM calls its program records: `"usage"`, `"full"`, `"none"` or `"function"`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_path(START, "add", END)
        >>> record = graph.compile().run({"n": 1}).record()
        >>> ([(step.node, step.kind, step.wrote["n"].value)
        ...     for step in record.steps], record.state("trunk:1")["n"])
        ([('START', 'start', 1), ('add', 'function', 2)], 2)
    """

    id: str
    run_id: str
    thread: str
    graph: DrawnGraph
    status: str
    started: float
    ended: float | None
    usage: Mapping[str, Mapping[str, Any]]
    steps: tuple[RecordStep, ...]
    failures: tuple[Failure, ...] = ()
    origin: Origin | None = None
    hidden: tuple[Any, ...] | str | None = None
    lm_calls: str = "usage"
    _earlier: Callable[[], Mapping[str, Commit]] = field(default=dict, repr=False)
    _fields: dict[str, Mapping[str, Wrote]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        steps: RunSteps,
        ending: RunEnding,
        run_id: str,
        thread: str,
        started: float,
        hidden: Any,
        lm_calls: str,
        origin: Origin | None = None,
    ) -> Record:
        """The record of a run by what is known of it."""
        label, failures = steps.label, ending.failures
        made = steps.make(ending)
        if steps.redactor is not None:  # by now it knows all that is hidden
            failures = [steps.redactor.failure(one) for one in failures]
        return cls(
            label or run_id,
            run_id,
            thread,
            steps.graph,
            ending.status,
            started,
            ending.ended,
            ending.usage,
            made,
            tuple([one.model_copy(update={"execution": full_id(label, one.execution)}) for one in failures]),
            origin,
            tuple(hidden) if isinstance(hidden, list) else hidden,
            lm_calls,
            steps.earlier,
            steps.fields,
        )

    def __repr__(self) -> str:
        return f"<record of run {self.id!r}: {self.status}, {len(self.steps)} steps>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.run_id)

    @property
    def cost(self) -> float | None:
        """The cost, US dollars; None if the price of a model is not known."""
        return total_cost(self.usage)

    @property
    def requests(self) -> int:
        """The number of requests that it has sent to language models."""
        return sum([used.get("requests", 0) for used in self.usage.values()])

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of its prompts and of its responses."""
        prompts, responses = [
            sum([used.get(name, 0) for used in self.usage.values()]) for name in ("prompt_tokens", "completion_tokens")
        ]
        return prompts, responses

    @property
    def seconds(self) -> float:
        """The seconds in which it worked: without what it has `waited`, and the time between a crash and the resume."""
        return covered([*self._asked, *[span_of(step) for step in self.steps if step.parent is None]]) - self.waited

    @property
    def waited(self) -> float:
        """The seconds in which it did nothing but wait for answers."""
        around = {step.parent for step in self.steps}
        work = [span_of(step) for step in self.steps if step.id not in around]
        return covered([*work, *self._asked]) - covered(work)

    @property
    def _asked(self) -> list[tuple[float, float]]:
        return [asked.span for step in self.steps if (asked := step.asked)]

    def compare(self, other: Record) -> Comparison:
        """Compare the run with another one: figures, and the steps in pairs, with what differs.

        Args:
            other: the record of the other run.

        Returns:
            The comparison, of which this run is `a`; `print` shows it.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> a, b = [graph.compile().run({"n": n}).record() for n in (1, 2)]
            >>> [(pair.node, pair.changed) for pair in a.compare(b).pairs]
            [('START', ('n',)), ('add', ('n',))]
        """
        if not isinstance(other, Record):
            raise TypeError(f"{brief(other)} is no record to compare with: give that of a run, run.record()")
        return Comparison.of(self, other)

    def examples(self, node: str) -> list[dspy.Example]:
        """The examples of a node with one predictor: of each done step what its predictor got, and what it gave.

        Values are as the state holds them. A step is left out if a value of it is redacted, of a class that this
        process does not know, or not stored, as is what a graph inside of a node has begun with: a warning in the log
        says how many are.

        Args:
            node: the node; of a graph inside of a node with the path to it, as `"lead/check"`. Of a map, each item is
                an example.

        Raises:
            LookupError: if the graph has no such node with one predictor; it lists those that it has.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> from dspyer.testing import ScriptedLM
            >>> program = Graph().add_node("judge", dspy.Predict("text -> label")
            ...     ).add_path(START, "judge", END).compile()
            >>> with ScriptedLM([{"label": "spam"}]):
            ...     run = program.run({"text": "Win!"})
            >>> [(dict(one.inputs()), dict(one.labels()))
            ...     for one in run.record().examples("judge")]
            [({'text': 'Win!'}, {'label': 'spam'})]
        """
        return examples_of([self], node).as_dspy(node)

    def has(self, id: str) -> bool:  # noqa: A002 - the name of the attribute
        """Return whether there is a step with an id."""
        return id in self._places

    def step(self, id: str) -> RecordStep:  # noqa: A002 - the name of the attribute
        """A step by its id; raises `LookupError` if there is none."""
        if id not in self._places:
            raise LookupError(f"the run {self.id!r} has no step {id!r}; ids look like {next(iter(self._places), '')!r}")
        return self.steps[self._places[id]]

    def state(self, id: str) -> ImmutableState:  # noqa: A002
        """The state after a step; of one that has no commit, that from which it began.

        Raises:
            LookupError: if there is no such step, or it is inside of another one: states of graphs inside of nodes are
                not stored.
            StoreError: if it cannot be read.
        """
        step = self.step(id)
        if step.status == "unreadable":
            raise StoreError(step.reason or "")
        # The stored state, with what is hidden: `fields` has it as it may be shown.
        if step._state is not None:
            return step._state
        if step.parent is not None:
            raise LookupError(
                f"the step {id!r} is inside of {step.parent!r}: the states of graphs in nodes are not stored"
            )
        return self.state(step.after[0]) if step.after else ImmutableState()

    def fields(self, id: str) -> Mapping[str, Wrote]:  # noqa: A002
        """By field of the state after a step, its value as it may be shown, and the id of the step that has written it.

        This is a walk along the first of `after`: nothing is folded. What was found for a step is kept, so that those
        of the next one cost what that one wrote.
        """
        passed: list[RecordStep] = []
        at: RecordStep | None = self.step(id)
        known: Mapping[str, Wrote] | None = None
        while at is not None and (known := self._fields.get(at.id)) is None:
            passed.append(at)
            at = self.step(at.after[0]) if at.after else None
        found = dict(known or {})
        for step in reversed(passed):
            for name, one in step.wrote.items():
                if one.value is DELETE:
                    found.pop(name, None)
                else:
                    found[name] = Wrote(one.value, one.by or step.id)
        if self.step(id).commit is not None:  # what was committed stays as it is, also in later records of the run
            self._fields[id] = found
            for oldest in list(self._fields)[:-KEPT]:  # a list, since another thread may add to them
                self._fields.pop(oldest, None)
        return found

    def may_use(self, field: str, value: Any) -> bool:
        """Return whether a value of a field may be taken out of the run: it is not redacted, and its class is known.

        Args:
            field: the field of the state.
            value: what it holds, as `fields` or a step has it.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n, key: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> record = graph.compile(redact=["key"]).run(
            ...     {"n": 1, "key": "k-42"}).record()
            >>> [record.may_use(name, one.value)
            ...     for name, one in record.steps[0].wrote.items()]
            [True, False]
        """
        redaction = Redaction.stored(self.hidden)
        if redaction is None or find_opaque(value) is not None:
            return find_opaque(value) is None
        plain = thaw(value)
        return redaction.value((field,), plain) is plain and HIDDEN not in str(plain)

    def calls(self, id: str) -> tuple[LMCall, ...]:  # noqa: A002
        """The LM calls of a step and of those inside of it, in the order in which they began."""
        return tuple(sorted([call for step in self._within(id) for call in step.lm], key=lambda call: call.started))

    def answers(self, id: str | None = None) -> tuple[Answer, ...]:  # noqa: A002
        """The answers to the questions of the run, or of a step and those inside of it, as they may be shown.

        They are in the order in which they were given.

        Args:
            id: the id of the step.

        Raises:
            LookupError: if there is no such step.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_interrupt("ok", question="Send it?", answer=bool,
            ...     into="sent")
            >>> t = graph.add_path(START, "ok", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> t.run({}).status, t.resume({"ok": True}, by="ada").status
            ('interrupted', 'completed')
            >>> [(answer.value, answer.by) for answer in t.record().answers(
            ...     "t-42.1/trunk:1")]
            [(True, 'ada')]
        """
        asked = [step.asked for step in (self.steps if id is None else self._within(id)) if step.asked is not None]
        found = [replace(one.answer, value=thaw(one.answer.value)) for one in asked if one.answer is not None]
        return tuple(sorted(found, key=lambda one: one.at or 0.0))

    def messages(self, steps: Sequence[RecordStep] | None = None) -> list[dict[str, Any]]:
        """The messages of `thread.send` that turns of the run have taken, as they may be shown.

        Args:
            steps: only those of these steps.

        Returns:
            Dicts with `step` (the id of the turn), `number`, `text`, `by` and `at`, in the order of the steps.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).record().messages()
            []
        """
        around = self._around  # the patch of a graph has what the turns inside of it took
        return [
            {"step": step.id, **sent}
            for step in (self.steps if steps is None else steps)
            if step.commit is not None and step.id not in around
            for sent in sent_messages(step.commit)
        ]

    def _within(self, id: str) -> Iterator[RecordStep]:  # noqa: A002
        """A step and those inside of it; raises `LookupError` if there is none."""
        inside = {self.step(id).id}
        for place in range(self._places[id], len(self.steps)):
            step = self.steps[place]
            if step.id != id and step.parent not in inside:
                break  # the steps inside of one come right after it
            inside.add(step.id)
            yield step

    def node(self, id: str) -> str:  # noqa: A002
        """The node of a step, also of one of an earlier run that has written what this one began with."""
        if id in self._places:
            return self.step(id).node
        return next((commit.node for commit in self._earlier().values() if commit.id == id), "")

    @cached_property
    def _around(self) -> set[str | None]:
        return {step.parent for step in self.steps}

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {step.id: place for place, step in enumerate(self.steps)}

    def to_dict(self, *, shared: bool = False) -> dict[str, Any]:
        """Return the JSON form. Values are in `values`, each once, under a hash of it.

        Args:
            shared: lists that grow from step to step are not in `values`, but in `lists`, as the hashes of their items.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> found = graph.compile().run({"n": 1}).record().to_dict()
            >>> found["values"][found["steps"][1]["wrote"]["n"]["value"]]
            2
        """
        return RecordWriter().whole(self, shared=shared)


# --- JSON


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
                name = self._keep(encoding.plain(encoding.encode(value)))
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
            return None if given is DELETE else self._add(encoding.plain(encode_update(given)))

        return {
            "path": [str(key) for key in conflict.path],
            "base": value(conflict.base),
            "values": [[author, value(side)] for author, side in conflict.values],
            "policy": conflict.policy,
            "value": value(conflict.value),
            "winner": conflict.winner,
        }

    def _post(self, post: Posted) -> dict[str, Any]:
        value = self._add(encoding.plain(post.to_dict()["value"]))
        return {**{name: getattr(post, name) for name in POST}, "at": post.time, "value": value}


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH // 2).hexdigest()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
