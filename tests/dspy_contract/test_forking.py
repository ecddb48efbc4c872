"""Rules 18 to 25 of the contract: branches that run at the same time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction, bootstrap_trace_data

from dspyer import END, START, Graph
from tests.dspy_contract.gates import Gate, Turns
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import PAIRS, Pair
from tests.rows import each

NAMES = ("one", "two", "three")
ORDERS = list(itertools.permutations(NAMES))
Run = Callable[[Any, dict[str, Any]], Any]


def in_sync(program: Any, inputs: dict[str, Any]) -> Any:
    return program(**inputs)


def in_async(program: Any, inputs: dict[str, Any]) -> Any:
    return asyncio.run(program.acall(**inputs))


def asyncified(program: Any, inputs: dict[str, Any]) -> Any:
    return asyncio.run(dspy.asyncify(program)(**inputs))


def in_parallel(program: Any, inputs: dict[str, Any]) -> Any:
    return dspy.Parallel(num_threads=2, disable_progress_bar=True)([(program, inputs)])[0]


WAYS = [in_sync, in_async, asyncified]
ways = pytest.mark.parametrize("run", WAYS, ids=lambda run: run.__name__)


def gated(*failing: str) -> Any:
    graph = Graph(name="Gated")
    for name in NAMES:
        graph.add_node(name, Gate(name, fails=name in failing), writes=[name])
    graph.add_edge(START, list(NAMES))
    graph.add_node("join", lambda one, two, three: {"all": [one, two, three]})
    graph.add_edge(list(NAMES), "join").add_edge("join", END)
    return graph.compile()


@ways
@each("order", ORDERS, ids="-".join)
def test_trace_is_in_declared_order_whoever_finishes_first(order: tuple[str, ...], run: Run, lm: NotingLM) -> None:
    """Rule 19: the caller's list itself is extended, in the order of the declarations."""
    program = gated()
    Turns(order)
    mine: list[Any] = ["before"]

    with dspy.context(trace=mine):
        run(program, {"question": "Which?"})

    names = {id(predictor): name for name, predictor in program.named_predictors()}
    assert mine[0] == "before"
    assert [names[id(step[0])] for step in mine[1:]] == [f"{name}.predict" for name in NAMES]


@ways
def test_the_trace_of_a_failed_run_has_the_finished_calls(run: Run, lm: NotingLM) -> None:
    """Rules 19 and 23: siblings finish, the original error of the first failing branch comes out, unwrapped."""
    program = gated("three", "two")
    Turns(["three", "one", "two"])

    with dspy.context(trace=[]):
        with pytest.raises(KeyError, match="two fails") as caught:
            run(program, {"question": "Which?"})
        steps = [step[0] for step in dspy.settings.trace]

    assert type(caught.value) is KeyError
    assert any("two" in note for note in caught.value.__notes__)
    assert steps == [program.one.predict, program.two.predict, program.three.predict]


@ways
@each(("limit", "kept"), [(2, ("two", "three")), (0, ()), (100, NAMES)])
def test_trace_keeps_to_its_limit(limit: int, kept: tuple[str, ...], run: Run, lm: NotingLM) -> None:
    """Rule 19: `max_trace_size` drops the oldest steps of the whole run."""
    program = gated()
    Turns(NAMES[::-1])
    with dspy.context(trace=[], max_trace_size=limit):
        run(program, {"question": "Which?"})
        assert [step[0] for step in dspy.settings.trace] == [getattr(program, name).predict for name in kept]


@ways
def test_without_a_trace_nothing_is_recorded(run: Run, lm: NotingLM) -> None:
    """Rule 19: `trace=None` switches it off."""
    Turns(NAMES)
    with dspy.context(trace=None):
        assert run(gated(), {"question": "Which?"}).all
        assert dspy.settings.trace is None


