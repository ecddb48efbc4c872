"""Examples from the steps of stored runs: what a node with one predictor has read, and what it gave."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Send, agents, reducers
from dspyer.record import Record
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.kit import turn


class Found(BaseModel):
    word: str
    count: int = 1


class Desk(BaseModel):
    text: str = ""
    token: str = ""
    label: str = ""
    found: Found | None = None
    notes: Annotated[list[str], reducers.extend] = []
    rows: list[str] = []
    all_labels: list[str] = []
    task: str = ""
    report: str = ""


class TwoSteps(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = dspy.Predict("text -> label"), dspy.Predict("text -> label")

    def forward(self, text: str) -> Any:
        self.one(text=text)
        return self.two(text=text)


class Wrapped(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.say = dspy.Predict("text, hint -> label, why")

    def forward(self, text: str) -> Any:
        return self.say(text=text, hint="be short")


def answer(prompt: Prompt) -> Any:
    """An answer by the fields that are asked for."""
    text, asks = prompt.inputs.get("text") or prompt.inputs.get("word", ""), prompt.asks
    if "tool_calls" in asks:
        is_read = "ANTS" in str(prompt.turns)
        return turn(("submit", {"report": "all is there"})) if is_read else turn(("look", {"text": "ants"}))
    known = {"label": text.upper(), "why": "so", "reasoning": "so", "found": {"word": text, "count": 2}, "problems": []}
    return {name: [text] if name == "notes" else known[name] for name in asks}


def run(graph: Graph, inputs: dict[str, Any], **options: Any) -> Record:
    program = graph.compile(store=":memory:", **options)
    with dspy.context(lm=ScriptedLM(answer)):
        thread = program.thread("t")
        assert thread.run(inputs).status == "completed"
    return thread.record()


def node(module: Any, **options: Any) -> Graph:
    return Graph(Desk, inputs=["text", "token"]).add_node("say", module, **options).add_path(START, "say", END)


def lead() -> Graph:
    reader = Graph(name="Reader", inputs=["text"]).add_node("judge", dspy.Predict("text -> label"))
    tools = [agents.tool(reader.add_path(START, "judge", END), name="look", desc="Looks for it.")]
    loop = agents.tool_loop("task -> report", tools, check=dspy.Predict("task, report -> problems: list[str]"))
    graph = Graph(Desk, inputs=["task"]).add_node("lead", loop)
    return graph.add_path(START, "lead", END)


def mapped() -> Graph:
    graph = Graph(Desk, inputs=["rows"])
    graph.add_map("each", dspy.Predict("text -> label"), over="rows", item="text", into="all_labels")
    return graph.add_path(START, "each", END)


def nested() -> Graph:
    inner = Graph(Desk, inputs=["text"], name="Inner").add_node("judge", dspy.Predict("text -> label"))
    graph = Graph(Desk, inputs=["report"])
    graph.add_node("desk", inner.add_path(START, "judge", END), reads={"text": "report"}, writes=["label"])
    return graph.add_path(START, "desk", END)


def sending() -> Graph:
    graph = Graph(Desk, inputs=["text"]).add_node("plan", lambda text: {"task": text}, writes=["task"])
    graph.add_node("say", dspy.Predict("text -> notes: list[str]"))
    graph.add_conditional_edges("plan", lambda text: [Send("say", {"text": one}) for one in ("a", "b")], ["say"])
    return graph.add_edge(START, "plan").add_edge("say", END)


def inside(inner: Graph) -> Graph:
    return Graph(Desk, inputs=["text"]).add_node("desk", inner).add_path(START, "desk", END)


SAID = ({"text": "ants"}, {"label": "ANTS"})
CASES: dict[str, tuple[Any, dict[str, Any], str, list[Any]]] = {
    "a predictor": (lambda: node(dspy.Predict("text -> label")), {"text": "ants"}, "say", [SAID]),
    "with reasoning": (lambda: node(dspy.ChainOfThought("text -> label")), {"text": "ants"}, "say", [SAID]),
    "by other fields": (
        lambda: node(dspy.Predict("word -> why"), reads={"word": "text"}, writes={"why": "task"}),
        {"text": "ants"},
        "say",
        [({"word": "ants"}, {"why": "so"})],
    ),
    "a module around one": (lambda: node(Wrapped(), writes=["label"]), {"text": "ants"}, "say", [SAID]),
    "typed": (
        lambda: node(dspy.Predict(dspy.Signature("text -> found", "Find.").with_updated_fields("found", type_=Found))),
        {"text": "ants"},
        "say",
        [({"text": "ants"}, {"found": Found(word="ants", count=2)})],
    ),
    "what it added": (
        lambda: node(dspy.Predict("text -> notes: list[str]")),
        {"text": "ants"},
        "say",
        [({"text": "ants"}, {"notes": ["ants"]})],
    ),
    "items": (mapped, {"rows": ["a", "b"]}, "each", [({"text": "a"}, {"label": "A"}), ({"text": "b"}, {"label": "B"})]),
    "sent": (
        sending,
        {"text": "x"},
        "say",
        [({"text": "a"}, {"notes": ["a"]}), ({"text": "b"}, {"notes": ["b"]})],
    ),
    "sent in a graph": (lambda: inside(sending()), {"text": "x"}, "desk/say", []),
    "in a graph": (nested, {"report": "ants"}, "desk/judge", [SAID]),
    "in a tool": (lead, {"task": "Read."}, "lead/look/judge", [SAID]),
    "the check of an agent": (
        lead,
        {"task": "Read."},
        "lead/check",
        [({"task": "Read.", "report": "all is there"}, {"problems": []})],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_examples_have_what_the_predictor_got_and_gave(case: str) -> None:
    make, inputs, name, expected = CASES[case]
    found = run(make(), inputs).examples(name)
    assert [(dict(one.inputs()), dict(one.labels())) for one in found] == expected


@pytest.mark.parametrize(
    ("redact", "left"),
    [(["token"], 1), (["label"], 0), (["text"], 0), (lambda path, value: value, 0), (["found.word"], 1)],
)
def test_a_hidden_value_leaves_its_example_out(redact: Any, left: int, caplog: pytest.LogCaptureFixture) -> None:
    record = run(node(dspy.Predict("text -> label")), {"text": "ants", "token": "secret-42"}, redact=redact)
    with caplog.at_level(logging.WARNING, "dspyer"):
        assert len(record.examples("say")) == left
    assert len(caplog.records) == 1 - left
    assert left or "examples of 'say': 1 step is left out" in caplog.messages[0]


def test_text_that_is_hidden_elsewhere_leaves_an_example_out() -> None:
    record = run(node(dspy.Predict("text -> label")), {"text": "so secret-42", "token": "secret-42"}, redact=["token"])
    assert not record.examples("say")


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (lambda: node(TwoSteps(), writes=["label"]), "say"),
        (lambda: node(lambda text: {"label": text}, writes=["label"]), "say"),
        (lambda: node(dspy.Predict("text -> label")), "sya"),
    ],
)
def test_a_node_without_examples_is_an_error_that_lists_the_others(graph: Any, name: str) -> None:
    with pytest.raises(LookupError, match=f"no node '{name}' with one predictor.*Nodes that have some: ('say'|none)$"):
        run(graph(), {"text": "ants"}).examples(name)
