"""`optimize.cache`: runs are the same with results from the folder, and an optimization asks for nothing twice."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Retry, Run, optimize
from dspyer.errors import StoreError
from dspyer.search import best_of
from dspyer.testing import ScriptedLM, no_pauses
from tests.optimize.skills import ONE_EACH, SkillLM, candidates, chain, examples

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(autouse=True)
def _no_cache_of_dspy(own_dspy_cache: None) -> None:
    """What is spared is spared by the block alone."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


class Doc(BaseModel):
    title: str


class Desk(BaseModel):
    question: str = ""
    docs: list[str] = []
    notes: list[str] = []
    doc: Doc | None = None
    kind: str = ""
    draft: str = ""
    answer: str = ""
    problems: list[str] = []


def answers(prompt: Any) -> dict[str, Any]:
    """What the LM says: a function of the prompt alone. A check refuses each first answer."""
    text = f"{' '.join(prompt.inputs.values())}|{prompt.instructions[:40]}"
    found: dict[str, Any] = {}
    for field in prompt.output_fields:
        if field.name == "problems":
            found["problems"] = [] if "previous" in str(dict(prompt.inputs)) else ["say it again"]
        elif field.choices:
            found[field.name] = field.choices[len(text) % len(field.choices)]
        else:
            json = {"doc": {"title": text[:20]}, "next_tool_args": {"place": "town"}}
            found[field.name] = json.get(field.name, f"{field.name} of {text}")
    return found


def everything() -> Any:
    """Modules in nodes, an item of a map, a router, a check, its fix, a search and a graph inside."""
    inner = Graph(Desk, name="Inner", inputs=["question"], outputs=["kind"])
    inner.add_node("sort", dspy.ChainOfThought("question -> kind: Literal['a', 'b']"))
    graph = Graph(Desk, name="Everything", inputs=["question", "docs"])
    graph.add_node("inner", inner.add_path(START, "sort", END).compile())
    graph.add_node("read", dspy.Predict(dspy.Signature("question: str -> doc").with_updated_fields("doc", type_=Doc)))
    graph.add_map("notes", dspy.Predict("item -> note"), over="docs", item="item", into="notes")
    graph.add_node("draft", best_of(dspy.Predict("question -> draft"), 2, lambda draft: float(len(draft))))
    graph.add_node("answer", dspy.ChainOfThought("question, draft, notes: list[str] -> answer"), retry=Retry(2))
    graph.add_check("good", dspy.Predict("answer -> problems: list[str]"), of="answer", max_fixes=1, accept=True)
    graph.add_path(START, "inner", "read", "notes", "draft", "answer")
    after = dspy.Predict("answer -> next: Literal['stop', 'end']")
    return graph.add_conditional_edges("answer", after, {"stop": END, "end": END}).compile()


def facts(run: Run) -> Any:
    """All of a run that must not depend on the block."""
    commits = [(one.id, one.node, dict(one.patch), one.route, one.version) for one in run.commits]
    steps = [(step.execution, step.node, step.inputs, dict(step.outputs), step.status) for step in run.trace_steps]
    return run.status, commits, run.state.to_dict(), steps, repr(run.prediction)


