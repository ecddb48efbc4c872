"""What `compile(redact=...)` hides and what it shows: no secret is in an event, log, error or export."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import cloudpickle
import dspy
import pytest
from pydantic import BaseModel, ValidationError
from tenacity import wait_none

from dspyer import (
    END,
    START,
    Breakpoints,
    CompiledGraph,
    Context,
    Failure,
    Graph,
    Replace,
    Retry,
    Run,
    Send,
    Updates,
    live,
    reducers,
)
from dspyer.errors import DspyerError, Interrupted, MergeConflictError
from dspyer.events import Asked, Committed, Emitted, Event, Exchange, Posted, RunEnded
from dspyer.stores import Memory
from tests.event_samples import RECORDS, event_types, sample
from tests.plain_values import frozen, plain
from tests.rows import each
from tests.threads.owned_runs import failing_rows

SECRET = "SECRET-123"
HIDDEN = "[redacted]"


def patch_of(run: Run) -> Mapping[str, Any]:
    """The patch of the second step, as it is shown."""
    commit = run.record().steps[1].commit
    assert commit is not None
    found: Mapping[str, Any] = commit.patch
    return found


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
def test_redacted_values_appear_in_no_event_log_or_error(redact: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = Memory()
    t = program(redact, store, merge={"token": "last_write_wins"}).thread("t")
    with caplog.at_level(logging.INFO, "dspyer"):
        stream = t.stream({"q": "plain"})
        seen = [str(event.to_dict()) for event in stream]
    run = stream.run
    assert run is not None
    assert not [text for text in seen if SECRET in text]
    assert any("['b', 1]" in text for text in seen), "the rest is shown"
    assert caplog.records
    assert SECRET not in caplog.text
    assert SECRET not in run.report() + run.to_svg()
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
    assert SECRET not in said(events)


def test_a_program_inside_a_node_hides_values_of_its_own_events_alone() -> None:
    part = Graph(name="Part").add_node("sign", lambda q: {"token": SECRET}, writes=["token"])
    inner = part.add_path(START, "sign", END).compile(redact=["token"])
    outer = Graph(name="Whole").add_node("part", inner).add_path(START, "part", END).compile()
    committed = [event for event in outer.stream({"q": ""}) if isinstance(event, Committed)]
    shown = {event.commit.node: event.commit.patch["token"] for event in committed if "token" in event.commit.patch}
    assert shown == {"sign": HIDDEN, "part": SECRET}


BY_PATH: dict[str, tuple[Any, str, Any, Any]] = {
    "a field": ("a", "a", {"b": 1}, HIDDEN),
    "a key": (["a.b"], "a", {"b": 1, "c": [2]}, {"b": HIDDEN, "c": [2]}),
    "every item": (["a.*"], "a", [1, 2], [HIDDEN, HIDDEN]),
    "one item": (["a.1"], "a", (1, 2), (1, HIDDEN)),
    "a path without wildcards": ([("a.b", "c")], "a.b", {"c": 1}, {"c": HIDDEN}),
    "in a model": (["**.email"], "u", User(name="A", email="e"), {"name": "A", "email": HIDDEN}),
    "an extra field of a model": (["u.pin"], "u", Open(pin="p"), {"name": "", "pin": HIDDEN}),
    "nothing": (["x"], "a", {"b": 1}, {"b": 1}),
}


def test_values_are_redacted_by_path() -> None:
    def check(row: tuple[Any, str, Any, Any]) -> None:
        spec, field, value, shown = row
        graph = Graph().add_node("write", lambda: {field: value}, writes=[field]).add_path(START, "write", END)
        run = graph.compile(redact=spec).run({})
        found, kept = patch_of(run)[field], run.commits[1].patch[field]
        expected = [Replace(shown), Replace(value)] if isinstance(kept, Replace) else [frozen(shown), frozen(value)]
        assert [found, kept] == expected

    assert not failing_rows(BY_PATH, check)


ITEM = {"key": SECRET, "rest": "plain"}
HIDDEN_ITEM = {"key": HIDDEN, "rest": "plain"}


class Noted(BaseModel):
    notes: Annotated[list[Any], reducers.append] = []
    more: Annotated[list[Any], reducers.extend] = []
    info: Annotated[dict[str, Any], reducers.update] = {}
    whole: list[Any] = []


APPENDED: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "an item": ("notes.*.key", "notes", [ITEM], [HIDDEN_ITEM]),
    "a list": ("more.*.key", "more", [[ITEM]], [[HIDDEN_ITEM]]),
    "a list, each item as a whole": ("more.*", "more", [[SECRET]], [[HIDDEN]]),
    "a new list": ("notes.0", "notes", [Replace(["plain", SECRET])], [Replace([HIDDEN, SECRET])]),
    "items that are posted": ("notes.*.key", "notes", [ITEM, ITEM], [HIDDEN_ITEM, HIDDEN_ITEM]),
    "lists that are posted": ("more.0", "more", [["plain", SECRET], [1]], [[HIDDEN, SECRET], [HIDDEN]]),
    "a mapping": ("info.*.key", "info", [ITEM], [ITEM]),
    "a list without a reducer": ("whole.*.key", "whole", [[ITEM]], [[HIDDEN_ITEM]]),
}


def value_of(update: Any) -> Any:
    return update if isinstance(update, Replace) else plain(update)


def test_an_item_of_a_list_is_redacted_in_the_update_that_appends_it() -> None:
    def check(row: tuple[str, str, list[Any], list[Any]]) -> None:
        pattern, field, updates, shown = row

        def write(ctx: Context) -> dict[str, Any]:
            for update in updates[:-1]:
                ctx.post(field, update)
            return {field: updates[-1]}

        def tell(ctx: Context) -> None:
            ctx.emit(SECRET)

        graph = Graph(Noted).add_node("write", write, writes=[field]).add_node("tell", tell, writes=[])
        stream = graph.add_path(START, "write", "tell", END).compile(redact=[pattern]).stream({})
        (emitted,) = [event.value for event in stream if isinstance(event, Emitted)]
        found = patch_of(stream.run)[field]
        parts = found.updates if isinstance(found, Updates) else (found,)
        assert [repr(value_of(part)) for part in parts] == [repr(value_of(part)) for part in shown]
        assert (emitted == HIDDEN) == (SECRET not in repr(shown)), "its text is hidden elsewhere too"

    assert not failing_rows(APPENDED, check)


@pytest.mark.parametrize(("path", "hidden"), [("a.x.y", True), ("b.c.0", True), ("b.d", False)])
def test_all_values_below_a_redacted_path_are_redacted(path: str, hidden: bool) -> None:
    """In the error of a conflict, which names one value of many."""

    def wrote(value: str) -> Callable[[], dict[str, Any]]:
        nested: Any = value
        for key in reversed(path.split(".")):
            nested = {key: nested}
        return lambda: dict(nested)

    graph = Graph(merge="raise")
    for name in ("left", "right"):
        graph.add_node(name, wrote(f"{name} value"), writes=[path[0]]).add_edge(START, name).add_edge(name, END)
    error = str(graph.compile(redact=["a", "b.c"]).run({}).error)
    assert f"'{path}'" in error
    assert ("right value" not in error) == hidden == (HIDDEN in error)


def test_a_malformed_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed pattern"):
        program(["a..b"])


def test_a_copied_program_keeps_its_redaction() -> None:
    made = program(PATTERNS)
    for twin in (made.deepcopy(), cloudpickle.loads(cloudpickle.dumps(made))):
        assert SECRET not in str(twin.run({"q": "plain"}).error)


def said(events: Iterable[Event]) -> str:
    return json.dumps([event.to_dict() for event in events])


def veiled(text: str) -> None:
    assert SECRET not in text


def told(values: Callable[[str], list[Any]], **options: Any) -> list[Event]:
    """The events of a run whose node emits these values, made of the token that is hidden."""

    def emits(token: str, ctx: Context) -> None:
        for value in values(token):
            ctx.emit(value)

    graph = Graph(inputs=["token", *options]).add_node("emits", emits, writes=[]).add_path(START, "emits", END)
    return list(graph.compile(redact=["token", *options]).stream({"token": SECRET, **options}))


def test_every_event_type_is_redacted() -> None:
    """A record as a value that is emitted: whatever leaves the run goes the same way."""
    types = [one for one in [*event_types(), *RECORDS] if one is not Asked]  # an open question is shown as it is
    text = f"before {SECRET} after"
    events = told(lambda token: [sample(cls, frozen({"deep": [text]}), text) for cls in types])
    sent = [one for one in events if one.scope or isinstance(getattr(one, "value", None), tuple(RECORDS))]
    found = [one.value if isinstance(one, Emitted) and not one.scope else one for one in sent]
    assert [type(value) for value in found] == types
    shows = [value for value in found if SECRET in repr(value) + str(value.to_dict())]
    assert not shows
    silent = [type(value) for value in found if "before [redacted] after" not in str(value.to_dict())]
    assert silent == [Exchange], "it has no texts"


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


def noted(secret: str) -> Exception:
    error = ValueError("x")
    error.add_note(f"note {secret}")
    return error


RAISED: dict[str, tuple[Callable[[str], Exception], type[Exception]]] = {
    "KeyError": (KeyError, KeyError),
    "conflict": (lambda secret: MergeConflictError(f"x {secret}", (secret,)), MergeConflictError),
    "a note": (noted, ValueError),
    "JSON": (lambda secret: ValueError(json.dumps({"given": secret})), ValueError),
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


def test_an_event_gets_a_copy_of_an_exception_that_shows_a_redacted_value() -> None:
    def check(row: tuple[Callable[[str], Exception], type[Exception]]) -> None:
        made, cls = row
        kept: list[Any] = []

        def values(token: str) -> list[Any]:
            error, quiet = made(token), QuietError("plain")
            error.add_note("a note")
            kept.extend([error, quiet, texts_of(error, set())])
            return [error, quiet]

        shown, plain = [event.value for event in told(values) if isinstance(event, Emitted)]
        error, quiet, before = kept
        veiled(texts_of(shown, set()) + str(getattr(shown, "key", "")))
        assert type(shown) is cls
        assert shown.__notes__[-1] == "a note"
        assert texts_of(error, set()) == before
        assert plain is quiet

    assert not failing_rows(RAISED | HOLDING, check)


@each("secret", [SECRET, "SECRET-123\n'and\\\"é"], ids=["plain", "escaped"])
def test_a_redacted_value_is_hidden_in_exceptions_of_any_class(secret: str) -> None:
    def check(row: tuple[Callable[[str], Exception], type[Exception]]) -> None:
        error, cls = row

        def raises(token: str) -> None:
            raise error(token)

        graph = Graph(State, inputs=["token"]).add_node("raises", raises, writes=[]).add_path(START, "raises", END)
        program = graph.compile(redact=["token"], store=Memory())
        t = program.thread("t")
        stream = t.stream({"token": secret})
        with pytest.raises(cls) as caught:
            list(stream)
        events = stream.run.events
        veiled(" ".join(json.dumps(event.to_dict()) for event in events))
        veiled(texts_of(caught.value, set()))
        assert HIDDEN in texts_of(caught.value, set())
        assert any("in node 'raises'" in note for note in caught.value.__notes__)
        assert caught.value.__traceback__ is not None
        veiled(" ".join(f"{failure.message}" for failure in t.failures))
        run = program.run({"token": secret})
        assert run.error is not None
        veiled(texts_of(run.error, set()) + run.report() + run.to_svg() + repr(run))

    assert not failing_rows(RAISED, check)


def test_a_redacted_value_is_hidden_in_emitted_values_of_any_class() -> None:
    def values(token: str) -> list[Any]:
        some = [dspy.Example(a=token), dspy.Prediction(a=token), Path("/x") / token, token.encode(), ClosedError(token)]
        return [*some, {"n": [123456789, 1.5]}]

    for event in told(values, pin=123456789):
        veiled(f"{event.to_dict()}")
        assert "123456789" not in f"{event.to_dict()}"


@dataclass(frozen=True)
class Key:
    text: str


class Pair(tuple[str, str]):
    __slots__ = ()

    def __new__(cls, *, left: str) -> Self:
        return super().__new__(cls, (left, left))


def test_a_container_that_cannot_hold_redacted_values_becomes_a_text() -> None:
    events = told(lambda token: [{Key(token)}, {Key(token): 1}, Pair(left=token)])
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "completed"
    veiled(said(events))
    assert [HIDDEN in str(event.value) for event in events if isinstance(event, Emitted)] == [True] * 3


def test_numbers_of_an_event_are_not_redacted() -> None:
    class Posting(BaseModel):
        pin: int = 0
        notes: Annotated[list[str], reducers.append, live] = []

    def posts(pin: int, ctx: Context) -> None:
        ctx.post("notes", "x" * (pin - 2))
        ctx.emit(pin)

    graph = Graph(Posting, inputs=["pin"]).add_node("posts", posts, writes=["notes"]).add_path(START, "posts", END)
    events = list(graph.compile(redact=["pin"]).stream({"pin": 1234}))
    assert [event.size for event in events if isinstance(event, Posted)] == [1234]
    assert [event.value for event in events if isinstance(event, Emitted)] == [HIDDEN]


@pytest.mark.parametrize("number", [1, 16, 17, 1_000])
def test_any_number_of_texts_is_redacted(number: int) -> None:
    tokens = [f"{place:04}-token" for place in range(number)]
    text = " ".join(f"a {token}0000-token-longer{token[:-1]} z" for token in tokens)
    graph = Graph(inputs=["tokens"]).add_node("emits", lambda tokens, ctx: ctx.emit(text), writes=[])
    program = graph.add_path(START, "emits", END).compile(redact=["tokens"])
    events = program.stream({"tokens": [*tokens, "0000-token-longer"]})
    (shown,) = [event.value for event in events if isinstance(event, Emitted)]
    assert shown == " ".join(f"a {HIDDEN}{HIDDEN}{token[:-1]} z" for token in tokens)


def test_a_redacted_value_is_hidden_inside_longer_texts(caplog: pytest.LogCaptureFixture) -> None:
    """Emitted values, exceptions, questions, Interrupted, report, picture, thread."""

    def tells(token: str, ctx: Context) -> None:
        ctx.emit({"seen": [f"token {token}"]})
        raise ValueError(f"{token} is refused")

    graph = Graph(State, inputs=["token"]).add_node("tells", tells, writes=[]).add_path(START, "tells", END)
    t = graph.compile(redact=["token"], store=Memory()).thread("t")
    events, stream = list[Event](), t.stream({"token": SECRET})
    with suppress(ValueError):
        events.extend(stream)
    run = stream.run
    assert str(run.error) == "[redacted] is refused"
    assert "token [redacted]" in said(events)
    veiled(f"{said(events)} {run.report()} {run.to_svg()} {caplog.text} {t.failures}")
    assert run.state["token"] == SECRET

    asks = Graph(inputs=["token"]).add_interrupt("ok", question="Send {token}?", into="fine").add_path(START, "ok", END)
    program = asks.compile(redact=["token"], store=Memory())
    run = program.thread("t").run({"token": SECRET})
    # An open question is shown as it was asked: who is to answer must see it. Once it is answered it is hidden.
    assert [one.text for one in (*run.questions, *program.thread("t").questions)] == [f"Send {SECRET}?"] * 2
    assert f"Send {SECRET}?" in run.report()
    with pytest.raises(Interrupted, match=f"Send {SECRET}"):
        program(token=SECRET)
    done = program.thread("t").resume({"ok": True})
    veiled(f"{said(done.events)} {done.report()} {done.to_svg()} {done.record().to_dict()}")
    assert "Send [redacted]?" in str(done.record().to_dict())


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


def failing(into: str, *, node: Any = refuses, retry: bool = True, sends: bool = False, then: str = END) -> Graph:
    """`ask` with an error edge to END."""
    policy = Retry(2, wait=wait_none()) if retry else None
    graph = Graph(Failing, inputs=["docs"]).add_node("ask", node, writes=["notes"], retry=policy).add_edge("ask", then)
    if sends:
        graph.add_conditional_edges(START, lambda docs: [Send("ask", {"docs": [doc]}) for doc in docs], ["ask"])
    else:
        graph.add_edge(START, "ask")
    return graph.add_error_edge("ask", END, into=into)


def failing_map(share: float, *, retry: bool = True, inside: bool = False) -> Graph:
    def read(doc: str, ctx: Context) -> str:
        refuses([doc], ctx)
        return doc

    one: Any = read
    if inside:
        of_item = Graph(inputs=["doc"]).add_node("one", read, writes=["notes"], retry=Retry(2, wait=wait_none()))
        one = of_item.add_path(START, "one", END)
    graph = Graph(Failing, inputs=["docs"])
    graph.add_map(
        "read",
        one,
        over="docs",
        item="doc",
        into="notes",
        failures="unread",
        min_success=share,
        retry=Retry(2, wait=wait_none()) if retry else None,
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
    "items of a map of graphs": (lambda: failing_map(0.0, retry=False, inside=True), "unread.*.message"),
    "a map that fails": (lambda: failing_map(1.0), "unread"),
    "a map that fails at once": (lambda: failing_map(1.0, retry=False), "unread"),
    "in a graph inside": (lambda: with_inside("problem"), "problem.message"),
    "in a list of a graph inside": (lambda: with_inside("problems"), "problems.*.message"),
    "of a graph inside": (lambda: failing("problem", node=alone(), retry=False), "problem.message"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_hidden_by_their_path_wherever_they_leave_the_run(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for docs in (["a", "bad"], ["a", "once"]):  # one fails, the other is retried
        check_hidden(*FAILURES[case], docs, tmp_path, caplog)


def check_hidden(
    make: Callable[[], Graph], path: str, docs: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    t = make().compile(redact=[path], store=Memory()).thread("t")
    with caplog.at_level(logging.INFO, "dspyer"):
        run = t.run({"docs": docs})
    files = run.to_html(tmp_path / "run.html").read_text()
    veiled(f"{said(run.events)} {caplog.text} {run.record().to_dict()}")
    veiled(f"{run.report()} {run.to_svg()} {run.error!r} {run.failures} {t.failures} {files} {run!r}")
    unstored = make().compile(redact=[path]).run({"docs": docs})
    veiled(f"{said(unstored.events)} {unstored.error!r} {unstored.report()}")
    plain = make().compile().run({"docs": docs})
    assert SECRET in said(plain.events)
    if plain.status == "completed":
        assert run.state == plain.state, "states keep it"


def test_commits_of_an_earlier_process_are_hidden_like_those_of_this_one() -> None:
    graph = failing("problem", then="stop").add_node("stop", lambda: None, writes=[]).add_edge("stop", END)
    t = graph.compile(redact=["problem.message"], store=Memory(), layers=[Breakpoints(before=["stop"])]).thread("t")
    t.run({"docs": ["once"]})
    run = t.resume()
    assert SECRET in str(run.commits[1].failed_attempts)
    veiled(f"{run.record().to_dict()}")


def test_commits_hide_short_texts_of_failures_by_their_path_and_longer_ones_anywhere() -> None:
    def fails(docs: list[str]) -> dict[str, Any]:
        raise KeyError(docs[0])

    graph = failing("problems", node=fails, retry=False)
    run = graph.compile(redact=["problems.*.message"]).run({"docs": ["no"]})
    failures = [one[1].failure for one in (run.commits, run.record().steps)]
    assert [None if one is None else one.message for one in failures] == ["'no'", HIDDEN]
    failure = graph.compile(redact=["docs"]).run({"docs": [SECRET]}).record().steps[1].failure
    assert failure is not None
    assert failure.message == f"'{HIDDEN}'"


def test_a_redacted_text_is_hidden_in_events_and_not_in_what_error_edges_get() -> None:
    """What an exception says decides where a run goes, and is stored: redaction changes neither."""

    def check(row: tuple[Callable[[str], Exception], type[Exception]]) -> None:
        seen: list[str] = []

        def raises(docs: list[str]) -> None:
            raise row[0](docs[0])

        def sees(error: BaseException) -> bool:
            seen.append(texts_of(error, set()))
            return True

        inside = Graph(Failing, inputs=["docs"]).add_node("raises", raises, writes=[]).add_path(START, "raises", END)
        graph = Graph(Failing, inputs=["docs"]).add_node("inner", inside, writes=[]).add_path(START, "inner", END)
        graph.add_error_edge("inner", END, on=sees, into="problem")
        plain, run = (graph.compile(redact=redact).run({"docs": [SECRET]}) for redact in (None, ["docs"]))
        veiled(said(run.events))
        assert run.state["problem"] == plain.state["problem"]
        assert seen[0].count(SECRET) == seen[1].count(SECRET) > 0

    assert not failing_rows(RAISED, check)


@pytest.mark.parametrize(
    ("redact", "hidden"),
    [
        ("m", ["m"]),
        (["m.*", ("m", 1)], ["m.*", ["m", 1]]),
        (lambda path, value: value, "function"),
        (None, None),
    ],
)
def test_a_run_names_what_is_hidden(redact: Any, hidden: Any) -> None:
    store = Memory()
    graph = Graph().add_node("use", lambda n: {"m": n}, writes=["m"]).add_path(START, "use", END)
    graph.compile(store=store, redact=redact).thread("t").run({"n": 1})
    assert [run.header.get("hidden") for run in store.runs("t")] == [hidden]
