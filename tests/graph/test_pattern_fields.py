"""Patterns of `merge=`, `policy=` and `redact=` begin with a field that the graph has; a misspelt one is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Failure, Graph, reducers
from dspyer.errors import GraphError
from dspyer.policies import Pattern
from tests.rows import each


class User(BaseModel):
    email: str = ""


class Member(User):
    other: str = ""  # a field of type `User` may hold it


class Open(BaseModel, extra="allow"):
    name: str = ""


@dataclass
class Place:
    town: str = ""


class Ticket(BaseModel):
    text: str = ""
    urgency: int = 0
    user: User = User()
    info: dict[str, Any] = {}
    texts: list[str] = []
    paid: list[Any] = []


class Parts(Ticket):
    problem: Failure | None = None
    failures: list[Failure] = []
    problems: Annotated[list[Failure], reducers.append] = []
    users: dict[str, User] = {}
    either: User | dict[str, Any] | None = None
    open: Open = Open()
    place: Place = Place()


class Payment(BaseModel):
    text: str = ""
    card: str = ""


class Bank(BaseModel):
    text: str = ""
    card: str = ""
    pin: int = 0


def simple(schema: type[BaseModel] | None = Ticket, **options: Any) -> Graph:
    graph = Graph(schema, inputs=["text"], **options)
    return graph.add_node("work", lambda text: {}, writes=[]).add_path(START, "work", END)


def as_node(inner: CompiledGraph, schema: type[BaseModel] = Ticket) -> Graph:
    graph = Graph(schema, inputs=["text"]).add_node("pay", inner, reads=["text"], writes=[])
    return graph.add_path(START, "pay", END)


def as_item(inner: CompiledGraph) -> Graph:
    graph = Graph(Ticket, inputs=["texts"]).add_map("pay", inner, over="texts", item="text", into="paid")
    return graph.add_path(START, "pay", END)


def as_bound_module(inner: CompiledGraph) -> Graph:
    def work(text: str, pay: dspy.Module) -> dict[str, Any]:
        return {}

    graph = Graph(Ticket, inputs=["text"]).add_node("work", work, modules={"pay": inner}, writes=[])
    return graph.add_path(START, "work", END)


OPTIONS: dict[str, Callable[[type[BaseModel] | None, list[Any]], object]] = {
    "merge": lambda schema, patterns: Graph(schema, merge=dict.fromkeys(patterns, "raise")),
    "policy": lambda schema, patterns: simple(schema).add_edge("work", END, policy=dict.fromkeys(patterns, "raise")),
    "redact": lambda schema, patterns: simple(schema).compile(redact=patterns),
}
INSIDE: dict[str, Callable[[CompiledGraph], Graph]] = {
    "node": as_node,
    "map": as_item,
    "module of a function": as_bound_module,
    "graph in a graph": lambda inner: as_node(as_node(inner, Payment).compile()),
}
MISSPELT: dict[Any, str | None] = {  # with the field that is meant
    "urgncy": "'urgency'",
    "urgncy.level": "'urgency'",
    "usr.*": "'user'",
    "texs.**": "'texts' or 'text'",
    ("urgncy",): "'urgency'",
    ("info.a", "b"): "'info'",
    "xyz": None,
}
KNOWN = ["urgency", "info.any.key", "user.**.detail", "*", "**", "*.key", "**.key", ("info", "a.b"), "texts"]
KNOWN_IN_WHOLE_VALUES = ["user.email", "user.other", "texts.0"]  # no conflict lies there
KNOWN_PARTS = [
    "problem.message",
    "problems.*.message",
    "problems.0.message",
    "problems.message",  # of an update that appends one
    "users.ada.email",
    "users.*.email",
    "either.anything",
    "open.anything",
    "place.town",
]
MISSING_PARTS = {  # with what the error says
    "problem.mesage": "which has no 'mesage'. Did you mean 'message'? Fields: 'node', ",
    "problems.mesage": "which has no 'mesage'. Did you mean 'message'?",
    "failures.message": "'failures' is list[dspyer.failure.Failure]: write 'failures.*.message' for its items",
    "problems.*.mesage": "'problems.*' is Failure, which has no 'mesage'. Did you mean 'message'?",
    "user.emial": "or in what a thread holds, write 'user.**.emial'",
    "users.ada.emial": "'users.ada' is User, which has no 'emial'. Did you mean 'email'?",
    "place.twon": "'place' is Place, which has no 'twon'. Did you mean 'town'?",
    "text.first": "'text' is str, which has no parts: write 'text'",
    ("texts", "first"): "'texts' is list[str]: write 'texts.*.first' for its items",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_pattern_of_a_misspelt_field_is_refused(option: str) -> None:
    for pattern, meant in MISSPELT.items():
        name = pattern[0] if isinstance(pattern, tuple) else pattern.split(".")[0]
        near = f" Did you mean {meant}?" if meant else ""
        with pytest.raises(GraphError) as caught:
            OPTIONS[option](Ticket, [pattern])
        text = f"{option} names {name!r}, no field of the schema.{near} Fields: 'text', 'urgency', 'user', "
        assert str(caught.value).startswith(text)
        OPTIONS[option](None, [pattern])  # without a schema any key is a field


@pytest.mark.parametrize("option", OPTIONS)
def test_patterns_of_fields_and_with_wildcards_are_accepted(option: str) -> None:
    OPTIONS[option](Ticket, KNOWN)
    for pattern in KNOWN_IN_WHOLE_VALUES:
        with nullcontext() if option == "redact" else pytest.raises(GraphError, match="no join has a conflict at"):
            OPTIONS[option](Ticket, [pattern])


class Merged(BaseModel):
    text: str = ""
    tags: list[str] = []
    user: User | None = None
    code: dict[str, dict[str, User]] = {}
    maybe: dict[str, str] | None = None
    free: Any = None
    keyed: Annotated[dict[str, dict[str, str]], reducers.update] = {}
    talk: Annotated[list[Any], reducers.add_messages] = []
    sums: Annotated[int, reducers.increment] = 0
    plain: Annotated[dict[str, Any], reducers.replace] = {}


@each(
    ("pattern", "write"),
    [
        ("text.first", "text"),
        ("tags.0", "tags"),
        ("tags.*", "tags"),
        (("user", "email"), "user"),
        ("code.a.b.email", "code.a.b"),
        ("maybe.a.b", "maybe.a"),
        ("keyed.a.b", "keyed.a"),
        ("talk.m1.text", "talk.m1"),
        ("sums.*", "sums"),
    ],
    ids=str,
)
def test_a_merge_policy_that_can_never_apply_is_refused(pattern: Any, write: str) -> None:
    shown = ".".join(pattern) if isinstance(pattern, tuple) else pattern
    text = f": no join has a conflict at {shown!r}: write {write!r}"
    other = Graph(Merged).add_node("work", lambda text: {}, writes=[]).add_path(START, "work", END)
    thread = other.compile(store=":memory:").thread("t")
    thread.run({"text": "a"})
    copy = thread.copy(to="copy")
    uses: dict[str, Callable[[Any], object]] = {
        "merge": lambda policies: Graph(Merged, merge=policies),
        "policy": lambda policies: other.add_edge("work", END, policy=policies),
        "policy of a thread": lambda policies: thread.merge(copy, policy=policies),
    }
    for option, use in uses.items():
        with pytest.raises(GraphError) as caught:
            use({pattern: "raise"})
        assert str(caught.value) == option.split()[0] + text
        use({write: "raise"})
    for kept in ("code.*.b", "keyed.a", "talk.m1", "free.a.b.c", "plain.a.b", "text.**", "maybe.a", "*.b.c.d"):
        Graph(Merged, merge={kept: "raise"})


def test_edges_to_one_node_with_different_policies_are_refused() -> None:
    """Only the last one would apply."""
    graph = Graph(Merged).add_edge("a", ["c", "d"], policy="raise").add_edge("b", "c", policy="raise")
    with pytest.raises(GraphError, match=r"joins at \['e', 'c'\] have another policy already"):
        graph.add_edge("b", ["e", "c"], policy={"text": "last_write_wins"})
    graph.add_edge("x", "e", policy="last_write_wins")  # the refused edge has left nothing


@pytest.mark.parametrize(
    ("schema", "field"), [(None, "code"), (Merged, "maybe"), (Merged, "keyed"), (Merged, "plain"), (Merged, "free")]
)
def test_a_policy_of_a_mapping_decides_the_conflicts_of_its_keys(schema: type[BaseModel] | None, field: str) -> None:
    own = {field: "first_write_wins", "**": "raise"}
    for merge, policy in ((own, None), ("raise", own)):
        graph = Graph(schema, merge=merge)
        for name in ("left", "right"):
            value = {"a": {"by": name}, name: {}} if field != "maybe" else {"a": name, name: ""}
            graph.add_node(name, partial(lambda patch: patch, {field: value}), writes=[field])
        graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], END, policy=policy)
        run = graph.compile().run({})
        assert sorted(run.state[field]) == ["a", "left", "right"]
        assert run.state[field]["a"] in ("left", {"by": "left"})
        assert [(conflict.path[:2], conflict.winner) for conflict in run.conflicts] == [((field, "a"), "left")]


@each("pattern", MISSING_PARTS, ids=str)
def test_redact_refuses_what_is_no_part_of_the_type_of_its_field(pattern: Any) -> None:
    """It would show the value in silence."""
    with pytest.raises(GraphError) as caught:
        simple(Parts).compile(redact=[*KNOWN, *KNOWN_IN_WHOLE_VALUES, *KNOWN_PARTS, pattern])
    assert str(caught.value).startswith(f"redact={pattern!r} hides nothing: ")
    assert MISSING_PARTS[pattern] in str(caught.value)
    simple(Parts).compile(redact=[*KNOWN, *KNOWN_IN_WHOLE_VALUES, *KNOWN_PARTS])
    as_node(simple(None).compile()).compile(redact=[pattern])  # a graph inside that may have any field


@pytest.mark.parametrize("option", OPTIONS)
def test_every_misspelt_field_is_named_once(option: str) -> None:
    with pytest.raises(GraphError, match=r"names 'crad', 'pni', no field"):
        OPTIONS[option](Ticket, ["crad", "text", "pni", "crad.number"])


@pytest.mark.parametrize("place", INSIDE)
def test_redact_knows_the_fields_of_graphs_inside(place: str) -> None:
    build = INSIDE[place]
    inner = simple(Bank).compile()
    build(inner).compile(redact=["urgency", "card", "pin"])
    with pytest.raises(GraphError) as caught:
        build(inner).compile(redact=["crad"])
    text = str(caught.value)
    assert text.startswith("redact names 'crad', no field of the schema or of a graph inside it. Did you mean 'card'?")
    assert "'urgency'" in text
    assert "'pin'" in text
    build(inner).compile(redact=["**.crad"])  # as the error says, for what earlier schemas left
    build(simple(None).compile()).compile(redact=["crad"])  # the graph inside accepts any key


@pytest.mark.parametrize("place", INSIDE)
def test_merge_policies_hold_in_their_own_graph_alone(place: str) -> None:
    with pytest.raises(GraphError, match="policy names 'pin'"):
        INSIDE[place](simple(Bank).compile()).add_edge(START, END, policy={"pin": "raise"})


SEGMENTS = st.sampled_from(["a", "b", "*", "**"])


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.booleans())
def test_the_field_of_a_pattern_is_the_one_that_it_can_match(segments: list[str], literal: bool) -> None:
    pattern = Pattern.of(tuple(segments) if literal else ".".join(segments))
    fields = {name for name in ("a", "b", "*", "**", "c") if pattern.covers((name,))}
    assert fields == ({"a", "b", "*", "**", "c"} if pattern.field is None else {pattern.field})
