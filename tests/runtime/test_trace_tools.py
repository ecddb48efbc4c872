"""The tools that DSPy's users look at traces with: OpenInference (Phoenix) and MLflow show the nodes of a graph."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from openinference.instrumentation.dspy import DSPyInstrumentor
from opentelemetry.trace import StatusCode

from dspyer import END, START, Budget, CompiledGraph, Context, Graph
from dspyer.errors import Interrupted
from dspyer.testing import ScriptedLM
from tests.log.processes import end_of, fork
from tests.runtime.traces import tracing, tree_of

ROOT = Path(__file__).parents[2]

# --- OpenInference


def research(store: str | None = None) -> CompiledGraph:
    def ask(ctx: Context) -> dict[str, Any]:
        return {"ok": ctx.interrupt("ok", "go on?")} if store is not None else {"ok": True}

    graph = Graph(name="Research").add_node("ask", ask, writes=["ok"])
    graph.add_node("answer", dspy.Predict("question -> answer")).add_path(START, "ask", "answer", END)
    return graph.compile(store=store)


NODES = """\
  invoke_workflow Research
    invoke_node answer
      Predict.{}
        Predict(StringSignature).forward
          ChatAdapter.{}
            ScriptedLM.{}
    invoke_node ask"""


def tree(method: str) -> str:
    call = "acall" if method == "aforward" else "__call__"
    return f"Research.{method}\n{NODES.format(method, call, call)}"


def instrumented(work: Callable[[], object], file: Path) -> None:
    """Does something in a process of its own, whose modules OpenInference may change; writes the tree to a file."""

    def inside() -> None:
        for own in dspy.Predict.__subclasses__():  # it looks for all of them in `dspy`, those of other tests too
            setattr(dspy, own.__name__, own)
        DSPyInstrumentor().instrument()
        with tracing() as traces, dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "a"})):
            DSPyInstrumentor().uninstrument()
            DSPyInstrumentor().instrument()  # with the provider of this block
            work()
            spans = [(span.name, span.context.trace_id, span.parent is None) for span in traces.spans]
            errors = [span.name for span in traces.spans if span.status.status_code is StatusCode.ERROR]
            file.write_text(json.dumps([tree_of(traces.spans), spans, errors]))

    assert end_of(fork(inside)) == 0


def run_in_a_stream() -> None:
    with research().stream({"question": "?"}) as stream:
        list(stream)


def evaluate() -> None:
    examples = [dspy.Example(question=str(number)).with_inputs("question") for number in range(2)]
    evaluate = dspy.Evaluate(devset=examples, metric=lambda *_: True, num_threads=2, display_progress=False)
    evaluate(research())


WORK: dict[str, tuple[Callable[[], object], str]] = {
    "sync": (lambda: research().run({"question": "?"}), tree("forward")),
    "called": (lambda: research()(question="?"), tree("forward")),
    "async": (lambda: asyncio.run(research().arun({"question": "?"})), tree("aforward")),
    "streamed": (run_in_a_stream, tree("forward")),
    "evaluated": (evaluate, f"{tree('forward')}\n{tree('forward')}"),
}


@pytest.mark.parametrize("how", WORK)
def test_with_openinference_a_run_is_one_tree(how: str, tmp_path: Path) -> None:
    work, expected = WORK[how]
    instrumented(work, tmp_path / "tree")
    shown, spans, errors = json.loads((tmp_path / "tree").read_text())
    assert (shown, errors) == (expected, [])
    assert len({trace for _, trace, _ in spans}) == (2 if how == "evaluated" else 1)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_with_openinference_a_resume_in_another_process_is_in_the_same_tree(how: str, tmp_path: Path) -> None:
    address = str(tmp_path / "runs.db")
    thread = research(address).thread("t")

    def resume() -> None:
        run = thread.resume({"ok": True}) if how == "sync" else asyncio.run(thread.aresume({"ok": True}))
        assert run.status == "completed"

    instrumented(lambda: thread.run({"question": "?"}), tmp_path / "first")
    instrumented(resume, tmp_path / "second")
    (first, begun, failed), (second, resumed, later) = (
        json.loads((tmp_path / name).read_text()) for name in ("first", "second")
    )
    assert failed == later == []  # a question is no error
    assert first == "Research.forward\n  invoke_workflow Research\n    invoke_node ask"
    assert second == tree("forward" if how == "sync" else "aforward")
    assert len({trace for _, trace, _ in [*begun, *resumed]}) == 1
    assert [name for name, _, root in [*begun, *resumed] if root] == ["Research.forward"]


def test_with_openinference_what_may_go_on_is_no_error(tmp_path: Path) -> None:
    """Questions and stops of runs, and of runs inside of nodes; what `program(...)` raises for them is an error."""

    def call(question: str, helper: CompiledGraph, ctx: Context) -> dict[str, Any]:
        return {"ok": ctx.call(helper, {"question": question}).ok}

    def called() -> None:
        with pytest.raises(Interrupted):
            research(":memory:")(question="?")

    def work() -> None:
        outer = Graph(name="Outer").add_node("research", research(":memory:")).add_path(START, "research", END)
        calls = Graph(name="Calls").add_node("call", call, writes=["ok"], modules={"helper": research(":memory:")})
        for graph in (outer, calls.add_path(START, "call", END)):
            program = graph.compile(store=":memory:")
            assert program.thread("t").run({"question": "?"}).status == "interrupted"
            assert asyncio.run(program.thread("u").arun({"question": "?"})).status == "interrupted"
            assert program.run({"question": "?"}).status == "interrupted"
            assert program.run({"question": "?"}, budget=Budget(node_calls=1)).status in ("stopped", "interrupted")
        assert research().run({"question": "?"}, budget=Budget(node_calls=1)).status == "stopped"
        with research().stream({"question": "?"}) as stream:
            next(stream)

    instrumented(work, tmp_path / "runs")
    assert json.loads((tmp_path / "runs").read_text())[2] == []
    instrumented(called, tmp_path / "called")
    assert json.loads((tmp_path / "called").read_text())[2] == ["Research.forward"]


# --- MLflow

SCRIPT = """
import asyncio, json, os, shutil, sys
import dspy, mlflow
from dspyer import END, START, Context, Graph
from dspyer.testing import ScriptedLM

