"""What `compile(redact=...)` hides and what it shows: no secret is in an event, log, error or export."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import dspy
import pytest
from pydantic import BaseModel, ValidationError
from tenacity import wait_none

from dspyer import END, START, CompiledGraph, Context, Failure, Graph, Retry, Send, reducers
from dspyer.display.redaction import HIDDEN, Redaction, Redactor
from dspyer.errors import DspyerError, Interrupted, MergeConflictError, StoreError
from dspyer.events import Committed, Emitted, Event, Exchange, RunEnded
from dspyer.graph.declarations import fields_of_items
from dspyer.patch import Replace
from dspyer.reducers import Updates
from dspyer.runtime.session_events import watching
from dspyer.schema.schema import Schema
from dspyer.stores import Memory
from dspyer.values.freezing import freeze
from tests.event_samples import RECORDS, event_types, sample

SECRET = "SECRET-123"


class User(BaseModel):
    name: str
    email: str = ""


class Open(BaseModel, extra="allow"):
    name: str = ""


class State(BaseModel):
    q: str = ""
    token: str = ""
    user: User | None = None
    info: dict[str, Any] = {}
    log: Annotated[list[str], reducers.extend] = []
    n: int = 0
    problems: list[str] = []


def build(*, merge: Any = "raise") -> Graph:
    def left(q: str) -> dict[str, Any]:
        return {"token": SECRET, "log": [SECRET], "user": {"name": "Ada", "email": SECRET}}

    def right(q: str) -> dict[str, Any]:
        return {"token": SECRET + "-other", "info": {"a": {"key": SECRET}, "b": 1}}

    graph = Graph(State, inputs=["q", "n"], merge=merge)
    graph.add_node("left", left, writes=["token", "log", "user"])
    graph.add_node("right", right, writes=["token", "info"])
    graph.add_node("last", lambda q: {}, writes=[])
    return graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "last").add_edge("last", END)


def by_function(path: tuple[Any, ...], value: Any) -> Any:
    return HIDDEN if isinstance(value, str) and "SECRET" in value else value


PATTERNS = ["token", "log", "**.email", "info.*.key"]


def program(redact: Any, store: Any = None, **options: Any) -> CompiledGraph:
    return build(**options).compile(redact=redact, store=store)


@pytest.mark.parametrize("redact", [PATTERNS, by_function], ids=["patterns", "function"])
def test_redacted_values_appear_in_no_event_log_or_error(
    redact: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Memory()
    t = program(redact, store, merge={"token": "last_write_wins"}).thread("t")
    with caplog.at_level(logging.WARNING, "dspyer"):
        stream = t.stream({"q": "plain"})
        seen = [repr(event) for event in stream]
    run = stream.run
    assert run is not None
    assert not [text for text in seen if SECRET in text]
    assert any("'b': 1" in text for text in seen), "the rest is shown"
    assert caplog.records
    assert SECRET not in caplog.text
    assert SECRET not in run.report() + run.to_svg()
    t.export(tmp_path / "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text()
    assert SECRET not in text
    assert '"name":"Ada"' in text
    with pytest.raises(StoreError, match="was exported with redact="):
        program(None, Memory()).thread("t").load(tmp_path / "t.jsonl")
    assert run.state["token"] == SECRET + "-other", "nodes need it"
    assert t.state["user"].email == SECRET, "and the log has it"
    assert t.at(1).to_dict() is not None


@pytest.mark.parametrize("redact", [PATTERNS, by_function], ids=["patterns", "function"])
def test_errors_of_the_package_hide_redacted_values(redact: Any) -> None:
    run = program(redact).run({"q": "plain"})
    assert "Conflict detected at key 'token': left has '[redacted]'" in str(run.error)
    assert SECRET not in str(run.error)
    assert SECRET in str(program(None).run({"q": "plain"}).error)

    def wrong(q: str) -> dict[str, Any]:
        return {"token": [SECRET]}

    graph = Graph(State, inputs=["q"]).add_node("wrong", wrong, writes=["token"]).add_path(START, "wrong", END)
    error = graph.compile(redact=redact).run({"q": "plain"}).error
    assert "node 'wrong' writes" in str(error)
    assert SECRET not in str(error)


def test_events_and_logs_of_graphs_inside_are_hidden_too(caplog: pytest.LogCaptureFixture) -> None:
    inner = build(merge="last_write_wins")
    inner.add_node("draft", lambda q: {"token": SECRET}, writes=["token"]).add_edge("last", "draft").add_edge(
        "draft", END
    )
    inner.add_check("open", lambda token: [token] if token else [], of="draft", fix=lambda: {"token": ""})
    outer = Graph(State, inputs=["q"]).add_node("inner", inner).add_path(START, "inner", END)
    with caplog.at_level(logging.INFO, "dspyer"):
        events = list(outer.compile(redact=PATTERNS).stream({"q": "plain"}))
    assert {record.funcName for record in caplog.records} == {"log_conflict", "log_rejection"}
    veiled(caplog.text)
    assert [event for event in events if isinstance(event, Committed) and event.scope]
    assert SECRET not in repr(events)


def test_a_program_inside_a_node_hides_values_of_its_own_events_alone() -> None:
    part = Graph(name="Part").add_node("sign", lambda q: {"token": SECRET}, writes=["token"])
    inner = part.add_path(START, "sign", END).compile(redact=["token"])
    outer = Graph(name="Whole").add_node("part", inner).add_path(START, "part", END).compile()
    committed = [event for event in outer.stream({"q": ""}) if isinstance(event, Committed)]
    shown = {event.commit.node: event.commit.patch["token"] for event in committed if "token" in event.commit.patch}
    assert shown == {"sign": HIDDEN, "part": SECRET}


@pytest.mark.parametrize(
    ("spec", "path", "value", "shown"),
    [
        pytest.param("a", ("a",), {"b": 1}, HIDDEN, id="a field"),
        pytest.param(["a.b"], ("a",), {"b": 1, "c": [2]}, {"b": HIDDEN, "c": [2]}, id="a key"),
        pytest.param(["a.*"], ("a",), [1, 2], [HIDDEN, HIDDEN], id="every item"),
        pytest.param(["a.1"], ("a",), (1, 2), (1, HIDDEN), id="one item"),
        pytest.param([("a.b", "c")], ("a.b",), {"c": 1}, {"c": HIDDEN}, id="a path without wildcards"),
        pytest.param(["**.email"], ("u",), User(name="A", email="e"), {"name": "A", "email": HIDDEN}, id="in a model"),
        pytest.param(["u.pin"], ("u",), Open(pin="p"), {"name": "", "pin": HIDDEN}, id="an extra field of a model"),
        pytest.param(["x"], ("a",), {"b": 1}, {"b": 1}, id="nothing"),
    ],
)
def test_redaction_of_values_by_path(spec: Any, path: tuple[Any, ...], value: Any, shown: Any) -> None:
    redaction = Redaction.of(spec)
    assert redaction is not None
    assert redaction.value(path, value) == shown
    assert redaction.patch({path[0]: freeze(value)})[path[0]] == freeze(shown)


ITEM = {"key": SECRET, "rest": "plain"}
HIDDEN_ITEM = {"key": HIDDEN, "rest": "plain"}


@pytest.mark.parametrize(
    ("pattern", "field", "update", "shown"),
    [
        pytest.param("notes.*.key", "notes", ITEM, HIDDEN_ITEM, id="an item"),
        pytest.param("notes.*.key", "notes", freeze([ITEM]), freeze([HIDDEN_ITEM]), id="a list"),
        pytest.param("notes.*", "notes", freeze([SECRET]), freeze([HIDDEN]), id="a list, each item as a whole"),
        pytest.param("notes.0", "notes", Replace(["plain", SECRET]), Replace([HIDDEN, SECRET]), id="a new list"),
        pytest.param(
            "notes.*.key", "notes", Updates([], ITEM), Updates([], HIDDEN_ITEM), id="an item that a router appends"
        ),
        pytest.param(
            "notes.0",
            "notes",
            Updates(["plain", SECRET]),
            Updates(freeze([HIDDEN, SECRET])),
            id="a list that a router appends",
        ),
        pytest.param("info.*.key", "info", ITEM, ITEM, id="a mapping"),
    ],
)
def test_an_item_of_a_list_is_redacted_in_the_update_that_appends_it(
    pattern: str, field: str, update: Any, shown: Any
) -> None:
    redaction = Redaction.of([pattern], {"notes"})
    assert redaction is not None
    assert repr(redaction.patch({field: update})) == repr({field: shown})
    redactor = Redactor(redaction, {})
    redactor.learn_update(field, update)
    assert (redactor.redact(SECRET) == HIDDEN) == (SECRET not in repr(shown))


def test_items_are_updates_of_lists_with_a_reducer() -> None:
    class Fields(BaseModel):
        log: Annotated[list[str], reducers.append] = []
        plain: list[str] = []
        counts: Annotated[dict[str, int], reducers.update] = {}

    assert fields_of_items([Schema.of(Fields)]) == {"log"}


def test_all_values_below_a_redacted_path_are_redacted() -> None:
    redaction = Redaction.of(["a", "b.c"])
    assert redaction is not None
    assert redaction.at(("a", "x", 1), "value") == HIDDEN
    assert redaction.at(("b", "c", 0), "value") == HIDDEN
    assert redaction.at(("b", "d"), "value") == "value"


def test_a_malformed_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed pattern"):
        program(["a..b"])


def test_a_copied_program_keeps_its_redaction() -> None:
    twin = pickle.loads(pickle.dumps(Redaction.of(PATTERNS)))
    assert twin.value(("token",), SECRET) == HIDDEN
    assert SECRET not in str(program(PATTERNS).deepcopy().run({"q": "plain"}).error)


def veiled(text: str) -> None:
    assert SECRET not in text


@pytest.mark.parametrize("cls", [*event_types(), *RECORDS], ids=lambda cls: cls.__name__)
def test_every_event_type_is_redacted(cls: Any) -> None:
    redaction = Redaction.of(["token"])
    assert redaction is not None
    veil = Redactor(redaction, {"token": SECRET})
    text = f"before {SECRET} after"
    event = veil.event(sample(cls, freeze({"deep": [text]}), text))
    veiled(repr(event))
    veiled(str(event.to_dict()))
    assert ("before [redacted] after" in str(event.to_dict())) == (cls is not Exchange), "it has no texts"


@pytest.mark.parametrize("error", [ValueError(SECRET), KeyError(SECRET), MergeConflictError(f"x {SECRET}", (SECRET,))])
def test_texts_of_exceptions_are_hidden(error: Exception) -> None:
    redaction = Redaction.of(["token"])
    assert redaction is not None
    error.add_note(f"note {SECRET}")
    error.__cause__ = OSError(SECRET)
    shown = Redactor(redaction, {"token": SECRET}).error(error)
    assert shown is error
    veiled("".join(traceback.format_exception(shown)))


class SlottedError(Exception):
    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __str__(self) -> str:
        return f"slotted {self.what}"


def saying(what: str) -> Callable[[], str]:
    def says() -> str:
        return what

    return says


class ClosedError(Exception):
    """Nothing of what it says can be changed from outside."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.says = saying(what)

    def __str__(self) -> str:
        return self.says()


