"""Every kind of graph that can be interrupted, in sync and async; records the calls of nodes, routers and LM."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import dspy
from pydantic import BaseModel

from dspyer import END, START, Command, CompiledGraph, Conflict, Context, Failure, Graph, Send, reducers
from dspyer.stores import Store
from dspyer.testing import Prompt, ScriptedLM


class Called(NamedTuple):
    """One call: of a node, router, LM or policy, for an execution."""

    what: str
    name: str
    execution: str


class Fault(Exception):  # noqa: N818 - an error of a user's own
    """What a call raises that a test lets fail."""


class Calls:
    """What was called, in order. With a file, what a process has called outlives it.

    Attributes:
        fault: the call that raises.
    """

    def __init__(self) -> None:
        self.fault: Called | None = None
        self.made: list[Called] = []
        self.file: int | None = None

    def note(self, what: str, name: str, execution: str) -> None:
        """Notes a call; the name of the run in front of an execution is left out."""
        call = Called(what, name, execution.partition("/")[2])
        self.made.append(call)
        if self.file is not None:
            os.write(self.file, ("\t".join(call) + "\n").encode())
        if call == self.fault:
            raise Fault(call)

    def take(self) -> Counter[Called]:
        """The calls since the last time, counted."""
        made, self.made = self.made, []
        return Counter(made)

    def __reduce__(self) -> str:
        return "CALLS"  # a worker in the same process notes calls in the same place


CALLS = Calls()


def read_calls(text: str) -> Counter[Called]:
    """Calls from the file of another process."""
    return Counter(Called(*line.split("\t")) for line in text.splitlines())


class State(BaseModel):
    q: str = ""
    log: Annotated[list[str], reducers.extend] = []
    n: Annotated[int, reducers.increment] = 0
    x: Any = None
    seen: dict[str, str] = {}
    docs: list[str] = []
    sizes: list[int] = []
    verdict: str = ""
    problems: Annotated[list[Failure], reducers.append] = []


Work = Callable[[Any, Context], Any]


class Maker:
    """Builds a graph whose nodes are all sync or all async, and record their calls."""

    def __init__(self, call_mode: str, **options: Any) -> None:
        self.call_mode = call_mode
        self.graph = Graph(State, **options)

    def node(self, name: str, work: Work, **options: Any) -> Maker:
        """Adds a node."""
        self.graph.add_node(name, noting(name, work, self.call_mode), **options)
        return self

    def says(self, *names: str, **more: Any) -> Maker:
        """Adds nodes that write their names."""
        for name in names:
            self.node(name, saying(name, **more))
        return self

    def routes(self, source: str, decide: Work, targets: Any) -> Maker:
        """Adds a router."""

        def route(state: Any, ctx: Context) -> Any:
            CALLS.note("router", source, ctx.execution)
            return decide(state, ctx)

        self.graph.add_conditional_edges(source, route, targets)
        return self


def saying(name: str, **more: Any) -> Work:
    """Writes a name."""
    return lambda state, ctx: {"log": [name], "n": 1, **more}


def noting(name: str, work: Work, call_mode: str) -> Callable[..., Any]:
    """A function of the state that notes its call."""

    def node(state: Any, ctx: Context) -> Any:
        CALLS.note("node", name, ctx.execution)
        return work(state, ctx)

    async def anode(state: Any, ctx: Context) -> Any:
        return node(state, ctx)

    return node if call_mode == "sync" else anode


def chain(call_mode: str) -> Graph:
    return Maker(call_mode).says("a", "b", "c").graph.add_path(START, "a", "b", "c", END)


def loop(call_mode: str) -> Graph:
    made = Maker(call_mode).says("a", "b").routes("b", lambda state, ctx: "a" if state["n"] < 5 else END, ["a", END])
    return made.graph.add_path(START, "a", "b")


def fork(call_mode: str) -> Graph:
    made = Maker(call_mode).says("a", "b", "b2", "c", "d")
    return made.graph.add_path(START, "a").add_edge("a", ["b", "c"]).add_path("b", "b2", "d").add_path("c", "d", END)


def fork_to_the_end(call_mode: str) -> Graph:
    return Maker(call_mode).says("a", "b", "c").graph.add_edge(START, ["a", "b", "c"]).add_edge(["a", "b", "c"], END)


def decided(conflict: Conflict) -> str:
    CALLS.note("policy", ".".join(map(str, conflict.path)), "")
    return f"{conflict.left}+{conflict.right}"


def policy(call_mode: str) -> Graph:
    """Conflicts that a function decides, twice; one of the writers starts from what was decided before."""
    made = Maker(call_mode, merge=decided)
    made.node("a", lambda state, ctx: {"x": f"{state['x']}a", "seen": {"k": f"a{ctx.visit}"}})
    made.node("b", lambda state, ctx: {"x": f"{state['x']}b", "seen": {"k": f"b{ctx.visit}"}})
    made.says("c", "j")
    made.routes("j", lambda state, ctx: ["a", "b", "c"] if ctx.visit < 2 else END, ["a", "b", "c", END])
    return made.graph.add_edge(START, ["a", "b", "c"]).add_edge(["a", "b", "c"], "j")


def send(call_mode: str) -> Graph:
    made = Maker(call_mode).says("again")
    made.node("w", lambda state, ctx: {"log": [f"w{state['k']}"], "n": state["k"]})
    made.routes(START, lambda state, ctx: [*(Send("w", {"k": k}) for k in (3, 1, 2)), "again"], ["w", "again"])
    made.says("j")
    return made.graph.add_edge(["w", "again"], "j").add_edge("j", END)


def maps(call_mode: str) -> Graph:
    made = Maker(call_mode)
    made.node("find", lambda state, ctx: {"docs": ["a", "bcd", "ef"]})
    made.graph.add_map("measure", _measure(call_mode), over="docs", item="doc", into="sizes")
    made.says("tell")
    return made.graph.add_path(START, "find", "measure", "tell", END)


def _measure(call_mode: str) -> Callable[..., Any]:
    def measure(doc: str, ctx: Context) -> int:
        CALLS.note("node", "measure", ctx.execution)
        return len(doc)

    async def ameasure(doc: str, ctx: Context) -> int:
        return measure(doc, ctx)

    return measure if call_mode == "sync" else ameasure


def subgraph(call_mode: str) -> Graph:
    """A graph in a graph in a graph, inside of a loop, with a fork in the innermost."""
    inner = Maker(call_mode).says("a", "b", "j").graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "j")
    inner.add_edge("j", END)
    middle = Maker(call_mode).says("m").graph.add_node("inner", inner.compile()).add_path(START, "m", "inner", END)
    made = Maker(call_mode, inputs=["q"]).says("after")
    made.graph.add_node("middle", middle.compile())
    made.routes("after", lambda state, ctx: "middle" if ctx.visit < 2 else END, ["middle", END])
    return made.graph.add_path(START, "middle", "after")


def subgraphs_beside(call_mode: str) -> Graph:
    """The same graph twice at once, and one of several Sends."""
    inner = Maker(call_mode).says("a", "b").graph.add_path(START, "a", "b", END).compile()
    made = Maker(call_mode, inputs=["q"]).says("j")
    made.graph.add_node("left", inner).add_node("right", inner).add_node("each", inner)
    made.routes(START, lambda state, ctx: ["left", "right", Send("each"), Send("each")], ["left", "right", "each"])
    return made.graph.add_edge(["left", "right", "each"], "j").add_edge("j", END)


def map_of_graphs(call_mode: str) -> Graph:
    made = Maker(call_mode)
    inner = Graph(Item).add_node("size", _size(call_mode)).add_node("twice", _twice(call_mode))
    made.node("find", lambda state, ctx: {"docs": ["a", "bcd"]})
    made.graph.add_map(
        "measure", inner.add_path(START, "size", "twice", END).compile(), over="docs", item="doc", into="sizes"
    )
    return made.graph.add_path(START, "find", "measure", END)


class Item(BaseModel):
    doc: str
    size: int = 0


def _size(call_mode: str) -> Callable[..., Any]:
    return noting("size", lambda state, ctx: {"size": len(state["doc"])}, call_mode)


def _twice(call_mode: str) -> Callable[..., Any]:
    return noting("twice", lambda state, ctx: {"size": 2 * state["size"]}, call_mode)


def program_calls(call_mode: str) -> Graph:
    """A function calls a program twice, at once if it is async; the program's own function calls another one."""
    inner = Maker(call_mode).says("a", "b").graph.add_path(START, "a", "b", END)
    middle = Graph(State).add_node("mid", _calling("mid", call_mode, ["only"]), modules={"inner": inner})
    made = Maker(call_mode, inputs=["q"]).says("tell").graph
    made.add_node(
        "work", _calling("work", call_mode, ["left", "right"]), modules={"inner": middle.add_path(START, "mid", END)}
    )
    return made.add_path(START, "work", "tell", END)


