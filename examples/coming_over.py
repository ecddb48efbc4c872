"""A support desk of LangGraph (`support_langgraph.py`) is converted, gets predictors node by node, and is tuned.

python examples/coming_over.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/coming_over.py   # with a real model: some 500 calls
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dspy
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.types import Command
from model import language_model
from support_langgraph import app
from triage import Classify, Judge, tickets

from dspyer import CompiledGraph
from dspyer.migrate import explain_langgraph, from_langgraph

TRAIN, TEST = 144, 48
FIELDS = ["category", "urgency", "shelves", "articles", "sent"]


def classify(messages: list[AnyMessage], predict: dspy.Predict) -> dict[str, Any]:
    """The node of this name, with a predictor instead of a prompt and a chat model."""
    return {"category": predict(text=messages[-1].content).category}


def judge(messages: list[AnyMessage], predict: dspy.Predict) -> dict[str, Any]:
    return {"urgency": predict(text=messages[-1].content).urgency}


CLASSIFY = {"node": classify, "modules": {"predict": dspy.Predict(Classify)}, "writes": ["category"]}
JUDGE = {"node": judge, "modules": {"predict": dspy.Predict(Judge)}, "writes": ["urgency"]}


def score(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float | bool:
    """Half a point each for category and urgency; a demonstration must have both right."""
    right = [prediction.category == example.category, prediction.urgency == example.urgency]
    return all(right) if trace is not None else sum(right) / 2


def examples(split: Any, count: int) -> list[dspy.Example]:
    """Return tickets as inputs of the graph. Labelled demonstrations need what the predictors read, too: `text`."""
    return [
        dspy.Example(
            messages=[HumanMessage(ticket.text)], text=ticket.text, category=ticket.category, urgency=ticket.urgency
        ).with_inputs("messages")
        for ticket in tickets(split)[:count]
    ]


def in_langgraph(text: str, thread: str) -> dict[str, Any]:
    """Run LangGraph's own graph; it may ask a question, which is answered with yes."""
    config: Any = {"configurable": {"thread_id": thread}}
    state = app.invoke({"messages": [("user", text)]}, config)
    return dict(app.invoke(Command(resume="yes"), config) if "__interrupt__" in state else state)


def in_dspyer(program: CompiledGraph, text: str, thread: str) -> dict[str, Any]:
    """Run the converted graph in the same way: `approve-0` is the first question of the node `approve`."""
    on = program.thread(thread)
    run = on.run({"messages": [("user", text)]})
    return (on.resume({"approve-0": "yes"}) if run.questions else run).state.to_dict()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are equal. The ids of messages, which LangGraph draws at random, are left out."""
    texts = [[(message.type, message.content) for message in state["messages"]] for state in (one, other)]
    return texts[0] == texts[1] and all(one[field] == other[field] for field in FIELDS)


def main() -> None:
    print(explain_langgraph(app))

    program = from_langgraph(app).compile(store=":memory:")
    texts = {f"ticket-{number}": example.text for number, example in enumerate(examples("test", TEST))}
    equal = sum(same(in_langgraph(text, name), in_dspyer(program, text, name)) for name, text in texts.items())
    asked = sum(commit.node == "approve" for name in texts for commit in program.thread(name).history())
    print(f"\nConverted: the same state on {equal} of {TEST} tickets; on {asked} of them a question was answered")

    dspy.configure(lm=language_model())
    evaluate = dspy.Evaluate(devset=examples("test", TEST), metric=score, num_threads=1, display_progress=False)
    steps: dict[str, Mapping[str, Any]] = {
        "converted, with the chat model of before": {},
        "classify is a predictor": {"classify": CLASSIFY},
        "judge, too": {"classify": CLASSIFY, "judge": JUDGE},
    }
    print(f"\nCategory and urgency of {TEST} tickets, with {dspy.settings.lm.model}")
    for what, nodes in steps.items():
        program = from_langgraph(app, nodes=nodes).compile(answers={"approve-0": "yes"})
        with quietly():
            points = evaluate(program).score
        tunable = ", ".join(dict(program.named_predictors())) or "nothing"
        print(f"  {what:<42} {points:5.1f} %   can be tuned: {tunable}")
    optimizer = dspy.BootstrapFewShot(metric=score, max_bootstrapped_demos=8, max_labeled_demos=64)
    with quietly():
        tuned = optimizer.compile(program, trainset=examples("train", TRAIN))
        points = evaluate(tuned).score
    print(f"  {'tuned with BootstrapFewShot':<42} {points:5.1f} %")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "desk.json"
        tuned.save(file)
        program.load(file)
    with quietly():
        points = evaluate(program).score
    print(f"  {'saved, and loaded into the program before':<42} {points:5.1f} %")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the optimizer, which prints a page; only the scores matter here."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