def refusal(secret: str) -> Exception:
    with pytest.raises(ValidationError) as caught:
        State.model_validate({"n": secret, "info": secret})
    return caught.value


def around(outer: Exception, cause: Exception | None, context: Exception | None) -> Exception:
    outer.__cause__, outer.__context__ = cause, context
    return outer


RAISED: dict[str, tuple[Callable[[str], Exception], type[Exception]]] = {
    "OSError": (lambda secret: OSError(2, secret, secret, None, secret), FileNotFoundError),
    "ImportError": (lambda secret: ImportError(f"no {secret}", name=secret), ImportError),
    "UnicodeDecodeError": (lambda secret: UnicodeDecodeError("utf8", b"x", 0, 1, secret), UnicodeDecodeError),
    "SyntaxError": (lambda secret: SyntaxError("bad", ("f", 1, 1, secret)), SyntaxError),
    "slots": (SlottedError, SlottedError),
    "a text of its own": (ClosedError, DspyerError),
    "pydantic": (refusal, ValidationError),
    "group": (lambda secret: ExceptionGroup(secret, [KeyError(secret), refusal(secret)]), ExceptionGroup),
    "in a group": (lambda secret: ExceptionGroup("g", [ExceptionGroup("h", [ClosedError(secret)])]), ExceptionGroup),
    "cause and context": (lambda secret: around(ValueError("x"), KeyError("a"), KeyError(secret)), ValueError),
    "cause": (lambda secret: around(ValueError("x"), refusal(secret), None), ValueError),
    "bytes": (lambda secret: ValueError(secret.encode()), ValueError),
    "repr": (lambda secret: ValueError(f"{secret!r}"), ValueError),
    "an argument": (lambda secret: ValueError(Path("/x") / secret), ValueError),
}