def _calling(name: str, call_mode: str, keys: list[str]) -> Callable[..., Any]:
    """Calls a program under each key."""

    def node(q: str, inner: Any, ctx: Context) -> dict[str, Any]:
        CALLS.note("node", name, ctx.execution)
        return {"log": [name, *[line for key in keys for line in ctx.call(inner, {"q": q}, key=key).log]]}

    async def anode(q: str, inner: Any, ctx: Context) -> dict[str, Any]:
        CALLS.note("node", name, ctx.execution)
        found = await asyncio.gather(*[ctx.acall(inner, {"q": q}, key=key) for key in keys])
        return {"log": [name, *[line for one in found for line in one.log]]}

    return node if call_mode == "sync" else anode


def conditional_start(call_mode: str) -> Graph:
    made = Maker(call_mode).says("a", "b").routes(START, lambda state, ctx: "b" if state["q"] else "a", ["a", "b"])
    return made.graph.add_edge(["a", "b"], END)


def criss_cross(call_mode: str) -> Graph:
    made = Maker(call_mode).says("a", "b", "j", "k", "z")
    made.graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], ["j", "k"]).add_edge(["j", "k"], "z")
    return made.graph.add_edge("z", END)


def commands(call_mode: str) -> Graph:
    made = Maker(call_mode).says("b", "c")

    def choose(state: Any, ctx: Context) -> Command:
        return Command({"log": ["a"]}, "a" if ctx.visit < 2 else ["b", Send("c", {"k": 1}), Send("c", {"k": 2})])

    made.node("a", choose, goto=["a", "b", "c"])
    return made.graph.add_edge(START, "a").add_edge(["b", "c"], END)


