"""A pytest plugin for LangGraph's own tests: the first input of each compiled graph of a test, run by both libraries.

Each run is a forked process, so that the libraries meet the same closures, mocks and counters as the test does, none
of them sees what another has changed, and a run that hangs or dies harms nothing. The test itself goes on with
LangGraph. Where the libraries differ, LangGraph runs once more: if it differs from itself, nothing is shown.

    python -m pytest -p bench.langgraph_recorder --langgraph-outcomes outcomes.jsonl libs/langgraph/tests
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph._internal._config import ensure_config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command

from bench.langgraph_outcomes import plain, same
from dspyer import END, START, Breakpoints, Graph
from dspyer.errors import GraphError
from dspyer.migrate import explain_langgraph, from_langgraph, langgraph_inputs
from dspyer.migrate.conversion import usable_name
from dspyer.migrate.converted_node import text_of
from dspyer.migrate.nested_graphs import CHECKPOINTS

Outcome = Callable[..., dict[str, Any]]  # of a call and of how often a run is continued that stops
ANSWER = "yes"
ROUNDS = 9
STOPPED_INSIDE = "has stopped at a breakpoint: go on?"  # asked for a graph that runs whole; LangGraph asks nothing
OPTIONS: dict[str, Callable[[Call], dict[str, Any]]] = {  # of `from_langgraph`, where the libraries differ
    "extra='drop'": lambda call: {"extra": "drop"},
    "validate=False": lambda call: {"validate": False},
    "goto=...": lambda call: {"goto": {name: list(call.app.builder.nodes) for name in call.app.builder.nodes}},
}
TIMEOUT = 30.0  # seconds of one run
# Parameters of LangGraph's fixtures that do not change what a graph computes: one value of each is enough.
FIXTURES = ("checkpointer", "store", "durability", "cache")
NESTED = ("__pregel_read", "__pregel_send", "__pregel_runtime")  # in the config of a call inside of a node


class Call:
    """One call of a graph: what both libraries are given.

    Args:
        app: the compiled graph.
        given: its input.
        config: the caller's config, the graph's own merged into it.
        options: the other arguments of the call.
        asynchronous: whether the test called the graph's async interface.
    """

    def __init__(self, app: Any, given: Any, config: Any, options: dict[str, Any], asynchronous: bool) -> None:
        self.app = app
        self.given = given
        self.config = ensure_config(getattr(app, "config", None), config)
        self.limit: int | None = (config or {}).get("recursion_limit")
        self.context = options.get("context")
        self.before = options.get("interrupt_before") or app.interrupt_before_nodes
        self.after = options.get("interrupt_after") or app.interrupt_after_nodes
        self.asynchronous = asynchronous

    @property
    def configurable(self) -> dict[str, Any]:
        """What nodes read from the config: without the keys that belong to LangGraph's checkpoints."""
        found = self.config.get("configurable", {})
        return {key: value for key, value in found.items() if not key.startswith(("checkpoint_", "__"))}


def langgraph_outcome(call: Call, rounds: int = 0) -> dict[str, Any]:
    """The last state of a run by LangGraph, all fields of it, and the questions and calls of its nodes.

    With `rounds`, a run that stops is continued so often, and each of its questions gets the answer `ANSWER`.
    """
    # A graph that a test compiled with a checkpointer may need one; a new one, so that the first input is the first.
    saver = InMemorySaver() if call.app.checkpointer or rounds else None
    app = call.app.copy({"checkpointer": saver, "cache": None})
    keys = app.stream_channels_list
    config = {**call.config, "configurable": {"thread_id": "1", **call.configurable}}
    options = {
        "stream_mode": ["values", "updates", "tasks"],
        "output_keys": keys,
        "interrupt_before": call.before,
        "interrupt_after": call.after,
        "context": call.context,
    }
    state: Any = {}
    asked: dict[str, Any] = {}
    stopped = False
    nodes: Counter[str] = Counter()

    def read(mode: str, part: Any) -> None:
        nonlocal state, stopped
        if mode == "values":
            state = part
        elif mode == "tasks":
            nodes.update([part["name"]] if "input" in part else [])
        elif isinstance(part, dict) and "__interrupt__" in part:
            stopped = True
            asked.update({interrupt.id: interrupt.value for interrupt in part["__interrupt__"]})

    async def run(given: Any) -> None:
        async for mode, part in app.astream(given, config, **options):
            read(mode, part)

    given = call.given
    for _ in range(rounds + 1):
        stopped = False
        asked.clear()
        if call.asynchronous:
            asyncio.run(run(given))
        else:
            for mode, part in app.stream(given, config, **options):
                read(mode, part)
        if not stopped:
            break
        given = Command(resume=dict.fromkeys(asked, ANSWER)) if asked else None
    if not isinstance(state, dict) or (list(keys) == ["__root__"] and "__root__" not in state):
        state = {"root": state}
    state = {"root" if key == "__root__" else key: state[key] for key in state if key != "__interrupt__"}
    questions = [text_of(value) for value in asked.values()]
    return outcome("interrupted" if stopped else "completed", state, questions, nodes)


