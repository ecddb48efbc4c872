"""Promises of the project that no other test shows on its own; the numbers are those of the project's list."""

from __future__ import annotations

import asyncio
import copy
import json
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import (
    END,
    START,
    Command,
    CompiledGraph,
    Context,
    Graph,
    ImmutableState,
    Replace,
    Retry,
    agents,
    errors,
    fill,
    live,
    reducers,
    to_chat,
    view,
)
from dspyer.events import Committed, Event, Numbered, Posted, Read
from dspyer.testing import ScriptedLM
from tests.agents.scripts import submit, turn


class Notes(BaseModel):
    topic: str
    text: str = ""
    size: int = 0
    share: float = 0.0
    count: Annotated[int, reducers.increment] = 0
    log: Annotated[list[str], reducers.append] = []


def outline(topic: str) -> dict[str, Any]:
    return {"text": f"on {topic}", "log": "outline"}


def extend(text: str) -> dict[str, Any]:
    return {"text": f"{text}, at length", "log": "extend"}


def measure(text: str) -> dict[str, Any]:
    return {"size": len(text), "share": 0.5, "log": "measure"}


def chain(*functions: Any, **options: Any) -> Graph:
    graph = Graph(Notes, **options)
    for function in functions:
        graph.add_node(function)
    return graph.add_path(START, *(function.__name__ for function in functions), END)


def test_every_update_makes_a_version_and_earlier_ones_stay_readable() -> None:
    """S000-12, S000-13, S000-23, S001-1, S001-2: S(t+1) = S(t) ⊕ Δ(t), version by version."""
    run = chain(outline, extend, measure).compile().run({"topic": "tides"})
    assert [commit.version for commit in run.commits] == [0, 1, 2, 3]
    assert [run.at(version)["text"] for version in range(4)] == ["", "on tides", *["on tides, at length"] * 2]
    for before, commit in enumerate(run.commits[1:]):
        written = {name: update for name, update in commit.patch.items() if name != "log"}
        after = run.at(before) | written
        assert after == run.at(before + 1) | {"log": after["log"]}


async def write_later(topic: str) -> dict[str, Any]:
    return {"text": topic.upper()}


async def fold_later(current: Any, update: Any) -> Any:
    return update


def test_nodes_may_be_async_and_updates_fold_at_once() -> None:
    """S000-29: a node may be async; what only folds or decides may not, and says so before anything runs."""
    assert chain(write_later).compile()(topic="tides").text == "TIDES"

    class Folded(BaseModel):
        text: Annotated[str, fold_later] = ""

    with pytest.raises(errors.GraphError, match="reducer 'fold_later' is async"):
        Graph(Folded)
    with pytest.raises(ValueError, match="merge policy 'write_later' is async"):
        Graph(merge=write_later)


def test_the_result_is_a_field_of_the_final_state() -> None:
    """S000-32."""
    program = chain(outline, extend, outputs=["text"]).compile()
    assert dict(program(topic="tides").items()) == {"text": "on tides, at length"}


def test_the_writers_of_a_field_are_declared_and_enforced() -> None:
    """S000-33: a node writes its own fields alone; the graph says which, the run says who did."""
    graph = Graph(Notes).add_node("outline", outline, writes=["text", "log"])
    graph.add_node("measure", lambda text: {"text": "mine", "size": 1}, writes=["size"])
    program = graph.add_path(START, "outline", "measure", END).compile()
    assert "outline: reads topic; writes text, log" in program.graph.explain()
    run = program.run({"topic": "tides"})
    assert isinstance(run.error, errors.NodeOutputError)
    assert (run.state["text"], run.state["size"], run.blame("text").node) == ("on tides", 0, "outline")


class Draft(BaseModel):
    text: str
    size: int = 7


@pytest.mark.parametrize("give", [lambda draft: draft, lambda draft: draft.model_dump()], ids=["model", "dump"])
def test_a_model_is_a_patch_like_its_dump(give: Any) -> None:
    """S001-3."""

    def measured() -> dict[str, int]:
        return {"size": 3}

    def write(topic: str) -> Any:
        return give(Draft(text=topic))

    run = chain(measured, write).compile().run({"topic": "tides"})
    assert (run.state["text"], run.state["size"]) == ("tides", 7)


