"""The trace of one run: nodes, a further attempt, items of a map and DSPy's own spans, as one tree.

python examples/tracing.py                                   # offline: with the scripted answers below
DSPYER_MODEL=openai/gpt-4o-mini python examples/tracing.py   # with a real model

It needs opentelemetry-sdk and openinference-instrumentation-dspy. The spans are kept in memory here. To send them to
Phoenix, Jaeger or any other tool that takes OTLP, replace the exporter: see the guide on tracing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import dspy
from model import language_model
from openinference.instrumentation.dspy import DSPyInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.testing import ScriptedLM, no_pauses

PAGES = {"tides": "The moon pulls the water.", "bridges": "A bridge of 418 m.", "bread": "Flour, water, salt."}


class Desk(BaseModel):
    """A question, what was found about it, and the answer."""

    question: str
    topics: list[str] = []
    pages: list[str] = []
    limits: str = ""
    answer: str = ""


def list_topics(question: str) -> dict[str, list[str]]:
    """Return the topics of a question."""
    return {"topics": [topic for topic in PAGES if topic[:-1] in question]}


def fetch(topic: str) -> str:
    """Return the page of a topic."""
    return PAGES[topic]


def read_limits(ctx: Context) -> dict[str, str]:
    """Return what must not be said; the server answers the second request."""
    if ctx.attempt == 1:
        raise ConnectionError("the server is busy")
    return {"limits": "no prices"}


def desk() -> CompiledGraph:
    """Build the graph: read the pages and the limits at once, then answer."""
    graph = Graph(Desk, name="Desk", inputs=["question"])
    graph.add_node("topics", list_topics, writes=["topics"])
    graph.add_map("fetch", fetch, over="topics", item="topic", into="pages")
    graph.add_node("limits", read_limits, writes=["limits"], retry=3)
    graph.add_node("answer", dspy.Predict("question, pages: list[str], limits -> answer"))
    graph.add_edge(START, ["topics", "limits"]).add_edge("topics", "fetch").add_edge(["fetch", "limits"], "answer")
    return graph.add_edge("answer", END).compile()


def start_tracing() -> InMemorySpanExporter:
    """Set the tracer provider of the program; dspyer and OpenInference use it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    DSPyInstrumentor().instrument()
    return exporter


def show(spans: Sequence[ReadableSpan], parent: int | None = None, depth: int = 0) -> None:
    """Print spans as a tree, each with its attempts that failed or its exception."""
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if (None if span.parent is None else span.parent.span_id) == parent:
            told = [str((event.attributes or {}).get("exception.message", "")) for event in span.events]
            print("  " * depth + span.name, *[f"({message})" for message in told if message])
            show(spans, span.context.span_id, depth + 1)


def main() -> None:
    """Run the desk once, and print its trace."""
    exporter = start_tracing()
    scripted = None if os.environ.get("DSPYER_MODEL") else ScriptedLM([{"answer": "The moon, at a bridge of 418 m."}])
    with dspy.context(lm=scripted or language_model()), no_pauses():
        run = desk().run({"question": "Do tides move bridges?"})
    show(exporter.get_finished_spans())
    print(run.state["answer"])


if __name__ == "__main__":
    main()
