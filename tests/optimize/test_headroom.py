"""`optimize.headroom`: the figures of its table, counted by hand; warnings; what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Budget, CompiledGraph, Graph
from dspyer.errors import BudgetError
from dspyer.optimize import Headroom, by_field, equals, headroom
from tests.optimize.skills import RULES, ChainState, SkillLM, chain, examples, step
from tests.rows import each

pytestmark = pytest.mark.usefixtures("quiet")

BY_FIELD = by_field({field: equals(field) for field in RULES}, goal="c")
NEVER = 5  # of `hard`: a rest of 3 that no number has


def lm_wrong_at(*fields: str, **options: Any) -> SkillLM:
    """An LM that is wrong by 100 in these fields alone, where their input can be divided by 3."""
    return SkillLM(hard={field: 0 if field in fields else NEVER for field in RULES}, **options)


def figures(found: Headroom) -> dict[str, tuple[Any, ...]]:
    return {
        key: (one.right, one.given_right, one.goal_if_gold, one.lost)
        for key, one in ((key, one) for key, one in found.fields.items())
    }


# --- every figure of the table


@pytest.mark.parametrize("threads", [1, 4])
def test_one_field_is_wrong_in_two_of_six_runs(threads: int) -> None:
    """`a` is wrong for n = 0 and 3, and so is what is made of it."""
    lm = lm_wrong_at("a")
    with dspy.context(lm=lm, num_threads=threads):
        found = headroom(chain(), examples(6), BY_FIELD)
    assert (found.goal, found.runs, found.warnings, found.failed) == (4 / 6, 6, [], {})
    assert figures(found) == {
        "a": (4 / 6, 4 / 6, 1, 0),
        "b": (4 / 6, 1, 1, 0),
        "c": (4 / 6, 1, 1, 0),
    }
    # Six runs; of two examples one with all gold, one with that of `a`, one with that of `b`. None reads `c`.
    assert found.lm_calls == len(lm.asked) == 3 * (6 + 2 * 3)
    assert str(found).splitlines() == [
        "goal `c`: 4 of 6 right; 36 LM calls",
        "field  right  given right inputs  goal if it were gold  runs it breaks",
        "a       0.67                0.67                  1.00               0",
        "b       0.67                1.00                  1.00               0",
        "c       0.67                1.00                  1.00               0",
    ]


def test_all_fields_are_wrong_by_themselves() -> None:
    with dspy.context(lm=SkillLM()):
        found = headroom(chain(), examples(3), BY_FIELD)
    assert figures(found) == {"a": (0, 0, 0, 0), "b": (0, 0, 0, 0), "c": (0, 0, 1, 0)}
    assert (found.goal, found.lm_calls) == (0, 3 * (3 + 3 * 3))


def test_what_is_right_costs_one_run_each() -> None:
    with dspy.context(lm=lm_wrong_at()):
        found = headroom(chain(), examples(4), BY_FIELD)
    assert (found.goal, found.lm_calls, figures(found)["b"]) == (1, 12, (1, 1, 1, 0))


@pytest.mark.parametrize("threads", [1, 4])
def test_calls_that_a_cache_has_served_do_not_count(threads: int) -> None:
    lm = lm_wrong_at("a", cache=True)
    dspy.cache.enable_memory_cache = True
    with dspy.context(lm=lm, num_threads=threads):
        found = headroom(chain(), examples(6), BY_FIELD)
        # Of two examples, `b` and `c` are asked about gold.
        assert found.lm_calls == len(lm.asked) == 3 * 6 + 2 * 2
        again = headroom(chain(), examples(6), BY_FIELD)
    assert (again.lm_calls, figures(again)) == (0, figures(found))


def test_keys_without_gold_have_their_share_alone() -> None:
    metric = by_field(
        {"a": lambda example, a: a == example.a, "b": lambda example, b: None, "c": equals("c")}, goal="c"
    )
    with dspy.context(lm=lm_wrong_at("a")):
        found = headroom(chain(), examples(3), metric)
    assert figures(found) == {
        "a": (2 / 3, None, None, None),
        "b": (None, None, None, None),
        "c": (2 / 3, 2 / 3, 1, 0),
    }
    assert [line.split()[1:] for line in str(found).splitlines()[2:4]] == [["0.67", "-", "-", "-"], ["-"] * 4]


class Passed(dspy.Module):
    """Gives what it got."""

    def forward(self, c: int) -> dspy.Prediction:
        return dspy.Prediction(c=c)


def test_a_node_of_a_graph_and_one_that_writes_the_goal_last() -> None:
    """Gold of `edit.c` makes the goal right, though no node reads it; `inner.c` is judged inside, and not twice."""
    inner = Graph(ChainState, name="Inner", inputs=["n"]).add_node("write", dspy.Predict(step("n", "c")))
    graph = Graph(ChainState, name="Editor", inputs=["n"])
    graph.add_node("inner", inner.add_path(START, "write", END).compile(), writes=["c"])
    graph.add_node("edit", Passed(), writes=["c"]).add_path(START, "inner", "edit", END)
    train = [dspy.Example(n=n, c=n + 3).with_inputs("n") for n in range(4)]
    metric = by_field({"c": equals("c"), "inner.c": equals("c"), "edit.c": equals("c")}, goal="c")
    with dspy.context(lm=SkillLM({"c": lambda n: n + 3}, hard={"c": 0})):
        found = headroom(graph.compile(), train, metric)
    assert figures(found) == {
        "c": (None, None, 1, 0),
        "inner.c": (0.5, 0.5, 1, 0),
        "edit.c": (0.5, 1, 1, 0),
    }


def test_a_graph_that_has_another_name_for_what_it_writes() -> None:
    inner = Graph(ChainState, name="Inner", inputs=["n"]).add_node("write", dspy.Predict(step("n", "a")))
    graph = Graph(ChainState, name="Outer", inputs=["n"])
    graph.add_node("inner", inner.add_path(START, "write", END).compile(), writes={"a": "c"})
    train = [dspy.Example(n=n, gold=n + 1).with_inputs("n") for n in range(4)]
    with dspy.context(lm=lm_wrong_at("a")):
        found = headroom(
            graph.add_path(START, "inner", END).compile(), train, by_field({"c": equals("gold")}, goal="c")
        )
    assert figures(found) == {"c": (0.5, 0.5, 1, 0)}


def test_an_editor_that_leaves_a_wrong_draft_as_it_is_has_written_it() -> None:
    class Left(dspy.Module):
        def forward(self, a: int) -> dspy.Prediction:
            return dspy.Prediction(a=a)

    graph = Graph(ChainState, name="Editor", inputs=["n"]).add_node("draft", dspy.Predict(step("n", "a")))
    graph.add_node("edit", Left(), writes=["a"]).add_node("write", dspy.Predict(step("a", "b")))
    metric = by_field({"edit.a": equals("a"), "b": equals("b")}, goal="b")
    with dspy.context(lm=lm_wrong_at("a")):
        found = headroom(graph.add_path(START, "draft", "edit", "write", END).compile(), examples(6), metric)
    assert figures(found) == {"edit.a": (4 / 6, 4 / 6, 1, 0), "b": (4 / 6, 1, 1, 0)}


# --- failures


def failing(where: str) -> CompiledGraph:
    """n -> a -> c, in which a function raises for n = 2."""

    def check(n: int) -> dict[str, Any]:
        if n == 2:
            raise ValueError(f"no {n}")
        return {"b": 0}

    graph = Graph(ChainState, name="Failing", inputs=["n"]).add_node("check", check, writes=["b"])
    graph.add_node("write", dspy.Predict(step("n", "c")))
    return graph.add_path(START, *(["check", "write"] if where == "first" else ["write", "check"]), END).compile()


@each("where, figures_of_c", [("first", (2 / 3, 2 / 3, 3 / 4, 0)), ("last", (3 / 4, 3 / 4, 3 / 4, 0))])
def test_a_run_that_fails_counts_as_wrong_and_is_listed(where: str, figures_of_c: tuple[Any, ...]) -> None:
    train = [dspy.Example(n=n, c=n + 3).with_inputs("n") for n in range(4)]
    metric = by_field({"c": equals("c")}, goal="c")
    lm = SkillLM({"c": lambda n: n + 3}, hard={"c": 1})
    with dspy.context(lm=lm):
        found = headroom(failing(where), train, metric)
    assert (found.goal, figures(found)) == (2 / 4, {"c": figures_of_c})
    assert list(found.failed) == [2]
    assert found.failed[2].startswith("ValueError: no 2")
    assert str(found).splitlines()[-1].startswith("example 2 failed: ValueError: no 2")


def test_a_metric_that_raises_fails_its_run() -> None:
    metric = by_field({"a": lambda example, a: 1 / example.n > 0, "c": equals("c")}, goal="c")
    with dspy.context(lm=lm_wrong_at()):
        found = headroom(chain(), examples(2), metric)
    assert list(found.failed) == [0]
    assert found.failed[0].startswith("ZeroDivisionError: division by zero (in the metric of 'a'; in node ")
    assert (found.goal, figures(found)["c"]) == (0.5, (1, 1, 0.5, 0))


def test_a_run_that_fails_with_gold_is_listed() -> None:
    """Equal errors once; the program itself does not fail."""

    def check(a: int) -> dict[str, Any]:
        if a >= 10:
            raise ValueError("too much")
        return {"b": 0}

    graph = Graph(ChainState, name="Small", inputs=["n"]).add_node("write", lambda n: {"a": n}, writes=["a"])
    graph.add_node("check", check, writes=["b"]).add_path(START, "write", "check", END)
    train = [dspy.Example(n=n, a=n + 10 * (n > 0), b=0).with_inputs("n") for n in range(4)]
    metric = by_field({"a": equals("a"), "b": equals("b")}, goal="b", weights={"a": 1, "b": 1})
    found = headroom(graph.compile(), train, metric)
    assert (found.goal, list(found.failed)) == (1, [1, 2, 3])
    last = str(found).splitlines()[-1]
    assert last.startswith("example 1 and 2 others failed: ValueError: too much (in node 'check' ")
    assert last.endswith("; in a gold run, with gold for `a`)")


def test_a_goal_that_cannot_be_judged_is_listed() -> None:
    metric = by_field({"a": equals("a"), "c": lambda example, c: None if example.n else True}, goal="c")
    with dspy.context(lm=lm_wrong_at()):
        found = headroom(chain(), examples(2), metric)
    assert list(found.failed) == [1]
    assert "the metric of the goal 'c' returned None (cannot tell)" in found.failed[1]


def test_what_code_around_the_graphs_gives_takes_no_gold() -> None:
    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = chain()
            self.name = dspy.Predict(step("n", "d"))

        def forward(self, n: int) -> dspy.Prediction:
            return dspy.Prediction(text=f"{self.name(n=n).d} {self.graph(n=n).c}")

    train = [one.copy(d=1, text=f"1 {one.c}") for one in examples(2)]
    metric = by_field({"d": equals("d"), "c": equals("c"), "text": equals("text")}, goal="text")
    with dspy.context(lm=SkillLM({**RULES, "d": lambda n: n}, hard=dict.fromkeys((*RULES, "d"), NEVER))):
        found = headroom(Program(), train, metric)
    assert {key: one.goal_if_gold for key, one in found.fields.items()} == {"d": None, "c": 0.5, "text": None}


def test_an_open_question_is_listed() -> None:
    graph = Graph(name="Asks", inputs=["n"]).add_interrupt("ask", question="Well?", answer=int, into="c")
    found = headroom(graph.add_path(START, "ask", END).compile(), examples(1), by_field({"c": equals("c")}, goal="c"))
    assert (found.goal, list(found.failed)) == (0, [0])


def test_a_budget_ends_it() -> None:
    lm = lm_wrong_at()
    graph = Graph(ChainState, name="Dear").add_node("write", dspy.Predict(step("n", "a")))
    dear = graph.add_node("more", dspy.Predict(step("a", "b"))).add_path(START, "write", "more", END)
    with dspy.context(lm=lm, num_threads=1), pytest.raises(BudgetError):
        headroom(dear.compile(budget=Budget(requests=1)), examples(30), by_field({"a": equals("a")}, goal="a"))
    assert len(lm.asked) < 10, "what has waited is not run"


# --- warnings


def test_gold_that_breaks_runs_is_named() -> None:
    """`b` is compared with gold in another style, which `c` does not understand."""
    train = [one.copy(b=one.b + 1000) for one in examples(5)]
    with dspy.context(lm=lm_wrong_at()):
        found = headroom(chain(), train, BY_FIELD)
    assert figures(found)["b"] == (0, 0, 0, 5)
    text = "the gold of `b` breaks 5 of 5 runs whose `c` is right: is its metric too strict?"
    assert found.warnings == [text]
    assert str(found).splitlines()[-1] == f"warning: {text}"


@pytest.mark.parametrize("corrected", [True, False])
def test_a_wrong_value_that_was_corrected_is_no_reason_for_a_warning(corrected: bool) -> None:
    """Each first answer is refused; the same metric warns where the wrong answer is kept."""
    graph = Graph(name="Corrected", inputs=["n"]).add_node("a", lambda n: {"a": -n}, writes=["a"])
    graph.add_check("check", lambda a: ["negative"] if a < 0 and corrected else [], of="a", fix=lambda n: {"a": n})
    program = graph.add_node("b", lambda n: {"b": n}, writes=["b"]).add_path(START, "a", "b", END).compile()
    rows = [dspy.Example(n=n).with_inputs("n") for n in range(1, 7)]
    found = headroom(program, rows, by_field({"a": lambda example, a: a > 0, "b": equals("n")}, goal="b"))
    assert (found.goal, found.fields["a"].right) == (1, 0.5 if corrected else 0)
    text = "`a` is wrong in 6 of 6 runs whose `b` is right: is its metric too strict?"
    assert found.warnings == ([] if corrected else [text])


@each(
    ("good", "wrong", "warned"),
    [(5, 1, False), (5, 2, True), (4, 4, False), (10, 2, False), (10, 3, True)],
)
def test_a_field_that_is_wrong_in_good_runs_is_named(good: int, wrong: int, warned: bool) -> None:
    """In more than a fifth of at least five; `a` is judged by a function, so no gold can break a run."""
    metric = by_field({"a": lambda example, a: example.n >= wrong, "c": equals("c")}, goal="c")
    with dspy.context(lm=lm_wrong_at()):
        found = headroom(chain(), examples(good), metric)
    expected = f"`a` is wrong in {wrong} of {good} runs whose `c` is right: is its metric too strict?"
    assert found.warnings == ([expected] if warned else [])


# --- how it is shown, what it refuses


def test_as_json() -> None:
    with dspy.context(lm=lm_wrong_at("a")):
        found = headroom(chain(), examples(3), BY_FIELD)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["fields"]["a"] == {"right": 2 / 3, "given_right": 2 / 3, "goal_if_gold": 1.0, "lost": 0}
    assert {key: told[key] for key in ("goal", "runs", "lm_calls", "name", "warnings", "failed")} == {
        "goal": 2 / 3,
        "runs": 3,
        "lm_calls": 9 + 9,
        "name": "c",
        "warnings": [],
        "failed": {},
    }


def test_as_a_page(tmp_path: Path) -> None:
    found = Headroom(0.5, {}, 2, 7, "c", ["the gold of `<b>` breaks it"], {1: "ValueError: <script>alert(1)</script>"})
    path = found.to_html(tmp_path / "headroom.html")
    assert path.read_text("utf-8").count("<script") == 0
    assert found._repr_html_() in path.read_text("utf-8")


@each(
    ("given", "error", "says"),
    [
        ({"devset": []}, ValueError, "the devset is empty"),
        ({"metric": lambda example, pred: 1}, TypeError, "a metric by field"),
        ({"program": lambda n: n}, TypeError, "headroom takes a program"),
        ({"devset": [{"n": 1}]}, TypeError, r"devset\[0\] is a dict"),
        ({"program": [], "devset": chain()}, TypeError, "headroom takes a program, and got a list"),
        (
            {"devset": [*examples(2), examples(1)[0].copy(a=None)]},
            ValueError,
            r"is None in example 2, which the field 'a' refuses: Input should be a valid integer. For examples without",
        ),
        (
            {"devset": [examples(1)[0].copy(a=[1])]},
            ValueError,
            r"the gold of 'a' is \[1\] in example 0, which the field 'a' refuses: Input should be a valid integer.$",
        ),
        ({"metric": by_field({"d": equals("c")}, goal="d")}, ValueError, "nothing writes 'd'"),
        ({"metric": by_field({"c": equals("gold")}, goal="c")}, ValueError, "the example has no 'gold'"),
    ],
)
def test_what_it_refuses_before_any_call(given: Any, error: type[Exception], says: str) -> None:
    lm = SkillLM()
    with dspy.context(lm=lm), pytest.raises(error, match=says):
        headroom(**{"program": chain(), "devset": examples(1), "metric": BY_FIELD, **given})
    assert lm.asked == []