def test_only_the_parents_of_a_changed_path_are_new() -> None:
    """S001-6, S001-7, S001-8."""
    before = ImmutableState({"a": {"b": {"c": 1, "kept": {}}, "kept": {}}, "kept": {"deep": [1]}})
    after = before | {"a": {"b": {"c": 2}}}
    assert after is not before
    assert after["a"] is not before["a"]
    assert after["a"]["b"] is not before["a"]["b"]
    assert after["kept"] is before["kept"]
    assert after["a"]["kept"] is before["a"]["kept"]
    assert after["a"]["b"]["kept"] is before["a"]["b"]["kept"]


def test_a_patch_changes_adds_and_deletes_keys_at_any_depth() -> None:
    """S001-9."""
    before = ImmutableState({"user": {"name": "Ada", "theme": "dark", "old": 1}, "tags": ["a"], "gone": 1})
    after = before.apply_patch(
        {"user": {"theme": "light", "old": None, "age": 36}, "gone": None, "new": {"deep": True}}
    )
    assert after.to_dict() == {
        "user": {"name": "Ada", "theme": "light", "age": 36},
        "tags": ["a"],
        "new": {"deep": True},
    }


def bytes_of(change: Callable[[int], object]) -> int:
    """Bytes that ten versions keep allocated."""
    change(0)
    tracemalloc.start()
    try:
        kept = [change(number) for number in range(10)]
        assert len(kept) == 10
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_version_costs_a_small_part_of_a_deep_copy() -> None:
    """S001-10, the memory; the benchmarks measure the time too."""
    payload = {f"key{number}": {"text": f"text {number}", "tags": ["a", "b"]} for number in range(1_000)}
    state = ImmutableState(payload)

    def deep_copy(number: int) -> object:
        copied = copy.deepcopy(payload)
        copied["key7"]["text"] = str(number)
        return copied

    versions = bytes_of(lambda number: state | {"key7": {"text": str(number)}})
    assert versions * 50 < bytes_of(deep_copy)


@pytest.mark.parametrize(
    ("policy", "theirs", "merged"),
    [
        pytest.param({}, 2, 2, id="S001-14: last_write_wins is the default"),
        pytest.param({"policy": "last_write_wins"}, [2], [2], id="S001-14"),
        pytest.param({"policy": "combine_lists"}, [2], [1, 2], id="S001-15"),
        pytest.param({"policy": "combine_lists"}, "two", "two", id="S001-16: no list on one side"),
        pytest.param({"policy": "raise"}, [1], [1], id="S001-20: equal values are no conflict"),
    ],
)
def test_two_states_merge_into_a_new_one(policy: dict[str, Any], theirs: Any, merged: Any) -> None:
    """S001-13, S001-14, S001-15, S001-16, S001-20: keys of one side are kept."""
    left, right = ImmutableState({"a": 1, "x": [1]}), ImmutableState({"b": 2, "x": theirs})
    assert left.merge(right, **policy).to_dict() == {"a": 1, "x": merged, "b": 2}
    assert (left.to_dict(), right.to_dict()) == ({"a": 1, "x": [1]}, {"b": 2, "x": theirs})


def test_raise_refuses_different_values_under_one_key() -> None:
    """S001-13, S001-17."""
    with pytest.raises(ValueError, match="Conflict detected at key 'x'"):
        ImmutableState({"x": 1}).merge(ImmutableState({"x": 2}), policy="raise")


def test_tracers_and_optimizers_of_dspy_see_every_node() -> None:
    """S001-4, S001-5: the trace has a step for each predictor; optimizers find them under the nodes' names."""
    graph = Graph().add_node("answer", dspy.Predict("question -> answer"))
    graph.add_node("check", dspy.ChainOfThought("question, answer -> good: bool")).add_path(
        START, "answer", "check", END
    )
    program = graph.compile()
    assert [name for name, _ in program.named_predictors()] == ["answer", "check.predict"]
    answers = [{"answer": "The moon."}, {"reasoning": "It is.", "good": True}]
    with ScriptedLM(answers), dspy.context(trace=[]):
        program(question="Why are there tides?")
        traced = [(predictor, outputs.keys()) for predictor, _, outputs in dspy.settings.trace]
    assert [predictor for predictor, _ in traced] == program.predictors()
    assert traced[0][1] == ["answer"]
    demo = dspy.Example(question="q", answer="a", good=True).with_inputs("question")
    tuned = dspy.LabeledFewShot(k=1).compile(program, trainset=[demo])
    assert [len(predictor.demos) for predictor in tuned.predictors()] == [1, 1]


