"""Templates: filling, refusals, and that copying, saving, tuning and streaming a program still work."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import logging
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, Literal

import cloudpickle
import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction, bootstrap_trace_data
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Send, fill, reducers
from dspyer.errors import GraphError, InputError
from dspyer.testing import ScriptedLM
from tests.nodes.kit import MODES
from tests.rows import each

# --- the text


class Fields(BaseModel):
    a: str | None = None
    b: str | None = None
    größe: str | None = None  # noqa: PLC2401 - any identifier
    said: str = ""


def filled(text: str, values: dict[str, str], **options: Any) -> str:
    """A text as a node reads it."""
    graph = Graph(**options).add_node("say", lambda said: {"said": said}, reads={"said": fill(text)}, writes=["said"])
    run = graph.add_path(START, "say", END).compile().run(values)
    run.raise_error()
    return str(run.state["said"])


@each(
    ("text", "values", "expected"),
    [
        ("{a} and {b}", {"a": "1"}, "1 and {b}"),
        ('{"a": 1, "b": {"a": [{a}]}}', {"a": "1"}, '{"a": 1, "b": {"a": [1]}}'),
        ("{a}", {"a": "{b}", "b": "no"}, "{b}"),  # values are not filled again
        ("{{a}} {a}", {"a": "1"}, "{a} 1"),
        ("{{{a}}} {a}", {"a": "1"}, "{{a}} 1"),
        ("{a.b} {a!r} {a:>3} { a } {} {0} {a {a}", {"a": "1"}, "{a.b} {a!r} {a:>3} { a } {} {0} {a 1"),
        ("{run.count} {größe}", {"größe": "2 m"}, "0 2 m"),
    ],
)
def test_only_known_names_are_filled(text: str, values: dict[str, str], expected: str) -> None:
    """S003-22, S003-23."""
    assert filled(text, values, schema=Fields, inputs=["a", "b", "größe"]) == expected


@given(st.text(alphabet='{}ab." :1\n'))
def test_filling_never_fails_and_other_text_stays(text: str) -> None:
    names = set(re.findall(r"(?<!\{)\{([ab][ab1]*)\}", text)) | {"a"}
    found = filled(text + " {a}", {name: f"<{name}>" for name in names})
    for name in names:
        found = found.replace(f"<{name}>", f"{{{name}}}")
    assert found == re.sub(r"\{(\{[ab][ab1]*\})\}", r"\1", text) + " {a}"


# --- in a graph


class Alert(BaseModel):
    text: str
    tags: list[str] = []
    severity: str | None = None
    kind: str | None = None
    report: str | None = None


class Report(dspy.Signature):
    """A {kind} alert, severity {severity}, {{severity}}. End with {"ip": {"a": 1}}."""

    request: str = dspy.InputField()
    report: str = dspy.OutputField()


def graph_of(reporter: dspy.Module, request: str = "Alert: {text}", **options: Any) -> Graph:
    graph = Graph(Alert)
    graph.add_node("classify", dspy.Predict("text -> severity"))
    graph.add_node("look", reporter, reads={"request": fill(request)}, **options)
    return graph.add_path(START, "classify", "look", END)


def system(call: Any) -> str:
    return str(call.messages[0]["content"])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("make", [dspy.Predict, dspy.ChainOfThought])
def test_instructions_and_inputs_are_filled(make: Any, asynchronous: bool) -> None:
    """S003-22, S003-24, S003-29: in the system prompt and in the prompt of the user."""
    program = graph_of(make(Report)).compile()
    lm = ScriptedLM([{"severity": "high, {text}"}, {"report": "done"}])
    with dspy.context(lm=lm, trace=[]):
        answer = asyncio.run(program.acall(text="fire")) if asynchronous else program(text="fire")
        (_, inputs, _) = dspy.settings.trace[-1]
    assert answer.report == "done"
    assert 'A {kind} alert, severity high, {text}, {severity}. End with {"ip": {"a": 1}}.' in system(lm.calls[1])
    assert lm.calls[1].prompt.inputs["request"] == "Alert: fire"
    assert inputs == {"request": "Alert: fire", "severity": "high, {text}"}
    assert program.graph.nodes["look"].reads == {"text": "text", "kind": "kind", "severity": "severity"}


def weather(city: str) -> str:
    """Says {"sun": 1} in a city."""
    return f"sun in {city}"


def test_react_is_filled_in_both_its_predictors() -> None:
    """The texts of tools have braces of their own, which are no names."""
    program = graph_of(dspy.ReAct(Report, tools=[weather])).compile()
    steps = [{"next_thought": "t", "next_tool_name": "weather", "next_tool_args": {"city": "Rome"}}]
    steps.append({"next_thought": "t", "next_tool_name": "finish", "next_tool_args": {}})
    lm = ScriptedLM([{"severity": "low"}, *steps, {"report": "done"}])
    with dspy.context(lm=lm):
        assert program(text="fire").report == "done"
    assert all("severity low, {severity}" in system(call) for call in lm.calls[1:])
    assert "{'city': {'type': 'string'}}" in system(lm.calls[1])


def test_functions_fill_the_modules_that_they_call() -> None:
    """A value is shown as DSPy shows an input."""

    class Say(dspy.Signature):
        """Tags: {tags}."""

        request: str = dspy.InputField()
        report: str = dspy.OutputField()

    def look(request: str, tags: list[str], say: Any, left: int) -> dict[str, Any]:
        return {"report": f"{say(request=request).report} {len(tags)} {left}"}

    reads = {"request": fill("{text}: {severity}"), "tags": "tags", "left": "run.remaining"}
    graph = Graph(Alert).add_node("look", look, modules={"say": dspy.Predict(Say)}, reads=reads, writes=["report"])
    program = graph.add_path(START, "look", END).compile(max_steps=7)
    lm = ScriptedLM([{"report": "done"}])
    with dspy.context(lm=lm):
        assert program(text="fire", tags=["a", "é"], severity="low").report == "done 2 6"
    assert 'Tags: ["a", "é"].' in system(lm.calls[0])
    assert lm.calls[0].prompt.inputs["request"] == "fire: low"


def test_a_field_that_is_none_stays_as_it_is_written() -> None:
    def first(text: str) -> dict[str, Any]:
        return {"kind": text, "severity": "high"}

    def second() -> dict[str, Any]:
        return {"severity": None}

    graph = Graph(Alert, inputs=["text"])
    graph.add_node("first", first, writes=["kind", "severity"]).add_node("second", second, writes=["severity"])
    for name, template in (("before", "{kind} {severity} {report}"), ("after", "{severity}")):
        graph.add_node(name, lambda said: {"tags": [said]}, reads={"said": fill(template)}, writes=["tags"])
    graph.add_node("report", lambda: {"report": "r"}, writes=["report"])
    graph.add_path(START, "first", "before", "second", "after", "report")
    graph.add_conditional_edges("report", lambda ctx: "before" if ctx.visit < 2 else END, ["before", END])
    run = graph.compile().run({"text": "fire"})
    said = [commit.patch["tags"][0] for commit in run.commits if commit.node in ("before", "after")]
    assert said == ["fire high {report}", "{severity}", "fire {severity} r", "{severity}"]


def test_an_item_of_a_map_and_of_a_send_is_a_name() -> None:
    class Sum(dspy.Signature):
        """Shorten {doc} of {text}."""

        doc: str = dspy.InputField()
        tags: str = dspy.OutputField()

    graph = Graph(Alert, inputs=["text", "tags"])
    graph.add_node("split", lambda text: {"kind": text}, writes=["kind"])
    graph.add_map("short", dspy.Predict(Sum), over="tags", item="doc", into="tags")
    mapped = graph.add_path(START, "split", "short", END).compile()
    lm = ScriptedLM([{"tags": "x"}] * 2)
    with dspy.context(lm=lm):
        mapped(text="fire", tags=["one", "two"])
    assert {system(call).split("Shorten ")[1].split(".")[0] for call in lm.calls} == {"one of fire", "two of fire"}

    def route(text: str) -> list[Send]:
        return [Send("short", {"doc": "three"})]

    graph = Graph(Alert).add_node("short", dspy.Predict(Sum), writes={"tags": "report"})
    graph.add_conditional_edges(START, route, ["short"])
    sent = graph.add_edge("short", END).compile()
    lm = ScriptedLM([{"tags": "x"}] * 2)
    with dspy.context(lm=lm):
        sent(text="fire")
    assert "Shorten three of fire." in system(lm.calls[0])


def test_templates_of_a_router_are_filled() -> None:
    class Way(dspy.Signature):
        """Severity {severity}: where to?"""

        text: str = dspy.InputField()
        way: Literal["look", "leave"] = dspy.OutputField()

    graph = Graph(Alert).add_node("classify", dspy.Predict("text -> severity"))
    graph.add_node("look", lambda: {"report": "seen"}, writes=["report"])
    graph.add_edge(START, "classify").add_edge("look", END)
    graph.add_conditional_edges("classify", dspy.Predict(Way), {"look": "look", "leave": END})
    lm = ScriptedLM([{"severity": "low"}, {"way": "leave"}])
    with dspy.context(lm=lm):
        graph.compile()(text="fire")
    assert "Severity low: where to?" in system(lm.calls[1])


# --- what is refused


class Own(dspy.Predict):
    def forward(self, **kwargs: Any) -> Any:
        return super().forward(**kwargs)


def instructed(text: str) -> Any:
    return dspy.Signature("request -> report", text)


@each(
    ("make", "said"),
    [
        (lambda: graph_of(dspy.Predict(Report), "{txt}"), r"\{txt\} in reads\['request'\] is no .* 'text'\?"),
        (lambda: graph_of(dspy.Predict(instructed("On {sevrity}"))), r"\{sevrity\} in its instructions is no field"),
        (lambda: graph_of(dspy.Predict(Report), "{run.left}"), r"'run.left' is no run value.* There are run.count"),
        (lambda: graph_of(dspy.Predict(Report), "{run.lok.visits}"), r"names no node 'lok'. Did you mean 'look'"),
        (lambda: graph_of(dspy.Predict(Report), "{run.look.visit}"), "look.visit' is no value of a node.*'visits'"),
        (lambda: graph_of(Own(Report)), r"nothing is filled into those of a Own"),
        (lambda: fill("no name"), "has no field in it"),
        (lambda: fill(3), "fill takes a text"),  # type: ignore[arg-type]
        (
            lambda: Graph(Alert).add_node("f", lambda state: {}, reads={"a": fill("{text}")}).add_path(START, "f", END),
            "take it as the parameter 'a'",
        ),
    ],
)  # fmt: skip
def test_invalid_templates_are_errors_at_build(make: Any, said: str) -> None:
    """S003-25, S003-26."""
    with pytest.raises(GraphError, match=said):
        make().compile()


@MODES
def test_a_field_that_nothing_can_have_set_stays_literal_and_is_warned_of(mode: str) -> None:
    """S003-23, S003-25, S003-26."""
    graph = Graph(Alert).add_node("look", dspy.Predict(Report), reads={"request": fill("{text}, {report}")})
    graph.add_node("classify", dspy.Predict("text -> severity, kind"))
    with pytest.warns(UserWarning, match="is filled with") as warned:
        program = graph.add_path(START, "look", "classify", END).compile()
    assert {one.filename for one in warned} == {__file__}
    said = [str(one.message) for one in warned]
    for name, reason in (
        ("report", "only look itself writes it"),
        ("severity", "classify writes it, but only afterwards"),
        ("kind", "classify writes it, but only afterwards"),
    ):
        text = (
            f"graph 'Alert': node 'look' is filled with {{{name}}}, which nothing can have written by then ({reason})"
        )
        assert [one for one in said if text in one and f"the text shows {{{name}}} itself" in one]
    assert len(said) == 3
    lm = ScriptedLM([{"report": "a fire"}, {"severity": "low", "kind": "test"}])
    with dspy.context(lm=lm):
        program(text="smoke") if mode == "sync" else asyncio.run(program.acall(text="smoke"))
    assert lm.calls[0].prompt.inputs["request"] == "smoke, {report}"
    assert "A {kind} alert, severity {severity}, {severity}." in system(lm.calls[0])


def test_json_and_doubled_names_in_instructions_are_no_names() -> None:
    text = 'Answer {"a": {"b": [1]}} and {{anything}}, {0}, {}.'
    program = graph_of(dspy.Predict(instructed(text))).compile()
    lm = ScriptedLM([{"severity": "low"}, {"report": "done"}])
    with dspy.context(lm=lm):
        program(text="fire")
    assert 'Answer {"a": {"b": [1]}} and {anything}, {0}, {}.' in system(lm.calls[1])


# --- tuned and loaded text


def tuned(program: CompiledGraph, text: str) -> Any:
    found = program.deepcopy()
    found.look.signature = found.look.signature.with_instructions(text)
    return found


@pytest.mark.parametrize(
    ("text", "shown", "warned"),
    [
        ("Be brief: {severity}", "Be brief: low", []),
        ("Be brief.", "Be brief.\n        severity: low", ["have lost {kind}", "have lost {severity}"]),
        ("{severity} {color} {report}", "low {color} {report}", ["{color} in", "{report} in"]),
        ('{severity} {"a" {{{ }} {!} %s', 'low {"a" {{{ }} {!} %s', []),
    ],
)
def test_tuned_text_never_fails_and_is_warned_about_once(
    text: str, shown: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The report is not among what the node reads: a text of an optimizer reads no further than its node."""
    program = tuned(graph_of(dspy.Predict(Report)).compile(), text)
    lm = ScriptedLM([{"severity": "low"}, {"report": "done"}] * 2)
    with caplog.at_level(logging.WARNING, "dspyer"), dspy.context(lm=lm):
        program(text="fire")
        program.deepcopy()(text="fire")
    assert shown in system(lm.calls[3])
    said = [message for message in caplog.messages if "{kind}" not in message or "have lost {kind}" in warned]
    assert len(said) == len(warned)
    assert all(part in message for part, message in zip(warned, said, strict=True))