class Holding(dspy.Module):
    """A module with a value that no key can tell."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")
        self.value = value

    def forward(self, question: str) -> dspy.Prediction:
        return self.ask(question=question)


def look(place: str) -> str:
    """A tool."""
    return place


def one(module: Any = None, **options: Any) -> Any:
    graph = Graph(name="One", inputs=["question"])
    graph.add_node("answer", module or dspy.Predict("question -> answer"), writes=["answer"], **options)
    return graph.add_path(START, "answer", END).compile()


def changed(change: Callable[[Any], object]) -> Any:
    program = one()
    change(program.answer)
    return program


def instructed(predictor: Any) -> None:
    predictor.signature = predictor.signature.with_instructions("Be brief.")


ASK = {"question": "Where?", "docs": ["north", "south", "north"]}
OTHERS: dict[str, Callable[[], Any]] = {
    "instructions": lambda: changed(instructed),
    "demos": lambda: changed(lambda predictor: predictor.demos.append(dspy.Example(question="q", answer="a"))),
    "settings": lambda: one(dspy.Predict("question -> answer", temperature=0.5)),
    "class": lambda: one(dspy.ChainOfThought("question -> answer")),
    "tool": lambda: one(dspy.ReAct("question -> answer", tools=[look], max_iters=1)),
}
NOT_KEPT: dict[str, Callable[[], Any]] = {
    "has cache=False": lambda: one(dspy.Predict("question -> answer", cache=False)),
    "Holding.value is a lock": lambda: one(Holding(threading.Lock())),
    "is a compiled graph": lambda: one(Holding(one())),
}


@pytest.mark.slow("one item for all runs with the block, which is cut soon")
def test_a_run_with_results_from_the_folder_is_the_same_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = everything()
    with ScriptedLM(answers, cache=True) as plain:
        expected = facts(program.run(ASK))
    with ScriptedLM(answers, cache=True) as cold, optimize.cache(tmp_path / "all") as spared:
        assert facts(program.run(ASK)) == expected
    assert len(cold.calls) == len(plain.calls) - 1, "two documents are the same"
    assert "sort" in str(spared)
    with dspy.context(lm=ScriptedLM([], cache=True)), optimize.cache(tmp_path / "all") as spared:
        for run in (program.run(ASK), asyncio.run(program.arun(ASK))):
            assert facts(run) == expected
            assert not run.usage
    counts = list(spared.to_dict().values())
    assert sum(count["lm_spared"] for count in counts) == 2 * len(plain.calls)
    assert not sum(count["calls"] for count in counts)

    # what differs, and what cannot be told from others, is called
    question, called = {"question": "Where?"}, {}
    with dspy.context(lm=ScriptedLM(answers, cache=True)), optimize.cache(tmp_path / "one") as spared:
        one().run(question)
        for name, make in OTHERS.items():
            before = spared.to_dict()["answer"]["lm_calls"]
            assert make().run(question).status == "completed"
            called[name] = spared.to_dict()["answer"]["lm_calls"] > before
    assert called == dict.fromkeys(OTHERS, True)
    caplog.clear()
    for reason, make in NOT_KEPT.items():
        with ScriptedLM(answers, cache=True) as lm, optimize.cache(tmp_path / "none"):
            runs = [make().run(question) for _ in range(2)]
        assert (len(lm.calls), [one.commits[-1].cached for one in runs]) == (2, [False, False]), reason
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [reason for reason in NOT_KEPT if not any(reason in text for text in told)] == []
    with ScriptedLM(answers, cache=True) as lm, optimize.cache(tmp_path / "one"):
        assert not one(cache=False).run(question).commits[-1].cached

    # errors and refused values are not kept, and a later attempt is under the key of the first
    class Strict(BaseModel):
        question: str
        answer: Literal["good", ""] = ""

    graph = Graph(Strict, inputs=["question"]).add_node("answer", dspy.Predict("question -> answer"), retry=Retry(2))
    strict = graph.add_path(START, "answer", END).compile()
    script = [RuntimeError("down"), {"answer": "bad"}, {"answer": "good"}]
    with no_pauses(), ScriptedLM(script, cache=True), optimize.cache(tmp_path / "strict"):
        assert [strict.run(question).status for _ in range(3)] == ["failed", "completed", "completed"]

    # a folder of something else is refused before anything runs
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("all of it")
    for path, error in ((tmp_path / "thesis", StoreError), ("", TypeError)):
        with pytest.raises(error), optimize.cache(path):
            raise AssertionError("the block began")


def fair(example: Any, b: int) -> Any:
    """A field metric that asks an LM."""
    return JUDGE(value=str(b), expected=str(example.b)).verdict == "yes"


JUDGE = dspy.Predict("value, expected -> verdict")


def verdict(prompt: Any) -> dict[str, str]:
    return {"verdict": "yes" if prompt.inputs["value"] == prompt.inputs["expected"] else "no"}


@pytest.mark.slow("three optimizations by two optimizers each: without the block, on a new folder, and again")
def test_an_optimization_that_is_started_again_asks_for_nothing_again(tmp_path: Path) -> None:
    """The runs of candidates, rollouts, verdicts of a metric that asks an LM, and reflections are in the folder."""
    fields = {"a": optimize.equals("a"), "b": fair, "c": optimize.equals("c")}
    metric = optimize.by_field(fields, goal="c")

    def optimized(lm: SkillLM, strong: SkillLM) -> tuple[Any, Any, Any, int]:
        JUDGE.lm = judge = ScriptedLM(verdict, cache=True)
        try:
            with dspy.context(lm=lm):
                gepa = optimize.GEPA(metric, reflection_lm=strong, max_metric_calls=30, num_threads=1, track_stats=True)
                tuned = gepa.compile(chain(), trainset=examples(6), valset=examples(4, 100))
                few = optimize.FewShot(metric, rollouts=2, max_labeled_demos=0)
                taught = few.compile(chain(), trainset=examples(4))
        finally:
            JUDGE.lm = None
        found = (candidates(tuned), tuned.detailed_results.val_subscores, taught.dump_state())
        return found, gepa.stats, len(judge.calls), len(lm.asked)

    lms = [SkillLM(hard=ONE_EACH, cache=True) for _ in range(3)]
    expected, *_ = optimized(lms[0], SkillLM())
    stats = []
    for lm in lms[1:]:
        strong = SkillLM()
        with optimize.cache(tmp_path):
            found, stat, verdicts, calls = optimized(lm, strong)
        assert found == expected
        assert stat.reflection_calls == len(strong.asked)
        assert sum(row.lm_calls for row in stat.nodes.values()) <= calls
        stats.append((verdicts > 0, calls > 0, stat.reflection_calls, stat.reflection_cached))
    assert stats == [(True, True, stats[0][2], 0), (False, False, 0, stats[0][2])]
    assert stats[0][2] > 0
    assert sum(row.lm_spared for row in stat.nodes.values()) == 3 * (stat.metric_calls + stat.metric_spared)