def test_parallel_branches_start_from_one_state_and_give_patches_of_their_own() -> None:
    """S000-24, S001-12."""
    seen: dict[str, ImmutableState] = {}

    def left(state: ImmutableState) -> dict[str, Any]:
        seen["left"] = state
        return {"text": "left"}

    def right(state: ImmutableState) -> dict[str, Any]:
        seen["right"] = state
        return {"size": 2}

    graph = Graph(Notes).add_node(left).add_node(right).add_edge(START, ["left", "right"])
    run = graph.add_edge(["left", "right"], END).compile().run({"topic": "tides"})
    assert seen["left"] == seen["right"] == run.at(0)
    assert {commit.node: dict(commit.patch) for commit in run.commits if commit.branch} == {
        "left": {"text": "left"},
        "right": {"size": 2},
    }


@pytest.mark.parametrize(("field", "first", "last"), [("text", "a", "b"), ("size", 1, 2), ("share", 0.1, 0.2)])
def test_of_two_writers_in_a_row_the_last_wins(field: str, first: object, last: object) -> None:
    """S003-7: text and numbers without a reducer."""
    graph = Graph(Notes).add_node("one", lambda: {field: first}, writes=[field])
    graph.add_node("two", lambda: {field: last}, writes=[field])
    run = graph.add_path(START, "one", "two", END).compile().run({"topic": "tides"})
    assert run.state[field] == last


def test_nodes_share_one_typed_state() -> None:
    """S003-1, S003-2, S003-28: a named field reaches its reader from its writer, validated, without being passed on."""
    seen: list[Any] = []
    graph = Graph(Notes).add_node("write", lambda: {"size": "3", "text": "x"}, writes=["size", "text"])
    graph.add_node("read", lambda size, text: seen.append((size, text)), writes=[])
    graph.add_path(START, "write", "read", END).compile()(topic="tides")
    assert seen == [(3, "x")]
    bad = Graph(Notes).add_node("write", lambda: {"size": "three"}, writes=["size"]).add_path(START, "write", END)
    run = bad.compile().run({"topic": "tides"})
    assert isinstance(run.error, errors.NodeOutputError)
    assert "size" in str(run.error)


def test_a_reducer_per_field_says_how_updates_merge_and_without_one_they_replace() -> None:
    """S003-9, S003-11: a list that grows is given its new items alone."""
    graph = Graph(Notes).add_node("one", lambda: {"log": "one", "text": "one"}, writes=["log", "text"])
    graph.add_node("two", lambda: {"log": "two", "text": "two"}, writes=["log", "text"])
    run = graph.add_path(START, "one", "two", END).compile().run({"topic": "tides"})
    assert run.state["log"] == ["one", "two"]
    assert run.state["text"] == "two"
    assert [commit.patch["log"] for commit in run.commits[1:]] == ["one", "two"]


def test_the_conflict_of_two_parallel_writers_names_both() -> None:
    """S003-13: one after the other they may both write it."""
    graph = Graph(Notes).add_node("one", lambda: {"text": "one"}, writes=["text"])
    graph.add_node("two", lambda: {"text": "two"}, writes=["text"])
    graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END)
    with pytest.raises(errors.GraphError, match="'one' and 'two' run in parallel and both write 'text'"):
        graph.compile()


def test_returning_the_sum_to_a_counter_counts_twice_and_the_commit_shows_it() -> None:
    """S003-10, S003-12: the commit holds the increment that the node gave."""
    graph = Graph(Notes).add_node("right", lambda: {"count": 1}, writes=["count"])
    graph.add_node("wrong", lambda count: {"count": count + 1}, writes=["count"])
    run = graph.add_path(START, "right", "wrong", END).compile().run({"topic": "tides"})
    assert [commit.patch.get("count") for commit in run.commits[1:]] == [1, 2]
    assert run.state["count"] == 3