def test_loading_instructions_with_unknown_names_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = graph_of(dspy.Predict(Report)).compile()
    tuned(program, "{severity} {kind} {mode}").save(str(tmp_path / "program.json"))
    with caplog.at_level(logging.WARNING, "dspyer"):
        program.load(str(tmp_path / "program.json"))
    assert caplog.messages == ["look: {mode} in its tuned instructions is nothing that it reads, and stays"]


@pytest.mark.parametrize("way", ["deepcopy", "copy", "pickle", "state", "program"])
def test_copies_and_saved_programs_are_filled(way: str, tmp_path: Path) -> None:
    program: Any = graph_of(dspy.ChainOfThought(Report)).compile()
    if way == "deepcopy":
        other = program.deepcopy()
    elif way == "copy":
        other = copy.copy(program)
    elif way == "pickle":
        other = pickle.loads(cloudpickle.dumps(program))
    elif way == "state":
        program.save(str(tmp_path / "program.json"))
        assert (
            "{severity}"
            in json.loads((tmp_path / "program.json").read_text())["look.predict"]["signature"]["instructions"]
        )
        other = graph_of(dspy.ChainOfThought(Report)).compile()
        other.load(str(tmp_path / "program.json"))
    else:
        program.save(str(tmp_path / "program"), save_program=True)
        other = dspy.load(str(tmp_path / "program"), allow_pickle=True)
    lm = ScriptedLM([{"severity": "low"}, {"report": "done"}])
    with dspy.context(lm=lm):
        other(text="fire")
    assert "severity low" in system(lm.calls[1])
    assert type(other.look.predict) is type(program.look.predict)
    assert [name for name, _ in other.named_predictors()] == ["classify", "look.predict"]