def texts_of(error: BaseException, seen: set[int]) -> str:
    """All that an exception says, with those around it."""
    if id(error) in seen:
        return ""
    seen.add(id(error))
    inside = [error.__cause__, error.__context__, *(error.exceptions if isinstance(error, BaseExceptionGroup) else ())]
    own = f"{error} {error!r} {vars(error)}"
    return own + " ".join(texts_of(one, seen) for one in inside if one is not None)


class QuietError(Exception):
    """Shows nothing of what it holds."""

    __slots__ = ("key",)

    def __str__(self) -> str:
        return "quiet"


class MadeByNameError(Exception):
    def __new__(cls, *, what: str) -> Self:
        return super().__new__(cls, what)

    def __init__(self, *, what: str) -> None:
        super().__init__(what)

    def __reduce__(self) -> Any:
        return partial(type(self), what=self.args[0]), ()


class NumberedError(Exception):
    """Its text belongs to this object alone, so that a copy of it says nothing."""

    texts: ClassVar[dict[int, str]] = {}

    def __init__(self, what: str) -> None:
        super().__init__()
        self.texts[id(self)] = what

    def __str__(self) -> str:
        return self.texts.get(id(self), "")


def with_attributes(error: Exception, **attributes: Any) -> Exception:
    for name, value in attributes.items():
        setattr(error, name, error if value is None else value)
    return error


