"""`culprits`: each rule on one small graph, with outputs that a script gives."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Command, Graph, Run, Send, agents, reducers, view
from dspyer.optimize import Culprits, by_field, culprits, equals
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.agents.kit import turn

EXAMPLE = dspy.Example(q="?", a="1", b="2", c="3", answer="right", label="left").with_inputs("q")


ASK: dict[str, Any] = {"question": "Which b?", "answer": str, "into": "b"}


def metric_of(*fields: str, goal: str | None = None) -> Any:
    return by_field({field: equals(field) for field in fields}, goal=goal or fields[-1])


def play(graph: Graph, script: Sequence[Any], **options: Any) -> Run:
    with ScriptedLM(list(script)):
        return graph.compile(**options).run({"q": "?"})


def judge(run: Run, *fields: str, goal: str | None = None) -> Culprits:
    return culprits(run, EXAMPLE, metric_of(*fields, goal=goal))


def feedback(run: Run, *fields: str) -> list[str]:
    """What each step of the trace is told."""
    metric, trace = metric_of(*fields), list(run.trace)
    return [metric(EXAMPLE, run.prediction, trace, "a name", [step]).feedback for step in trace]


def verdicts(found: Culprits) -> list[tuple[str, str, str]]:
    return [(note.node, note.field, note.verdict) for note in found.notes]


def chain() -> Graph:
    graph = Graph()
    graph.add_node("first", dspy.Predict("q -> a"))
    graph.add_node("second", dspy.Predict("a -> b"))
    graph.add_node("third", dspy.Predict("b, q -> c"))
    return graph.add_path(START, "first", "second", "third", END)


def test_the_culprit_is_the_first_that_goes_wrong_and_not_the_last_writer() -> None:
    run = play(chain(), [{"a": "1"}, {"b": "x"}, {"c": "y"}])
    found = judge(run, "a", "b", "c")
    assert found.shares == {"second": 1.0}
    assert verdicts(found) == [("first", "a", "right"), ("second", "b", "wrong"), ("third", "c", "wrong")]
    assert [note.cause for note in found.notes] == [None, "second", "second"]
    assert [note.commit for note in found.notes] == ["trunk:1", "trunk:2", "trunk:3"]
    assert run.blame("c").node == "third", "blame names the last writer, as before"


def test_feedback_for_each_step() -> None:
    run = play(chain(), [{"a": "1"}, {"b": "x"}, {"c": "y"}])
    assert feedback(run, "a", "b", "c") == [
        "`a` is right.",
        "`b` is 'x', expected '2'.",
        "`c` follows from `b`, which was already wrong: nothing to fix here.",
    ]
    suspect = "`c` is 'y', expected '3'. `c` is the first field known to be wrong; this step may be the cause."
    assert feedback(run, "c") == [suspect] * 3
    assert feedback(run, "a", "c") == ["`a` is right.", suspect, suspect]


def test_a_field_that_is_right_cuts_off_what_is_before_it() -> None:
    run = play(chain(), [{"a": "x"}, {"b": "2"}, {"c": "y"}])
    assert judge(run, "b", "c").shares == {"third": 1.0}
    assert judge(run, "c").shares == pytest.approx({"first": 1 / 3, "second": 1 / 3, "third": 1 / 3})
    both = judge(run, "a", "b", "c")
    assert both.shares == {"first": 0.5, "third": 0.5}, "second is right, whatever it had read"


def test_nothing_wrong_has_no_culprit() -> None:
    run = play(chain(), [{"a": "1"}, {"b": "2"}, {"c": "3"}])
    found = judge(run, "a", "c")
    assert (found.shares, found.not_tunable) == ({}, ())
    assert verdicts(found)[1] == ("second", "b", "unknown")
    assert feedback(run, "a", "c")[1] == "`c` is right."
    assert str(found).startswith("culprits: none, nothing is known to be wrong")


def test_functions_are_culprits_that_no_optimizer_can_change() -> None:
    graph = Graph()
    graph.add_node("first", dspy.Predict("q -> a"))
    graph.add_node("second", lambda a: {"b": "x"}, writes=["b"])
    graph.add_node("third", dspy.Predict("b -> c"), frozen=True)
    graph.add_path(START, "first", "second", "third", END)
    run = play(graph, [{"a": "1"}, {"c": "y"}])
    assert judge(run, "a", "b", "c")[::2] == ({"second": 1.0}, ("second",))
    found = judge(run, "c")
    assert found.shares == {"third": 0.5, "first": 0.5}, "the writer, and the language models before it"
    assert found.not_tunable == ("third",)
    assert "third: 50 %, which no optimizer can change" in str(found)


def test_undeclared_reads_are_reads_of_everything() -> None:
    def build(**reads: Any) -> Graph:
        graph = Graph()
        graph.add_node("first", dspy.Predict("q -> a"))
        graph.add_node("second", lambda state: {"b": "x"}, writes=["b"], **reads)
        return graph.add_path(START, "first", "second", END)

    assert judge(play(build(), [{"a": "x"}]), "a", "b").shares == {"first": 1.0}
    assert judge(play(build(reads=["q"]), [{"a": "x"}]), "a", "b").shares == {"first": 0.5, "second": 0.5}


# --- decisions


class Routed(BaseModel):
    q: str
    label: str = ""
    notes: str = ""
    answer: str = ""


def routed(reads: str = "q", writes: bool = True) -> Graph:
    graph = Graph(Routed)
    graph.add_node("prepare", lambda: {"notes": "n"}, writes=["notes"])
    router = dspy.Predict(f"{reads} -> label: Literal['left', 'right']")
    ways = {"left": "left", "right": "right"}
    graph.add_conditional_edges("prepare", router, ways, writes="label" if writes else None)
    graph.add_node("left", dspy.Predict("q -> notes, answer"))
    graph.add_node("right", dspy.Predict("q -> answer"))
    graph.add_node("last", dspy.Predict("q, answer, notes -> c"), writes={"c": "answer"})
    graph.add_edge(START, "prepare")
    return graph.add_edge(["left", "right"], "last").add_edge("last", END)


def test_a_router_stands_under_its_own_name_and_what_it_leads_to_is_no_culprit() -> None:
    run = play(routed(), [{"label": "right"}, {"answer": "x"}, {"c": "x"}])
    found = judge(run, "label", "answer")
    assert found.shares == {"prepare_router": 1.0}
    assert found.not_tunable == ()
    assert feedback(run, "label", "answer") == [
        "`label` is 'right', expected 'left'.",
        "`answer` follows from `label`, which was already wrong: nothing to fix here.",
        "`answer` follows from an earlier `answer`, which was already wrong: nothing to fix here.",
    ]


def test_an_unknown_decision_makes_the_router_a_suspect() -> None:
    run = play(routed(writes=False), [{"label": "right"}, {"answer": "x"}, {"c": "x"}])
    assert judge(run, "answer").shares == {"prepare_router": 0.5, "right": 0.5}


def test_behind_all_arms_a_decision_counts_only_for_what_was_left_out() -> None:
    run = play(routed(), [{"label": "right"}, {"answer": "right"}, {"c": "x"}])
    found = judge(run, "label", "answer")
    assert set(found.shares) == {"prepare_router"}, "left would have written notes, which last has read"
    graph = Graph(Routed)
    graph.add_conditional_edges(START, dspy.Predict("q -> label: Literal['left', 'right']"), ["left", "right"])
    for arm in ("left", "right"):
        graph.add_node(arm, dspy.Predict("q -> notes"))
        graph.add_edge(arm, "last")
    graph.add_node("last", dspy.Predict("q -> answer")).add_edge("last", END)
    run = play(graph, [{"label": "left"}, {"notes": "n"}, {"answer": "x"}])
    assert judge(run, "answer").shares == {"last": 1.0}, "it runs in any case, and has read neither"


def test_a_command_is_a_decision() -> None:
    def decide(q: str, ask: Any) -> Command[Literal["good", "bad"]]:
        label = ask(q=q).label
        return Command({"label": label}, "good" if label == "left" else "bad")

    graph = Graph(Routed).add_node("decide", decide, modules={"ask": dspy.Predict("q -> label")}, writes=["label"])
    for arm in ("good", "bad"):
        graph.add_node(arm, dspy.Predict("q -> answer")).add_edge(arm, END)
    graph.add_edge(START, "decide")
    run = play(graph, [{"label": "right"}, {"answer": "x"}])
    assert judge(run, "label", "answer").shares == {"decide": 1.0}
    assert judge(run, "answer").shares == {"decide": 0.5, "bad": 0.5}
    run = play(graph, [{"label": "left"}, {"answer": "x"}])
    assert judge(run, "label", "answer").shares == {"good": 1.0}


# --- loops, checks, failures


class Looped(BaseModel):
    q: str
    a: str = ""
    rounds: int = 0


def looped() -> Graph:
    graph = Graph(Looped)
    graph.add_node("write", dspy.Predict("q -> a"))
    graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"])
    graph.add_path(START, "write", "count")
    return graph.add_conditional_edges("count", lambda rounds: END if rounds > 2 else "write", [END, "write"])


def test_each_visit_of_a_loop_is_judged() -> None:
    run = play(looped(), [{"a": "x"}, {"a": "1"}, {"a": "y"}])
    found = judge(run, "a")
    noted = [(note.visit, note.verdict) for note in found.notes if note.field == "a"]
    assert noted == [(1, "wrong"), (2, "right"), (3, "wrong")]
    assert feedback(run, "a") == ["`a` is 'x', expected '1'.", "`a` is right.", "`a` is 'y', expected '1'."]


@pytest.mark.parametrize("spoil", ["nothing", "copied", "cut", "wrapped"])
def test_a_step_is_found_by_its_execution_and_never_by_its_value(spoil: str) -> None:
    run = play(looped(), [{"a": "x"}] * 2 + [{"a": "1"}])
    metric, prediction, trace = metric_of("a"), run.prediction, list(run.trace)
    expected = ["`a` is 'x', expected '1'."] * 2 + ["`a` is right."]
    if spoil == "copied":
        prediction, trace = copy.deepcopy((prediction, trace))
    if spoil == "cut":  # `max_trace_size` has dropped the oldest
        trace, expected = copy.deepcopy(trace[1:]), expected[1:]
    if spoil == "wrapped":  # the program is a part of a module with steps of its own
        other = (dspy.Predict("x -> y"), {"x": 1}, dspy.Prediction(y=2))
        trace = [other, *trace, other]
    told = [metric(EXAMPLE, prediction, trace, "write", [step]).feedback for step in trace]
    if spoil == "wrapped":
        assert told.pop() == told.pop(0) == "`a` is right.", "a step of another program gets what is known of the goal"
    assert told == expected


def test_a_copy_with_steps_of_others_is_not_guessed_at() -> None:
    run = play(looped(), [{"a": "x"}] * 2 + [{"a": "1"}])
    other = (dspy.Predict("x -> y"), {"x": 1}, dspy.Prediction(y=2))
    for trace in ([other, *run.trace], [other, *run.trace[1:]]):
        copied = copy.deepcopy(trace)
        text = metric_of("a")(EXAMPLE, run.prediction, copied, "write", [copied[1]]).feedback
        assert text == "`a` is right."


class Checked(BaseModel):
    q: str
    a: str = ""
    b: str = ""
    problems: list[str] = []


def is_short(b: str) -> list[str]:
    return ["too long", "too loud"] if len(b) > 3 else []


def checked(**options: Any) -> Graph:
    graph = Graph(Checked)
    graph.add_node("first", dspy.Predict("q -> a"))
    graph.add_node("second", dspy.Predict("a -> b"))
    graph.add_check("is_short", is_short, of="second", max_fixes=2, **options)
    return graph.add_path(START, "first", "second", END)


def test_in_a_check_the_first_node_and_the_correcting_one_are_judged_apart() -> None:
    run = play(checked(), [{"a": "1"}, {"b": "long"}, {"b": "2"}])
    assert judge(run, "a", "b").shares == {"second": 1.0}
    assert feedback(run, "a", "b")[1:] == ["A check refused it: too long; too loud", "`b` is right."]
    run = play(checked(), [{"a": "1"}, {"b": "long"}, {"b": "x"}])
    assert judge(run, "a", "b").shares == {"second": 0.5, "second_fix": 0.5}
    assert feedback(run, "a", "b")[2] == "`b` is 'x', expected '2'."
    run = play(checked(), [{"a": "1"}, {"b": "long"}, {"b": "longer"}, {"b": "2"}])
    assert judge(run, "b").shares == pytest.approx({"second": 0.25, "first": 0.5, "second_fix": 0.25})
    assert judge(run, "a", "b").shares == {"second": 0.5, "second_fix": 0.5}


def test_what_the_checked_node_had_read_wrong_is_no_fault_of_the_fix() -> None:
    run = play(checked(), [{"a": "x"}, {"b": "long"}, {"b": "y"}])
    assert judge(run, "a", "b").shares == {"first": 1.0}
    told = feedback(run, "a", "b")
    assert told[1].startswith("A check refused it: too long; too loud"), "a rejected step always gets the problems"
    assert told[2] == "`b` follows from `a`, which was already wrong: nothing to fix here."


def test_output_that_was_accepted_in_the_end_is_judged_by_its_metric() -> None:
    run = play(checked(accept=True), [{"a": "1"}, {"b": "long"}, {"b": "long"}, {"b": "long!"}])
    assert [note.verdict for note in judge(run, "a", "b").notes if note.field == "b"] == ["wrong"] * 3
    assert feedback(run, "a", "b")[3] == "`b` is 'long!', expected '2'."


@pytest.mark.parametrize(("last", "shares"), [("right", {"react": 1.0}), ("x", {"react": 0.75, "settle": 0.25})])
def test_an_agent_is_the_culprit_for_what_its_check_refused_and_for_what_it_gave_then(
    last: str, shares: dict[str, float]
) -> None:
    def found(answer: str) -> list[str]:
        return ["a draft"] if answer == "draft" else []

    program = agents.tool_loop("question -> answer", [], check=found).compile()
    submitted = [turn(("submit", {"answer": answer})) for answer in ("draft", last)]
    with ScriptedLM(submitted):
        run = program.run({"question": "?"})
    assert judge(run, "answer").shares == shares
    told = feedback(run, "answer")
    assert told[0].startswith("A check refused it: a draft")
    if last == "x":
        expected = "`answer` is 'x', expected 'right'. `answer` is the first field known to be wrong; this step may be "
        assert told[1] == f"{expected}the cause."


class Failing(BaseModel):
    q: str
    a: str = ""
    b: str = ""
    answer: str = ""
    failure: Any = None


def failing(into: str | None) -> Graph:
    def second(a: str) -> dict[str, str]:
        raise ValueError(f"cannot read {a}")

    graph = Graph(Failing).add_node("first", dspy.Predict("q -> a")).add_node("second", second, writes=["b"])
    graph.add_node("third", dspy.Predict("b -> answer")).add_node("sorry", dspy.Predict("q -> answer"))
    graph.add_node("last", dspy.Predict("b -> c"), writes={"c": "answer"})
    graph.add_error_edge("second", "sorry", into=into)
    return graph.add_path(START, "first", "second", "third", "last", END).add_edge("sorry", "last")


@pytest.mark.parametrize("into", ["failure", None])
def test_a_node_that_failed_is_wrong_and_its_failure_is_the_feedback(into: str | None) -> None:
    run = play(failing(into), [{"a": "1"}, {"answer": "x"}, {"c": "x"}])
    found = judge(run, "a", "answer")
    assert found.shares == {"second": 1.0}, "neither the handler nor the reader of what was not written"
    (note,) = [note for note in found.notes if note.node == "second"]
    assert (note.field, note.verdict, note.feedback) == (
        into or "",
        "wrong",
        "`second` failed: ValueError: cannot read 1",
    )
    assert judge(play(failing(into), [{"a": "x"}, {"answer": "x"}, {"c": "x"}]), "a", "answer").shares == {"first": 1}


# --- folded fields


class Noted(BaseModel):
    q: str
    notes: Annotated[list[str], reducers.append] = []
    answer: str = ""


def test_parts_of_a_folded_field_are_judged_together_where_branches_join() -> None:
    graph = Graph(Noted)
    for name in ("one", "two"):
        graph.add_node(name, dspy.Predict("q -> note"), writes={"note": "notes"})
        graph.add_edge(START, name).add_edge(name, "last")
    graph.add_node("last", dspy.Predict("notes: list[str] -> answer")).add_edge("last", END)
    script = [{"note": "1"}, {"note": "2"}, {"answer": "x"}]
    run = play(graph, script, max_concurrency=1)
    example = dspy.Example(notes=["1", "2"], answer="right")
    seen: list[list[str]] = []

    def complete(example: Any, notes: list[str]) -> bool:
        seen.append(notes)
        return bool(notes == example.notes)

    found = culprits(run, example, by_field({"notes": complete, "answer": equals("answer")}, goal="answer"))
    assert (found.shares, seen) == ({"last": 1.0}, [["1", "2"]])
    example = dspy.Example(notes=["1", "3"], answer="right")
    found = culprits(run, example, by_field({"notes": complete, "answer": equals("answer")}, goal="answer"))
    assert found.shares == {"one": 0.5, "two": 0.5}


def test_workers_are_told_of_the_value_that_they_have_made_together() -> None:
    """The node is the only culprit, but each of its steps may be the cause."""

    def spread(q: str) -> list[Send]:
        return [Send("work", {"item": item}) for item in "ab"]

    graph = Graph(Noted).add_node("work", dspy.Predict("item -> note"), writes={"note": "notes"})
    graph.add_node("last", dspy.Predict("notes: list[str] -> answer")).add_conditional_edges(START, spread, ["work"])
    graph.add_edge("work", "last").add_edge("last", END)
    run = play(graph, [{"note": "1"}, {"note": "2"}, {"answer": "x"}], max_concurrency=1)
    metric = by_field({"notes": equals("notes"), "answer": equals("answer")}, goal="answer")

    def told(**gold: Any) -> tuple[list[str], list[str]]:
        example = dspy.Example(**gold)
        verdicts = [note.verdict for note in culprits(run, example, metric).notes if note.node == "work"]
        texts = [metric(example, run.prediction, run.trace, "work", [step]).feedback for step in run.trace[:2]]
        return verdicts, texts

    assert told(notes=["1", "2"], answer="y") == (["right"] * 2, ["`notes` is right."] * 2)
    text = "`notes` is the first field known to be wrong; this step may be the cause."
    for answer in "xy":
        assert told(notes=["1"], answer=answer) == (
            ["unknown"] * 2,
            [f"`notes` is ['1', '2'], expected ['1']. {text}"] * 2,
        )


def test_a_view_reads_only_what_it_shows() -> None:
    graph = Graph(Noted)
    graph.add_node("one", dspy.Predict("q -> note"), writes={"note": "notes"})
    graph.add_node("two", dspy.Predict("q -> note"), writes={"note": "notes"})
    graph.add_node("last", dspy.Predict("notes: list[str] -> answer"), reads={"notes": view("notes").by("two")})
    run = play(graph.add_path(START, "one", "two", "last", END), [{"note": "1"}, {"note": "2"}, {"answer": "x"}])
    assert judge(run, "answer").shares == {"two": 0.5, "last": 0.5}


# --- the metric and the run


def test_each_value_is_judged_once() -> None:
    calls: list[str] = []

    def count(example: Any, **fields: Any) -> bool:
        calls.extend(fields)
        return False

    metric = by_field({"a": count, "b": count, "c": count}, goal="c")
    run = play(chain(), [{"a": "1"}, {"b": "x"}, {"c": "y"}])
    assert metric(EXAMPLE, run.prediction) == 0
    assert calls == ["c"], "the score needs the goal alone"
    for step in run.trace:
        metric(EXAMPLE, run.prediction, list(run.trace), "name", [step])
    culprits(run, EXAMPLE, metric)
    assert sorted(calls) == ["a", "b", "c"]
    culprits(run, dspy.Example(**EXAMPLE), metric)
    assert len(calls) == 6, "another example is judged anew"


def test_a_metric_keeps_no_run_alive_and_can_be_copied() -> None:
    metric, run = metric_of("a", "c"), play(chain(), [{"a": "1"}, {"b": "x"}, {"c": "y"}])
    shares = culprits(run, EXAMPLE, metric).shares
    assert culprits(run, EXAMPLE, copy.deepcopy(metric)).shares == shares
    assert culprits(run, EXAMPLE, pickle.loads(pickle.dumps(metric))).shares == shares
    known = weakref.ref(run)
    del run
    gc.collect()
    assert known() is None


def test_the_state_is_the_one_after_the_commit() -> None:
    states: list[dict[str, Any]] = []

    def note(example: Any, a: str, state: Any) -> None:
        states.append(state.to_dict())

    run = play(chain(), [{"a": "1"}, {"b": "2"}, {"c": "3"}])
    culprits(run, EXAMPLE, by_field({"a": note, "c": equals("c")}, goal="c"))
    assert states == [{"q": "?", "a": "1"}]


class Round(BaseModel):
    text: str = ""
    rounds: int = 0


def test_a_value_that_was_written_again_has_the_state_after_that() -> None:
    """In the second round the node has written the text that was there."""
    graph = Graph(Round).add_node("write", lambda: {"text": "same"}, writes=["text"])
    graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"]).add_path(START, "write", "count")
    graph.add_conditional_edges("count", lambda rounds: "write" if rounds < 2 else END, ["write", END])
    run = graph.compile().run({})

    def second(example: Any, text: str, state: Any) -> bool:
        return bool(state["rounds"] == 1)

    metric = by_field({"text": second}, goal="text")
    assert metric(EXAMPLE, run.prediction) == 1
    found = culprits(run, EXAMPLE, metric)
    assert [note.verdict for note in found.notes if note.field == "text"] == ["wrong", "right"]


def test_a_goal_that_was_not_written_makes_all_that_ran_suspects() -> None:
    graph = Graph(Routed).add_node("left", dspy.Predict("q -> answer")).add_node("right", dspy.Predict("q -> notes"))
    graph.add_conditional_edges(START, dspy.Predict("q -> label: Literal['left', 'right']"), ["left", "right"])
    run = play(graph.add_edge(["left"], END).add_edge("right", END), [{"label": "right"}, {"notes": "n"}])
    assert judge(run, "answer").shares == {"START_router": 0.5, "right": 0.5}
    assert feedback(run, "answer")[1] == "`answer` is '', expected 'right'. This step may be the cause."


def test_culprits_are_data() -> None:
    found = judge(play(chain(), [{"a": "1"}, {"b": "x"}, {"c": "y"}]), "a", "b", "c")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["shares"] == {"second": 1.0}
    assert data["notes"][1] == {
        "commit": "trunk:2",
        "node": "second",
        "visit": 1,
        "field": "b",
        "verdict": "wrong",
        "cause": "second",
        "suspects": ["second"],
        "feedback": "`b` is 'x', expected '2'.",
    }
    assert str(found).splitlines()[2] == "  trunk:2 second (visit 1) b: wrong: `b` is 'x', expected '2'."


def test_a_misfit_is_said_when_a_program_is_first_seen() -> None:
    run = play(chain(), [{"a": "1"}, {"b": "2"}, {"c": "3"}])
    for call in (lambda metric: metric(EXAMPLE, run.prediction), lambda metric: culprits(run, EXAMPLE, metric)):
        with pytest.raises(ValueError, match=r"has no field 'answer'.* Its nodes write 'a', 'b', 'c'"):
            call(metric_of("a", "answer"))
    with pytest.raises(TypeError, match="culprits takes a metric by field"):
        culprits(run, EXAMPLE, equals("a"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"culprits takes a run, and got a Prediction: .* Run\.of\(prediction\)"):
        culprits(run.prediction, EXAMPLE, metric_of("a"))


def test_a_resumed_run_is_refused() -> None:
    graph = Graph().add_node("first", dspy.Predict("q -> a")).add_interrupt("ask", **ASK)
    graph.add_node("third", dspy.Predict("b -> c")).add_path(START, "first", "ask", "third", END)
    program = graph.compile(store=Memory())
    with ScriptedLM([{"a": "1"}, {"c": "3"}]):
        thread = program.thread("t")
        asked = thread.run({"q": "?"})
        with pytest.raises(ValueError, match="this run is interrupted: culprits judges completed runs"):
            judge(asked, "a", "c")
        run = thread.resume({"ask": "2"})
    with pytest.raises(ValueError, match="this run was resumed"):
        judge(run, "a", "c")
    assert metric_of("c")(EXAMPLE, run.prediction) == 1, "its score needs only its state"


def test_answers_of_the_program_are_a_part_of_the_run() -> None:
    graph = Graph().add_node("first", dspy.Predict("q -> a")).add_interrupt("ask", **ASK)
    graph.add_node("third", dspy.Predict("b -> c")).add_path(START, "first", "ask", "third", END)
    run = play(graph, [{"a": "1"}, {"c": "x"}], answers={"ask": "2"})
    assert judge(run, "a", "b", "c").shares == {"third": 1.0}


def test_a_prediction_without_a_run_gets_the_feedback_of_its_goal() -> None:
    metric = metric_of("a", "c")
    prediction = dspy.Prediction(c="x")
    assert metric(EXAMPLE, prediction) == 0
    text = metric(EXAMPLE, prediction, [], "any", [(None, {}, prediction)]).feedback
    assert text == "`c` is 'x', expected '3'."
    assert metric(EXAMPLE, None) == 0


def test_faults_of_one_commit_count_as_one() -> None:
    """A node that is wrong in two fields has no more of the shares than one that is wrong in one."""
    graph = Graph(name="Wide", inputs=["text"]).add_node("both", dspy.Predict("text -> a, b"))
    graph.add_node("one", dspy.Predict("text -> c")).add_edge(START, ["both", "one"])
    program = graph.add_edge(["both", "one"], END).compile()
    metric = by_field({name: equals(name) for name in "abc"}, goal="c")
    example = dspy.Example(text="x", a="1", b="2", c="3").with_inputs("text")
    with dspy.context(lm=ScriptedLM(lambda prompt: {field.name: "?" for field in prompt.output_fields})):
        run = program.run({"text": "x"})
    assert culprits(run, example, metric).shares == {"both": 0.5, "one": 0.5}
