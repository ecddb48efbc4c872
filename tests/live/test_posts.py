"""Posts: what a node adds to its patch while it runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import DELETE, END, START, Command, Context, Graph, Replace, Run, Updates, errors, reducers
from dspyer.testing import ScriptedLM
from tests.threads.owned_runs import failing_rows


class Board(BaseModel):
    results: Annotated[list[str], reducers.append] = []
    pages: Annotated[list[int], reducers.extend] = []
    owners: Annotated[dict[str, str], reducers.update] = {}
    calls: Annotated[int, reducers.increment] = 0
    best: Annotated[int, reducers.max] = 0
    text: str = ""
    parts: list[int] = []


def ran(node: Callable[..., Any], **options: Any) -> Run:
    return Graph(Board).add_node("node", node, **options).add_path(START, "node", END).compile().run({})


def test_posts_come_in_the_order_of_the_calls_before_what_is_returned() -> None:
    """S000-20, S000-22: each is a part of the commit, with field and value."""

    def node(ctx: Context) -> dict[str, Any]:
        for name in "ab":
            ctx.post("results", name)
            ctx.post("calls", 1)
        ctx.post("owners", {"a": "node"})
        ctx.post("best", 3)
        return {"results": "c", "owners": {"a": "me"}, "text": "done"}

    run = ran(node)
    run.raise_error()
    assert run.state.to_dict() == {
        **Board().model_dump(),
        "results": ["a", "b", "c"],
        "calls": 2,
        "owners": {"a": "me"},
        "best": 3,
        "text": "done",
    }
    assert run.commits[1].patch["results"] == Updates("a", "b", "c")
    assert run.commits[1].patch["calls"] == Updates(1, 1)


POSTED: dict[str, tuple[list[tuple[str, Any]], Any, dict[str, Any]]] = {
    "alone": ([("results", "a")], None, {"results": ["a"]}),
    "with a command": ([("results", "a")], Command(update={"results": "b"}), {"results": ["a", "b"]}),
    "a prediction": ([("results", "a")], dspy.Prediction(results="b", text="t"), {"results": ["a", "b"], "text": "t"}),
    "a model": ([("pages", [1])], Board(pages=[2]), {"pages": [1, 2]}),
    "a replace": ([("pages", [1]), ("pages", Replace([7]))], None, {"pages": [7]}),
    "a deletion": ([("calls", 4), ("calls", DELETE), ("calls", 1)], None, {"calls": 1}),
}


def test_a_post_works_with_every_kind_of_return_value() -> None:
    def check(row: tuple[list[tuple[str, Any]], Any, dict[str, Any]]) -> None:
        posts, returned, expected = row

        def work(ctx: Context) -> Any:
            for field, value in posts:
                ctx.post(field, value)
            return returned

        run = ran(work)
        run.raise_error()
        assert run.state.to_dict() == {**Board().model_dump(), **expected}

    assert not failing_rows(POSTED, check)


def test_a_post_is_a_copy() -> None:
    def node(ctx: Context) -> Any:
        pages = [1]
        ctx.post("pages", pages)
        pages.append(2)

    run = ran(node)
    run.raise_error()
    assert run.state["pages"] == [1]


def test_a_failed_node_has_posted_nothing() -> None:
    def node(ctx: Context) -> Any:
        ctx.post("results", "a")
        raise ValueError("no")

    run = ran(node)
    assert str(run.error) == "no"
    assert (run.state["results"], len(run.commits)) == ([], 1)


REFUSED: dict[str, tuple[Callable[[Context], Any], dict[str, Any], str]] = {
    "not its field": (
        lambda ctx: ctx.post("calls", 1),
        {"writes": ["results"]},
        r"posts to 'calls', which is not among its writes \('results'\)",
    ),
    "no field": (
        lambda ctx: ctx.post("result", 1),
        {},
        "'result', which is no field of the schema. Did you mean 'results'",
    ),
    "no reducer": (lambda ctx: ctx.post("text", "a"), {}, "which has no reducer to fold the post"),
    "wrong type": (
        lambda ctx: ctx.post("pages", ["a"]),
        {},
        "node 'node' writes .* for field 'pages', which is refused",
    ),
    "wrong shape": (lambda ctx: ctx.post("pages", 1), {}, "reducer 'extend' takes a list of items"),
    "no value": (lambda ctx: ctx.post("results", threading.Lock()), {}, "results"),
}


def test_a_bad_post_names_node_and_field() -> None:
    """S004-8, S004-9."""

    def check(row: tuple[Callable[[Context], Any], dict[str, Any], str]) -> None:
        post, options, text = row

        def node(ctx: Context) -> Any:
            post(ctx)

        error = ran(node, **options).error
        assert isinstance(error, errors.DspyerError)
        assert re.search(text, str(error))

    assert not failing_rows(REFUSED, check)


def test_without_a_schema_nothing_folds_a_post() -> None:
    def node(ctx: Context) -> Any:
        ctx.post("results", "a")

    run = Graph().add_node("node", node).add_path(START, "node", END).compile().run({})
    assert "which has no reducer" in str(run.error)


def test_threads_of_a_node_may_post() -> None:
    """S000-25: none is lost, and each thread's own are in order."""

    def node(ctx: Context) -> Any:
        ready = threading.Barrier(8)

        def work(number: int) -> None:
            ready.wait()
            for step in range(50):
                ctx.post("pages", [number * 100 + step])

        workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    run = ran(node)
    run.raise_error()
    pages = list(run.state["pages"])
    assert sorted(pages) == [number * 100 + step for number in range(8) for step in range(50)]
    for number in range(8):
        own = [page for page in pages if page // 100 == number]
        assert own == sorted(own)


def test_a_thread_that_outlives_its_node_cannot_post() -> None:
    kept: list[Context] = []

    def node(ctx: Context) -> Any:
        kept.append(ctx)

    ran(node).raise_error()
    with pytest.raises(errors.NodeOutputError, match="after the node has returned"):
        kept[0].post("results", "late")


def test_an_item_of_a_map_returns_what_it_would_post() -> None:
    def item(item: int, ctx: Context) -> int:
        ctx.post("results", "a")
        return item

    graph = Graph(Board).add_map("node", item, over="parts", item="item", into="pages")
    run = graph.add_path(START, "node", END).compile().run({"parts": [1]})
    assert "from an item of a map, which can post to live fields alone" in str(run.error)


def test_a_post_before_a_question_is_made_once() -> None:
    def node(ctx: Context) -> dict[str, Any]:
        ctx.post("results", "asked")
        return {"results": str(ctx.interrupt("go", "Go on?"))}

    thread = Graph(Board).add_node("node", node).add_path(START, "node", END).compile(store=":memory:").thread("t")
    run = thread.run({})
    assert (run.status, run.state["results"]) == ("interrupted", [])
    run = thread.resume(answers={"go": True})
    assert run.state["results"] == ["asked", "True"]
    assert thread.replay() == run.state


# --- condense


def shortened(node: Callable[..., Any], module: dspy.Module, field: str = "results", **options: Any) -> Run:
    graph = Graph(Board).add_node("node", node, condense={field: module}, **options)

    def shorten(prompt: Any) -> dict[str, Any]:
        text = prompt.inputs["text"]
        return {"short": text.split()[0] if not text.startswith("[") else '["both"]'}

    with ScriptedLM(shorten):
        return graph.add_path(START, "node", END).compile().run({})


def test_a_module_may_condense_what_a_node_writes() -> None:
    """S004-23."""

    def node(ctx: Context) -> dict[str, Any]:
        ctx.post("results", "one long post")
        return {"results": "two long words", "text": "as it is"}

    run = shortened(node, dspy.Predict("text -> short"))
    run.raise_error()
    assert (run.state["results"], run.state["text"]) == (["one", "two"], "as it is")
    assert [prediction.short for _, _, prediction in run.trace] == ["one", "two"]


CONDENSED: dict[str, tuple[str, Any, str, Any]] = {
    "a text": ("text", "one long text", "text -> short", "one"),
    "keys": ("owners", {"a": "one x", "b": "two x"}, "text -> short", {"a": "one", "b": "two"}),
    "a replace": ("results", Replace(["one x", "two x"]), "text: list[str] -> short: list[str]", ["both"]),
}


@pytest.mark.parametrize(("field", "written", "signature", "expected"), CONDENSED.values(), ids=CONDENSED)
def test_the_input_of_a_condensing_module(field: str, written: Any, signature: str, expected: Any) -> None:
    def node() -> dict[str, Any]:
        return {field: written}

    run = shortened(node, dspy.Predict(signature), field)
    run.raise_error()
    assert run.state[field] == expected


def test_a_condensing_module_is_tuned_and_saved_with_the_graph(tmp_path: Any) -> None:
    def node() -> dict[str, Any]:
        return {"results": "a b"}

    graph = Graph(Board).add_node("node", node, condense={"results": dspy.Predict("text -> short")})
    program = graph.add_path(START, "node", END).compile()
    assert [name for name, _ in program.named_predictors()] == ["node_condense_results"]
    program.node_condense_results.signature = program.node_condense_results.signature.with_instructions("Be brief.")
    program.save(tmp_path / "program.json")
    other = graph.compile()
    other.load(tmp_path / "program.json")
    assert other.node_condense_results.signature.instructions == "Be brief."


class Broken(dspy.Module):
    def forward(self, text: str) -> Any:
        raise ValueError("no")


@pytest.mark.parametrize(("written", "error"), [("a b", "no"), (DELETE, "None")])
def test_a_failure_of_the_condensing_module_fails_the_node(written: Any, error: str) -> None:
    """Where nothing is written nothing is shortened."""
    run = ran(lambda: {"results": written}, writes=["results"], condense={"results": Broken()})
    assert str(run.error) == error
    assert len(run.commits) == (1 if run.error else 2)


def nothing() -> dict[str, Any]:
    return {}


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no field": ({"result": dspy.Predict("a -> b")}, {}, "condense names 'result', which is no field"),
    "not written": ({"calls": dspy.Predict("a -> b")}, {"writes": ["results"]}, "'calls', which it does not write"),
    "no module": ({"results": len}, {}, "an object of type builtin_function_or_method: give a dspy.Module"),
    "two inputs": ({"results": dspy.Predict("a, c -> b")}, {}, "takes one value, gives one"),
    "two outputs": ({"results": dspy.Predict("a -> b, c")}, {}, "takes one value, gives one"),
}


def test_an_unusable_condensing_module_is_an_error_when_the_graph_is_built() -> None:
    def check(row: tuple[Any, dict[str, Any], str]) -> None:
        condense, options, text = row
        graph = Graph(Board).add_node("node", nothing, condense=condense, **options).add_path(START, "node", END)
        with pytest.raises(errors.GraphError, match=text):
            graph.compile()

    assert not failing_rows(BAD, check)


# --- short_error


def failing() -> None:
    raise TimeoutError("no answer\n  after 5 s")


def test_an_error_in_one_line_for_a_model() -> None:
    """S004-24: step, error, action; no stack trace."""
    try:
        failing()
    except TimeoutError as error:
        found = errors.short_error(error)
        named = errors.short_error(error, step="search", action="use the cache")
    assert found == "step: failing; error: TimeoutError: no answer after 5 s; action: try again, or continue without it"
    assert named == "step: search; error: TimeoutError: no answer after 5 s; action: use the cache"
    run = ran(failing, writes=[])
    assert run.error is not None
    assert errors.short_error(run.error).startswith("step: node 'node'; error: TimeoutError")
    assert errors.short_error(KeyError()) == "error: KeyError; action: check the name, and what there is"
    assert len(errors.short_error(ValueError("x" * 999))) < 300