HOLDING: dict[str, tuple[Callable[[str], Exception], type[Exception]]] = {
    "an argument alone": (QuietError, QuietError),
    "an attribute alone": (lambda secret: with_attributes(QuietError(), token=secret), QuietError),
    "a slot alone": (lambda secret: with_attributes(QuietError(), key=secret), QuietError),
    "itself": (lambda secret: with_attributes(QuietError(secret), same=None), QuietError),
    "named arguments": (lambda secret: MadeByNameError(what=secret), MadeByNameError),
    "a text that cannot be copied": (NumberedError, DspyerError),
}


@pytest.mark.parametrize("make", [*RAISED, *HOLDING])
def test_an_event_gets_a_copy_of_an_exception_that_shows_a_redacted_value(make: str) -> None:
    made, cls = (RAISED | HOLDING)[make]
    redaction, error, quiet = Redaction.of(["token"]), made(SECRET), QuietError("plain")
    assert redaction is not None
    error.add_note("a note")
    before, redactor = texts_of(error, set()), Redactor(redaction, {"token": SECRET})
    shown = redactor.redact(error)
    veiled(texts_of(shown, set()) + str(getattr(shown, "key", "")))
    assert type(shown) is cls
    assert shown.__notes__ == ["a note"]
    assert texts_of(error, set()) == before
    assert redactor.redact(quiet) is quiet