def test_an_absolute_counter_is_a_plain_field() -> None:
    """S003-30: without a reducer the last value stays, and nothing is added to it."""
    graph = Graph(Notes).add_node("one", lambda size: {"size": size + 1}, writes=["size"])
    graph.add_node("two", lambda size: {"size": size + 1}, writes=["size"])
    run = graph.add_path(START, "one", "two", END).compile().run({"topic": "tides"})
    assert [commit.patch["size"] for commit in run.commits[1:]] == [1, 2]
    assert run.state["size"] == 2


class Kinds(BaseModel):
    merged: dict[str, Any] = {"a": 1, "inner": {"b": 1}}
    updated: Annotated[dict[str, Any], reducers.update] = {"a": 1, "inner": {"b": 1}}
    replaced: Annotated[dict[str, Any], reducers.replace] = {"a": 1, "inner": {"b": 1}}
    plain: list[int] = [1]


def test_mappings_merge_and_everything_else_is_replaced() -> None:
    """S000-6: without a reducer; `update` replaces the values of keys, `replace` the mapping."""
    new = {"inner": {"c": 2}}
    patch = {"merged": new, "updated": new, "replaced": new, "plain": [2]}
    graph = Graph(Kinds, inputs=[]).add_node("one", lambda: patch, writes=list(patch)).add_path(START, "one", END)
    assert graph.compile().run({}).state.to_dict() == {
        "merged": {"a": 1, "inner": {"b": 1, "c": 2}},
        "updated": {"a": 1, "inner": {"c": 2}},
        "replaced": {"inner": {"c": 2}},
        "plain": [2],
    }


def test_a_command_may_update_alone() -> None:
    """S003-14: the edges of the node are followed."""

    def write(topic: str) -> Command[Literal["END"]]:
        return Command(update={"text": topic})

    graph = Graph(Notes).add_node(write).add_node(extend).add_path(START, "write", "extend", END)
    assert graph.compile()(topic="tides").text == "tides, at length"


def test_the_reason_of_an_lm_router_is_recorded() -> None:
    """S003-5."""
    graph = Graph().add_node("read", lambda text: None, writes=[]).add_edge(START, "read")
    graph.add_conditional_edges("read", dspy.ChainOfThought("text -> way: Literal['read', 'END']"), ["read", END])
    answers = [{"reasoning": "Once more.", "way": "read"}, {"reasoning": "Enough.", "way": "END"}]
    with ScriptedLM(answers):
        run = graph.compile().run({"text": "a"})
    assert run.routing_reason == "Enough."
    assert [commit.reason for commit in run.commits] == [None, "Once more.", "Enough."]
    assert chain(outline).compile().run({"topic": "tides"}).routing_reason is None


def test_alternatives_from_one_point_leave_the_main_run_as_it_was() -> None:
    """S002-14, S002-17: a finished run is continued from any of its states, any number of times."""
    run = chain(outline, extend, measure).compile().run({"topic": "tides"})
    before, point = run.state.to_dict(), run.at(1)
    again = chain(extend, measure, inputs=["topic", "text"]).compile()
    given = {"topic": point["topic"]}
    sizes = [again.run({**given, "text": text}).state["size"] for text in (point["text"], "short", "")]
    assert sizes == [run.state["size"], len("short, at length"), len(", at length")]
    assert run.state.to_dict() == before


def test_a_finished_branch_waits_while_the_others_continue() -> None:
    """S002-15, S002-16: commits name their branch, `END` stops no other branch, the run ends with the last."""
    graph = Graph(Notes).add_node("short", lambda: {"log": "short"}, writes=["log"])
    for name in ("one", "two", "three"):
        graph.add_node(name, lambda ctx: {"log": ctx.node}, writes=["log"])
    graph.add_edge(START, ["short", "one"]).add_edge("short", END).add_path("one", "two", "three", END)
    run = graph.compile().run({"topic": "tides"})
    assert run.status == "completed"
    assert run.state["log"] == ["short", "one", "two", "three"]
    assert {commit.node: commit.branch for commit in run.commits if commit.branch} == {
        "short": (0,),
        "one": (1,),
        "two": (1,),
        "three": (1,),
    }


def test_an_lm_router_stays_within_the_step_limit() -> None:
    """S002-36: the same node in a fixed chain, and chosen by an LM that never has enough."""
    assert chain(outline).compile()(topic="tides").text == "on tides"
    graph = Graph(Notes).add_node(outline).add_edge(START, "outline")
    graph.add_conditional_edges("outline", dspy.Predict("text -> way: Literal['outline', 'END']"), ["outline", END])
    with ScriptedLM(lambda prompt: {"way": "outline"}):
        run = graph.compile(max_steps=3).run({"topic": "tides"})
    assert isinstance(run.error, errors.StepLimitError)
    assert run.state["log"] == ["outline"] * 3


