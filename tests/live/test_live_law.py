"""The rule of live fields on random graphs with loops, failures, questions and resumes, against an independent oracle.

The graphs have stages that fork and join, a way back over some of them, and nodes that go back to themselves. Nodes of
layer 0 post notes, those of layer 1 read notes and post echoes, those of layer 2 read echoes, and along a branch layers
only grow. So no two readers ever wait for each other, and the oracle is simple: a node that reads a field to its end
gets every post that is not of a node in its lineage, each once and in the order of arrival.

Nodes of layer 3 hear notes and post notes. Where they are, listeners may wait for each other: what they have heard is a
beginning of the same list.
"""

from __future__ import annotations

import asyncio
import faulthandler
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, LiveEntry, Run, Updates, live, reducers
from dspyer.events import Commit
from dspyer.stores import Memory

HEARS = {0: "", 1: "notes", 2: "echoes", 3: "notes"}
POSTS = {0: "notes", 1: "echoes", 2: "", 3: "notes"}
PATIENCE = 120
PAUSE: Any = object()


class Pad(BaseModel):
    notes: Annotated[list[str], reducers.append, live] = []
    echoes: Annotated[list[str], reducers.append, live] = []


@dataclass(frozen=True)
class Plan:
    """What one node does.

    Attributes:
        layer: decides which field it hears and which it posts to.
        actions: posts, or entries to take, or all to the end; then it ends.
        again: how often it goes back to itself.
        fails: at which visit and action it fails, once; and whether it asks instead.
    """

    layer: int
    actions: tuple[str, ...]
    again: int = 0
    fails: tuple[int, int, bool] | None = None


@dataclass
class Case:
    """A graph, and what its nodes have heard, by execution: of the last attempt of each."""

    stages: list[list[list[Plan]]]
    back: int
    rounds: int
    pauses: tuple[int, ...] = (0,)
    heard: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)
    left: set[tuple[str, int]] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def pause(self) -> int:
        """How often a task lets others go first before its next step."""
        self.count += 1
        return self.pauses[self.count % len(self.pauses)]


def acting(case: Case, plan: Plan, ctx: Context) -> Generator[Any, LiveEntry | None, None]:
    """What a node does; it yields the loops whose next entry it wants, and pauses."""
    name = ctx.execution.rpartition("/")[2]
    attempt = case.attempts[name] = case.attempts.get(name, 0) + 1
    heard = case.heard[name] = []
    case.ended[name] = False
    hears, posts = HEARS[plan.layer], POSTS[plan.layer]
    for number, action in enumerate((*plan.actions, "end")):
        if plan.fails == (ctx.visit, number, False) and (ctx.node, ctx.visit) not in case.left:
            case.left.add((ctx.node, ctx.visit))
            raise ConnectionError(f"{ctx.node} fails at visit {ctx.visit}")
        if plan.fails == (ctx.visit, number, True):
            ctx.interrupt(f"{ctx.node} {ctx.visit}", "Go on?")
        yield PAUSE
        if action == "post" and posts:
            ctx.post(posts, f"{name} attempt {attempt} no {number}")
        elif action in ("one", "all") and hears:
            loop = ctx.live(hears)
            while (entry := (yield loop)) is not None:
                heard.append((entry.value, entry.seq))
                if posts and posts != hears:  # two that answer each other would never end
                    ctx.post(posts, f"{name} attempt {attempt} heard {entry.value}")
                if action == "one":
                    break
            else:
                case.ended[name] = True


def node(case: Case, plan: Plan, asynchronous: bool) -> Callable[..., Any]:
    def sync(ctx: Context) -> None:
        steps = acting(case, plan, ctx)
        loop = next(steps, None)
        while loop is not None:
            entry = None if loop is PAUSE else next(loop, None)
            try:
                loop = steps.send(entry)
            except StopIteration:
                return

    async def colored(ctx: Context) -> None:
        steps = acting(case, plan, ctx)
        loop = next(steps, None)
        while loop is not None:
            for _ in range(case.pause()):
                await asyncio.sleep(0)
            entry = None if loop is PAUSE else await anext(loop, None)
            try:
                loop = steps.send(entry)
            except StopIteration:
                return

    return colored if asynchronous else sync


def nothing() -> None:
    """Where branches part and join."""


def built(case: Case, asynchronous: bool) -> Graph:
    graph = Graph(Pad)
    for number, stage in enumerate(case.stages):
        fork, join = f"fork{number}", f"join{number}"
        graph.add_node(fork, nothing, writes=[]).add_node(join, nothing, writes=[])
        for place, branch in enumerate(stage):
            names = [f"s{number}b{place}n{one}" for one in range(len(branch))]
            for name, plan in zip(names, branch, strict=True):
                reads = [HEARS[plan.layer]] if plan.layer else []
                writes = [POSTS[plan.layer]] if POSTS[plan.layer] else []
                graph.add_node(name, node(case, plan, asynchronous), reads=reads, writes=writes)
            graph.add_edge(fork, names[0])
            for one, plan in enumerate(branch):
                after = names[one + 1] if one + 1 < len(names) else join
                if plan.again:
                    graph.add_conditional_edges(names[one], again(plan, names[one], after), [names[one], after])
                else:
                    graph.add_edge(names[one], after)
    graph.add_edge(START, "fork0")
    last = len(case.stages) - 1
    for number in range(last):
        graph.add_edge(f"join{number}", f"fork{number + 1}")
    back = f"fork{min(case.back, last)}"
    way = lambda ctx: back if ctx.visit < case.rounds else END  # noqa: E731
    return graph.add_conditional_edges(f"join{last}", way, [back, END])


