"""Inputs: which a run may be given, and which it must be given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Budget, CompiledGraph, Context, Graph, ImmutableState, fill, reducers
from dspyer.errors import GraphError, InputError
from dspyer.stores import Memory
from tests.nodes.kit import MODES
from tests.rows import each


def search(q: str, limit: int = 10) -> dict[str, Any]:
    return {"used": limit}


def chain(*nodes: Any, **options: Any) -> Graph:
    graph = Graph(**options)
    for node in nodes:
        graph.add_node(node)
    return graph.add_path(START, *(node.__name__ for node in nodes), END)


def show(used: int, style: str = "plain") -> dict[str, Any]:
    return {"shown": f"{used} {style}"}


def whole(state: ImmutableState) -> dict[str, Any]:
    return {"seen": dict(state)}


def kwargs(**fields: Any) -> dict[str, Any]:
    return {"seen": fields}


def counted(ctx: Context, q: str) -> dict[str, Any]:
    return {"seen": q}


def routed() -> Graph:
    graph = Graph().add_node(search).add_edge("search", END)
    return graph.add_conditional_edges(START, lambda kind="a": kind, {"a": "search", "b": END})


def mapped() -> Graph:
    graph = Graph().add_map("sizes", lambda doc, scale=1: scale * len(doc), over="q", item="doc", into="sizes")
    return graph.add_path(START, "sizes", END)


def nested() -> Graph:
    return Graph().add_node("inner", chain(search).compile(), writes=["used"]).add_path(START, "inner", END)


def looped() -> Graph:
    graph = Graph().add_node("count", lambda n, q: {"n": n + 1}, writes=["n"]).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda n: n < 3, {True: "count", False: END})


def templated() -> Graph:
    made = Graph().add_node("say", lambda text: {"said": text}, reads={"text": fill("{q} {tone}")}, writes=["said"])
    return made.add_path(START, "say", END)


CLOSED: dict[str, tuple[Callable[[], Graph], dict[str, Any], str, str]] = {
    "a misspelt option": (lambda: chain(search), {"q": "x", "limt": 3}, "limt", "Did you mean 'limit'?"),
    "nothing like it": (lambda: chain(search), {"q": "x", "zzz": 3}, "zzz", "Its inputs are 'q', 'limit'"),
    "of a later node": (lambda: chain(search, show), {"q": "x", "stile": "bold"}, "stile", "Did you mean 'style'?"),
    "of a router": (routed, {"q": "x", "knid": "b"}, "knid", "Did you mean 'kind'?"),
    "of a map": (mapped, {"q": "x", "scael": 2}, "scael", "Did you mean 'scale'?"),
    "the item of a map": (mapped, {"q": ["x"], "doc": "y"}, "doc", "Its inputs are 'q', 'scale'"),
    "of a graph inside": (nested, {"q": "x", "limt": 3}, "limt", "Did you mean 'limit'?"),
    "of a loop": (looped, {"n": 0, "q": 1, "m": 3}, "m", "Its inputs are 'q'"),
    "of a template": (templated, {"q": "x", "tnoe": "dry"}, "tnoe", "Did you mean 'tone'?"),
    "with a context": (lambda: chain(counted), {"q": "x", "p": 1}, "p", "Its inputs are 'q'"),
    "of a declared list": (lambda: chain(whole, inputs=["q"]), {"q": "x", "p": 1}, "p", "Its inputs are 'q'"),
}


async def call(mode: str, program: CompiledGraph, inputs: dict[str, Any]) -> dspy.Prediction:
    return program(**inputs) if mode == "sync" else await program.acall(**inputs)


def test_an_option_of_run_that_a_call_got_as_an_input_is_named() -> None:
    program = Graph().add_node("f", lambda q: {"a": q}).add_path(START, "f", END).compile()
    with pytest.raises(InputError, match=r"budget is an option of run, as in program\.run\(\{...\}, budget=...\)"):
        program(q="x", budget=Budget(requests=1))


@MODES
@pytest.mark.anyio
async def test_an_input_that_nothing_reads_is_refused_before_anything_runs(mode: str) -> None:
    for build, inputs, wrong, text in CLOSED.values():
        with pytest.raises(InputError) as caught:
            await call(mode, build().compile(), inputs)
        assert f"has no input {wrong!r}." in str(caught.value)
        assert text in str(caught.value)


@each(
    ("build", "inputs"),
    [
        (lambda: chain(search), {"q": "x", "limit": 3}),
        (lambda: chain(search, show), {"q": "x", "style": "bold"}),
        (lambda: Graph().add_node("a", search, writes=["used"]).add_path(START, "a", END), {"q": "x", "used": 0}),
        (lambda: chain(whole), {"q": "x", "anything": 3}),
        (lambda: chain(kwargs), {"q": "x", "anything": 3}),
        (lambda: chain(search, whole), {"q": "x", "anything": 3}),
        (routed, {"q": "x", "kind": "b"}),
        (nested, {"q": "x", "limit": 3}),
        (mapped, {"q": ["x"], "scale": 3}),
        (looped, {"n": 0, "q": 1}),
        (templated, {"q": "x", "tone": "dry"}),
        (lambda: chain(search, inputs=["q", "note"]), {"q": "x", "note": 3}),
    ],
)
def test_an_input_that_a_node_reads_is_accepted(build: Callable[[], Graph], inputs: dict[str, Any]) -> None:
    run = build().compile().run(inputs)
    assert run.error is None
    assert {name: run.state[name] for name in inputs if name not in ("n", "used")}.items() <= inputs.items()


def test_optional_inputs_reach_an_inner_graph() -> None:
    assert nested().compile()(q="x", limit=3).used == 3
    assert nested().compile()(q="x").used == 10


def test_an_error_of_many_inputs_is_short() -> None:
    many = [f"field_{n}" for n in range(1_000)]
    program = chain(whole, inputs=[*many, "q"], required=many).compile()
    for inputs in ({"feild_7": 1}, dict.fromkeys((f"x{n}" for n in range(1_000)), 1)):
        with pytest.raises(InputError, match=r"has no input '.*missing inputs: 'field_0'") as caught:
            program(**inputs)
        assert len(str(caught.value)) < 1_500
        assert "(1001 in all); name others with Graph(inputs=[...])" in str(caught.value)


def test_missing_and_unknown_inputs_are_reported_together() -> None:
    with pytest.raises(InputError, match=r"has no input 'question'\..* missing inputs: 'q', read by 'search'"):
        chain(search).compile()(question="x")


def test_evaluate_counts_an_example_with_an_unknown_input_as_failed() -> None:
    """As for a module written by hand, whose `forward` has no such parameter."""

    class ManualCommit(dspy.Module):
        def forward(self, q: str, limit: int = 10) -> dspy.Prediction:
            return dspy.Prediction(used=limit)

    good = dspy.Example(q="x", used=10).with_inputs("q")
    bad = dspy.Example(q="x", limt=3, used=3).with_inputs("q", "limt")
    metric = lambda example, found, trace=None: found.used == example.used  # noqa: E731
    scores = [
        dspy.Evaluate(devset=[good, bad], metric=metric, max_errors=5, num_threads=1)(program).score
        for program in (chain(search).compile(), ManualCommit())
    ]
    assert scores == [50.0, 50.0]


class Asked(BaseModel):
    q: str
    note: str
    limit: int = 3
    log: Annotated[list[str], reducers.append] = []


def noted(q: str, note: str = "none") -> dict[str, Any]:
    return {"log": f"{q} {note}"}


def got(state: ImmutableState) -> dict[str, Any]:
    return {"log": state.get("note", "none")}


@MODES
@pytest.mark.parametrize("node", [noted, got], ids=["parameter", "state"])
@pytest.mark.anyio
async def test_an_input_without_a_default_may_be_left_out(node: Any, mode: str) -> None:
    for inputs in (["q", "note", "limit"], None):
        program = chain(node, schema=Asked, inputs=inputs, outputs=["log"], required=["q"]).compile()
        assert "note (optional)" in program.graph.explain()
        assert "q," in program.graph.explain()
        left_out = await call(mode, program, {"q": "a"})
        assert left_out.log[0].endswith("none")
        given = await call(mode, program, {"q": "a", "note": "b"})
        assert given.log[0].endswith("b")
        run = program.run({"q": "a"})
        assert "note" not in run.state
        with pytest.raises(InputError, match="missing inputs: 'q'"):
            await call(mode, program, {"note": "b"})
        with pytest.raises(InputError, match="note"):
            await call(mode, program, {"q": "a", "note": 3})


def test_an_input_with_a_default_may_be_required() -> None:
    program = chain(noted, schema=Asked, required=["q", "limit"]).compile()
    with pytest.raises(InputError, match="missing inputs: 'limit'"):
        program(q="a")
    assert program(q="a", limit=2).log == ["a none"]


def needs(note: str) -> dict[str, Any]:
    return {"log": note}


def asks_for_note() -> Graph:
    say = dspy.Predict(dspy.Signature("q -> log", "Mind {note}."))
    graph = Graph(Asked, inputs=["q", "note"], required=["q"]).add_node("say", say)
    return graph.add_path(START, "say", END)


@each(
    ("build", "text"),
    [
        (
            lambda: chain(needs, schema=Asked, required=["q"]),
            "node 'needs' reads 'note', an input that a run may leave out: name it in required=['note']",
        ),
        (lambda: chain(needs, required=[]), "node 'needs' reads 'note', an input that a run may leave out"),
        (
            lambda: chain(noted, schema=Asked, inputs=["q"], required=["q", "note"]),
            "required names 'note', which is no input of Asked ('q').",
        ),
        (lambda: chain(noted, schema=Asked, required=["nte"]), "Did you mean 'note'?"),
        (lambda: chain(search, required=["p"]), "required names 'p', which is no input of Graph ('q', 'limit')."),
        (
            lambda: Graph(outputs=["usde"]).add_node("a", search, writes=["used"]).add_path(START, "a", END),
            "the output 'usde' is nothing that a node of Graph writes. Did you mean 'used'?",
        ),
    ],
)
def test_a_wrong_declaration_is_found_when_the_graph_is_built(build: Callable[[], Graph], text: str) -> None:
    with pytest.raises(GraphError) as caught:
        build().compile()
    assert text in str(caught.value)


def test_a_template_with_an_input_that_may_be_left_out_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="node 'say' is filled with {note}, an input that a run may leave out"):
        asks_for_note().compile()


def test_a_router_that_needs_what_was_left_out_says_its_name() -> None:
    graph = chain(noted, schema=Asked, required=["q"])
    graph = Graph(Asked, required=["q"]).add_node(noted).add_edge("noted", END)
    graph.add_conditional_edges(START, "note", {"a": "noted", "b": END})
    run = graph.compile().run({"q": "a"})
    assert "reads 'note', which nothing has written yet" in str(run.error)


def test_a_single_name_needs_no_list() -> None:
    program = chain(noted, schema=Asked, inputs="q", outputs="log").compile()
    assert dict(program(q="a")) == {"log": ["a none"]}


def test_an_inner_graph_runs_without_its_optional_input() -> None:
    inner = chain(noted, schema=Asked, inputs=["q", "note"], outputs=["log"], required=["q"]).compile()
    graph = Graph(Asked, inputs=["q", "note"], required=["q"]).add_node("inner", inner).add_path(START, "inner", END)
    program = graph.compile()
    assert program(q="a").log == ["a none"]
    assert program(q="a", note="b").log == ["a b"]


def test_a_thread_keeps_inputs_of_earlier_runs() -> None:
    program = chain(noted, schema=Asked, required=["q"], keep="all").compile(store=":memory:")
    thread = program.thread("one")
    thread.run({"q": "a"})
    thread.run({"q": "b", "note": "x"})
    assert list(thread.run({"q": "c"}).state["log"]) == ["a none", "b x", "c x"]


STARTS: dict[str, Callable[[CompiledGraph, Any], object]] = {
    "run": lambda program, inputs: program.run(inputs),
    "arun": lambda program, inputs: asyncio.run(program.arun(inputs)),
    "stream": lambda program, inputs: list(program.stream(inputs)),
    "thread": lambda program, inputs: program.thread("t").run(inputs),
    "thread, async": lambda program, inputs: asyncio.run(program.thread("t").arun(inputs)),
}


@each("start", STARTS)
@each(
    ("inputs", "given"),
    [("x", "a str"), (None, "a NoneType"), (["q"], "a list"), ([("q", 1)], "a list"), ({1: 2}, "a dict whose keys")],
    ids=str,
)
def test_inputs_that_are_no_dict_by_name_are_refused(start: str, inputs: Any, given: str) -> None:
    program = chain(search).compile(store=Memory())
    with pytest.raises(InputError, match=rf"write run\(\{{'q': ...\}}\); it was given {given}"):
        STARTS[start](program, inputs)
    assert program.threads() == []