def test_nodes_without_templates_keep_their_class() -> None:
    program = graph_of(dspy.ChainOfThought("request -> report")).compile()
    assert type(program.look.predict) is dspy.Predict
    assert type(program.classify) is dspy.Predict
    reporter = dspy.Predict(Report)
    assert type(graph_of(reporter).compile().look) is not dspy.Predict
    assert type(reporter) is dspy.Predict


def test_a_call_outside_of_a_run_is_refused() -> None:
    program = graph_of(dspy.Predict(Report)).compile()
    lm = ScriptedLM([])
    with dspy.context(lm=lm), pytest.raises(InputError, match=r"look: its instructions name .*\{severity\}"):
        program.look(request="fire")
    assert lm.calls == []


class Shorter(dspy.Signature):
    """Shorten {text} for {reader}: {run.remaining} steps left."""

    text: str = dspy.InputField()
    short: str = dspy.OutputField()


class ForReader(dspy.Signature):
    """Shorten for {reader}."""

    text: str = dspy.InputField()
    short: str = dspy.OutputField()


class Noted(BaseModel):
    reader: str = "Ada"
    late: str | None = None
    notes: Annotated[list[str], reducers.append] = []
    by_key: Annotated[dict[str, str], reducers.update] = {}


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


@MODES
@pytest.mark.parametrize("known", [False, True], ids=["plain", "in the context of the node"])
@pytest.mark.anyio
async def test_a_thread_of_a_node_fills_or_refuses(mode: str, known: bool) -> None:
    def work(shorten: Any) -> dict[str, Any]:
        call = functools.partial(shorten, text="long")
        return {"notes": in_thread(functools.partial(copy_context().run, call) if known else call).short}

    async def awork(shorten: Any) -> dict[str, Any]:
        return work(shorten)

    graph = Graph(Noted).add_path(START, "work", END)
    graph.add_node(
        "work", work if mode == "sync" else awork, modules={"shorten": dspy.Predict(ForReader)}, writes=["notes"]
    )
    lm = ScriptedLM(lambda prompt: {"short": prompt.instructions})
    program = graph.compile()
    with dspy.context(lm=lm):
        run = program.run({}) if mode == "sync" else await program.arun({})
    if known:
        assert list(run.state["notes"]) == ["Shorten for Ada."]
    else:
        assert isinstance(run.error, InputError)
        assert "work.shorten: its instructions name {reader}" in str(run.error)
        assert lm.calls == []


