"""The same programs twice: as plain DSPy modules, as a user would write them, and as graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import dspy
from pydantic import BaseModel

from dspyer import END, START, Graph, reducers

Label = Literal["north", "south", "east"]
LABEL = "label: Literal['north', 'south', 'east']"

TEXTS: list[tuple[str, str]] = [
    ("My invoice is wrong, the amount was charged twice.", "north"),
    ("When does the train to the airport leave?", "south"),
    ("Is there a vegan dish on the menu?", "east"),
    ("Please refund the charge on my card.", "north"),
    ("The flight is late, which bus may I take?", "south"),
    ("How spicy is the soup?", "east"),
    ("I never got a receipt for the payment.", "north"),
    ("Can I change the seat on the night train?", "south"),
]


class Ask(dspy.Signature):
    """Say which desk takes the question."""

    question: str = dspy.InputField()
    label: Label = dspy.OutputField()


class ChainByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.ChainOfThought("question -> draft")
        self.label = dspy.Predict(f"question, draft -> {LABEL}")

    def forward(self, question: str) -> dspy.Prediction:
        draft = self.draft(question=question).draft
        return dspy.Prediction(draft=draft, label=self.label(question=question, draft=draft).label)


def chain() -> Any:
    graph = Graph(name="Chain")
    graph.add_node("draft", dspy.ChainOfThought("question -> draft"))
    graph.add_node("label", dspy.Predict(f"question, draft -> {LABEL}"))
    graph.add_path(START, "draft", "label", END)
    return graph.compile()


def clean(question: str) -> dict[str, Any]:
    return {"text": " ".join(question.split())}


class ForkState(BaseModel):
    question: str
    text: str = ""
    topic: str = ""
    mood: str = ""
    label: str = ""


class ForkByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.topic = dspy.ChainOfThought("text -> topic")
        self.mood = dspy.Predict("text -> mood: Literal['angry', 'calm']")
        self.label = dspy.Predict(f"topic, mood, text -> {LABEL}")

    def forward(self, question: str) -> dspy.Prediction:
        text = clean(question)["text"]
        topic = self.topic(text=text).topic
        mood = self.mood(text=text).mood
        label = self.label(topic=topic, mood=mood, text=text).label
        return dspy.Prediction(text=text, topic=topic, mood=mood, label=label)


def fork() -> Any:
    graph = Graph(ForkState, name="Fork")
    graph.add_node("score", clean, writes=["text"])  # named like an attribute that optimizers set on a program
    graph.add_node("topic", dspy.ChainOfThought("text -> topic"))
    graph.add_node("mood", dspy.Predict("text -> mood: Literal['angry', 'calm']"))
    graph.add_node("label", dspy.Predict(f"topic, mood, text -> {LABEL}"))
    graph.add_edge(START, "score")
    graph.add_edge("score", ["topic", "mood"])
    graph.add_edge(["topic", "mood"], "label")
    graph.add_edge("label", END)
    return graph.compile()


class LoopState(BaseModel):
    question: str
    parts: list[str] = []
    notes: list[str] = []
    draft: str = ""
    facts: list[str] = []
    label: str = ""
    rounds: Annotated[int, reducers.increment] = 0


def split(question: str) -> dict[str, Any]:
    return {"parts": question.split(", ")}


def judge(facts: list[str], label: str, notes: list[str]) -> dict[str, Any]:
    return {"notes": [*notes, f"{label}: {'; '.join(facts)}"], "rounds": 1}


def enough(rounds: int) -> str:
    return "stop" if rounds >= 2 else "ask"


def pause() -> None:
    return None


class LoopByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.write = dspy.Predict("question, notes: list[str] -> draft")
        self.facts = dspy.Predict("part -> fact")
        self.sort = dspy.Predict(f"question, draft -> {LABEL}")
        self.pause_router = dspy.Predict("draft, label -> verdict: Literal['again', 'done']")

    def forward(self, question: str) -> dspy.Prediction:
        parts = question.split(", ")
        notes: list[str] = []
        rounds = 0
        while True:
            draft = self.write(question=question, notes=notes).draft
            facts = [self.facts(part=part).fact for part in parts]
            label = self.sort(question=question, draft=draft).label
            rounds += 1
            notes = [*notes, f"{label}: {'; '.join(facts)}"]
            if rounds >= 2 or self.pause_router(draft=draft, label=label).verdict == "done":
                return dspy.Prediction(parts=parts, notes=notes, draft=draft, facts=facts, label=label, rounds=rounds)


def loop() -> Any:
    """A fork of a map and a node, their join, a loop, a router that is a function and one that is a predictor."""
    graph = Graph(LoopState, name="Loop")
    graph.add_node("split", split, writes=["parts"])
    graph.add_node("write", dspy.Predict("question, notes: list[str] -> draft"))
    graph.add_map("facts", dspy.Predict("part -> fact"), over="parts", item="part", into="facts")
    graph.add_node("sort", dspy.Predict(f"question, draft -> {LABEL}"))
    graph.add_node("judge", judge, writes=["notes", "rounds"])
    graph.add_node("pause", pause, writes=[])
    graph.add_path(START, "split", "write")
    graph.add_edge("write", ["facts", "sort"])
    graph.add_edge(["facts", "sort"], "judge")
    graph.add_conditional_edges("judge", enough, {"stop": END, "ask": "pause"})
    verdict = dspy.Predict("draft, label -> verdict: Literal['again', 'done']")
    graph.add_conditional_edges("pause", verdict, {"again": "write", "done": END})
    return graph.compile()


class MapByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shorten = dspy.Predict("doc -> summary")
        self.label = dspy.Predict(f"summaries: list[str] -> {LABEL}")

    def forward(self, docs: list[str]) -> dspy.Prediction:
        summaries = [self.shorten(doc=doc).summary for doc in docs]
        return dspy.Prediction(summaries=summaries, label=self.label(summaries=summaries).label)


class MapState(BaseModel):
    docs: list[str]
    summaries: list[str] = []
    label: str = ""


def mapped() -> Any:
    graph = Graph(MapState, name="Mapped")
    graph.add_map("shorten", dspy.Predict("doc -> summary"), over="docs", item="doc", into="summaries")
    graph.add_node("label", dspy.Predict(f"summaries: list[str] -> {LABEL}"))
    graph.add_path(START, "shorten", "label", END)
    return graph.compile()


def search(question: str, rewrite: Any) -> dict[str, Any]:
    return {"query": rewrite(question=question).query.lower()}


class Search(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rewrite = dspy.Predict("question -> query")

    def forward(self, question: str) -> dict[str, Any]:
        return search(question, self.rewrite)


class BoundByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.search = Search()
        self.label = dspy.ChainOfThought(f"question, query -> {LABEL}")

    def forward(self, question: str) -> dspy.Prediction:
        query = search(question, self.search.rewrite)["query"]
        return dspy.Prediction(query=query, label=self.label(question=question, query=query).label)


def bound() -> Any:
    graph = Graph(name="Bound")
    graph.add_node("search", search, modules={"rewrite": dspy.Predict("question -> query")}, writes=["query"])
    graph.add_node("label", dspy.ChainOfThought(f"question, query -> {LABEL}"))
    graph.add_path(START, "search", "label", END)
    return graph.compile()


class NestedByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ChainByHand()
        self.facts = dspy.Predict("question, label -> facts")

    def forward(self, question: str) -> dspy.Prediction:
        inner = self.inner(question=question)
        facts = self.facts(question=question, label=inner.label).facts
        return dspy.Prediction(draft=inner.draft, label=inner.label, facts=facts)


def nested() -> Any:
    graph = Graph(name="Nested")
    graph.add_node("inner", chain())
    graph.add_node("facts", dspy.Predict("question, label -> facts"))
    graph.add_path(START, "inner", "facts", END)
    return graph.compile()


class SharedByHand(dspy.Module):
    """Two predictors of one Signature class: by hand, GRPO cannot tune this and GEPA mixes them up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict(Ask)
        self.second = dspy.Predict(Ask)

    def forward(self, question: str) -> dspy.Prediction:
        label = self.first(question=question).label
        return dspy.Prediction(note=label, label=self.second(question=f"{question} ({label})").label)


