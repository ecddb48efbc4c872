"""What each parameter of a function gets: fields, state, context, resources, modules, values of an overlay."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ForwardRef, Literal

import dspy
import pytest
from pydantic import BaseModel, create_model

from dspyer import END, START, Context, Graph, ImmutableState, Send, fill, register_value_type
from dspyer.errors import GraphError, ImmutableError, InputError, UnsetFieldError
from tests.nodes.kit import MODES, facts, graph_of, play, problems, run_node
from tests.rows import each


class Doc(BaseModel):
    title: str


class Research(BaseModel):
    question: str
    findings: list[str] = []
    notes: dict[str, Any] = {}
    doc: Doc | None = None
    answer: str


class Client:
    """A resource."""


class SpecialClient(Client):
    """A resource that extends another one."""


@dataclasses.dataclass
class Deps:
    url: str


STATE = {"question": "q", "findings": ["a"], "notes": {"k": 1}, "doc": Doc(title="t")}
SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def see(*values: Any) -> None:
    SEEN[:] = values


def fields(question, findings):  # type: ignore[no-untyped-def]
    see(question, findings)


async def fields_async(question, findings):  # type: ignore[no-untyped-def]
    see(question, findings)


def keyword_only(*, question):  # type: ignore[no-untyped-def]
    see(question)


def see_question(question):  # type: ignore[no-untyped-def]
    see(question)


def see_extra(extra):  # type: ignore[no-untyped-def]
    see(extra)


def see_query(query):  # type: ignore[no-untyped-def]
    see(query)


def default_of_set(question="none"):  # type: ignore[no-untyped-def]
    see(question)


def default_of_unset(answer="none"):  # type: ignore[no-untyped-def]
    see(answer)


def snapshot(state):  # type: ignore[no-untyped-def]
    see(state["question"])


def snapshot_keys(state):  # type: ignore[no-untyped-def]
    see(list(state))


def annotated_snapshot(whatever: ImmutableState) -> None:
    see(whatever["question"])


def view(s: Research) -> None:
    see(s.question, s.findings)


def everything(**kwargs: Any) -> None:
    see(sorted(kwargs))


def some_and_everything(question: str, **kwargs: Any) -> None:
    see(question, sorted(kwargs))


class Searcher:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def search(self, question: str) -> None:
        see(question, self.limit)

    def __call__(self, question: str) -> None:
        see("call", question, self.limit)

    @staticmethod
    def plain(question: str) -> None:
        see("static", question)

    @classmethod
    def of_class(cls, question: str) -> None:
        see("class", question)


class HeirOfSearcher(Searcher):
    pass


class AsyncSearcher:
    async def __call__(self, question: str) -> None:
        see("async call", question)


def limited(limit: int, question: str, extra: int = 0) -> None:
    see(limit, question, extra)


def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


@MODES
@each(
    ("fn", "expected"),
    [
        (fields, ["q", ["a"]]),
        (fields_async, ["q", ["a"]]),
        (keyword_only, ["q"]),
        (default_of_set, ["q"]),
        (default_of_unset, ["none"]),
        (snapshot, ["q"]),
        (annotated_snapshot, ["q"]),
        (view, ["q", ["a"]]),
        (everything, [["doc", "findings", "notes", "question"]]),
        (some_and_everything, ["q", ["doc", "findings", "notes"]]),
        (Searcher(3).search, ["q", 3]),
        (Searcher(3), ["call", "q", 3]),
        (AsyncSearcher(), ["async call", "q"]),
        (HeirOfSearcher(4), ["call", "q", 4]),
        (Searcher.plain, ["static", "q"]),
        (Searcher.of_class, ["class", "q"]),
        (functools.partial(limited, 7, extra=1), [7, "q", 1]),
        (functools.partial(limited, limit=8, extra=9), [8, "q", 9]),
        (functools.partial(functools.partial(limited, extra=1), limit=2), [2, "q", 1]),
        (functools.partial(fields_async, findings=1), ["q", 1]),
        (traced(fields), ["q", ["a"]]),
        (lambda state: see(state["question"]), ["q"]),
    ],
)
def test_a_parameter_gets_what_its_name_or_annotation_says(fn: Any, expected: list[Any], mode: str) -> None:
    run_node(fn, STATE, mode, schema=Research)
    assert expected == SEEN


def takes_plain(findings: list[str], notes: dict[str, int], doc: Doc | None) -> None:
    findings.append("mine")
    notes["mine"] = 1
    assert doc is not None
    doc.title = "mine"
    see(type(findings) is list, type(notes) is dict, type(doc) is Doc)


def takes_frozen(findings, notes: Any):  # type: ignore[no-untyped-def]
    with pytest.raises(ImmutableError):
        findings.append("mine")
    with pytest.raises(ImmutableError):
        notes.update(mine=1)
    see(type(findings) is list, type(notes) is dict)


def takes_sequence(findings: Sequence[str]) -> None:
    see(type(findings) is list)


@each(
    ("fn", "copies"),
    [(takes_plain, [True, True, True]), (takes_frozen, [False, False]), (takes_sequence, [False])],
)
def test_an_annotated_list_dict_or_model_is_a_copy_of_the_nodes_own(fn: Any, copies: list[bool]) -> None:
    run = run_node(fn, STATE, schema=Research)
    assert copies == SEEN
    assert run.state == ImmutableState(STATE)


def test_the_typed_view_is_read_only() -> None:
    def node(s: Research) -> None:
        s.question = "mine"

    with pytest.raises(ImmutableError):
        run_node(node, STATE, schema=Research)


def test_a_local_schema_is_known_by_its_name() -> None:
    class Local(BaseModel):
        question: str

    def node(s: Local) -> None:
        see(s.question)

    run_node(node, {"question": "q"}, schema=Local)
    assert SEEN == ["q"]


def test_annotations_that_cannot_be_resolved_bind_by_name() -> None:
    def make() -> Callable[..., Any]:
        class Hidden:
            pass

        del Hidden

        def node(question: Hidden, findings: list[Hidden], ctx: Any) -> None:  # noqa: F821
            see(question, type(findings), ctx.node)

        return node

    run_node(make(), STATE, schema=Research)
    assert ["q", list, "node"] == SEEN


def test_a_class_of_the_enclosing_function_resolves_if_the_body_uses_it() -> None:
    class Local:
        pass

    def node(client: Local) -> None:
        see(isinstance(client, Local))

    run_node(node, schema=Research, resources={Local: Local()})
    assert SEEN == [True]


def test_a_parameter_with_an_unresolvable_annotation_says_so() -> None:
    def node(client: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    (problem,) = problems(node, schema=Research)
    assert "'client' is no field of the state" in problem
    assert "annotation 'Unknown' cannot be resolved" in problem


def test_an_annotation_with_an_unknown_name_keeps_its_text() -> None:
    """What Python 3.14 gives for such an annotation where it is not a text."""

    def node(client: Any) -> None: ...

    node.__annotations__["client"] = ForwardRef("Unknown")
    (problem,) = problems(node, schema=Research)
    assert "annotation 'Unknown' cannot be resolved" in problem


def test_a_parameter_named_ctx_gets_the_context() -> None:
    def by_name(ctx):  # type: ignore[no-untyped-def]
        see(ctx.run_id, ctx.node, ctx.branch, ctx.visit, ctx.execution)

    def by_type(where: Context) -> None:
        see(where.run_id, where.node, where.branch, where.visit, where.execution)

    for fn in (by_name, by_type):
        run = run_node(fn, schema=Research)
        assert [run.run_id, "node", (), 1, "trunk:2"] == SEEN


# --- resources


def needs_client(question: str, client: Client) -> None:
    see(question, client)


def may_use_client(client: Client | None = None) -> None:
    see(client)


def needs_deps(deps: Deps) -> None:
    see(deps)


@MODES
@pytest.mark.parametrize("schema", [None, Research])
def test_a_parameter_annotated_with_another_class_is_a_resource(schema: Any, mode: str) -> None:
    client = SpecialClient()
    choices: list[Any] = [{Client: client}, {SpecialClient: client}, [client]]
    for given in choices:
        run_node(needs_client, STATE, mode, schema=schema, resources=given)
        assert ["q", client] == SEEN


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_a_registered_class_is_a_value_and_no_resource() -> None:
    def fn(money: Money) -> None: ...

    assert facts(fn).startswith("reads nothing;")
    register_value_type(Money, encode=lambda money: money.cents, decode=Money)
    assert facts(fn).startswith("reads money;")


@each("kind", [int, list[int], dict[str, int], Sequence[int], Path, datetime, Any, object, Doc, Literal["a"]])
def test_types_of_values_are_no_resources(kind: Any) -> None:
    def fn(value: Any) -> None: ...

    fn.__annotations__["value"] = kind
    assert facts(fn).startswith("reads value;")


def test_a_resource_with_a_default_may_be_missing() -> None:
    run_node(may_use_client, schema=Research)
    assert SEEN == [None]


def test_a_dataclass_that_is_no_field_is_a_resource_where_there_is_a_schema() -> None:
    deps = Deps("u")
    run_node(needs_deps, schema=Research, resources={Deps: deps})
    assert [deps] == SEEN
    run_node(needs_deps, schema=Research, sent={"deps": Deps("sent")})
    assert [Deps("sent")] == SEEN
    assert facts(needs_deps).startswith("reads deps;")


def test_missing_resources_are_found_at_the_start_of_a_run() -> None:
    graph = graph_of(needs_client, STATE, name="needs_client", schema=Research)
    graph.add_node("needs_deps", needs_deps).add_node("may_use_client", may_use_client)
    program = graph.add_path("needs_client", "needs_deps", "may_use_client", END).compile()
    with pytest.raises(InputError) as caught:
        play(program)
    assert "node 'needs_client' needs a resource of type Client for its parameter 'client'" in str(caught.value)
    assert "resources={Deps: ...}" in str(caught.value)
    assert not SEEN
    play(program, resources={SpecialClient: SpecialClient(), Deps: Deps("u")})


@pytest.mark.parametrize(
    ("given", "message"),
    [([Client(), Client()], "two resources are of type Client"), ({"client": Client()}, "'client' is no type")],
)
def test_resources_are_given_by_type(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_node(may_use_client, resources=given)


# --- modules


def rewrites(question: str, rewrite: dspy.Module) -> None:
    see(question, rewrite)


def test_a_bound_module_comes_from_the_program_at_call_time() -> None:
    first, second = dspy.Predict("question -> query"), dspy.Predict("question -> query")
    program: Any = graph_of(rewrites, STATE, modules={"rewrite": first}).compile()
    assert [name for name, _ in program.named_predictors()] == ["node.rewrite"]
    program.node.rewrite = second
    play(program)
    assert ["q", second] == SEEN


@pytest.mark.parametrize(
    ("fn", "modules", "message"),
    [
        (fields, {"rewrite": dspy.Predict("a -> b")}, "no such parameter"),
        (rewrites, {"rewrite": print}, "only a dspy.Module is bound so"),
        (lambda forward: None, {"forward": dspy.Predict("a -> b")}, "a name that dspy.Module uses"),
        (lambda named_predictors: None, {"named_predictors": dspy.Predict("a -> b")}, "a name that dspy.Module uses"),
        (lambda **kwargs: None, {"no name": dspy.Predict("a -> b")}, "a name that dspy.Module uses"),
    ],
)
def test_modules_that_cannot_be_bound_are_problems(fn: Any, modules: Any, message: str) -> None:
    assert any(message in problem for problem in problems(fn, modules=modules))


# --- what cannot be bound


def positional_only(question, /):  # type: ignore[no-untyped-def]
    return None


def variadic(*questions):  # type: ignore[no-untyped-def]
    return None


def generator(question):  # type: ignore[no-untyped-def]
    yield {}


async def async_generator(question):  # type: ignore[no-untyped-def]
    yield {}


@each(
    ("fn", "message"),
    [
        (positional_only, "'question' is positional-only: remove the `/`"),
        (variadic, "takes *questions: name the fields"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (functools.partial(generator), "is a generator"),
        (traced(generator), "is a generator"),
        (min, "cannot be read"),
    ],
)
def test_what_cannot_be_called_by_name_is_a_problem(fn: Any, message: str) -> None:
    assert any(message in problem for problem in problems(fn, schema=Research))


@pytest.mark.parametrize(
    ("fn", "messages"),
    [
        (lambda quesiton: None, ["'quesiton' is no field of the state", "Did you mean 'question'?", "name it `state`"]),
        (lambda s: None, ["For the state as a whole, name it `state`"]),
        (lambda question, limit=3: None, ["'limit' is no field", "functools.partial"]),
        (Searcher.search, ["'self' is no field", "`obj.method`, not `Class.method`"]),
    ],
)
def test_a_parameter_that_cannot_be_bound_is_an_error_with_its_fix(fn: Any, messages: list[str]) -> None:
    text = "\n".join(problems(fn, schema=Research))
    assert all(message in text for message in messages), text


# --- unset fields


@MODES
@each(("fn", "field"), [(lambda answer: None, "answer"), (Searcher(1).search, "question")])
def test_an_unset_field_raises_naming_field_and_reader(fn: Any, field: str, mode: str) -> None:
    with pytest.raises(UnsetFieldError, match=f"node 'node' reads '{field}', which nothing has written yet"):
        run_node(fn, {}, mode, schema=Research)


def test_an_unset_field_read_from_the_snapshot_or_the_view_raises() -> None:
    def by_view(s: Research) -> None:
        s.question

    for fn in (snapshot, by_view):
        with pytest.raises(UnsetFieldError, match="question"):
            run_node(fn, {}, schema=Research)


# --- reads as permissions


def test_a_parameter_with_a_default_needs_no_value() -> None:
    def around(fn: Any) -> Graph:
        return Graph(Research, inputs=["question"]).add_node("node", fn, writes=[]).add_path(START, "node", END)

    assert "reads question, answer;" in around(lambda question, answer=None: None).compile().graph.explain()
    with pytest.raises(GraphError, match="'answer'"):
        around(lambda question, answer: None).compile()


def test_a_parameter_for_the_whole_state_reads_what_reads_says() -> None:
    assert facts(snapshot, schema=Research).startswith("reads ?;")
    assert facts(snapshot, schema=Research, reads=["question"]).startswith("reads question;")


def test_reads_rename_fields_for_the_function() -> None:
    run_node(see_query, STATE, schema=Research, reads={"query": "question"})
    assert SEEN == ["q"]
    run_node(lambda state: see(dict(state)), STATE, schema=Research, reads={"query": "question"})
    assert SEEN == [{"query": "q"}]


@pytest.mark.parametrize(
    "fn",
    [
        lambda state: state["findings"],
        lambda **kwargs: kwargs["findings"],
        lambda state: {**state}["findings"],
    ],
)
def test_a_node_sees_only_what_it_reads(fn: Any) -> None:
    with pytest.raises(KeyError, match="findings"):
        run_node(fn, STATE, schema=Research, reads=["question"])


def test_a_snapshot_leaves_out_unset_fields() -> None:
    run_node(snapshot_keys, STATE, schema=Research, reads=["question", "answer"])
    assert SEEN == [["question"]]


def test_a_view_shows_only_what_the_node_reads() -> None:
    def node(s: Research) -> None:
        assert s.question == "q"
        s.findings

    with pytest.raises(UnsetFieldError):
        run_node(node, STATE, schema=Research, reads=["question"])


@each(
    ("fn", "reads", "message"),
    [
        (lambda question: None, {"query": "question"}, "'query' in reads is none of its inputs"),
        (lambda query: None, {"question": "query"}, "write reads={'query': 'question'}"),
        (lambda question: None, {"question": "qestion"}, "'qestion' in reads is no field of the state"),
        (lambda question: None, {"question": "qestion"}, "Did you mean 'question'?"),
        (lambda question: None, "question", "write reads=['question']"),
        (lambda question: None, [1], "names are strings"),
        (view, {"query": "question"}, "reads renames 'query'"),
        (lambda question, findings: None, ["question"], "'findings' is not among its reads ('question')"),
    ],
)
def test_reads_that_name_no_field_or_parameter_are_problems(fn: Any, reads: Any, message: str) -> None:
    found = problems(fn, schema=Research, reads=reads)
    assert any(message in problem for problem in found), found


def test_a_field_outside_of_reads_cannot_be_read_even_by_a_send_target() -> None:
    with pytest.raises(UnsetFieldError, match="findings"):
        run_node(lambda question, findings: None, STATE, schema=Research, reads=["question"], sent={"question": "q"})


# --- overlays


@each(
    ("fn", "sent", "expected"),
    [
        (see_question, {"question": "sent"}, ["sent"]),
        (lambda state: see(state["question"], state["extra"]), {"question": "sent", "extra": 1}, ["sent", 1]),
        (lambda **kwargs: see(kwargs["question"], kwargs["extra"]), {"question": "sent", "extra": 1}, ["sent", 1]),
        (see_extra, {"extra": 1}, [1]),
        (lambda extra=0: see(extra), {"extra": 1}, [1]),
    ],
)
def test_an_overlay_hides_fields_and_need_not_be_fields(fn: Any, sent: dict[str, Any], expected: list[Any]) -> None:
    run_node(fn, STATE, schema=Research, sent=sent)
    assert expected == SEEN


def test_a_view_shows_an_overlays_fields() -> None:
    run_node(view, STATE, schema=Research, sent={"question": "sent"})
    assert SEEN == ["sent", ["a"]]


def test_an_overlay_value_is_copied_for_a_parameter_that_wants_a_copy() -> None:
    def node(items: list[int]) -> None:
        items.append(4)

    send = Send("node", {"items": [1]})

    def spread() -> list[Send]:
        return [send]

    graph = Graph(inputs=[]).add_node("node", node).add_conditional_edges(START, spread, ["node"])
    play(graph.add_edge("node", END).compile())
    assert send.overlay == {"items": [1]}


@each(("wrote", "text"), [("ebb", "Note: ebb"), (None, "Note: {note}")])
def test_a_field_that_is_none_stays_as_it_is_in_a_text(wrote: str | None, text: str) -> None:
    schema = create_model("Noted", note=(str | None, "low tide"), text=(str, ""))
    graph = Graph(schema).add_node("write", lambda: {"note": wrote}, writes=["note"])
    graph.add_node("read", lambda case: {"text": case}, reads={"case": fill("Note: {note}")}, writes=["text"])
    assert graph.add_path(START, "write", "read", END).compile().run({}).state["text"] == text