@pytest.mark.parametrize("secret", [SECRET, "SECRET-123\n'and\\\"é"], ids=["plain", "escaped"])
@pytest.mark.parametrize("make", RAISED)
def test_a_redacted_value_is_hidden_in_exceptions_of_any_class(make: str, secret: str) -> None:
    error, cls = RAISED[make]

    def raises(token: str) -> None:
        raise error(token)

    graph = Graph(State, inputs=["token"]).add_node("raises", raises, writes=[]).add_path(START, "raises", END)
    program = graph.compile(redact=["token"], store=Memory())
    t = program.thread("t")
    stream = t.stream({"token": secret})
    with pytest.raises(cls) as caught:
        list(stream)
    events = stream.run.events
    veiled(" ".join(f"{event!r} {json.dumps(event.to_dict())}" for event in events))
    veiled(texts_of(caught.value, set()))
    assert HIDDEN in texts_of(caught.value, set())
    assert "in node 'raises'" in caught.value.__notes__[0]
    assert caught.value.__traceback__ is not None
    veiled(" ".join(f"{failure.message}" for failure in t.failures))
    run = program.run({"token": secret})
    assert run.error is not None
    veiled(texts_of(run.error, set()) + run.report() + run.to_svg() + repr(run))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda token: dspy.Example(a=token), id="example"),
        pytest.param(lambda token: dspy.Prediction(a=token), id="prediction"),
        pytest.param(lambda token: Path("/x") / token, id="path"),
        pytest.param(str.encode, id="bytes"),
        pytest.param(ClosedError, id="object"),
        pytest.param(lambda token: {"n": [123456789, 1.5]}, id="number"),
    ],
)
def test_a_redacted_value_is_hidden_in_emitted_values_of_any_class(value: Any) -> None:
    def emits(token: str, pin: int, ctx: Context) -> None:
        ctx.emit(value(token))

    graph = Graph(inputs=["token", "pin"]).add_node("emits", emits, writes=[]).add_path(START, "emits", END)
    for event in graph.compile(redact=["token", "pin"]).stream({"token": SECRET, "pin": 123456789}):
        veiled(f"{event!r} {event.to_dict()}")
        assert "123456789" not in f"{event!r} {event.to_dict()}"


@dataclass(frozen=True)
class Key:
    text: str


class Pair(tuple[str, str]):
    __slots__ = ()

    def __new__(cls, *, left: str) -> Self:
        return super().__new__(cls, (left, left))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda token: {Key(token)}, id="set"),
        pytest.param(lambda token: {Key(token): 1}, id="key"),
        pytest.param(lambda token: Pair(left=token), id="class"),
    ],
)
def test_a_container_that_cannot_hold_redacted_values_becomes_a_text(value: Any) -> None:
    def emits(token: str, ctx: Context) -> None:
        ctx.emit(value(token))

    graph = Graph(inputs=["token"]).add_node("emits", emits, writes=[]).add_path(START, "emits", END)
    events = list(graph.compile(redact=["token"]).stream({"token": SECRET}))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "completed"
    veiled(f"{events} {[event.to_dict() for event in events]}")
    assert HIDDEN in str([event for event in events if isinstance(event, Emitted)])


def test_numbers_of_an_event_are_not_redacted() -> None:
    redaction = Redaction.of(["pin"])
    assert redaction is not None
    event = sample(Committed, freeze({}), "x")
    event = event._replace(position=1234)
    assert Redactor(redaction, {"pin": 1234}).event(event).position == 1234


@pytest.mark.parametrize("number", [1, 16, 17, 1_000])
def test_any_number_of_texts_is_redacted(number: int) -> None:
    redaction = Redaction.of(["tokens"])
    assert redaction is not None
    tokens = [f"{place:04}-token" for place in range(number)]
    veil = Redactor(redaction, {"tokens": freeze([*tokens, "0000-token-longer"])})
    text = " ".join(f"a {token}0000-token-longer{token[:-1]} z" for token in tokens)
    assert veil.redact(text) == " ".join(f"a {HIDDEN}{HIDDEN}{token[:-1]} z" for token in tokens)


def test_open_questions_in_a_report_are_redacted() -> None:
    asks = Graph(inputs=["token"]).add_interrupt("ok", question="Send {token}?", into="fine").add_path(START, "ok", END)
    run = asks.compile(redact=["token"]).run({"token": SECRET})
    veiled(run.report() + run.to_svg())
    assert "Send [redacted]?" in run.report()