@MODES
@pytest.mark.parametrize("sent", [False, True], ids=["state", "Send"])
@pytest.mark.anyio
async def test_modules_of_condense_are_filled(mode: str, sent: bool) -> None:
    graph = Graph(Noted)
    graph.add_node(
        "work",
        lambda reader: {"notes": "long", "by_key": {"k": "wide"}},
        writes=["notes", "by_key"],
        condense={"notes": dspy.Predict(Shorter), "by_key": dspy.ChainOfThought(Shorter)},
    )
    ways = [Send("work", {"reader": "Bob"})] if sent else ["work"]
    graph.add_conditional_edges(START, lambda reader: [*ways], ["work"]).add_edge("work", END)
    program = graph.compile()
    with dspy.context(lm=ScriptedLM(lambda prompt: {"short": prompt.instructions})):
        run = program.run({}) if mode == "sync" else await program.arun({})
    assert run.error is None
    reader = "Bob" if sent else "Ada"
    assert list(run.state["notes"]) == [f"Shorten long for {reader}: 999 steps left."]
    assert dict(run.state["by_key"]) == {"k": f"Shorten wide for {reader}: 999 steps left."}


class Misspelt(dspy.Signature):
    """Shorten for {raeder}."""

    text: str = dspy.InputField()
    short: str = dspy.OutputField()


