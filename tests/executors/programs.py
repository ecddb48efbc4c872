"""Programs and LMs that a worker process can import, and one case per feature of a run."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import dspy
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import END, START, Budget, Command, CompiledGraph, Context, Failure, Graph, Retry, Send, agents, reducers
from dspyer.search import best_of
from dspyer.testing import NearestLM, Prompt
from tests.dspy_optimizers.lm import Sampling, WriterLM, written

# --- an LM whose answers depend on the prompt alone, in every process


LOOK_UP = {"name": "look_up", "args": {"word": "bee"}}


class Words:
    """Answers by a hash of field, inputs and rollout; notes each call as a line of a file that processes share."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def write(self, prompt: Prompt, sampling: Sampling, /) -> str:
        names = [one.name for one in prompt.output_fields]
        note(self.log, ",".join(names))
        inputs = sorted(prompt.inputs.items())
        return written(prompt, {name: self._value(name, inputs, sampling.rollout, prompt) for name in names})

    def _value(self, name: str, inputs: list[tuple[str, str]], rollout: int | None, prompt: Prompt) -> object:
        (asked,) = (one for one in prompt.output_fields if one.name == name)
        digest = hashlib.sha256(f"{name}{inputs}{rollout}{prompt.instructions}".encode()).digest()
        if name == "tool_calls":
            looked = any("means" in text for _, text in inputs)
            return {"tool_calls": [{"name": "submit", "args": {"a": "done"}} if looked else LOOK_UP]}
        if asked.choices:
            return asked.choices[digest[0] % len(asked.choices)]
        if asked.type.startswith("list"):
            return [f"{name}{digest[0]}", f"{name}{digest[1]}"]
        if asked.type in ("int", "float"):
            return digest[0] % 10
        return f"{name} {digest.hex()[:6]}"


class WordLM(WriterLM):
    """The LM of these tests."""

    def __init__(self, log: Path | None = None, model: str = "words", **options: Any) -> None:
        super().__init__(model, Words(log), **options)


def note(log: Path | None, line: str) -> None:
    """Appends a line to a file, in one write."""
    if log is not None:
        with log.open("ab", buffering=0) as file:
            file.write(f"{os.getpid()} {line}\n".encode())


# --- functions of nodes


class Odd(ValueError):  # noqa: N818 - an error of a user's own
    """Has arguments and an attribute."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number = number


class Unpicklable(Exception):  # noqa: N818 - an error of a user's own
    """Holds what cannot be pickled, as errors of clients do."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.file = Path(os.devnull).open()  # noqa: SIM115 - closed with the error

    def __del__(self) -> None:
        self.file.close()