def test_a_redacted_value_is_hidden_inside_longer_texts(caplog: pytest.LogCaptureFixture) -> None:
    """Emitted values, exceptions, questions, Interrupted, report, lanes, picture, thread."""

    def tells(token: str, ctx: Context) -> None:
        ctx.emit({"seen": [f"token {token}"]})
        raise ValueError(f"{token} is refused")

    graph = Graph(State, inputs=["token"]).add_node("tells", tells, writes=[]).add_path(START, "tells", END)
    t = graph.compile(redact=["token"], store=Memory()).thread("t")
    events: list[Event] = []
    with watching(lambda _, event: events.append(event)):
        run = t.run({"token": SECRET})
    assert str(run.error) == "[redacted] is refused"
    assert "token [redacted]" in str(events)
    veiled(f"{events} {run.events} {run.report()} {run.lanes()} {run.to_svg()} {caplog.text} {t.failures}")
    assert run.state["token"] == SECRET

    asks = Graph(inputs=["token"]).add_interrupt("ok", question="Send {token}?", into="fine").add_path(START, "ok", END)
    program = asks.compile(redact=["token"], store=Memory())
    run = program.thread("t").run({"token": SECRET})
    assert [question.text for question in run.questions] == ["Send [redacted]?"]
    veiled(f"{run.events} {run.questions} {program.thread('t').questions}")
    with pytest.raises(Interrupted) as caught:
        program(token=SECRET)
    veiled(f"{caught.value} {caught.value.questions}")
    again = program.thread("t").resume()
    veiled(f"{again.events} {again.questions}")


@pytest.mark.parametrize("redacts", [True, False])
def test_errors_about_answers_show_none(redacts: bool) -> None:
    graph = Graph(inputs=["q"]).add_interrupt("pin", question="Which?", answer=int, into="token")
    t = graph.add_path(START, "pin", END).compile(store=Memory(), redact=["token"] if redacts else None).thread("t")
    asked = t.run({"q": "x"}).questions[0].id
    texts = []
    for answers in ({asked: "no number: 4711"}, {asked: 4711, "pin": 4712}, {asked: 4711}, {asked: 4713}):
        try:
            t.resume(answers)
        except DspyerError as error:
            texts.append(str(error))
    assert len(texts) == 3
    assert [any(number in text for number in ("4711", "4712", "4713")) for text in texts] == [not redacts] * 3
    assert t.state["token"] == 4711


# --- failures


class Failing(BaseModel):
    docs: list[str] = []
    notes: list[str] = []
    unread: list[Failure] = []
    problem: Failure | None = None
    problems: Annotated[list[Failure], reducers.append] = []


def refuses(docs: list[str], ctx: Context) -> dict[str, Any]:
    """Fails for documents that say so, some of them at the first attempt alone."""
    if "bad" in docs or ("once" in docs and ctx.attempt == 1):
        raise ConnectionError(f"the key is {SECRET}")
    return {"notes": docs}


def failing(into: str, *, node: Any = refuses, retry: bool = True, sends: bool = False) -> Graph:
    """`ask` with an error edge to END."""
    policy = Retry(2, wait=wait_none()) if retry else None
    graph = Graph(Failing, inputs=["docs"]).add_node("ask", node, writes=["notes"], retry=policy).add_edge("ask", END)
    if sends:
        graph.add_conditional_edges(START, lambda docs: [Send("ask", {"docs": [doc]}) for doc in docs], ["ask"])
    else:
        graph.add_edge(START, "ask")
    return graph.add_error_edge("ask", END, into=into)


def failing_map(share: float) -> Graph:
    def read(doc: str, ctx: Context) -> str:
        refuses([doc], ctx)
        return doc

    graph = Graph(Failing, inputs=["docs"])
    graph.add_map(
        "read",
        read,
        over="docs",
        item="doc",
        into="notes",
        failures="unread",
        min_success=share,
        retry=Retry(2, wait=wait_none()),
    )
    return graph.add_path(START, "read", END)


def with_inside(into: str) -> Graph:
    graph = Graph(Failing, inputs=["docs"], name="Outer").add_node("inner", failing(into), writes=[into])
    return graph.add_path(START, "inner", END)


def alone() -> Graph:
    graph = Graph(Failing, inputs=["docs"], name="Alone")
    return graph.add_node("ask", refuses, retry=Retry(2, wait=wait_none()), writes=["notes"]).add_path(
        START, "ask", END
    )


