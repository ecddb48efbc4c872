"""`run.view_tokens()`: the tokens that views save."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from bench.views import measure
from dspyer import END, START, Context, Graph, Run, errors, reducers, view
from dspyer.testing import ScriptedLM, call_node


class Board(BaseModel):
    topic: str = "tides"
    notes: Annotated[list[str], reducers.extend] = []
    parts: list[str] = ["one", "two"]
    sizes: list[int] = []


def length(part: str, topic: str) -> int:
    return len(part)


def played(rounds: int = 2, **options: Any) -> Run:
    def write(ctx: Context, topic: str) -> dict[str, Any]:
        return {"notes": ["four" * 10]}

    def look(new: str, all_notes: list[str], few: int, ctx: Context) -> None:
        ctx.view(view("notes").last(1))

    reads = {"new": view("notes").new(), "all_notes": "notes", "few": view("notes").then(len)}
    graph = Graph(Board).add_node("write", write, writes=["notes"]).add_node("look", look, reads=reads, writes=[])
    graph.add_map("size", length, over="parts", item="part", into="sizes", reads=["part", "topic"])
    graph.add_path(START, "write", "look", "size")
    graph.add_conditional_edges("size", lambda ctx: "write" if ctx.visit < rounds else END, ["write", END])
    run = graph.compile(**options).run({})
    run.raise_error()
    return run


def test_tokens_by_node_and_view() -> None:
    """S000-27: what is no view is sent whole."""
    tokens = played().view_tokens()
    rows = {(row.node, row.name, row.view): row[3:] for row in tokens.rows}
    assert rows[("write", "topic", None)] == (2, 2, 2)
    assert rows[("look", "new", "view('notes').new()")] == (2, 14, 21)
    assert rows[("look", "all_notes", None)] == (2, 21, 21)
    assert rows[("look", "few", "view('notes').then(len)")] == (2, 2, 21)
    assert rows[("look", "notes", "view('notes').last(1)")] == (2, 14, 21)
    assert rows[("size", "topic", None)] == (4, 4, 4)
    assert (tokens.sent, tokens.full) == (57, 90)
    assert tokens.counted == "by estimate"
    text = str(tokens)
    assert text.splitlines()[0].split() == ["node", "input", "visits", "sent", "full"]
    assert "look   new = view('notes').new()" in text
    assert "63.3 %" in text


def test_a_report_may_count_by_a_tokenizer() -> None:
    tokens = played().view_tokens(count=lambda text: 1)
    assert "counted by tokenizer" in str(tokens)
    assert next(row for row in tokens.rows if row.name == "all_notes")[3:] == (2, 3, 3)


def test_a_copy_of_a_run_counts_the_same() -> None:
    run = looped_run()
    copies = [pickle.loads(pickle.dumps(run)), copy.deepcopy(run)]
    assert [str(other.view_tokens()) for other in copies] == 2 * [str(run.view_tokens())]


def test_tokens_of_a_thread_are_counted_from_its_history() -> None:
    thread = looping().compile(store=":memory:").thread("t")
    thread.run({})
    run = thread.run({})
    run.raise_error()
    assert "view('notes').new()" in str(run.view_tokens())
    with pytest.raises(errors.ThreadError, match="in the process that ran it"):
        pickle.loads(pickle.dumps(run)).view_tokens()


def test_a_function_of_a_view_that_raises_is_not_counted() -> None:
    def refuse(entries: Any) -> Any:
        raise ValueError("no")

    graph = Graph(Board).add_node("look", noted, reads={"notes": view("notes").then(refuse)}, writes=["notes"])
    run = graph.add_path(START, "look", END).compile().run({})
    assert run.status == "failed"
    assert run.view_tokens().rows == ()


def noted(notes: list[str]) -> dict[str, Any]:
    return {"notes": ["four" * 10]}


def once_more(ctx: Context) -> str:
    return "look" if ctx.visit < 3 else END


def looping() -> Graph:
    graph = Graph(Board).add_node("look", noted, reads={"notes": view("notes").new()}, writes=["notes"])
    return graph.add_edge(START, "look").add_conditional_edges("look", once_more, ["look", END])


def looped_run() -> Run:
    run = looping().compile().run({})
    run.raise_error()
    return run


USAGE = {
    "openai": ({"prompt_tokens_details": {"cached_tokens": 90}}, {"lm": 90}),
    "anthropic": ({"cache_read_input_tokens": 80}, {"lm": 80}),
    "nothing": ({"prompt_tokens": 4, "prompt_tokens_details": {}}, {}),
}


@pytest.mark.parametrize(("usage", "cached"), USAGE.values(), ids=USAGE)
def test_cached_tokens_are_reported_separately(usage: dict[str, Any], cached: dict[str, int]) -> None:
    run = played()
    run.usage = {"lm": usage}
    tokens = run.view_tokens()
    assert tokens.cached == cached
    assert ("cached by the provider" in str(tokens)) == bool(cached)


def test_views_send_a_tenth_of_whole_fields() -> None:
    """S000-27: the figure of the project: 3 agents, 30 rounds, items of 150 tokens."""
    saving = measure(150)
    assert saving.sent <= 0.1 * saving.full
    assert saving.prompts <= 0.15 * saving.full_prompts
    assert measure(15, 4) == measure(15, 4)


def test_a_node_can_be_called_alone_with_its_views_and_posts() -> None:
    """All of the state is new to it, and comes from `START`."""

    def node(notes: list[str], mine: str, ctx: Context) -> dict[str, Any]:
        ctx.post("notes", [*notes, mine or "nothing"])
        return {"notes": [str(ctx.delta().patch["notes"])]}

    reads = {"notes": view("notes").new(), "mine": view("notes").own()}
    program = Graph(Board).add_node("node", node, reads=reads).add_path(START, "node", END).compile()
    patch = call_node(program, "node", {"notes": ["a"]})
    assert patch["notes"].updates == (["a", "nothing"], ["['a']"])
    bad = Graph(Board).add_node("node", lambda ctx: ctx.post("topic", "a"), writes=["notes"])
    with pytest.raises(errors.NodeOutputError, match="not among its writes"):
        call_node(bad.add_path(START, "node", END).compile(), "node", {})


def test_predictors_that_condense_run_in_a_node_called_alone() -> None:
    short = {"notes": dspy.Predict("a -> b")}
    graph = Graph(Board).add_node("node", lambda: {"notes": ["a b"]}, writes=["notes"], condense=short)
    with ScriptedLM([{"b": "short"}]):
        assert call_node(graph.add_path(START, "node", END).compile(), "node", {}) == {"notes": ["short"]}
