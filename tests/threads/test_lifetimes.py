"""What a run of a thread begins with, and which manual changes the next one would drop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, create_model

from dspyer import END, START, Command, CompiledGraph, Graph, Kept, Messages, Thread, agents, reducers
from dspyer.errors import GraphError, InputError, NodeOutputError, ThreadError
from dspyer.testing import ScriptedLM
from tests.rows import each

Said = list[dict[str, Any]]
Lines = Annotated[list[str], reducers.append]


class Refund(BaseModel):
    order: str
    amount: float = 0
    approved: bool | None = None
    log: Lines = []
    refunds: Kept[int] = 0
    orders: Kept[Lines] = []
    notes: Annotated[Kept[list[str]], reducers.append] = []
    messages: Messages = []
    said: Annotated[Said, reducers.add_messages] = []
    sessions: Annotated[dict[str, Said], reducers.conversations] = {}


class Three(BaseModel):
    a: Kept[int] = 0
    b: int = 0
    all: int = 0


LASTING = ("refunds", "orders", "notes", "messages", "said")


def book(order: str, refunds: int) -> dict[str, Any]:
    said = {"role": "user", "content": order}
    return {
        "approved": True,
        "log": order,
        "refunds": refunds + 1,
        "orders": order,
        "notes": order,
        "messages": said,
        "said": said,
        "sessions": {"a": [said]},
    }


def shop(schema: Any = Refund, store: Any = ":memory:", **options: Any) -> CompiledGraph:
    writes = ["approved", "log", *LASTING, "sessions"]
    graph = Graph(schema, **{"inputs": ["order", "amount"], **options}).add_node(book, writes=writes)
    graph.add_node("end", lambda approved: {"approved": not approved}, writes=["approved"])
    return graph.add_path(START, "book", "end", END).compile(store=store)


def start(thread: Thread, inputs: dict[str, Any], mode: str) -> Any:
    """The state after a run."""
    ways: dict[str, Callable[[], object]] = {
        "run": lambda: thread.run(inputs),
        "arun": lambda: asyncio.run(thread.arun(inputs)),
        "stream": lambda: [*thread.stream(inputs)],
        "keyed": lambda: thread.run(inputs, key=str(inputs)),
    }
    ways[mode]()
    assert thread.status == "completed"
    return thread.state


@pytest.mark.parametrize("mode", ["run", "arun", "stream", "keyed"])
def test_a_run_begins_with_its_inputs_and_defaults_and_what_lasts(mode: str, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    start(shop(store=store).thread("t"), {"order": "a", "amount": 7}, mode)
    state = start(shop(store=store).thread("t"), {"order": "b"}, mode)  # another program, as in another process
    assert (state["amount"], state["log"], len(state["sessions"]["a"])) == (0, ["b"], 1)
    assert (state["refunds"], state["orders"], state["notes"]) == (2, ["a", "b"], ["a", "b"])
    assert [[each["content"] for each in state[name]] for name in ("messages", "said")] == [["a", "b"]] * 2
    thread = shop(store=store).thread("t")
    first = thread.at("t.2/trunk:0")
    assert (first.get("approved"), first["log"], first["refunds"]) == (None, [], 1)
    assert thread.replay() == state


KEEP: dict[str, tuple[Any, Any, set[str]]] = {
    "nothing": (None, (), set()),
    "some of no schema": (None, ["a", "all"], {"a", "all"}),
    "one, as a text": (None, "a", {"a"}),
    "all of no schema": (None, "all", {"a", "b", "all"}),
    "one that is called all": (None, ["all"], {"all"}),
    "more than the schema says": (Three, ["b"], {"a", "b"}),
    "what the schema says": (Three, ["a"], {"a"}),
    "all of a schema": (Three, "all", {"a", "b", "all"}),
}


@each("case", KEEP)
def test_keep_names_further_fields(case: str) -> None:
    schema, keep, lasting = KEEP[case]
    graph = Graph(schema, inputs=["a", "b", "all"], required=[], keep=keep).add_node("end", lambda: None, writes=[])
    thread = graph.add_path(START, "end", END).compile(store=":memory:").thread("t")
    thread.run({"a": 1, "b": 1, "all": 1})
    assert {name for name, value in thread.run({}).state.items() if value} == lasting


def test_explain_lists_what_lasts() -> None:
    assert "\n  lasts over the runs of a thread: messages, notes, orders, refunds, said\n" in shop().graph.explain()
    assert "\n  lasts over the runs of a thread: every field\n" in shop(keep="all").graph.explain()
    fields: dict[str, Any] = dict.fromkeys(Refund.model_fields, (Any, None))
    assert "lasts" not in shop(create_model("Plain", **fields)).graph.explain()


def test_a_missing_input_that_the_last_run_had_says_so() -> None:
    thread = shop().thread("t")
    for key in (None, "k"):
        with pytest.raises(InputError) as first:
            thread.run({}, key=key)
        assert "missing inputs: 'order'" in str(first.value)
        assert "Kept" not in str(first.value)
    thread.run({"order": "a"})
    for key in (None, "k"):
        with pytest.raises(InputError, match=r"The last run of the thread had 'order': .* `Kept\[\.\.\.\]`"):
            thread.run({}, key=key)
    lasting = shop(keep=["order"]).thread("t")
    lasting.run({"order": "a"})
    assert lasting.run({}).state["orders"] == ["a", "a"]


BAD: dict[str, tuple[Any, str]] = {
    "without a type": (Kept, r"field 'n' of schema Bad: Kept has no type: write Kept\[int\]"),
    "a part of a union": (Kept[int] | None, r"field 'n' .* as a whole, .* Kept\[int \| None\]"),
    "an item": (list[Kept[int]], r"field 'n' .* as a whole"),
}


@each("case", BAD)
def test_a_wrong_kept_is_an_error_with_the_right_line(case: str) -> None:
    kind, message = BAD[case]

    bad = create_model("Bad", n=(kind, None))
    with pytest.raises(GraphError, match=message):
        Graph(bad)
    with pytest.raises(GraphError, match=r"keep names 'refund', no field of the schema. Did you mean 'refunds'"):
        Graph(Refund, keep=["refund"])


def test_the_schema_of_an_agent_follows_the_rule() -> None:
    class Work(BaseModel):
        draft: str = ""
        learned: Kept[Lines] = []

    def learn(fact: str) -> Command[Any]:
        """Learns."""
        return Command(update={"draft": fact, "learned": fact}, result="done")

    tool = agents.tool(learn, writes=["draft", "learned"])
    thread = agents.tool_loop("q -> a", [tool], schema=Work).compile(store=":memory:").thread("t")

    def calls(*named: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        made = {"tool_calls": [{"name": name, "args": args} for name, args in named]}
        return {"next_thought": "", "tool_calls": made}

    script = [calls(("learn", {"fact": "x"})), calls(("submit", {"a": "1"})), calls(("submit", {"a": "2"}))]
    with ScriptedLM(script):
        assert thread.run({"q": "?"}).state["draft"] == "x"
        state = thread.run({"q": "??"}).state
    assert (state["draft"], state["learned"], state["a"]) == ("", ["x"], "2")
    assert sum(message["role"] == "user" for message in state["messages"]) == 2


# --- manual changes


def test_a_change_that_the_next_run_would_drop_is_refused_before_anything_is_written() -> None:
    program = shop()
    thread = program.thread("t")
    thread.run({"order": "a"})
    before = thread.history()
    with pytest.raises(ThreadError, match=r"thread 't' would begin without this change of 'approved': .*Kept") as e:
        thread.update({"refunds": 9, "approved": True})
    for at in (None, before[-1].id):
        with pytest.raises(ThreadError, match="thread 'u' would begin without this change of 'approved'"):
            thread.copy(to="u", at=at, patch={"refunds": 9, "approved": True})
    assert program.threads() == ["t"]
    assert "thread.update(patch, as_node='book')" in str(e.value)
    with pytest.raises(NodeOutputError):
        thread.update({"unknown": 1})
    assert thread.history() == before
    thread.update({"refunds": 9})
    assert thread.run({"order": "b"}).state["refunds"] == 10


def test_what_a_new_thread_is_given_lasts() -> None:
    for schema, field in ((Three, "b"), (None, "x")):
        graph = Graph(schema, inputs=["a"], keep=["a"]).add_node("end", lambda: None, writes=[])
        thread = graph.add_path(START, "end", END).compile(store=":memory:").thread("t")
        with pytest.raises(ThreadError, match=rf"without this change of '{field}': .*keep=.* as_node='a node'"):
            thread.update({field: 1})
        assert thread.status == "new"
        thread.update({"a": 5})
        assert thread.run({}).state["a"] == 5


def test_in_an_open_run_any_field_can_be_changed() -> None:
    graph = Graph(Refund, inputs=["order"]).add_node(
        "fail", lambda amount: {"approved": 1 / amount > 0}, writes=["approved"]
    )
    thread = graph.add_path(START, "fail", END).compile(store=":memory:").thread("t")
    assert thread.run({"order": "a"}).status == "failed"
    thread.update({"amount": 2.0})
    assert thread.resume().status == "completed"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_corrected_node_completes_the_run_or_opens_it(mode: str, tmp_path: Path) -> None:
    program = shop(store=tmp_path / "runs.db")
    thread = program.thread("t")
    run = thread.run({"order": "a"}, key="k")
    assert run.state["approved"] is False
    commit = thread.update({"approved": True}, as_node="end")
    assert (commit.node, commit.route, thread.status, thread.state["approved"]) == ("end", (END,), "completed", True)
    assert (thread.blame("approved"), thread.state["order"], thread.state["log"]) == (commit, "a", ["a"])
    assert thread.replay() == thread.state
    assert thread.run({"order": "a"}, key="k").run_id == run.run_id, "a delivery gets what it has got"
    thread.update({"approved": True}, as_node="book")  # its edge leads to a node
    assert thread.status == "stopped"
    done = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert (done.status, done.state["approved"]) == ("completed", False)
    assert thread.run({"order": "b"}).state["orders"] == ["a", "b"]


@pytest.mark.parametrize(("node", "check"), [("settle", None), ("check", lambda answer: [])])
def test_a_node_that_ended_the_run_itself_can_be_corrected(node: str, check: Any, tmp_path: Path) -> None:
    """As that which ends the run of an agent, to which the refused update points."""
    agent = agents.tool_loop("question -> answer", [], check=check)
    thread = agent.compile(store=tmp_path / "runs.db").thread("t")
    submit = {"name": "submit", "args": {"answer": "wrong"}}
    with ScriptedLM([{"next_thought": "", "tool_calls": [submit]}] * 2):
        run = thread.run({"question": "?"}, key="k")
        with pytest.raises(ThreadError, match=f"as_node='{node}'"):
            thread.update({"answer": "right"})
        with pytest.raises(ThreadError, match="no edge leads on from node 'react'"):
            thread.update({"answer": "right"}, as_node="react")
        for answer in ("better", "right"):
            commit = thread.update({"answer": answer}, as_node=node)
            assert (commit.node, commit.route, thread.status) == (node, (END,), "completed")
        assert (thread.state["answer"], thread.replay()) == ("right", thread.state)
        assert thread.run({"question": "?"}, key="k").run_id == run.run_id
        thread.prune(before=thread.history()[-1].id)
        thread.update({"answer": "pruned"}, as_node=node)
        assert thread.run({"question": "again?"}).state["answer"] == "wrong"


def test_a_correction_of_a_node_with_a_route_is_open() -> None:
    graph = Graph(Refund, inputs=["order"]).add_node(book, writes=["approved", "log", *LASTING, "sessions"])
    graph.add_edge(START, "book").add_conditional_edges(
        "book", lambda approved: END if approved else "book", ["book", END]
    )
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({"order": "a"})
    thread.update({"approved": False}, as_node="book")
    assert thread.status == "stopped"
    assert thread.resume().state["orders"] == ["a", "a"]


def test_an_answer_in_a_field_that_lasts_is_a_warning_of_compile() -> None:
    def asking(into: str, **options: Any) -> Graph:
        graph = Graph(Refund, inputs=["order"], **options)
        return graph.add_interrupt("ask", question="?", answer=int, into=into).add_path(START, "ask", END)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asking("amount").compile()
    for graph in (asking("refunds"), asking("amount", keep=["amount"])):
        with pytest.warns(UserWarning, match=r"graph 'Refund': add_interrupt\('ask', into='.*'\): .* lasts") as found:
            graph.compile()
        assert found[0].filename == __file__
