"""Error edges as a part of the graph: what `compile()` refuses, and how texts, pictures and fingerprints show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel, Field

from dspyer import END, START, Breakpoints, Command, Failure, Graph, Send, live, reducers
from dspyer.errors import ChangedGraphError, GraphError, MergeConflictError, RouteError, StoreError
from dspyer.stores import Memory
from dspyer.testing import stub
from tests.rows import each

Failures = Annotated[list[Failure], reducers.append]


class State(BaseModel):
    q: str = ""
    a: str = ""
    unset: str = Field(default_factory=str)
    needed: str
    problem: Failure | None = None
    problems: Failures = []
    text: str = ""
    texts: Annotated[list[str], reducers.extend] = []
    spread: Annotated[list[Failure], reducers.extend] = []
    posts: Annotated[list[Failure], reducers.append, live] = []
    things: list[Any] = []
    pairs: Annotated[set[Any], reducers.union] = set()
    anything: Any = None
    fixed: Failure | None = Field(default=None, frozen=True)


def graph_of(
    *edges: tuple[str, str], schema: type[BaseModel] | None = State, inputs: Sequence[str] = ("q",), **nodes: Any
) -> Graph:
    graph = Graph(schema, inputs=inputs)
    for name, fn in {"ask": lambda q: {"a": q}, "handle": lambda q: {"text": q}, **nodes}.items():
        graph.add_node(name, fn, writes={"ask": ["a", "needed"], "handle": ["text"]}.get(name, []))
    for source, target in edges or ((START, "ask"), ("ask", END), ("handle", END)):
        graph.add_edge(source, target)
    return graph


def tells(problem: Failure | None) -> dict[str, Any]:
    return {"text": str(problem)}


async def _takes(error: BaseException) -> bool:
    return False  # a coroutine is true, whatever it would return


CANNOT_HOLD = "which takes no dspyer.Failure: declare {0}: Failure | None = None"
REFUSED_AT_ONCE = {
    "from START": (lambda g: g.add_error_edge(START, "handle"), "begins at no node: START runs nothing"),
    "from END": (lambda g: g.add_error_edge(END, "handle"), "begins at no node"),
    "a function": (lambda g: g.add_error_edge(graph_of, "handle"), "write 'graph_of' here"),
    "two handlers": (lambda g: g.add_error_edge("ask", ["handle", "ask"]), "leads to one handler"),
    "on a text": (lambda g: g.add_error_edge("ask", "handle", on="TimeoutError"), "on='TimeoutError'"),
    "on no exception": (lambda g: g.add_error_edge("ask", "handle", on=(ValueError, int)), "<class 'int'>"),
    "on None": (lambda g: g.add_error_edge("ask", "handle", on=None), "on=None"),
    "on an async function": (lambda g: g.add_error_edge("ask", "handle", on=_takes), "is async, and nothing awaits it"),
    "on an error of the store": (
        lambda g: g.add_error_edge("ask", "handle", on=(ValueError, StoreError)),
        "on StoreError is never taken: this error passes every error edge",
    ),
    "on Ctrl-C": (lambda g: g.add_error_edge("ask", "handle", on=KeyboardInterrupt), "on KeyboardInterrupt is never"),
    "into a list": (lambda g: g.add_error_edge("ask", "handle", into=["problem"]), "into=['problem']"),
}
REFUSED = {
    "an unknown source": (
        lambda g: g.add_error_edge("aks", "handle"),
        "the error edge 'aks' -> 'handle' names no node 'aks'. Did you mean 'ask'?",
    ),
    "an unknown target": (
        lambda g: g.add_error_edge("ask", "handel"),
        "the error edge 'ask' -> 'handel' names no node 'handel'. Did you mean 'handle'?",
    ),
    "to START": (lambda g: g.add_error_edge("ask", START), "the error edge 'ask' -> 'START' goes to the start"),
    "into no field": (lambda g: g.add_error_edge("ask", "handle", into="problm"), "Did you mean 'problem'"),
    "into a text": (lambda g: g.add_error_edge("ask", "handle", into="text"), CANNOT_HOLD.format("text")),
    "into texts": (lambda g: g.add_error_edge("ask", "handle", into="texts"), CANNOT_HOLD.format("texts")),
    "into extend": (lambda g: g.add_error_edge("ask", "handle", into="spread"), "with the reducer 'extend'"),
    "into a list of anything": (
        lambda g: g.add_error_edge("ask", "handle", into="things"),
        CANNOT_HOLD.format("things"),
    ),
    "into a set of anything": (lambda g: g.add_error_edge("ask", "handle", into="pairs"), "with the reducer 'union'"),
    "into an input": (lambda g: g.add_error_edge("ask", "handle", into="fixed"), CANNOT_HOLD.format("fixed")),
    "into a live field": (lambda g: g.add_error_edge("ask", "handle", into="posts"), "is a live field"),
    "a handler of no failure": (
        lambda g: (
            g.add_error_edge("ask", "handle")
            .add_node("tell", tells, writes=["texts"])
            .add_error_edge("handle", "tell")
            .add_edge("tell", END)
        ),
        (
            "the error edge 'handle' -> 'tell' gives the failure to no field, and 'tell' reads 'problem', which "
            "nothing writes: add_error_edge('handle', 'tell', into='problem')"
        ),
    ),
    "shadowed": (
        lambda g: g.add_error_edge("ask", "handle").add_error_edge("ask", END, on=(ValueError, KeyError)),
        "on ValueError, KeyError is never taken: before it the error edge 'ask' -> 'handle' on Exception is declared",
    ),
}


@each("case", REFUSED_AT_ONCE)
def test_a_wrong_declaration_is_refused_where_it_is_made(case: str) -> None:
    declare, text = REFUSED_AT_ONCE[case]
    with pytest.raises(GraphError) as raised:
        declare(graph_of())  # type: ignore[no-untyped-call]
    assert text in str(raised.value)


@each("case", REFUSED)
def test_the_build_refuses_a_wrong_error_edge_with_one_problem(case: str) -> None:
    declare, text = REFUSED[case]
    graph = graph_of()
    if "handle" not in case:
        graph.add_edge(START, "handle")  # reached without the error edge
    declare(graph)  # type: ignore[no-untyped-call]
    with pytest.raises(GraphError) as raised:
        graph.compile()
    assert text in str(raised.value)
    assert len(raised.value.problems) == 1, raised.value


@pytest.mark.parametrize("into", ["problem", "problems", "anything", None])
def test_fields_that_hold_a_failure_are_accepted(into: str | None) -> None:
    assert graph_of().add_error_edge("ask", "handle", into=into).compile()(q="high").a == "high"


@pytest.mark.parametrize("given", ["an input", "of another edge", "of a node"])
def test_a_handler_may_read_a_failure_from_elsewhere(given: str) -> None:
    inputs = ["q", "problem"] if given == "an input" else ["q"]
    graph = graph_of((START, "ask"), ("ask", "handle"), ("handle", END), inputs=inputs, handle=tells)
    graph.add_error_edge("ask", "handle", on=ValueError)
    if given == "of another edge":
        graph.add_error_edge("ask", "handle", into="problem")
    else:
        graph.add_node("note", lambda: {"problem": None}, writes=["problem"]).add_path(START, "note", "handle")
    assert graph.compile()(q="high").text == "None"


def test_a_graph_without_a_schema_takes_any_field() -> None:
    graph = graph_of(schema=None).add_error_edge("ask", "handle", into="whatever")
    assert graph.compile()(q="high").a == "high"


def test_a_router_or_condenser_is_no_source() -> None:
    class Route(dspy.Signature):
        """Where to."""

        a: str = dspy.InputField()
        way: Literal["end"] = dspy.OutputField()

    graph = graph_of((START, "ask"), ("handle", END))
    graph.add_conditional_edges("ask", dspy.Predict(Route), {"end": END}).add_error_edge("ask_router", "handle")
    with pytest.raises(
        GraphError, match=r"names no node 'ask_router'. It is the router of 'ask', whose errors no error"
    ):
        graph.compile()


# --- topology


def test_a_handler_is_reached_by_its_error_edge_alone_and_is_a_dead_end_without_an_edge() -> None:
    with pytest.raises(GraphError, match="node 'handle' is never reached"):
        graph_of().compile()
    with pytest.raises(GraphError, match="node 'handle' is a dead end"):
        graph_of((START, "ask"), ("ask", END)).add_error_edge("ask", "handle").compile()


def test_a_node_whose_only_edge_is_an_error_edge_is_a_dead_end() -> None:
    graph = graph_of((START, "ask"), ("handle", END)).add_error_edge("ask", "handle")
    with pytest.raises(GraphError, match="'ask' is a dead end unless it fails, since an error edge is its only edge"):
        graph.compile()


def test_an_error_edge_may_be_the_only_way_out_of_a_loop() -> None:
    with pytest.raises(GraphError, match="no way leads from node 'ask' to END"):
        graph_of((START, "ask"), ("ask", "ask"), ("handle", END)).add_error_edge("handle", END).compile()
    graph = Graph(State, inputs=["q"]).add_node("ask", lambda q: {"a": q}, writes=["a"])
    graph.add_node("again", lambda a: {}, writes=[]).add_edge(START, "ask").add_edge("ask", "again")
    text = graph.add_edge("again", "ask").add_error_edge("ask", END).compile().graph.explain()
    assert "loop of ask, again: a round begins at ask" in text


def test_what_a_handler_reads_must_be_set_although_its_source_has_failed() -> None:
    def handle(needed: str) -> dict[str, str]:
        return {"text": needed}

    def ask(q: str) -> dict[str, str]:
        return {"needed": q}

    graph = graph_of(ask=ask, handle=handle).add_error_edge("ask", "handle")
    with pytest.raises(GraphError, match=r"node 'handle' reads 'needed'.* \(ask writes it, but not when it fails\)"):
        graph.compile()
    graph.add_edge("ask", "handle")  # with this one too it may be set
    graph.compile()


def test_what_into_names_is_set_at_the_handler_only_by_an_edge_with_it() -> None:
    class Needs(BaseModel):
        q: str = ""
        problem: Failure

    def graph(into: str | None) -> Graph:
        made = Graph(Needs, inputs=["q"]).add_node("ask", lambda q: {}).add_node("handle", lambda problem: {})
        made.add_path(START, "ask", END).add_edge("handle", END)
        return made.add_error_edge("ask", "handle", on=ValueError, into=into)

    graph("problem").compile()
    with pytest.raises(GraphError, match="node 'handle' reads 'problem'"):
        graph(None).compile()
    two = graph(None).add_node("other", lambda q: {}).add_edge("other", END)
    with pytest.raises(GraphError, match="node 'handle' reads 'problem'"):
        two.add_error_edge("ask", "other", on=KeyError, into="problem").compile()


def test_without_a_schema_a_handler_that_reads_what_the_source_writes_makes_it_an_input() -> None:
    graph = Graph().add_node("ask", lambda q: {"a": q}, writes=["a"]).add_node("handle", lambda a, problem: {})
    graph.add_path(START, "ask", END).add_edge("handle", END).add_error_edge("ask", "handle", into="problem")
    assert graph.compile().graph.inputs == ("q", "a")


def test_into_is_a_field_that_the_source_writes() -> None:
    graph = graph_of((START, "ask"), (START, "other"), ("ask", END), ("other", END), ("handle", END))
    graph.add_node("other", lambda q: {}, writes=[])
    single = graph.add_error_edge(["ask", "other"], "handle", into="problem")
    with pytest.raises(GraphError, match=r"both write 'problem'.*list.Failure., reducers.append"):
        single.compile()

    both = Graph(State, inputs=["q"]).add_node("ask", lambda q: {}, writes=[])
    both.add_node("other", lambda q: {}, writes=[]).add_node("handle", lambda problems: {}, writes=[])
    both.add_edge(START, ["ask", "other"]).add_edge(["ask", "other"], END)
    both.add_edge("handle", END).add_error_edge(["ask", "other"], "handle", into="problems")
    assert "problems" in (both.compile().graph.writes or ())


def fork_with_handler(*sources: str, back: str = END, writes: str = "reply", **options: Any) -> Graph:
    """`left` and `right` join at `answer`; `sorry` handles failures of `sources`, and goes on at `back`."""
    graph = Graph(name="Fork", **options)
    graph.add_node("left", lambda q: {"a": q}, writes=["a"])
    graph.add_node("right", lambda q: {"b": q / 0}, writes=["b"])
    graph.add_node("answer", lambda q, b="": {"reply": q}, writes=["reply"])
    graph.add_node("sorry", lambda problem: {writes: "sorry"}, writes=[writes])
    graph.add_edge(START, ["left", "right"])
    graph.add_edge(["left", "right"], "answer")
    graph.add_edge("answer", END)
    graph.add_error_edge(list(sources), "sorry", into="problem")
    graph.add_edge("sorry", back)
    return graph


def test_a_handler_and_the_join_behind_the_failed_branch_that_write_one_field_conflict() -> None:
    run = fork_with_handler("right").compile().run({"q": 1})
    assert isinstance(run.error, MergeConflictError), run.error
    assert "'reply'" in str(run.error)


def test_a_handler_that_also_leads_to_the_other_branch_is_no_conflict() -> None:
    graph = Graph(name="Joined").add_node("left", lambda q: {"a": q / 0}, writes=["a"])
    graph.add_node("handler", lambda q: {"b": 1}, writes=["b"]).add_node("right", lambda q: {"b": 2}, writes=["b"])
    graph.add_node("last", lambda q: {"c": 1}, writes=["c"])
    graph.add_edge(START, ["left", "right"]).add_edge("left", "right").add_error_edge("left", "handler")
    graph.add_edge("handler", ["right", "last"]).add_edge("right", "last").add_edge("last", END)
    assert graph.compile()(q=1).b == 2  # `right` joins a branch of the handler, and so it knows what that wrote


def test_swapped_arguments_are_named() -> None:
    graph = Graph(name="Swapped").add_node("a", lambda q: {"a": q}, writes=["a"])
    graph.add_node("sorry", lambda q: {"a": "sorry"}, writes=["a"])
    graph.add_path(START, "a", END).add_error_edge("sorry", "a").add_edge("sorry", END)
    with pytest.raises(GraphError, match=r"'sorry' is never reached: .*: add_error_edge\('a', 'sorry'\)$"):
        graph.compile()


@each(
    ("sources", "options", "status"),
    [
        ("answer", {}, "failed"),  # after the join there is one branch
        ("right", {"back": "answer"}, "completed"),  # the handler leads to the join
        ("right", {"back": "answer", "writes": "b"}, "completed"),
        ("right", {"writes": "excuse"}, "completed"),
        ("right", {"merge": {"reply": "last_write_wins"}}, "completed"),
    ],
)
def test_a_handler_that_does_not_write_in_parallel_is_accepted(
    sources: str, options: dict[str, Any], status: str
) -> None:
    run = fork_with_handler(sources, **options).compile().run({"q": 1})
    assert run.status == status, run.error


def test_the_failures_of_several_sends_need_a_reducer() -> None:
    def graph(into: str) -> Graph:
        made = graph_of(("ask", END), ("handle", END)).add_error_edge("ask", "handle", into=into)
        return made.add_conditional_edges(START, _sends, ["ask"])

    graph("problems").compile()
    with pytest.raises(
        GraphError, match=r"several Sends may start 'ask'.*problem: Annotated.list.Failure., reducers.a"
    ):
        graph("problem").compile()


def _sends(q: str) -> list[Send]:
    return [Send("ask", {"q": letter}) for letter in q]


def to_the_handler(a: str) -> str:
    return "handle"


def test_a_node_may_not_choose_the_target_of_its_error_edge() -> None:
    def ask(q: str) -> Any:
        return Command(goto="handle")

    def ask_in_words(q: str) -> Command[Literal["END"]]:
        return Command(goto="handle")

    for node in (ask, ask_in_words):
        run = graph_of(ask=node).add_error_edge("ask", "handle").compile().run({"q": "x"})
        assert isinstance(run.error, RouteError)
        assert "node 'ask' went to 'handle'" in str(run.error)
    graph = graph_of((START, "ask"), ("handle", END)).add_conditional_edges("ask", to_the_handler, [END])
    assert isinstance(graph.add_error_edge("ask", "handle").compile().run({"q": "x"}).error, RouteError)


# --- how it is shown


def shown_graph(**options: Any) -> Graph:
    graph = graph_of().add_error_edge("ask", "handle", on=(LookupError, TimeoutError), into="problem")
    return graph.add_error_edge("handle", END, **options)


def test_explain_names_what_an_error_edge_takes() -> None:
    lines = shown_graph().compile().graph.explain().splitlines()
    assert (
        "  ask: reads q; writes a, needed; -> END; on LookupError, TimeoutError -> handle (the failure into problem)"
        in lines
    )
    assert "  handle: reads q; writes text; -> END; on Exception -> END" in lines


def test_a_round_that_an_error_edge_begins_is_said_so() -> None:
    graph = graph_of((START, "ask"), ("ask", END), ("handle", "ask")).add_error_edge("ask", "ask", on=LookupError)
    text = graph.add_error_edge("ask", "handle").compile().graph.explain()
    assert "on LookupError -> ask (next round); on Exception -> handle" in text


def test_mermaid_dashes_it_with_a_mark() -> None:
    lines = shown_graph().compile().graph.to_mermaid().splitlines()
    assert '    ask_ -.->|"#10005; LookupError, TimeoutError"| handle_' in lines
    assert '    handle_ -->|"#10005; Exception"| END' in lines  # an ordinary edge leads there, too


def test_the_picture_dashes_it_with_a_cross() -> None:
    svg = shown_graph().compile().graph.to_svg()
    assert svg.count('class="line error"') == 1
    assert svg.count('l8 8 m0 -8 l-8 8" class="failed frame"') == 1
    assert "✕ LookupError, TimeoutError" in svg
    assert "<title>ask to handle, after a failure</title>" in svg


def test_the_source_text_has_it() -> None:
    text = shown_graph().compile()
    import inspect

    source = inspect.getsource(type(text))
    assert 'graph.add_error_edge("ask", "handle", on=(LookupError, TimeoutError), into="problem")' in source
    assert 'graph.add_error_edge("handle", END)' in source


def is_busy(error: BaseException) -> bool:
    return "busy" in str(error)


def test_a_predicate_is_shown_by_its_name_and_its_source() -> None:
    import inspect

    program = graph_of().add_error_edge("ask", "handle", on=(is_busy, LookupError)).compile()
    assert "on is_busy, LookupError -> handle" in program.graph.explain()
    source = inspect.getsource(type(program))
    assert 'graph.add_error_edge("ask", "handle", on=(is_busy, LookupError))' in source
    assert "def is_busy(error" in source


CHANGES: dict[str, tuple[Callable[[Graph], Any], list[str]]] = {
    "gone": (lambda g: None, ["error edge 'ask' -> 'handle' on Exception into 'problem' is gone"]),
    "another field": (
        lambda g: g.add_error_edge("ask", "handle", into="anything"),
        [
            "error edge 'ask' -> 'handle' on Exception into 'problem' is gone",
            "error edge 'ask' -> 'handle' on Exception into 'anything' is new",
        ],
    ),
    "one more": (
        lambda g: g.add_error_edge("ask", END, on=KeyError).add_error_edge("ask", "handle", into="problem"),
        ["error edge 'ask' -> 'END' on KeyError is new"],
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_error_edge_is_a_change_of_the_graph(case: str) -> None:
    change, expected = CHANGES[case]
    before, after = graph_of().add_edge("ask", "handle"), graph_of().add_edge("ask", "handle")
    change(after)
    assert changes(before.add_error_edge("ask", "handle", into="problem"), after) == expected


def changes(before: Graph, after: Graph) -> list[str]:
    """What has changed for an open run of the first graph that is resumed with the second one."""
    store = Memory()
    before.compile(store=store, layers=[Breakpoints(before=["ask"])]).thread("t").run({"q": "high"})
    with pytest.raises(ChangedGraphError) as raised:
        after.compile(store=store, layers=[Breakpoints(before=["ask"])]).thread("t").resume()
    return [*raised.value.changes]


def test_another_order_of_error_edges_is_a_change() -> None:
    def made(*kinds: type[Exception]) -> Graph:
        graph = graph_of()
        for kind in kinds:
            graph.add_error_edge("ask", "handle", on=kind)
        return graph

    assert changes(made(KeyError, ValueError), made(ValueError, KeyError)) == [
        "the error edges of 'ask' have another order"
    ]


def test_graphs_without_error_edges_keep_the_fingerprint_that_open_runs_have() -> None:
    """Policies are no part of it."""
    store = Memory()
    graph = Graph(name="Plain").add_node("ask", lambda q: {"a": q}, writes=["a"], retry=3, timeout=60)
    graph.add_path(START, "ask", END).compile(store=store).thread("t").run({"q": "x"})
    assert [run.header["shape"] for run in store.runs("t")] == ["ed9e397a9808269512b8664594044763"]


def test_a_stub_of_a_source_keeps_its_error_edges() -> None:
    program = graph_of().add_error_edge("ask", "handle", into="problem").compile()

    def ask() -> dict[str, str]:
        raise OSError("no disk")

    stubbed = stub(program, ask=ask)
    assert stubbed.run({"q": "high"}).state["problem"].type == "OSError"