def again(plan: Plan, name: str, after: str) -> Callable[[Context], str]:
    return lambda ctx: name if ctx.visit % (plan.again + 1) else after


def completed(program: CompiledGraph, asynchronous: bool) -> Run:
    """A run of a thread, resumed until it is complete. A run that hangs is an error that shows where."""
    found: list[Run | BaseException] = []

    def work() -> None:
        try:
            t = program.thread("t")
            run = asyncio.run(t.arun({})) if asynchronous else t.run({})
            for _ in range(60):
                if run.status == "completed":
                    break
                answers = {question.key: True for question in run.questions}
                run = asyncio.run(t.aresume(answers)) if asynchronous else t.resume(answers)
            assert t.replay() == run.state
            assert t.state == run.state
            found.append(run)
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(PATIENCE)
    if worker.is_alive():
        faulthandler.dump_traceback()
        raise AssertionError("the run does not end: a listener waits for ever")
    if isinstance(found[0], BaseException):
        raise found[0]
    assert found[0].status == "completed", found[0].error
    return found[0]


def posts_of(commits: Sequence[Commit], name: str) -> list[tuple[str, int, str]]:
    """The posts to a field that count: value, number and commit, in the order of arrival."""
    found = []
    for commit in commits:
        if commit.live is not None and name in commit.live.posts:
            update = commit.patch[name]
            updates = update.updates if isinstance(update, Updates) else (update,)
            found += [(one, seq, commit.id) for one, seq in zip(updates, commit.live.posts[name], strict=True)]
    return sorted(found, key=lambda post: post[1])


def check(case: Case, run: Run, complete: bool) -> None:
    commits = {commit.id: commit for commit in run.commits}
    behind: dict[str, set[str]] = {}
    for commit in run.commits:
        parents = commit.parents
        behind[commit.id] = set(parents).union(*[behind[parent] for parent in parents])
    for name in ("notes", "echoes"):
        posts = posts_of(run.commits, name)
        assert run.state.to_dict()[name] == [value for value, _, _ in posts]
        assert len({seq for _, seq, _ in posts}) == len(posts)
    for execution, heard in case.heard.items():
        commit = commits[execution]  # its last attempt has committed
        layer = plan_of(case, commit.node).layer
        if not layer:
            continue
        own = {one for one in behind[execution] if commits[one].node == commit.node}
        before = max([seq for one in own for _, seq in case.heard.get(one, ())], default=0)
        expected = [
            (value, seq)
            for value, seq, author in posts_of(run.commits, HEARS[layer])
            if seq > before and author not in own and author != execution and execution not in behind[author]
        ]
        assert heard == expected[: len(heard)], (execution, heard, expected)
        if complete and case.ended[execution]:
            assert heard == expected, (execution, heard, expected)


def plan_of(case: Case, name: str) -> Plan:
    stage, rest = name[1:].split("b")
    branch, number = rest.split("n")
    return case.stages[int(stage)][int(branch)][int(number)]


ACTIONS = {
    0: st.lists(st.just("post"), max_size=3).map(tuple),
    1: st.lists(st.sampled_from(["one", "all", "all", "post"]), min_size=1, max_size=3).map(tuple),
    2: st.lists(st.sampled_from(["one", "all"]), min_size=1, max_size=2).map(tuple),
    3: st.lists(st.sampled_from(["one", "all", "post"]), min_size=1, max_size=3).map(tuple),
}
FAILS = st.none() | st.none() | st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans())


@st.composite
def branches(draw: st.DrawFn, rings: bool = False) -> list[Plan]:
    layers = draw(st.lists(st.integers(0, 3 if rings else 2), min_size=1, max_size=2))
    plans = [Plan(layer, draw(ACTIONS[layer]), draw(st.sampled_from([0, 0, 1])), draw(FAILS)) for layer in layers]
    return plans if rings else sorted(plans, key=lambda plan: plan.layer)


def stages(rings: bool = False) -> st.SearchStrategy[list[list[list[Plan]]]]:
    return st.lists(st.lists(branches(rings), min_size=1, max_size=4), min_size=1, max_size=2)


SETTINGS: dict[str, Any] = {
    "back": st.integers(0, 1),
    "rounds": st.integers(1, 3),
    "limit": st.sampled_from([1, 2, 20]),
    "tasks": st.sampled_from([True, True, False]),
    "pauses": st.lists(st.sampled_from([0, 0, 1, 3, 12]), min_size=1, max_size=7).map(tuple),
}


def played(case: Case, limit: int, tasks: bool) -> Run:
    return completed(built(case, tasks).compile(store=Memory(), max_concurrency=limit, max_steps=10_000), tasks)


@pytest.mark.slow("a law: runs 50 random graphs with loops to their end, through failures and questions")
@settings(max_examples=2 * settings().max_examples)
@given(stages=stages(), **SETTINGS)
def test_each_post_is_read_once_by_every_permitted_reader(
    stages: Any, back: int, rounds: int, limit: int, tasks: bool, pauses: tuple[int, ...]
) -> None:
    case = Case(stages, back, rounds, pauses)
    check(case, played(case, limit, tasks), complete=True)


@pytest.mark.slow("a law: the same with readers that wait for each other")
@settings(max_examples=2 * settings().max_examples)
@given(stages=stages(rings=True), **SETTINGS)
def test_rings_of_readers_end(
    stages: Any, back: int, rounds: int, limit: int, tasks: bool, pauses: tuple[int, ...]
) -> None:
    case = Case(stages, back, rounds, pauses)
    check(case, played(case, limit, tasks), complete=False)
