"""Initial states and commits: validation field by field, the patch that is stored, replay, and their laws."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from itertools import count
from typing import Annotated, Any
from uuid import uuid4

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    create_model,
)

from dspyer import DELETE, END, START, CompiledGraph, Context, Graph, ImmutableState, Replace, Updates, reducers
from dspyer.errors import (
    DspyerError,
    InputError,
    NodeOutputError,
    UnsupportedValueError,
)
from dspyer.testing import ScriptedLM
from tests.rows import each
from tests.schema.research import Research, User, calls_of_a_write, double, program_of, write, written


class Chat(BaseModel):
    messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    tags: Annotated[list[str], reducers.extend] = ["old"]
    hint: str = ""


def inside(given: dict[str, Any]) -> Any:
    """The run of a graph that hands these values, of any type, to a graph inside."""

    def look(messages: Any, tags: Any) -> dict[str, Any]:
        return {"hint": f"{[message['id'] for message in messages]} {[*tags]}"}

    inner = Graph(Chat, inputs=list(given)).add_node("look", look, writes=["hint"]).add_path(START, "look", END)
    outer = Graph(outputs=["hint"]).add_node("give", lambda: given, writes=list(given))
    outer.add_node("inner", inner.compile(), reads=list(given), writes=["hint"])
    return outer.add_path(START, "give", "inner", END).compile().run({})


class TestValuesOfAnotherState:
    """The inputs of a graph inside a graph."""

    def test_they_are_whole_values_and_messages_get_the_ids_that_they_lack(self) -> None:
        run = inside({"messages": [{"content": "a"}, {"content": "b", "id": "mine"}], "tags": ["new"]})
        assert re.fullmatch(r"\['[^']+/inputs/0', 'mine'\] \['new'\]", run.state["hint"])

    @each("value", [None, 7, [7]])
    def test_values_that_are_no_messages_are_refused_as_any_input(self, value: object) -> None:
        run = inside({"messages": Replace(value), "tags": []})
        assert isinstance(run.error, InputError)
        assert "for field 'messages', which is refused" in str(run.error)


class TestInitial:
    def test_defaults_in_the_order_of_the_schema(self) -> None:
        state = written()[1]
        assert list(state) == list(Research.model_fields)
        assert (state["question"], state["findings"]) == ("why", [])

    def test_inputs_are_validated_and_folded(self) -> None:
        state = written(calls=5, findings=["a"], score="1.5", best=1)[1]
        assert (state["calls"], state["findings"], state["score"], state["best"]) == (5, ["a"], 1.5, 1.0)
        assert type(state["best"]) is float
        assert written(doubled=3)[1]["doubled"] == 5
        assert written(doubled=Replace(3))[1]["doubled"] == 3
        assert written(free={"b": None})[1]["free"] == {"b": None}, "a dict as input is a new value"

    def test_a_field_without_default_may_stay_unset(self) -> None:
        graph = Graph(Research, inputs=[]).add_node("n", lambda: None, writes=[]).add_path(START, "n", END)
        assert "question" not in graph.compile().run({}).state

    def test_factories_are_called_for_each_state(self) -> None:
        class Model(BaseModel):
            first: int = 5
            numbers: list[int] = Field(default_factory=lambda data: [data["first"]])
            serial: int = Field(default_factory=count().__next__)

        one, two = write(Model).state, write(Model).state
        assert one["numbers"] == two["numbers"] == [5]
        assert one["serial"] != two["serial"]

    @each(
        ("inputs", "words"),
        [
            ({"qestion": "x"}, ["'qestion'", "Did you mean 'question'", "Its inputs are 'question', 'findings'"]),
            ({"question": 5}, ["field 'question'", "5", "valid string"]),
            ({"findings": "x"}, ["field 'findings'", "return ['x']"]),
        ],
    )
    def test_invalid_inputs(self, inputs: dict[str, Any], words: list[str]) -> None:
        with pytest.raises(InputError) as refusal:
            written(**inputs)
        assert all(word in str(refusal.value) for word in words)

    def test_missing_inputs(self) -> None:
        with pytest.raises(InputError, match=r"missing inputs: 'question' \(given: 'score'\)"):
            write(Research, inputs={"score": 1})
        with pytest.raises(InputError, match=r"missing inputs: 'question' \(given: none\)"):
            write(Research)

    def test_without_a_schema_inputs_are_whole_values(self) -> None:
        program = Graph().add_node("n", lambda a, b: None, writes=[]).add_path(START, "n", END).compile()
        assert program.run({"a": None, "b": {"c": None}}).state == {"a": None, "b": {"c": None}}
        with pytest.raises(InputError, match="missing inputs: 'a'"):
            program.run({"b": 1})


class Saying(dspy.Module):
    """A module whose outputs are given."""

    def __init__(self, give: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.give = give

    def forward(self) -> Any:
        return dspy.Prediction(**self.give())


@functools.lru_cache(maxsize=1)
def function_and_module(model: type[BaseModel] | None, outputs: tuple[str, ...]) -> tuple[CompiledGraph, list[Any]]:
    """A program whose function and then whose module return the dicts of the list."""
    given: list[dict[str, Any]] = [{}, {}]
    graph = Graph(model, inputs=[]).add_node("function", lambda: given[0], writes=None if model else ["a"])
    graph.add_node("module", Saying(lambda: given[1]), writes=outputs).add_path(START, "function", "module", END)
    return graph.compile(), given


def said(model: type[BaseModel] | None, before: dict[str, Any], outputs: dict[str, Any]) -> Any:
    """The patch of a module, whose outputs are whole values, and the state after it."""
    program, given = function_and_module(model, tuple(outputs))
    given[:] = before, outputs
    run = program.run({})
    run.raise_error()
    return run.commits[-1].patch, run.state


class TestCommit:
    @each(
        ("update", "patch", "value"),
        [
            ({"answer": "yes"}, {"answer": "yes"}, "yes"),
            ({"score": "2.5"}, {"score": 2.5}, 2.5),
            ({"score": 3}, {"score": 3.0}, 3.0),
            ({"answer": None}, {}, None),
            ({"question": "why"}, {}, "why"),
            ({"born": "2020-01-02"}, {"born": date(2020, 1, 2)}, date(2020, 1, 2)),
            ({"risk": "low"}, {"risk": "low"}, "low"),
            ({"tags": ["a"]}, {"tags": ["a"]}, ["a"]),
            ({"findings": ["a"]}, {"findings": ["a"]}, ["a"]),
            ({"log": "a"}, {"log": "a"}, ["a"]),
            ({"calls": 2}, {"calls": 2}, 2),
            ({"best": 2}, {"best": 2.0}, 2.0),
            ({"seen": ["a", "a"]}, {"seen": {"a"}}, {"a"}),
            ({"table": {"a": "1"}}, {"table": {"a": 1}}, {"a": 1}),
            ({"doubled": 3}, {"doubled": 3}, 5),
            ({"free": {"a": {"b": 1}}}, {"free": {"a": Replace({"b": 1})}}, {"a": {"b": 1}}),
            ({"typed": {"a": "1"}}, {"typed": {"a": 1}}, {"a": 1}),
            ({"nested": {"1": {"a": 1}}}, {"nested": {1: Replace({"a": 1})}}, {1: {"a": 1}}),
            ({"options": {"size": "3"}}, {"options": {"size": 3}}, {"size": 3}),
            ({"anything": {"a": 1}}, {"anything": Replace({"a": 1})}, {"a": 1}),
            ({"answer": Replace("x")}, {"answer": "x"}, "x"),
            ({"findings": Replace(["x"])}, {"findings": Replace(["x"])}, ["x"]),
            ({"findings": DELETE}, {"findings": DELETE}, []),
            ({"calls": Updates(1, 2)}, {"calls": Updates(1, 2)}, 3),
            ({"calls": Updates(1, DELETE, 2)}, {"calls": Updates(1, DELETE, 2)}, 2),
        ],
    )
    def test_patch_and_value(self, update: dict[str, Any], patch: dict[str, Any], value: Any) -> None:
        (name,) = update
        got, state = written(update)
        assert got == patch
        assert state[name] == value
        assert json.dumps(state.to_dict()[name], default=repr) == json.dumps(value, default=repr), "1 is not 1.0"

    def test_one_patch_may_touch_several_fields(self) -> None:
        patch, state = written({"findings": ["a"], "calls": 1, "answer": "x"})
        assert patch == {"findings": ["a"], "calls": 1, "answer": "x"}
        assert (state["findings"], state["calls"], state["answer"]) == (["a"], 1, "x")

    def test_none_is_a_value_and_delete_resets(self) -> None:
        before = {"answer": "x", "score": 2.0}
        assert written(before, {"answer": None})[0] == {"answer": Replace(None)}
        assert written(before, {"score": DELETE})[1]["score"] == 0.0
        patch, state = written({"question": DELETE})
        assert patch == {"question": DELETE}
        assert "question" not in state

    def test_none_deletes_inside_free_mappings(self) -> None:
        patch, state = written({"free": {"a": 1, "b": {"c": 1, "d": 2}}}, {"free": {"a": None, "b": {"c": DELETE}}})
        assert patch == {"free": {"a": DELETE, "b": {"c": DELETE}}}
        assert state["free"] == {"b": {"d": 2}}

    def test_a_reducer_called_replace_puts_whole_mappings(self) -> None:
        assert written({"replaced": {"a": 1}}, {"replaced": {"b": 2}})[1]["replaced"] == {"b": 2}

    def test_whole_values_are_not_merged(self) -> None:
        before = {"free": {"a": 1}, "answer": "x"}
        patch, state = said(Research, before, {"free": {"b": None}, "answer": None, "findings": ["f"]})
        assert patch == {"free": {"a": DELETE, "b": Replace(None)}, "answer": Replace(None), "findings": ["f"]}
        assert (state["free"], state["findings"]) == ({"b": None}, ["f"])

    def test_messages_get_ids_from_the_commit(self) -> None:
        patch, state = written({"messages": {"text": "hi"}})
        assert patch == {"messages": [{"text": "hi", "id": "trunk:1/0"}]}
        assert state["messages"] == patch["messages"]
        patch, _ = written({"messages": Updates({"text": "a"}, {"text": "b"})})
        assert [part[0]["id"] for part in patch["messages"].updates] == ["trunk:1/0", "trunk:1/1/0"]

    def test_a_message_never_takes_the_id_of_another(self) -> None:
        """A message may have an id that looks like one of a commit."""
        first = {"messages": [{"text": "a", "id": "trunk:2/0"}, {"text": "b", "id": "trunk:2/0~2"}]}
        messages = written(first, {"messages": {"text": "c"}})[1]["messages"]
        assert [(each["text"], each["id"]) for each in messages][2:] == [("c", "trunk:2/0~3")]

    def test_a_factory_makes_the_default_of_a_reset_once(self) -> None:
        serial = count()

        class Model(BaseModel):
            numbers: Annotated[list[int], reducers.extend] = Field(default_factory=lambda: [next(serial)])

        run = write(Model, {"numbers": [9]}, {"numbers": DELETE}, thread="t")
        made = run.state["numbers"][0]
        assert run.commits[-1].patch == {"numbers": Replace([made])}
        assert program_of(Model)[0].thread("t").replay() == {"numbers": [made]}

    @each(
        ("update", "words"),
        [
            (
                {"fidings": ["a"]},
                ["'fidings'", "no field", "Did you mean 'findings'", "Fields: 'question', 'findings'"],
            ),
            ({"question": None}, ["field 'question'", "None", "DELETE resets the field to its default"]),
            ({"question": 5}, ["field 'question'", "gives", "5", "valid string"]),
            ({"calls": "x"}, ["field 'calls'", "reducer 'increment'", "return a number"]),
            ({"calls": "2"}, ["field 'calls'"]),
            ({"calls": 0.5}, ["field 'calls'", "0.5", "integer"]),
            ({"log": ["a"]}, ["field 'log'", "for a list of items give the field reducers.extend"]),
            ({"findings": ["a", 1]}, ["field 'findings'", "[1]: Input should be a valid string"]),
            ({"typed": {"a": "x"}}, ["field 'typed'", "['a']: Input should be a valid integer"]),
            ({"typed": [1]}, ["field 'typed'", "dictionary"]),
            ({"free": {1: "x"}}, ["field 'free'", "[1]['[key]']"]),
            ({"nested": {1: {"a": "x"}}}, ["[1]['a']"]),
            ({"options": {"size": "x"}}, ["['size']"]),
            ({"risk": "medium"}, ["'low' or 'high'"]),
            ({"user": {"nick": "x"}}, ["['name']: Field required"]),
            ({"tags": list("abcd")}, ["field 'tags'", "at most 3 items"]),
            ({"short": list("abcd")}, ["field 'short'", "at most 3 items"]),
            ({"question": ["x" * 500] * 3}, ["list of 3 items"]),
            ({"answer": Updates("a")}, ["Updates(...) is for fields with a reducer"]),
            ({"findings": Replace("x")}, ["valid list"]),
        ],
    )
    def test_errors_name_node_field_value_and_reason(self, update: dict[str, Any], words: list[str]) -> None:
        with pytest.raises(NodeOutputError) as refusal:
            written({"answer": "x", **update})
        text = str(refusal.value)
        assert "node 'search'" in text
        assert all(word.replace("gives", "writes") in text for word in words)
        assert len(text) < 700
        assert refusal.value.__cause__ is None
        assert refusal.value.__context__ is None or refusal.value.__suppress_context__

    def test_values_that_a_state_cannot_hold(self) -> None:
        with pytest.raises(UnsupportedValueError, match="anything"):
            written({"anything": object()})

    def test_a_user_defined_reducer_starts_from_an_empty_container(self) -> None:
        def newest_first(current: Any, item: str) -> Any:
            return [item, *current]

        class Model(BaseModel):
            log: Annotated[list[str], newest_first]
            total: Annotated[int, double]

        graph = Graph(Model, inputs=[]).add_node("n", lambda: {"log": "a", "total": 3}, writes=["log", "total"])
        assert graph.add_path(START, "n", END).compile().run({}).state == {"log": ["a"], "total": 3}

    def test_an_exception_of_a_reducer_gets_a_note_with_its_field(self) -> None:
        class Model(BaseModel):
            total: Annotated[int, lambda current, update: current // update] = 1

        with pytest.raises(ZeroDivisionError) as raised:
            write(Model, {"total": 0})
        assert any("reducer '<lambda>' of field 'total'" in note for note in raised.value.__notes__)

    def test_untouched_and_equal_values_keep_their_identity(self) -> None:
        updates: list[dict[str, Any]] = [
            {"free": {"big": {"x": [1]}}, "typed": {"a": 1, "b": 2}, "findings": ["a"]},
            {"free": {"n": 1}, "typed": {"a": 5}},
            {"free": {"big": {"x": [1]}}, "findings": []},
        ]
        read: list[Any] = []

        def search(ctx: Context, free: Any, findings: Any) -> Any:
            read.append((free, findings))
            return updates[ctx.visit - 1] if ctx.visit < 4 else {"tags": findings}

        graph = Graph(Research, inputs=[]).add_node("search", search).add_edge(START, "search")
        graph.add_conditional_edges("search", lambda ctx: "search" if ctx.visit < 4 else END, ["search", END])
        state = graph.compile().run({}).state
        (_, (free, findings), (patched, as_before), (equal, nothing_added)) = read
        assert patched["big"] is free["big"]
        assert equal is patched
        assert as_before is findings is nothing_added
        assert state["tags"] is findings

    def test_changing_a_written_value_afterwards_does_not_change_the_state(self) -> None:
        items, inner = ["a"], {"k": ["v"]}
        patch, state = written({"findings": items, "tags": items, "free": inner})
        items.append("b")
        inner["k"].append("w")
        assert state["findings"] == state["tags"] == patch["findings"] == ["a"]
        assert state["free"] == {"k": ["v"]}

    def test_only_the_entries_that_a_patch_names_are_validated(self) -> None:
        seen: list[Any] = []

        def spy(value: int) -> int:
            seen.append(value)
            return value

        class Model(BaseModel):
            items: Annotated[list[Annotated[int, AfterValidator(spy)]], reducers.extend] = []
            table: dict[str, Annotated[int, AfterValidator(spy)]] = {}

        write(Model, {"items": [1, 2], "table": {"a": 1, "b": 2}}, {"items": [3], "table": {"a": 4}})
        assert seen == [1, 2, 1, 2, 3, 4]

    def test_a_scalar_of_the_declared_type_is_not_validated(self) -> None:
        text = "".join(["long", "text"])
        assert written({"answer": text})[1]["answer"] is text


class TestWithoutModel:
    @each(
        ("state", "updates", "whole", "patch", "expected"),
        [
            ({"a": 1}, {"a": 2, "b": {"c": 1}}, False, {"a": 2, "b": Replace({"c": 1})}, {"a": 2, "b": {"c": 1}}),
            ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, False, {"a": {"b": DELETE}}, {"a": {"c": 2}}),
            ({"a": 1}, {"a": None}, False, {"a": DELETE}, {}),
            ({"a": 1}, {"a": None}, True, {"a": Replace(None)}, {"a": None}),
            ({"a": {"b": 1}}, {"a": {"c": 2}}, True, {"a": {"b": DELETE, "c": 2}}, {"a": {"c": 2}}),
            ({"a": {"b": 1}}, {"a": Replace({"c": 2})}, False, {"a": {"b": DELETE, "c": 2}}, {"a": {"c": 2}}),
            ({"a": 1}, {"a": 1, "b": None}, False, {}, {"a": 1}),
            ({"a": 1}, {"a": DELETE}, True, {"a": DELETE}, {}),
        ],
    )
    def test_commit(self, state: Any, updates: Any, whole: bool, patch: Any, expected: Any) -> None:
        if whole:
            got, after = said(None, state, updates)
        else:
            run = write(None, state, updates)
            got, after = run.commits[-1].patch, run.state
        assert got == patch
        assert after == expected
        assert ImmutableState(state) | got == after

    @each(("model", "inputs"), [(None, {}), (Research, {"question": "why"})])
    def test_large_mappings_are_not_compared_as_a_whole(self, model: Any, inputs: dict[str, Any]) -> None:
        """Only the keys that an update names are compared."""

        def cost(size: int) -> int:
            big = {str(number): number for number in range(size)}
            return calls_of_a_write(model, {"free": big}, {"free": {"7": -1, "8": 8, "9": None}}, inputs=inputs)

        assert cost(500) < 1.3 * cost(50)


WRITES: dict[str, st.SearchStrategy[Any]] = {
    "question": st.text(max_size=2) | st.none() | st.integers(),
    "findings": st.lists(st.sampled_from("ab"), max_size=2) | st.just("text") | st.just(DELETE),
    "log": st.sampled_from(["a", "b", 1]),
    "calls": st.integers(-2, 2) | st.sampled_from(["1", True, Replace(5), DELETE, Updates(1, 2)]),
    "best": st.floats(-1, 1) | st.none(),
    "seen": st.sets(st.sampled_from("ab")) | st.just("ab"),
    "table": st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2),
    "messages": st.lists(st.fixed_dictionaries({"text": st.sampled_from("ab")}), max_size=2),
    "doubled": st.integers(-2, 2),
    "answer": st.sampled_from(["x", "y", None, DELETE, 5]),
    "free": st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(0, 1) | st.just({"c": None}), max_size=2),
    "typed": st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, "2", "x", None, DELETE]), max_size=2),
    "user": st.sampled_from(
        [{"name": "A"}, {"nick": None}, None, User(name="B", serial=0), {"address": {"street": "s"}}]
    ),
    "tags": st.lists(st.sampled_from("ab"), max_size=4),
    "short": st.lists(st.sampled_from("ab"), max_size=2),
}
writes = st.fixed_dictionaries({}, optional=WRITES)
WHOLE = ["question", "answer", "free", "typed", "user", "tags"]  # they have no reducer


@given(st.lists(writes, max_size=3))
def test_law_a_write_is_refused_or_gives_a_valid_state_as_a_replay_does(updates: list[dict[str, Any]]) -> None:
    """Writing the values of a state again changes nothing."""
    write(Research, inputs={"question": "why"}, thread=(name := uuid4().hex))
    thread = program_of(Research)[0].thread(name)
    for update in updates:
        before, plain = thread.state, thread.state.to_dict()
        with suppress(DspyerError):
            thread.update(update)
        assert before.to_dict() == plain
        Research.model_validate(thread.state.to_dict())
    assert repr(thread.replay()) == repr(thread.state)
    plain = {name: value for name, value in thread.state.to_dict().items() if name in WHOLE}
    assert said(Research, plain, plain)[0] == {}


def test_frozen_values_are_accepted_like_plain_ones() -> None:
    plain: dict[str, Any] = {"findings": ["a"], "tags": ["t"], "typed": {"a": 1}, "free": {"x": [1]}, "seen": {"s"}}
    plain["user"] = User(name="Ada", serial=1)
    frozen = {name: value for name, value in written(plain)[1].items() if name in plain}
    assert type(frozen["findings"]) is not list
    assert written(frozen) == written(plain)


ENTRIES = {
    "a number": (dict[str, int], 1),
    "a text": (dict[str, str], "x"),
    "a list": (dict[str, list[int]], [1]),
    "a mapping": (dict[str, dict[str, Any]], {"k": 1}),
    "anything": (dict[str, Any], 1),
}


@each("gone", [DELETE, None])
@pytest.mark.parametrize(("kind", "value"), ENTRIES.values(), ids=ENTRIES)
def test_an_entry_of_a_mapping_is_removed_whatever_its_type(kind: Any, value: Any, gone: Any) -> None:
    model = create_model("Model", table=(kind, {}))
    inputs = {"table": {"a": value, "b": value}}
    run = write(model, {"table": {"a": gone, "c": value}}, inputs=inputs)
    assert {key: part is DELETE for key, part in run.commits[-1].patch["table"].items()} == {"a": True, "c": False}
    assert run.state == {"table": {"b": value, "c": value}}
    assert write(model, {"table": {"absent": gone}}, inputs=inputs).commits[-1].patch == {}


def test_a_transient_field_lasts_until_the_next_commit_of_its_branch() -> None:
    class Passing(BaseModel):
        hint: Annotated[str, replace(reducers.replace, transient=True)] = "none"
        way: str = ""
        log: Annotated[list[str], reducers.extend] = []

    def heard(hint: str) -> dict[str, Any]:
        return {"log": [hint]}

    graph = Graph(Passing).add_node("first", lambda hint: {"log": [hint], "hint": "of first"})
    graph.add_node("a", lambda hint: {"log": [hint], "hint": "of a"}).add_node("b", heard)
    graph.add_node("join", lambda hint: {"log": [hint], "hint": "of join"}).add_node("c", heard).add_node("last", heard)
    graph.add_edge(START, "first").add_edge("first", ["a", "b"]).add_edge("a", "join").add_edge("b", "join")
    route = dspy.Predict("log -> way: Literal['c', 'last']")
    graph.add_conditional_edges("join", route, ["c", "last"], writes=["way"]).add_path("c", "last", END)
    with dspy.context(lm=ScriptedLM([{"way": "c"}])):
        run = graph.compile().run({"hint": "of the input"})
    run.raise_error()
    # Where branches join, one that has only reset the field has written nothing; a router's label is no other commit.
    assert run.state["log"] == ["of the input", "of first", "of first", "of a", "of join", "none"]
    assert (run.state["hint"], run.state["way"]) == ("none", "c")