def lm_router(call_mode: str) -> Graph:
    """A predictor decides at START, and whether a loop continues; its answer is written."""
    made = Maker(call_mode).says("write", "skip")
    sort = dspy.Predict("q -> verdict: Literal['write', 'skip'], reason")
    judge = dspy.Predict("n: int -> verdict: Literal['write', 'done']")
    made.graph.add_conditional_edges(START, sort, {"write": "write", "skip": "skip"})
    made.graph.add_conditional_edges("write", judge, {"write": "write", "done": END})
    return made.graph.add_edge("skip", END)


@contextmanager
def _judging() -> Iterator[None]:
    def answer(prompt: Prompt) -> dict[str, str]:
        last = CALLS.made[-1] if CALLS.made else Called("", "", "trunk:0")
        execution = last.execution if last.what == "node" else "trunk:0"
        CALLS.note("lm", "", f"run/{execution}")
        if "q" in prompt.inputs:
            return {"verdict": "write", "reason": "because"}
        return {"verdict": "write" if int(prompt.inputs["n"]) < 2 else "done"}

    with dspy.context(lm=ScriptedLM(answer)):
        yield


@dataclass(frozen=True)
class Kind:
    """One kind of graph.

    Attributes:
        build: makes it, sync or async.
        lm: the language model that it runs with.
    """

    build: Callable[[str], Graph]
    lm: Callable[[], AbstractContextManager[Any]] = nullcontext

    def compile(self, call_mode: str, store: Store, **options: Any) -> CompiledGraph:
        """A program of its own over a store."""
        return self.build(call_mode).compile(store=store, **options)


def failing(unless: Callable[[Any, Context], bool] = lambda state, ctx: False) -> Work:
    """Raises, unless a condition holds."""

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        if not unless(state, ctx):
            raise ValueError(f"visit {ctx.visit}")
        return {"log": ["done"], "n": 1}

    return work


def error_edges(call_mode: str) -> Graph:
    """In a fork one side fails twice and goes back along an error edge, another one fails at once, and their handlers
    join with the third side."""
    made = Maker(call_mode).says("grow", "handle", "c", "j").node("a", failing(lambda state, ctx: ctx.visit > 2))
    made.node("b", failing()).graph.add_edge(START, ["a", "b", "c"]).add_edge(["a", "b", "c", "handle"], "j")
    made.graph.add_error_edge("a", "grow", into="problems").add_edge("grow", "a")
    return made.graph.add_error_edge("b", "handle", on=(KeyError, ValueError), into="problems").add_edge("j", END)


def failed_sends(call_mode: str) -> Graph:
    """Of four branches of a Send two fail, in a graph inside of a node; then that node fails, and its handler runs."""
    made = Maker(call_mode).says("handle", "j").node("w", failing(lambda state, ctx: state["k"] % 2 == 0))
    made.routes(START, lambda state, ctx: [Send("w", {"k": k}) for k in range(4)], ["w"])
    made.graph.add_edge(["w", "handle"], "j").add_error_edge("w", "handle", into="problems")
    inner = made.node("last", failing(lambda state, ctx: state["q"] == "ok")).graph.add_path("j", "last", END).compile()
    outer = Maker(call_mode, inputs=["q"]).says("outer")
    outer.graph.add_node("inner", inner).add_path(START, "inner", END).add_edge("outer", END)
    return outer.graph.add_error_edge("inner", "outer", into="problems")


INPUTS: dict[str, Any] = {"q": "why"}
KINDS: dict[str, Kind] = {
    "chain": Kind(chain),
    "loop": Kind(loop),
    "fork": Kind(fork),
    "fork to END": Kind(fork_to_the_end),
    "policy": Kind(policy),
    "Send": Kind(send),
    "map": Kind(maps),
    "subgraph": Kind(subgraph),
    "parallel subgraphs": Kind(subgraphs_beside),
    "map of graphs": Kind(map_of_graphs),
    "ctx.call": Kind(program_calls),
    "router at START": Kind(conditional_start),
    "criss-cross": Kind(criss_cross),
    "Command": Kind(commands),
    "LM router": Kind(lm_router, _judging),
    "error edges": Kind(error_edges),
    "failed Sends": Kind(failed_sends),
}