def test_a_graph_shows_itself_in_a_notebook() -> None:
    """Point 6 of the core: `program.graph` is a picture."""
    picture = chain(outline).compile().graph._repr_svg_()
    assert picture.startswith("<svg")
    assert "outline" in picture


class Shared(BaseModel):
    """What several agents work on: a plain list, a live one, and what each has made of them."""

    topic: str = ""
    found: Annotated[list[str], reducers.append] = []
    pad: Annotated[list[str], reducers.append, live] = []
    seen: Annotated[dict[str, int], reducers.update] = {}


def send(ctx: Context) -> dict[str, Any]:
    ctx.post("found", f"{ctx.node}: one")
    ctx.post("pad", f"{ctx.node}: two")
    ctx.post("found", f"{ctx.node}: three")
    return {"topic": "sent"}


def played(program: CompiledGraph, drive: str, inputs: dict[str, Any], **options: Any) -> list[Event]:
    """The events of a stream, which a store keeps or does not, in sync code or in async code."""
    source: Any = program.thread("t") if "stored" in drive else program
    if "async" not in drive:
        return list(source.stream(inputs, **options))

    async def read() -> list[Event]:
        return [event async for event in source.astream(inputs, **options)]

    return asyncio.run(read())


DRIVES = ["sync", "async", "stored sync", "stored async"]


@pytest.mark.parametrize("drive", DRIVES)
def test_each_update_is_an_event_with_agent_version_delta_operation_and_time(drive: str) -> None:
    """S000-13, S000-14, S004-16: versions grow by one; of a fork they follow its join."""
    graph = Graph(Shared, inputs=["topic"]).add_node("ann", send, writes=["found", "pad", "topic"])
    for name in ("left", "right"):
        graph.add_node(name, lambda ctx: {"seen": {ctx.node: 1}}, reads=[], writes=["seen"])
    graph.add_node("clear", lambda: {"found": Replace([])}, writes=["found"])
    graph.add_path(START, "ann").add_edge("ann", ["left", "right"]).add_edge(["left", "right"], "clear")
    program = graph.add_edge("clear", END).compile(store=":memory:")
    events = played(program, drive, {"topic": "tides"})
    committed = {one.commit.node: one for one in events if isinstance(one, Committed)}
    assert dict(committed["ann"].operations) == {"found": "append", "pad": "append", "topic": "replace"}
    assert dict(committed["left"].operations) == {"seen": "update"}
    assert dict(committed["clear"].operations) == {"found": "replace"}
    assert committed["START"].operations["topic"] == "replace"
    assert all(one.commit.patch.keys() == one.operations.keys() and one.at for one in committed.values())
    versions = {node: one.commit.version for node, one in committed.items()}
    assert versions == {"START": 0, "ann": 1, "left": None, "right": None, "join:clear": 4, "clear": 5}
    ((place, numbered),) = [(i, one) for i, one in enumerate(events) if isinstance(one, Numbered)]
    assert numbered.versions == {committed["left"].commit.id: 2, committed["right"].commit.id: 3}
    assert events.index(committed["join:clear"]) < place < events.index(committed["clear"])
    assert json.loads(json.dumps(committed["clear"].to_dict()))["operations"] == {"found": "replace"}
    assert json.loads(json.dumps(numbered.to_dict()))["versions"] == numbered.versions
    assert numbered.label() == "numbered versions 2 to 3"