def test_unparseable_branch_is_a_failed_prediction() -> None:
    """Rule 23: DSPy takes AdapterParseError by its type and asks it for the culprit."""

    class Mute(NotingLM):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            asked = str((kwargs.get("messages") or [])[-1:])
            return (
                ["nothing to read"]
                if "`[[ ## mood ## ]]`" in asked or "`mood`" in asked
                else super().__call__(*args, **kwargs)
            )

    program = PAIRS[1].graph()
    with dspy.context(lm=Mute()):
        rows = bootstrap_trace_data(
            program, PAIRS[1].trainset[:1], num_threads=1, capture_failed_parses=True, raise_on_error=False
        )

    assert isinstance(rows[0]["prediction"], FailedPrediction)
    steps = rows[0]["trace"]
    assert [step[0] for step in steps] == [program.topic.predict, program.mood]
    assert isinstance(steps[1][2], FailedPrediction)


USAGE = [(pair, run) for run in (in_sync, in_async) for pair in PAIRS]
USAGE += [(pair, run) for run in (asyncified, in_parallel) for pair in PAIRS[1:3]]  # a fork, and a loop with a map


@each(("pair", "run"), USAGE, ids=lambda value: getattr(value, "name", None) or value.__name__)
def test_usage_is_complete(pair: Pair, run: Run) -> None:
    """Rule 24: every call of every branch counts, once, and for the program that was called."""
    counted = []
    for program in (pair.by_hand(), pair.graph()):
        lm = NotingLM()
        with dspy.context(lm=lm, track_usage=True):
            way = in_sync if type(program) is pair.by_hand and run is in_async else run  # it has no aforward
            prediction = way(program, dict(pair.trainset[0].inputs()))
        usage = prediction.get_lm_usage()
        counted.append((len(lm.sent), usage["fake/model"]["prompt_tokens"], usage["fake/model"]["completion_tokens"]))
    assert counted[0] == counted[1]
    assert counted[0][1] > 0


def tokens(usage: Any) -> dict[str, Any]:
    """What DSPy counts too: not the requests, and no cost; it has None for what the provider does not say."""
    counts: dict[str, Any] = usage["fake/model"]
    return {name: count for name, count in counts.items() if name not in ("requests", "cost") and count is not None}


def test_usage_of_a_surrounding_tracker(lm: NotingLM) -> None:
    """Rule 24: `dspy.track_usage()` around a run sees the same as the run's own account."""
    program = PAIRS[1].graph()
    with dspy.track_usage() as tracker:
        run = program.run({"question": "A train?"})
    assert tokens(run.usage) == tokens(tracker.get_total_tokens())
    assert run.usage["fake/model"]["prompt_tokens"] > 0


def test_usage_of_a_tracker_inside_a_node_is_counted_once(lm: NotingLM) -> None:
    """It passes on what it has to the tracker of the run around it, as `dspy.track_usage()` always does."""
    seen: list[Any] = []

    def tracked(question: str, inner: Any) -> dict[str, Any]:
        with dspy.track_usage() as tracker:
            label = inner.run({"question": question}).state["label"]
        seen.append(tracker.get_total_tokens())
        return {"label": label}

    graph = Graph().add_node("tracked", tracked, writes=["label"], modules={"inner": PAIRS[1].graph()})
    with dspy.track_usage() as tracker:
        run = graph.add_path(START, "tracked", END).compile().run({"question": "A train?"})
    alone = PAIRS[1].graph().run({"question": "A train?"}).usage
    assert alone["fake/model"]["requests"] == 3
    assert run.usage == alone
    assert tokens(alone) == tokens(seen[0]) == tokens(tracker.get_total_tokens())