def shared() -> Any:
    graph = Graph(name="Shared")
    graph.add_node("first", dspy.Predict(Ask), writes={"label": "note"})
    graph.add_node("hint", lambda question, note: {"hinted": f"{question} ({note})"}, writes=["hinted"])
    graph.add_node("second", dspy.Predict(Ask), reads={"question": "hinted"})
    graph.add_path(START, "first", "hint", "second", END)
    return graph.compile()


@dataclass(frozen=True)
class Pair:
    """One program in both forms."""

    name: str
    by_hand: Callable[[], dspy.Module]
    graph: Callable[[], Any]
    predictors: tuple[str, ...]
    field: str = "question"

    @property
    def trainset(self) -> list[dspy.Example]:
        return [
            dspy.Example(**{self.field: text.split(", ") if self.field == "docs" else text}, label=label).with_inputs(
                self.field
            )
            for text, label in TEXTS
        ]


PAIRS = [
    Pair("chain", ChainByHand, chain, ("draft.predict", "label")),
    Pair("fork", ForkByHand, fork, ("topic.predict", "mood", "label")),
    Pair("loop", LoopByHand, loop, ("write", "facts", "sort", "pause_router")),
    Pair("map", MapByHand, mapped, ("shorten", "label"), field="docs"),
    Pair("bound", BoundByHand, bound, ("search.rewrite", "label.predict")),
    Pair("nested", NestedByHand, nested, ("inner.draft.predict", "inner.label", "facts")),
]
SHARED = Pair("shared", SharedByHand, shared, ("first", "second"))


def exact(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    return float(example.label == getattr(prediction, "label", None))


def generous(example: Any, prediction: Any, trace: Any = None) -> bool:
    """While bootstrapping every answer counts, so that each predictor gets demonstrations."""
    return trace is not None or bool(exact(example, prediction))