class Early(dspy.Signature):
    """Shorten for {late}."""

    text: str = dspy.InputField()
    short: str = dspy.OutputField()


def condensed(signature: type[dspy.Signature]) -> Graph:
    graph = Graph(Noted, inputs=["reader"])
    graph.add_node(
        "work", lambda reader: {"notes": "long"}, writes=["notes"], condense={"notes": dspy.Predict(signature)}
    )
    return graph.add_path(START, "work", END)


def test_templates_of_condense_are_checked_at_build() -> None:
    with pytest.raises(GraphError, match=r"condense of 'notes': \{raeder\} in its .* Did you mean 'reader'"):
        condensed(Misspelt).compile()
    with pytest.warns(
        UserWarning, match=r"condenses 'notes' of node 'work' is filled with \{late\}, which nothing can"
    ):
        condensed(Early).compile()


def test_without_a_schema_what_condense_names_is_an_input() -> None:
    graph = Graph().add_node("work", lambda q: {"note": q}, writes=["note"], condense={"note": dspy.Predict(Shorter)})
    program = graph.add_path(START, "work", END).compile()
    with dspy.context(lm=ScriptedLM(lambda prompt: {"short": prompt.instructions})):
        assert program(q="long", reader="Ada").note == "Shorten long for Ada: 999 steps left."


def test_an_unparseable_answer_is_blamed_on_the_predictor() -> None:
    program = graph_of(dspy.Predict(Report)).compile()
    answers = ScriptedLM([{"severity": "low"}, "?", "?"])
    example = dspy.Example(text="fire").with_inputs("text")
    with dspy.context(lm=answers):
        (row,) = bootstrap_trace_data(
            program, [example], num_threads=1, capture_failed_parses=True, raise_on_error=True
        )
    predictor, _, failed = row["trace"][-1]
    assert predictor is program.look
    assert isinstance(failed, FailedPrediction)


def test_filled_predictors_stream() -> None:
    program = graph_of(dspy.Predict(Report)).compile()
    listener = dspy.streaming.StreamListener(signature_field_name="report")
    stream = dspy.streamify(program, stream_listeners=[listener], async_streaming=False)
    lm = ScriptedLM([{"severity": "low"}, {"report": "all of it is done"}])
    with dspy.context(lm=lm):
        found = list(stream(text="fire"))
    chunks = [each.chunk for each in found if isinstance(each, dspy.streaming.StreamResponse)]
    assert "".join(chunks).strip() == "all of it is done"
    assert isinstance(found[-1], dspy.Prediction)