class NeedsTwo(Exception):  # noqa: N818 - an error of a user's own
    """Pickles, but cannot be loaded: `args` has one value, and the class takes two."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class State(BaseModel):
    q: str = ""
    n: int = 0
    docs: list[str] = []
    notes: Annotated[list[str], reducers.extend] = []
    total: Annotated[int, reducers.increment] = 0
    problem: Failure | None = None
    problems: list[str] = []
    unread: list[Failure] = []
    a: str = ""
    b: str = ""
    c: str = ""


def count(n: int) -> dict[str, Any]:
    return {"n": n + 1, "notes": [f"n={n}"], "total": 10}


async def acount(n: int) -> dict[str, Any]:
    await asyncio.sleep(0)
    return count(n)


def again(n: int) -> str:
    return "count" if n < 3 else END


def odd(n: int) -> dict[str, Any]:
    error = Odd(n, "is odd")
    error.add_note("a note of the node")
    raise error


def unpicklable(n: int) -> dict[str, Any]:
    raise Unpicklable(f"no line for {n}")


def needs_two(n: int) -> dict[str, Any]:
    raise NeedsTwo(f"refused {n}", 7)


def caused(n: int) -> dict[str, Any]:
    try:
        return {"n": 1 // 0}
    except ZeroDivisionError as error:
        raise Odd(n, "has a cause") from error


def stop_iteration(n: int) -> dict[str, Any]:
    return {"n": next(iter(()))}


def flaky(q: str, ask: dspy.Module, ctx: Context) -> dict[str, Any]:
    found = ask(q=q).a
    if ctx.attempt < 3:
        raise ConnectionError("no line")
    return {"a": found}


def read(doc: str) -> str:
    if doc == "bad":
        raise ValueError(f"cannot read {doc}")
    return doc.upper()


def sends(docs: list[str]) -> list[Send]:
    return [Send("note", {"q": doc}) for doc in docs]


def note_doc(q: str) -> dict[str, Any]:
    return {"notes": [q], "total": 1}


def jump(n: int) -> Command:
    return Command(goto="end", update={"n": n + 5})


def calls_inner(q: str, inner: Any, ctx: Context) -> dict[str, Any]:
    return {"a": ctx.call(inner, {"q": q}).a}


def short(a: str) -> list[str]:
    return [] if a.endswith(("0", "1", "2", "3", "4", "5", "6", "7")) else [f"{a} does not end with a digit below 8"]


def emits(q: str, ctx: Context) -> dict[str, Any]:
    ctx.emit({"half": len(q)})
    return {"a": q.upper()}


def look_up(word: str) -> str:
    """Looks up a word."""
    return f"{word} means {word[::-1]}"


def quality(a: str) -> float:
    return int(hashlib.sha256(a.encode()).hexdigest()[0], 16) / 16


# --- graphs


def chain() -> Graph:
    graph = Graph(name="Chain").add_node("first", dspy.Predict("q -> a")).add_node("second", dspy.Predict("a -> b"))
    return graph.add_node("third", dspy.ChainOfThought("a, b -> c")).add_path(START, "first", "second", "third", END)


def fork() -> Graph:
    graph = Graph(State, name="Fork").add_node("left", dspy.Predict("q -> a")).add_node("right", dspy.Predict("q -> b"))
    graph.add_node("join", dspy.Predict("a, b -> c")).add_edge(START, ["left", "right"])
    return graph.add_edge(["left", "right"], "join").add_edge("join", END)


def loop(node: Callable[..., Any] = count) -> Graph:
    graph = (
        Graph(State, name="Loop", inputs=["n", "notes", "total"])
        .add_node("count", node, writes=["n", "notes", "total"])
        .add_edge(START, "count")
    )
    return graph.add_conditional_edges("count", again, ["count", END])


def one(node: Any, **options: Any) -> Graph:
    return Graph(State, name="One", inputs=["q", "n"]).add_node("work", node, **options).add_path(START, "work", END)


def mapped(**options: Any) -> Graph:
    graph = Graph(State, name="Map").add_map("read", read, over="docs", item="doc", into="notes", **options)
    return graph.add_path(START, "read", END)


def mapped_predictor() -> Graph:
    graph = Graph(State, name="Ask").add_map("ask", dspy.Predict("doc -> a"), over="docs", item="doc", into="notes")
    return graph.add_path(START, "ask", END)


def sent() -> Graph:
    graph = Graph(State, name="Sent").add_node("note", note_doc, writes=["notes", "total"])
    return graph.add_conditional_edges(START, sends, ["note"]).add_edge("note", END)


def edged() -> Graph:
    graph = Graph(State, name="Edged", inputs=["n"]).add_node("work", odd, writes=["n"]).add_node("sorry", count)
    graph.add_edge(START, "work").add_edge("work", END).add_edge("sorry", END)
    return graph.add_error_edge("work", "sorry", on=ValueError, into="problem")


def checked() -> Graph:
    graph = Graph(State, name="Checked").add_node("draft", dspy.Predict("q -> a"))
    return graph.add_check("short", short, of="draft", max_fixes=2, accept=True).add_path(START, "draft", END)


def nested() -> Graph:
    inner = fork().compile()
    graph = Graph(State, name="Nested").add_node("inner", inner).add_node("count", count)
    return graph.add_path(START, "inner", "count", END)


def called() -> Graph:
    graph = Graph(State, name="Called")
    inner = Graph(inputs=["q"], name="In").add_node("ask", dspy.Predict("q -> a")).add_path(START, "ask", END)
    graph.add_node("work", calls_inner, modules={"inner": inner.compile()}, writes=["a"])
    return graph.add_path(START, "work", END)


def routed() -> Graph:
    graph = Graph(State, name="Routed").add_node("x", count).add_node("y", dspy.Predict("q -> a"))
    router = dspy.ChainOfThought("q -> way: Literal['x', 'y']")
    return graph.add_conditional_edges(START, router, {"x": "x", "y": "y"}).add_edge("x", END).add_edge("y", END)


def asking() -> Graph:
    graph = Graph(State, name="Asking").add_node("ask", dspy.Predict("q -> a"))
    graph.add_interrupt("sure", question="Sure of {a}?", answer=bool, into="n")
    return graph.add_path(START, "ask", "sure", END)


def commanded() -> Graph:
    graph = Graph(State, name="Commanded", inputs=["n"]).add_node("jump", jump, goto=["end"]).add_node("end", count)
    return graph.add_edge(START, "jump").add_edge("end", END)


def shared() -> Graph:
    ask = dspy.Predict("q -> a")
    graph = Graph(State, name="Shared").add_node("one", ask).add_node("two", ask, reads={"q": "a"}, writes={"a": "b"})
    return graph.add_path(START, "one", "two", END)


def own_lm() -> Graph:
    ask = dspy.Predict("q -> a")
    ask.lm = WordLM(model="own", temperature=0.5)
    graph = Graph(State, name="Own").add_node("one", ask).add_node("two", dspy.Predict("a -> b"))
    return graph.add_path(START, "one", "two", END)


def frozen() -> Graph:
    graph = Graph(State, name="Frozen").add_node("one", dspy.Predict("q -> a"), frozen=True)
    return graph.add_node("two", dspy.Predict("a -> b")).add_path(START, "one", "two", END)


def searched() -> Graph:
    return best_of(dspy.Predict("q -> a"), n=3, reward=quality, threshold=2.0)


def react() -> Graph:
    graph = Graph(name="React").add_node("work", dspy.ReAct("q -> a", tools=[look_up], max_iters=2))
    return graph.add_path(START, "work", END)


def agent() -> Graph:
    return agents.tool_loop("q -> a", tools=[look_up], max_turns=2)


def die_once(q: str, mark: Path, log: Path) -> dict[str, Any]:
    """Kills its process the first time it is asked about q5."""
    note(log, q)
    if q == "q5" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"a": q.upper()}


def deadly(mark: Path, log: Path) -> Graph:
    def work(q: str) -> dict[str, Any]:
        return die_once(q, mark, log)

    return Graph(inputs=["q"], name="Deadly").add_node("work", work, writes=["a"]).add_path(START, "work", END)


class Twice(dspy.Module):
    """A module that a user has written, with a predictor that it calls twice."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("q -> a")

    def forward(self, q: str) -> dspy.Prediction:
        return dspy.Prediction(a=self.ask(q=self.ask(q=q).a).a)