class Tree(dspy.utils.callback.BaseCallback):
    """Who called whom."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self.labels: dict[str, str] = {}
        self.ended: list[str] = []

    def start(self, call_id: str, label: str) -> None:
        self.parents[call_id] = dspy.utils.callback.ACTIVE_CALL_ID.get()
        self.labels[call_id] = label

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.start(call_id, type(instance).__name__)

    def on_module_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
        self.ended.append(call_id)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.start(call_id, "LM")

    def on_lm_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
        self.ended.append(call_id)

    def drawn(self, parent: str | None = None) -> list[Any]:
        """The tree as nested lists. Siblings are sorted: branches start at the same time."""
        children = [call_id for call_id, above in self.parents.items() if above == parent]
        return sorted(([self.labels[call_id], self.drawn(call_id)] for call_id in children), key=str)


@pytest.mark.parametrize("run", [*WAYS, in_parallel], ids=lambda run: run.__name__)
def test_callbacks_form_one_tree(run: Run, lm: NotingLM) -> None:
    """Rules 18 and 28: every module call of a branch is below the program, and every start has its end."""
    program, tree = PAIRS[1].graph(), Tree()
    with dspy.context(callbacks=[tree]):
        run(program, {"question": "A train?"})

    predict = ["Predict", [["LM", []]]]
    assert tree.drawn() == [["Fork", sorted([["ChainOfThought", [predict]], predict, predict], key=str)]]
    assert sorted(tree.ended) == sorted(tree.parents)


@ways
def test_callbacks_of_a_graph_in_a_graph(run: Run, lm: NotingLM) -> None:
    """Rule 28: the inner program is a module of its own in the tree."""
    program, tree = PAIRS[5].graph(), Tree()
    with dspy.context(callbacks=[tree]):
        run(program, {"question": "A train?"})

    predict = ["Predict", [["LM", []]]]
    inner = ["Chain", sorted([["ChainOfThought", [predict]], predict], key=str)]
    assert tree.drawn() == [["Nested", sorted([inner, predict], key=str)]]


@ways
def test_settings_reach_every_branch_and_stay_as_they_were(run: Run, lm: NotingLM) -> None:
    """Rules 16, 18 and 24: overrides of the caller are seen in each branch; nothing is left behind."""
    seen: dict[str, Any] = {}

    def look(name: str) -> Callable[[str], dict[str, Any]]:
        def node(question: str) -> dict[str, Any]:
            seen[name] = (dspy.settings.lm, dspy.settings.adapter, dspy.settings.get("own_setting"))
            return {name: question}

        return node

    graph = Graph(name="Looking")
    for name in NAMES:
        graph.add_node(name, look(name), writes=[name]).add_edge(START, name).add_edge(name, END)
    program = graph.compile()
    adapter = dspy.JSONAdapter()
    with dspy.context(adapter=adapter, own_setting="mine"):
        before = dict(dspy.settings.items()) if hasattr(dspy.settings, "items") else None
        run(program, {"question": "Which?"})
        after = dict(dspy.settings.items()) if hasattr(dspy.settings, "items") else None

    assert seen == dict.fromkeys(NAMES, (lm, adapter, "mine"))
    assert before == after


def test_errors_are_not_swallowed(lm: NotingLM) -> None:
    """Rule 20: `dspy.Parallel` would make a missing result of it."""
    Turns(NAMES)
    with pytest.raises(KeyError, match="one fails"):
        gated("one")(question="Which?")


@pytest.mark.anyio
async def test_modules_without_aforward_leave_the_loop_free(lm: NotingLM) -> None:
    """Rule 22: BestOfN has no async form; it runs in a thread while a sibling on the event loop opens its gate."""

    def reward(inputs: Any, prediction: Any) -> float:
        Turns.current.wait("best")
        return 1.0

    async def free(question: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        Turns.current.finish("free")
        return {"note": question}

    Turns(["free", "best"])
    graph = Graph(name="Mixed")
    best = dspy.BestOfN(module=dspy.Predict("question -> answer"), N=2, reward_fn=reward, threshold=1.0)
    graph.add_node("best", best).add_node("free", free, writes=["note"])
    graph.add_edge(START, ["best", "free"]).add_edge(["best", "free"], END)

    prediction = await graph.compile().acall(question="Which?")
    assert prediction.answer
    assert prediction.note == "Which?"


def test_many_asyncified_programs_do_not_wait_for_each_others_threads(lm: NotingLM) -> None:
    """Rule 21: branches that took tokens of DSPy's own limiter would deadlock here."""

    async def all_at_once() -> list[Any]:
        program = dspy.asyncify(PAIRS[1].graph())
        return list(await asyncio.wait_for(asyncio.gather(*(program(question=f"Train {i}?") for i in range(6))), 30))

    with dspy.context(async_max_workers=2):
        assert all(prediction.label for prediction in asyncio.run(all_at_once()))