@pytest.mark.parametrize("drive", DRIVES)
def test_each_message_to_a_channel_is_an_event_at_once(drive: str) -> None:
    """S000-22, S004-16: to a live field or another; numbered over all fields, and before the commit."""
    graph = Graph(Shared, inputs=["topic"]).add_node("ann", send, writes=["found", "pad", "topic"])
    program = graph.add_path(START, "ann", END).compile(store=":memory:")
    events = played(program, drive, {"topic": "tides"})
    posts = [event for event in events if isinstance(event, Posted)]
    assert [(one.seq, one.field, one.live, one.value) for one in posts] == [
        (1, "found", False, "ann: one"),
        (2, "pad", True, "ann: two"),
        (3, "found", False, "ann: three"),
    ]
    assert all((one.node, one.execution, one.operation) == ("ann", "trunk:1", "append") for one in posts)
    assert all(one.size == len(str(one.value)) + 2 and one.time for one in posts)
    (commit,) = [event for event in events if isinstance(event, Committed) and event.commit.node == "ann"]
    assert events.index(posts[-1]) < events.index(commit)
    assert list(commit.commit.patch["found"].updates) == ["ann: one", "ann: three"]
    # Without live fields to read from, as `live=False` says, all of them wait for the commit.
    alone = [event for event in program.stream({"topic": "tides"}, live=False) if isinstance(event, Posted)]
    assert [(one.seq, one.field, one.live) for one in alone] == [
        (1, "found", False),
        (2, "pad", False),
        (3, "found", False),
    ]


def test_the_posts_of_a_failed_attempt_are_events_and_in_no_commit() -> None:
    """S000-22: numbers go on; `redact` hides in the event what it hides in the commit; none is heard of a call."""
    attempts: list[Any] = []

    def work(ctx: Context) -> dict[str, Any]:
        ctx.post("found", f"try {len(attempts)}")
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("gone")
        return {}

    graph = Graph(Shared, inputs=[]).add_node("work", work, writes=["found"], retry=Retry(2, wait=wait_none()))
    program = graph.add_path(START, "work", END).compile(redact=["found"])
    stream = program.stream({})
    posts = [event for event in stream if isinstance(event, Posted)]
    assert [(one.seq, "try" in str(one.value)) for one in posts] == [(1, False), (2, False)]
    assert stream.run.state["found"] == ["try 1"]
    assert [step["posts"] for step in stream.run.record().to_dict()["steps"]] == [[], []]


@pytest.mark.parametrize("drive", DRIVES)
def test_each_read_is_an_event_when_asked_for(drive: str) -> None:
    """S004-17: of graphs inside of nodes too; by the names of the state."""
    inner = Graph(inputs=["word"]).add_node("deep", lambda word: {"size": len(word)}, writes=["size"])
    program = inner.add_path(START, "deep", END).compile()
    graph = Graph(inputs=["topic", "words"])
    graph.add_node("named", lambda text: {"a": text}, reads={"text": "topic"}, writes=["a"])
    graph.add_node("viewed", lambda last: {"b": last}, reads={"last": view("words").last(1)}, writes=["b"])
    graph.add_node("whole", lambda state: {"c": 1}, writes=["c"])
    graph.add_node("nested", program, reads={"word": "topic"}, writes={"size": "d"})
    graph.add_map("each", lambda word, a: word, over="words", item="word", into="e", reads=["a"])
    outer = graph.add_path(START, "named", "viewed", "whole", "nested", "each", END).compile(store=":memory:")
    inputs = {"topic": "tides", "words": ["x", "y"]}
    reads = [event for event in played(outer, drive, inputs, reads=True) if isinstance(event, Read)]
    assert [(one.node, set(one.fields), len(one.scope)) for one in reads] == [
        ("named", {"topic"}, 0),
        ("viewed", {"words"}, 0),
        ("whole", {"topic", "words", "a", "b"}, 0),
        ("nested", {"topic"}, 0),
        ("deep", {"word"}, 1),
        ("each", {"words", "a"}, 0),
    ]
    assert [one.execution for one in reads][:2] == ["trunk:1", "trunk:2"]
    assert reads[0].label() == "reads topic"
    assert json.loads(json.dumps(reads[0].to_dict()))["fields"] == ["topic"]
    assert not [event for event in outer.stream(inputs) if isinstance(event, Read)]
    with pytest.raises(TypeError, match="reads"):
        outer.stream(inputs, reads="topic")  # type: ignore[arg-type]


def test_an_agent_is_asked_whether_it_is_satisfied_until_it_is() -> None:
    """S002-31: `check=True`: the mode that submitted asks itself, and resumes where it left off."""
    program = agents.tool_loop("question -> answer", [], check=True, max_fixes=2).compile()
    drafts = [submit(answer=f"draft {number}") for number in range(3)]
    doubts = [{"problems": ["no place is named"]}, {"problems": ["no time is named"]}, {"problems": []}]
    with ScriptedLM([one for pair in zip(drafts, doubts, strict=True) for one in pair]) as lm:
        run = program.run({"question": "When?"})
    assert (run.status, run.state["answer"], len(lm.calls)) == ("completed", "draft 2", 6)
    texts = ["\n".join(one.content for one in call.prompt.turns) for call in lm.calls[::2]]
    assert ["no place is named" in text for text in texts] == [False, True, True]
    assert ["draft 1" in text for text in texts] == [False, False, True]