# --- one case per feature


@dataclass(frozen=True)
class Case:
    """A program and how it is called.

    Attributes:
        graph: makes the graph.
        inputs: the inputs of the call.
        options: options of `run` and `arun`.
        compiled: options of `compile`.
        lm: makes the LM of the call.
    """

    graph: Callable[[], Graph]
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"q": "why"})
    options: Mapping[str, Any] = field(default_factory=dict)
    compiled: Mapping[str, Any] = field(default_factory=dict)
    lm: Callable[..., dspy.LM] = WordLM

    def program(self) -> CompiledGraph:
        return self.graph().compile(**self.compiled)


def sure(question: Any) -> bool:
    return True


RETRY = Retry(3, on=ConnectionError, wait=wait_none())
N: dict[str, Any] = {"n": 1}
DOCS: dict[str, Any] = {"docs": ["x", "bad", "y"]}
FLAKY: dict[str, Any] = {"modules": {"ask": dspy.Predict("q -> a")}, "retry": RETRY, "writes": ["a"]}
CASES: dict[str, Case] = {
    "chain": Case(chain),
    "fork": Case(fork),
    "loop": Case(loop, N),
    "async node": Case(lambda: loop(acount), N),
    "lambda": Case(lambda: one(lambda n: {"a": "x" * n}), N),
    "predictors by item": Case(mapped_predictor, DOCS),
    "Send": Case(sent, DOCS),
    "map that fails": Case(mapped, DOCS),
    "map with failures": Case(lambda: mapped(failures="unread"), DOCS),
    "failure": Case(lambda: one(odd, writes=["n"]), N),
    "failure with a cause": Case(lambda: one(caused, writes=["n"]), N),
    "StopIteration": Case(lambda: one(stop_iteration, writes=["n"]), N),
    "error edge": Case(edged, N),
    "retry": Case(lambda: one(flaky, **FLAKY)),
    "retry in vain": Case(lambda: one(flaky, **{**FLAKY, "retry": Retry(2, on=ConnectionError, wait=wait_none())})),
    "check": Case(checked),
    "subgraph": Case(nested),
    "ctx.call": Case(called),
    "LM router": Case(routed),
    "question": Case(asking),
    "answered": Case(asking, options={"answers": {"sure": True}}),
    "answered by a function": Case(asking, options={"answers": sure}),
    "answered by compile": Case(asking, compiled={"answers": {"sure": True}}),
    "Command": Case(commanded, N),
    "shared predictor": Case(shared),
    "LM of a predictor": Case(own_lm),
    "frozen": Case(frozen),
    "search": Case(searched),
    "ReAct": Case(react, lm=NearestLM),
    "agent": Case(agent),
    "module by hand": Case(lambda: one(Twice(), writes=["a"])),
    "emitted value": Case(lambda: one(emits, writes=["a"])),
    "budget": Case(chain, options={"budget": Budget(requests=2)}),
    "budget of compile": Case(chain, compiled={"budget": Budget(requests=2)}),
    "budget that suffices": Case(chain, options={"budget": Budget(requests=9)}),
    "budget of node calls": Case(loop, N, compiled={"budget": Budget(node_calls=2)}),
    "redacted": Case(chain, compiled={"redact": ["a"]}),
    "missing input": Case(chain, {}),
    "wrong input": Case(loop, {"n": "many"}),
    "unknown input": Case(loop, {"m": 1}),
}