def dspyer_outcome(call: Call, rounds: int = 0, **options: Any) -> dict[str, Any]:
    """The last state of a run by dspyer, or why the graph is refused; `options` are of `from_langgraph`."""
    report = explain_langgraph(call.app)
    str(report)
    try:
        graph = from_langgraph(
            call.app,
            context=call.context,
            store=call.app.store,
            configurable=call.configurable,
            asynchronous=call.asynchronous,
            **options,
        )
    except GraphError as error:
        told = [each for each in error.problems if not each.startswith("the context makes no")]  # it is told no context
        expect(report.problems, told)
        return {"kind": "refused", "problems": list(error.problems)}
    expect(report.problems, ())
    before, after = stops(call.before, graph, call), stops(call.after, graph, call)
    program = graph.compile(
        layers=[Breakpoints(before=before, after=after)], max_steps=call.limit, store=":memory:" if rounds else None
    )
    inputs = langgraph_inputs(call.app, call.given)
    place = program.thread("1") if rounds else program
    run = asyncio.run(place.arun(inputs)) if call.asynchronous else place.run(inputs)
    for _ in range(rounds):
        if run.status != "interrupted":
            break
        answers = {question.id: ANSWER for question in run.questions if not is_stop(question)}
        run = asyncio.run(place.aresume(answers)) if call.asynchronous else place.resume(answers)
    if run.error is not None:
        raise run.error
    nodes = Counter(commit.node for commit in run.commits)
    texts = [question.text for question in run.questions if not is_stop(question)]
    asked = [text for text in texts if not text.endswith(STOPPED_INSIDE)]
    # What graphs inside remember has a field here, and is in a checkpoint of its own there.
    state = {key: value for key, value in run.state.to_dict().items() if key != CHECKPOINTS}
    return outcome(run.status, state, asked, nodes)


def expect(reported: Any, raised: Any) -> None:
    """Checks that the report of a graph has the problems for which the conversion refuses it."""
    if list(reported) != list(raised):
        raise AssertionError(f"explain_langgraph has {list(reported)}, from_langgraph {list(raised)}")


def is_stop(question: Any) -> bool:
    """Whether a run waits at a node that it was compiled to stop at."""
    return question.key in ("before", "after")


def stops(names: Any, graph: Any, call: Call) -> list[str]:
    """The nodes to stop at, by their names in the converted graph."""
    nodes = graph.compile().graph.nodes
    known: dict[str, str] = {}
    for name in call.app.builder.nodes:
        known[name] = usable_name(name, known.values())
    found = known if names == "*" else names
    return [known[name] for name in found if known[name] in nodes]


def outcome(kind: str, state: Any, asked: list[Any], nodes: Counter[str]) -> dict[str, Any]:
    """What a run has led to, as JSON has it."""
    return {"kind": kind, "state": plain(state), "asked": plain(asked), "nodes": dict(sorted(nodes.items()))}


def forked(work: Callable[[], dict[str, Any]], timeout: float = TIMEOUT) -> dict[str, Any]:
    """What `work` returns or raises, in a process that begins as a copy of this one."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, which may hold a lock that the child needs: it would not end, and be killed.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        os.close(reader)
        _child(work, writer)
    os.close(writer)
    data = b""
    end = time.monotonic() + timeout
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    else:
        os.kill(process, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(process, 0)
    if status:
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return {"kind": "died", "text": f"no end within {timeout:g} s" if killed == signal.SIGKILL else f"{status=}"}
    found: dict[str, Any] = json.loads(data)
    return found | {"seconds": round(time.monotonic() - end + timeout, 3)}


def _child(work: Callable[[], dict[str, Any]], writer: int) -> None:
    """The process of one run: it never returns into the test."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    found: list[dict[str, Any]] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  what it raised is the outcome
            found.append({"kind": "error", "type": type(error).__name__, "text": plain(str(error)), "at": place(error)})

    try:
        # A thread of its own: the test may be inside of an event loop, whose thread can start no other.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        with os.fdopen(writer, "wb") as file:
            file.write(json.dumps(found[0]).encode())
        os._exit(0)
    finally:  # whatever happened
        os._exit(1)