def filled(messages: list[Any], place: str) -> list[Any]:
    """The conversation as the state has it now: texts of the desk are templates, those of users are not."""
    return [
        {**one, "content": one["content"].format(place=place)} if one.get("name") == "desk" else one for one in messages
    ]


def test_messages_are_templates_where_a_function_says_so() -> None:
    """S002-19, S002-21: filled at each call, and not in the state."""

    def move(to: str) -> Command[Any]:
        """Goes to a place."""
        return Command(update={"place": to}, result="there")

    said = [{"role": "user", "name": "desk", "content": "We are in {place}."}]
    program = agents.tool_loop(
        "question, place -> answer", [agents.tool(move, writes=["place"])], context=filled
    ).compile()
    with ScriptedLM([turn(("move", {"to": "Calais"})), submit(answer="yes")]) as lm:
        run = program.run({"question": "In {place}?", "place": "Dover", "messages": said})
    asked = ["\n".join(one.content for one in call.prompt.turns) for call in lm.calls]
    assert ["We are in Dover." in text for text in asked] == [True, False]
    assert ["We are in Calais." in text for text in asked] == [False, True]
    assert all("In {place}?" in text for text in asked)
    assert run.state["messages"][0]["content"] == "We are in {place}."


def test_a_name_that_is_not_set_stays_as_it_is() -> None:
    """S003-23, S003-25: also if nothing can have set it, of which the build warns; another name is an error."""
    reads = {"said": fill("{topic}: {text}")}
    late = Graph(Late, inputs=["topic"]).add_node("say", lambda said: {"log": said}, reads=reads, writes=["log"])
    late.add_node("write", lambda topic: {"text": topic}, writes=["text"])
    with pytest.warns(UserWarning, match="{text}, which nothing can have written"):
        program = late.add_path(START, "say", "write", END).compile()
    assert program.run({"topic": "tides"}).state["log"] == ["tides: {text}"]
    with pytest.raises(errors.GraphError, match="txet"):
        Graph(Late).add_node("say", lambda said: {"log": said}, reads={"said": fill("{txet}")}).add_path(
            START, "say", END
        ).compile()


class Late(BaseModel):
    topic: str
    text: str
    log: Annotated[list[str], reducers.append] = []


class Alert(BaseModel):
    alert: str
    severity: str | None = None
    finding: str | None = None


def test_nodes_share_one_conversation_and_each_is_shown_its_own() -> None:
    """S003-4, S003-17, S003-18, S003-19, S003-20: kept by the graph alone, over two rounds of two nodes."""
    graph = Graph(Alert, conversation=True)
    graph.add_node("sort", dspy.Predict(dspy.Signature("alert -> severity", "Sort the alert.")))
    graph.add_node("search", dspy.Predict(dspy.Signature("alert -> finding", "Search for {severity} causes.")))
    graph.add_path(START, "sort", "search")
    graph.add_conditional_edges("search", lambda ctx: "sort" if ctx.visit < 2 else END, ["sort", END])
    answers = [{"severity": "high"}, {"finding": "guessing"}, {"severity": "low"}, {"finding": "over"}]
    with ScriptedLM(answers) as lm:
        run = graph.compile().run({"alert": "many logins"})
    messages = run.state["messages"]
    # All that all nodes have said is one list, in order; of whom it is, is in it, and so is what each one was asked.
    said = [("sort", "high"), ("search", "guessing"), ("sort", "low"), ("search", "over")]
    assert [(message["name"], message["content"]) for message in messages] == said
    assert to_chat(messages)[:2] == [
        {"role": "user", "content": "many logins"},
        {"role": "assistant", "name": "sort", "content": "high"},
    ]
    # A prompt: the system prompt of the node, its own turns, and the last message of another author.
    system, asked, own, last = lm.calls[3].prompt.turns
    assert "Search for low causes." in system.content
    assert "sort: high" in asked.content
    assert (own.role, "guessing" in own.content, "high" in own.content) == ("assistant", True, False)
    assert "sort: low" in last.content
    assert "over" not in str(lm.calls[3].messages)
    assert [commit.calls for commit in run.commits[1:]] == [(1, 0)] * 4


