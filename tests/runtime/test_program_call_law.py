"""The law of `ctx.call`: whatever crashes and is answered in parts, no node that has finished runs again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.errors import StoreError
from tests.log.equality import finished
from tests.log.failing import Crash, FailingSQLite, crash


@dataclass(frozen=True)
class Plan:
    """A graph of one node, which calls graphs; without any, it returns at once.

    Attributes:
        calls: the graphs that it calls.
        at_once: whether it calls them all at once.
        asks: whether the graph asks a question before the node.
    """

    calls: tuple[Plan, ...] = ()
    at_once: bool = False
    asks: bool = False


plans = st.recursive(
    st.builds(Plan, asks=st.booleans()),
    lambda inner: st.builds(Plan, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans(), st.booleans()),
    max_leaves=5,
)


class Made:
    """The graph of a plan.

    Attributes:
        leaves: how often each execution of a leaf was called, since the last crash.
    """

    def __init__(self) -> None:
        self.leaves: Counter[str] = Counter()

    def graph(self, plan: Plan) -> Graph:
        graph = Graph(inputs=["path"], name="Part")
        modules = {f"part{i}": self.graph(one) for i, one in enumerate(plan.calls)}

        async def work(path: str, ctx: Context, **parts: Any) -> dict[str, Any]:
            if not plan.calls:
                self.leaves[ctx.execution.partition("/")[2]] += 1  # without the name of the run
                return {"text": path}
            names = list(modules)
            if plan.at_once:
                found = await asyncio.gather(*[ctx.acall(parts[name], {"path": f"{path}.{name}"}) for name in names])
            else:
                found = [await ctx.acall(parts[name], {"path": f"{path}.{name}"}) for name in names]
            return {"text": f"({' '.join(one.text for one in found)})"}

        steps = [START, "work", END]
        if plan.asks:
            graph.add_interrupt("ask", question="Go on in {path}?", answer=None)
            steps.insert(1, "ask")
        graph.add_node("work", work, modules=modules, reads=["path"], writes=["text"])
        return graph.add_path(*steps)


def text_of(plan: Plan, path: str) -> str:
    parts = [text_of(one, f"{path}.part{i}") for i, one in enumerate(plan.calls)]
    return f"({' '.join(parts)})" if parts else path


@pytest.mark.slow("a random tree of programs, run with crashes in SQLite, for each example")
@given(plans, st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=5), st.randoms(use_true_random=False))
def test_law_no_finished_node_runs_again(plan: Plan, crashes: list[tuple[int, bool]], rng: Any) -> None:
    made = Made()
    graph = made.graph(plan)
    with TemporaryDirectory() as folder:
        store = FailingSQLite(Path(folder) / "runs.db")
        program: CompiledGraph = graph.compile(store=store)
        state = None
        for _ in range(60):
            thread = program.thread("t")
            if thread.status == "completed":
                state = thread.state
                break
            done = finished(store, "t")
            made.leaves.clear()
            asked = [question.id for question in thread.questions]
            answers = dict.fromkeys(rng.sample(asked, rng.randint(1, len(asked))), True) if asked else {}
            store.rest()
            if crashes:
                store.arm(crash, *crashes.pop())
            try:
                if thread.status == "new":
                    asyncio.run(thread.arun({"path": "p"}))
                else:
                    asyncio.run(thread.aresume(answers, max_resumes=1000))
            except (Crash, StoreError):
                pass
            store.rest()
            assert not made.leaves.keys() & done
            assert set(made.leaves.values()) <= {1}
        assert state is not None
        assert state["text"] == text_of(plan, "p")