FAILURES: dict[str, tuple[Callable[[], Graph], str]] = {
    "a field": (lambda: failing("problem"), "problem.message"),
    "a list, by the path in a state": (lambda: failing("problems"), "problems.*.message"),
    "a list, by the path in an update": (lambda: failing("problems"), "problems.message"),
    "sends": (lambda: failing("problems", sends=True), "problems.*.message"),
    "items of a map": (lambda: failing_map(0.0), "unread.*.message"),
    "items of a map, the whole field": (lambda: failing_map(0.0), "unread"),
    "a map that fails": (lambda: failing_map(1.0), "unread"),
    "in a graph inside": (lambda: with_inside("problem"), "problem.message"),
    "in a list of a graph inside": (lambda: with_inside("problems"), "problems.*.message"),
    "of a graph inside": (lambda: failing("problem", node=alone(), retry=False), "problem.message"),
}


@pytest.mark.parametrize("docs", [["a", "bad"], ["a", "once"]], ids=["fails", "is retried"])
@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_hidden_by_their_path_wherever_they_leave_the_run(
    case: str, docs: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, path = FAILURES[case]
    t = make().compile(redact=[path], store=Memory()).thread("t")
    with caplog.at_level(logging.INFO, "dspyer"):
        run = t.run({"docs": docs})
    t.export(tmp_path / "t.jsonl")
    run.to_html(tmp_path / "run.html")
    files = (tmp_path / "t.jsonl").read_text() + (tmp_path / "run.html").read_text()
    veiled(f"{run.events} {json.dumps([event.to_dict() for event in run.events])} {caplog.text} {run.shown}")
    veiled(f"{run.report()} {run.to_svg()} {run.error!r} {run.failures} {t.failures} {files} {run!r}")
    plain = make().compile().run({"docs": docs})
    assert SECRET in f"{plain.events}"
    if plain.status == "completed":
        assert run.state == plain.state, "states keep it"


def test_commits_of_an_earlier_process_are_hidden_like_those_of_this_one() -> None:
    graph = failing("problem")
    graph._edges.clear()
    graph.add_path(START, "ask", "stop", END).add_node("stop", lambda: None, writes=[])
    t = graph.compile(redact=["problem.message"], store=Memory(), interrupt_before=["stop"]).thread("t")
    t.run({"docs": ["once"]})
    run = t.resume()
    assert SECRET in str(run.commits[1].failed_attempts)
    veiled(f"{run.shown}")


def test_commits_hide_short_texts_of_failures_by_their_path_and_longer_ones_anywhere() -> None:
    def fails(docs: list[str]) -> dict[str, Any]:
        raise KeyError(docs[0])

    graph = failing("problems", node=fails, retry=False)
    commit = graph.compile().run({"docs": ["no"]}).commits[1]
    redaction = Redaction.of(["problems.*.message"], {"problems"})
    assert redaction is not None
    assert [one.failure and one.failure.message for one in (commit, redaction.commit(commit))] == ["'no'", HIDDEN]
    failure = graph.compile(redact=["docs"]).run({"docs": [SECRET]}).shown[1].failure
    assert failure is not None
    assert failure.message == f"'{HIDDEN}'"


@pytest.mark.parametrize("make", RAISED)
def test_a_redacted_text_is_hidden_in_events_and_not_in_what_error_edges_get(make: str) -> None:
    """What an exception says decides where a run goes, and is stored: redaction changes neither."""
    error, _ = RAISED[make]
    seen: list[str] = []

    def raises(docs: list[str]) -> None:
        raise error(docs[0])

    def sees(error: BaseException) -> bool:
        seen.append(texts_of(error, set()))
        return True

    inside = Graph(Failing, inputs=["docs"]).add_node("raises", raises, writes=[]).add_path(START, "raises", END)
    graph = Graph(Failing, inputs=["docs"]).add_node("inner", inside, writes=[]).add_path(START, "inner", END)
    graph.add_error_edge("inner", END, on=sees, into="problem")
    plain, run = (graph.compile(redact=redact).run({"docs": [SECRET]}) for redact in (None, ["docs"]))
    veiled(f"{run.events}")
    assert run.state["problem"] == plain.state["problem"]
    assert seen[0].count(SECRET) == seen[1].count(SECRET) > 0