class Pad(BaseModel):
    research: Annotated[list[str], reducers.append, live] = []


class Team(Pad):
    task: str
    found: str = ""
    report: str = ""
    talk: list[Any] = []


def note(text: str, ctx: Context) -> str:
    """Writes a finding to the pad."""
    ctx.post("research", text)
    return "noted"


def analyze(prompt: Any) -> Any:
    text = "\n".join(one.content for one in prompt.turns)
    return submit(report="9:40") if "research: high at 9:40" in text else turn(("wait_for_posts", {}))


@pytest.mark.parametrize("drive", DRIVES)
def test_agents_that_run_at_once_see_the_notes_of_each_other_as_they_come(drive: str) -> None:
    """S004-12: with an LM each; the reader waits without calling it, and its conversation has what it was shown."""
    researcher = agents.tool_loop("task -> found", [agents.tool(note, writes=["research"])], schema=Pad)
    analyst = agents.tool_loop("task -> report", [agents.wait_for_posts], schema=Pad)
    graph = Graph(Team, inputs=["task"])
    graph.add_node("researcher", researcher, reads=["task"], writes=["found", "research"])
    told = {"report": "report", "messages": "talk"}
    graph.add_node("analyst", analyst, reads=["task", "research"], writes=told)
    graph.add_edge(START, ["researcher", "analyst"]).add_edge(["researcher", "analyst"], END)
    program = graph.compile(store=":memory:")
    large = ScriptedLM(analyze)
    program.researcher.set_lm(ScriptedLM([turn(("note", {"text": "high at 9:40"})), submit(found="all")]))
    program.analyst.set_lm(large)
    events = played(program, drive, {"task": "When?"})
    (post,) = [one for one in events if isinstance(one, Posted)]
    assert (post.node, post.field, post.value, post.live, post.seq) == (
        "researcher",
        "research",
        "high at 9:40",
        True,
        1,
    )
    (commit,) = [one.commit for one in events if isinstance(one, Committed) and one.commit.node == "analyst"]
    shown = [one for one in commit.patch["talk"] if one.get("name") == "researcher"]
    assert [one["content"] for one in shown] == ["research: high at 9:40"]
    assert (commit.patch["report"], len(large.calls) <= 2) == ("9:40", True)


@pytest.mark.parametrize("drive", DRIVES)
def test_the_nodes_of_a_graph_share_a_conversation(drive: str) -> None:
    """S003-17, S003-19: all of it in order; a prompt has the instructions, the node's own turns, the last message."""
    graph = Graph(Talk, conversation=True)
    graph.add_node("writer", dspy.Predict(dspy.Signature("topic -> draft", "Write.")))
    graph.add_node("critic", dspy.Predict(dspy.Signature("topic, draft -> critique", "Judge.")))
    graph.add_path(START, "writer", "critic")
    graph.add_conditional_edges("critic", lambda ctx: "writer" if ctx.visit < 2 else END, ["writer", END])
    program = graph.compile(store=":memory:")
    script = [{"draft": "The moon."}, {"critique": "Why?"}, {"draft": "It pulls."}, {"critique": "Good."}]
    with ScriptedLM(script) as lm:
        (*_, last) = [one for one in played(program, drive, {"topic": "tides"}) if isinstance(one, Committed)]
    assert last.operations["messages"] == "conversation"
    states = [list(call.prompt.turns) for call in lm.calls]
    assert "Write." in states[2][0].content
    assert [one.role for one in states[2]] == ["system", "user", "assistant", "user"]
    assert "The moon." in states[2][2].content
    assert "critic: Why?" in states[2][3].content
    assert "The moon." not in states[2][3].content, "what others have said before is not repeated"
    with ScriptedLM(script) as lm:
        said = program(topic="tides").messages
    assert [(one["name"], one["content"]) for one in said] == [
        ("writer", "The moon."),
        ("critic", "Why?"),
        ("writer", "It pulls."),
        ("critic", "Good."),
    ]


class Talk(BaseModel):
    topic: str
    draft: str = ""
    critique: str = ""