def place(error: BaseException) -> str:
    """The file and line that raised an error: says whether it is a library's or the test's."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{'/'.join(trace.tb_frame.f_code.co_filename.split('/')[-3:])}:{trace.tb_lineno}" if trace else ""


class Recorder:
    """Runs the calls of a session of pytest and writes a line for each.

    Args:
        path: the file that the lines are appended to.
        langgraph: a run by LangGraph.
        dspyer: a run by dspyer.
    """

    def __init__(self, path: str, langgraph: Outcome, dspyer: Outcome) -> None:
        self.path = path
        self.langgraph, self.dspyer = langgraph, dspyer
        self.test = ""
        self.seen: list[tuple[Any, Any]] = []  # the graphs themselves: an id may be given again
        self.busy = False

    def record(self, call: Call) -> None:
        """Runs a graph's first call of this test."""
        key = (call.app.builder, (repr(call.before), repr(call.after)))
        if self.busy or not self.test or any(key[0] is old[0] and key[1] == old[1] for old in self.seen):
            return
        self.seen.append(key)
        line: dict[str, Any] = {"test": self.test, "graph": len(self.seen), "asynchronous": call.asynchronous}
        line["subgraphs"] = any(isinstance(spec.runnable, Pregel) for spec in call.app.builder.nodes.values())
        if call.given is None or isinstance(call.given, Command):
            line["left_out"] = "the first call has no input: it resumes, or reads a checkpoint of the test"
        else:
            self.busy = True
            try:
                line |= self.outcomes(call)
            finally:
                self.busy = False
        with Path(self.path).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def outcomes(self, call: Call) -> dict[str, Any]:
        """The outcome of each engine; of the first alone, if it does not end."""
        explain_langgraph(call.app)  # reads the source of the test here, and not again in each process
        first = forked(lambda: self.langgraph(call))
        if first["kind"] == "died":
            return {"left_out": f"the graph does not end by itself: {first['text']}"}
        found = {"langgraph": first, "dspyer": forked(lambda: self.dspyer(call))}
        if first["kind"] == found["dspyer"]["kind"] == "interrupted":
            found["langgraph_end"] = forked(lambda: self.langgraph(call, ROUNDS))
            found["dspyer_end"] = forked(lambda: self.dspyer(call, ROUNDS))
        if not same(first, found["dspyer"]):
            found["again"] = forked(lambda: self.langgraph(call))
            if found["dspyer"]["kind"] not in ("refused", "interrupted"):
                for name, options in OPTIONS.items():
                    found[f"dspyer {name}"] = forked(lambda options=options: self.dspyer(call, **options(call)))
        return found

    def hook(self, original: Any, asynchronous: bool) -> Any:
        """`Pregel.stream` or `astream`, which all other calls of a graph go through, with a look at its arguments."""

        def stream(app: Any, given: Any, config: Any = None, **options: Any) -> Any:
            nested = any(key in ensure_config(config).get("configurable", {}) for key in NESTED)
            if isinstance(app, CompiledStateGraph) and not nested and not self.busy:
                self.record(Call(app, given, config, options, asynchronous))
            return original(app, given, config, **options)

        return stream

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """While tests run."""
        stream, astream = Pregel.stream, Pregel.astream
        Pregel.stream, Pregel.astream = self.hook(stream, False), self.hook(astream, True)
        try:
            yield
        finally:
            Pregel.stream, Pregel.astream = stream, astream

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """One test."""
        self.test, self.seen = item.nodeid, []
        try:
            return (yield)
        finally:
            self.test, self.seen = "", []

    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        """Leaves the first of the tests that differ only in where checkpoints, memories or cached values are."""
        first: dict[Any, pytest.Item] = {}
        for item in items:
            given = item.callspec.params if hasattr(item, "callspec") else {}
            other = {key: repr(given[key]) for key in given if not any(name in key for name in FIXTURES)}
            first.setdefault((item.nodeid.partition("[")[0], tuple(sorted(other.items()))), item)
        kept = list(first.values())
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def import_all() -> None:
    """Imports what a conversion and the first run of a program import: each forked process would do it again."""
    graph = Graph().add_node("n", lambda state: {"n": 1}).add_path(START, "n", END)
    graph.compile().run({})
    graph.compile(store=":memory:").thread("1").run({})


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file of the outcomes."""
    parser.addoption("--langgraph-outcomes", help="file that a JSON line is appended to for each graph")


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Any:
    """Hooks LangGraph for the session."""
    path = session.config.getoption("--langgraph-outcomes")
    if path:
        import_all()
        recorder = Recorder(path, langgraph_outcome, dspyer_outcome)
        session.config.pluginmanager.register(recorder)
        hooks = contextlib.ExitStack()
        hooks.enter_context(recorder.hooked())
        session.config.add_cleanup(hooks.close)
    return (yield)