database = sys.argv[1]
mlflow.set_tracking_uri(f"sqlite:///{database}")
mlflow.search_experiments()  # makes the tables, in a hundred transactions
shutil.copy(database, database + ".other")
setting = "true"
other = os.fork()
if not other:
    setting, database = "false", database + ".other"
os.environ["MLFLOW_USE_DEFAULT_TRACER_PROVIDER"] = setting
mlflow.set_tracking_uri(f"sqlite:///{database}")
mlflow.dspy.autolog()

def ask(ctx: Context):
    return {"ok": ctx.interrupt("ok", "go on?")}

def graph():
    return Graph(name="Research").add_node("answer", dspy.Predict("question -> answer"))

program = graph().add_path(START, "answer", END).compile()
asks = graph().add_node("ask", ask, writes=["ok"]).add_path(START, "ask", "answer", END).compile(store=":memory:")
examples = [dspy.Example(question="evaluated").with_inputs("question")]
with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "a"})):
    program.run({"question": "sync"})
    asyncio.run(program.arun({"question": "async"}))
    dspy.Evaluate(devset=examples, metric=lambda *_: True, display_progress=False)(program)
    asks.thread("t").run({"question": "asked"})
    asks.thread("t").resume({"ok": True})
mlflow.flush_trace_async_logging()

def lines(spans, parent=None, depth=0):
    for span in spans:
        if span.parent_id == parent:
            yield "  " * depth + span.name
            yield from lines(spans, span.span_id, depth + 1)

traces = mlflow.search_traces(return_type="list")
assert not [span for trace in traces for span in trace.data.spans if span.status.status_code == "ERROR"]
found = ["\\n".join(lines(trace.data.spans)) for trace in traces]
if other:
    assert os.waitpid(other, 0)[1] == 0
print(json.dumps([setting, found]), flush=True)
os._exit(0)  # the fork has threads' queues of the first, which it cannot end
"""


def mlflow_traces() -> dict[str, list[str]]:
    """The trees by setting: of a process that imports MLflow and makes its tables once, and of its fork."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, f"{folder}/traces.db"],
            env={**os.environ, "MLFLOW_ASYNC_TRACE_LOGGING_MAX_INTERVAL_MILLIS": "50", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines()[-2:])


PREDICTOR = ["Predict.forward", "  ChatAdapter.format", "  ScriptedLM.__call__", "  ChatAdapter.parse"]


def below(*around: str) -> str:
    """A tree that ends with the spans of a predictor."""
    depth = len(around)
    return "\n".join(
        [*("  " * index + name for index, name in enumerate(around)), *("  " * depth + line for line in PREDICTOR)]
    )


@pytest.mark.slow("a process that imports MLflow, which changes DSPy, and makes its tables")
def test_mlflow_shows_the_nodes_only_if_it_uses_the_provider_of_the_program() -> None:
    found = mlflow_traces()
    assert sorted(found["true"]) == sorted([below("Research.forward")] * 4 + ["Research.forward"])
    run = ["Research.forward", "  invoke_workflow Research"]
    asked = "\n".join([*run, "    invoke_node ask"])
    resumed = below("Research.forward", "invoke_workflow Research", "invoke_node answer").replace(
        "    invoke_node answer", "    invoke_node ask\n    invoke_node answer"
    )
    whole = below("Research.forward", "invoke_workflow Research", "invoke_node answer")
    assert sorted(found["false"]) == sorted([whole, whole, whole, asked, resumed])
