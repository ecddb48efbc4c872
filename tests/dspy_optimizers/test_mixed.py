"""Optimizers on graphs with async nodes, `Send`, `Command`, and on plain modules that contain a graph."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest

from dspyer import END, START, Command, Graph, Send
from tests.dspy_optimizers import table
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import LABEL, PAIRS, Ask, exact, fork, shared

CHAIN, FORK = PAIRS[:2]


async def tidy(question: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"text": question.strip()}


async def rate(text: str, judge: Any) -> dict[str, Any]:
    return {"rating": (await judge.acall(text=text)).rating}


def with_async_nodes() -> Any:
    graph = Graph(name="Tidying").add_node("tidy", tidy, writes=["text"])
    graph.add_node("rate", rate, modules={"judge": dspy.Predict("text -> rating")}, writes=["rating"])
    graph.add_node("mood", dspy.Predict("text -> mood"))
    graph.add_node("label", dspy.Predict(f"text, rating, mood -> {LABEL}"))
    graph.add_edge(START, "tidy").add_edge("tidy", ["rate", "mood"]).add_edge(["rate", "mood"], "label")
    return graph.add_edge("label", END).compile()


def split(question: str) -> list[Send]:
    return [Send("read", {"part": part}) for part in question.split(", ")]


def with_sends() -> Any:
    graph = Graph(name="Sending", merge={"found": "combine_lists", "note": "last_write_wins"})
    graph.add_node("begin", lambda question: {"seen": question}, writes=["seen"])
    graph.add_node("read", dspy.Predict("part -> note"))
    graph.add_node("label", dspy.Predict(f"note, question -> {LABEL}"))
    graph.add_edge(START, "begin").add_conditional_edges("begin", split, ["read"])
    return graph.add_path("read", "label", END).compile()


def decide(mood: str) -> Command[Literal["angry", "calm"]]:
    return Command(update={"decided": mood}, goto="angry" if mood == "angry" else "calm")


def with_commands() -> Any:
    graph = Graph(name="Commanding")
    graph.add_node("mood", dspy.Predict("question -> mood: Literal['angry', 'calm']"))
    graph.add_node("decide", decide, writes=["decided"])
    graph.add_node("angry", dspy.Predict(f"question -> {LABEL}"))
    graph.add_node("calm", dspy.Predict(f"question -> {LABEL}"))
    return graph.add_path(START, "mood", "decide").add_edge(["angry", "calm"], END).compile()


MIXED = [
    (with_async_nodes, table.gepa),
    (with_sends, table.infer_rules),
    (with_commands, table.mipro),
    (with_async_nodes, table.finetune),
]


@pytest.mark.parametrize(("make", "tune"), MIXED)
def test_nodes_of_every_kind_are_tuned(make: Any, tune: Any) -> None:
    lm = NotingLM()
    program = make()
    if tune is table.finetune:
        program.set_lm(lm)
    with dspy.context(lm=lm):
        tuned = tune(program, CHAIN.trainset, lm)
        assert tuned(question="When does the train leave, please?").label in {"north", "south", "east"}
        assert asyncio.run(tuned.acall(question="Is the soup hot?")).label in {"north", "south", "east"}
    if tune is table.finetune:
        assert len(lm.provider.jobs[0]) >= len(tuned.predictors())


def test_nodes_of_every_kind_get_demos() -> None:
    for make in (with_async_nodes, with_sends, with_commands):
        lm = NotingLM()
        with dspy.context(lm=lm):
            tuned = table.bootstrap(make(), CHAIN.trainset, lm)
            assert tuned(question="When does the train leave, please?").label in {"north", "south", "east"}
        visited = {name for name, predictor in tuned.named_predictors() if predictor.demos}
        assert visited >= {name for name, _ in tuned.named_predictors()} - {"angry", "calm"}, make.__name__
        assert visited


class Around(dspy.Module):
    """A plain module with graphs as parts."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fork()
        self.more = [shared()]
        self.last = dspy.Predict(Ask)

    def forward(self, question: str) -> dspy.Prediction:
        label = self.graph(question=question).label
        again = self.more[0](question=f"{question} ({label})").label
        return self.last(question=f"{question} ({again})")


@pytest.mark.parametrize("tune", [table.bootstrap, table.gepa, table.simba, table.grpo])
def test_a_graph_inside_a_handwritten_module_is_tuned(tune: Any, tmp_path: Path) -> None:
    lm = NotingLM()
    program = Around()
    if tune is table.grpo:
        program.set_lm(lm)
    names = ["graph.topic.predict", "graph.mood", "graph.label", "more[0].first", "more[0].second", "last"]
    assert [name for name, _ in program.named_predictors()] == names

    with dspy.context(lm=lm):
        tuned = tune(program, FORK.trainset, lm)
        expected = tuned(question="Is the soup hot?").label
        tuned.save(tmp_path / "around.json")
        loaded = Around()
        loaded.load(tmp_path / "around.json", allow_unsafe_lm_state=True)
        assert loaded(question="Is the soup hot?").label == expected
    assert [name for name, _ in tuned.named_predictors()] == names
    assert {name: p.dump_state() for name, p in loaded.named_predictors()} == {
        name: p.dump_state() for name, p in tuned.named_predictors()
    }


def test_infer_rules_on_a_module_around_a_graph_keeps_to_the_graphs_own_classes() -> None:
    lm = NotingLM()
    program = Around()
    with dspy.context(lm=lm):
        table.infer_rules(program, FORK.trainset, lm)

    graphs = [predictor for name, predictor in program.named_predictors() if name != "last"]
    assert not any("following rules" in predictor.signature.instructions for predictor in graphs)
    # the module's own predictor holds the user's class, and DSPy writes to that
    Ask.instructions = "Say which desk takes the question."


def test_tuned_graph_as_a_node_is_run_as_it_was_tuned() -> None:
    lm = NotingLM()
    with dspy.context(lm=lm):
        inner = table.bootstrap(CHAIN.graph(), CHAIN.trainset, lm)
        graph = Graph(name="Outer").add_node("inner", inner).add_node("facts", dspy.Predict("label -> facts"))
        program = graph.add_path(START, "inner", "facts", END).compile()
        assert program(question="Is the soup hot?").label == inner(question="Is the soup hot?").label
        tuned = table.bootstrap(program, CHAIN.trainset, lm)

    assert [name for name, _ in tuned.named_predictors()] == ["facts"]
    assert len(tuned.facts.demos) == 2
    assert [len(predictor.demos) for predictor in tuned.inner.predictors()] == [2, 2]


def test_evaluation_continues_after_a_failed_example() -> None:
    """A node that raises fails its example and nothing else, as in a plain module."""

    def fragile(question: str) -> dict[str, Any]:
        if "soup" in question:
            raise ValueError("no soup")
        return {"text": question}

    graph = Graph(name="Fragile").add_node("fragile", fragile, writes=["text"])
    graph.add_node("label", dspy.Predict(f"text -> {LABEL}"))
    program = graph.add_path(START, "fragile", "label", END).compile()
    with dspy.context(lm=NotingLM()), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dspy.utils.parallelizer.logger.error", lambda *_: None)
        result = dspy.Evaluate(devset=CHAIN.trainset, metric=exact, num_threads=4, display_progress=False)(program)
    assert [dict(prediction) == {} for _, prediction, _ in result.results].count(True) == 1
