"""`add_node(lm=)`: the language model of the predictors of a node that have none."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import cloudpickle
import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import LMServerError
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, agents, optimize
from dspyer.errors import GraphError
from dspyer.testing import Prompt, ScriptedLM
from tests.nodes.kit import MODES
from tests.rows import each


class Fields(BaseModel):
    q: str = ""
    qs: list[str] = ["a", "b"]
    a: str = ""
    b: str = ""
    all: list[str] = []
    problems: list[str] = []
    ok: bool | None = None


def answered(prompt: Prompt) -> dict[str, Any]:
    if "tool_calls" in prompt.asks:
        return {"next_thought": "so", "tool_calls": {"tool_calls": [{"name": "submit", "args": {"a": "done"}}]}}
    return {name: "yes" if name != "label" else "b" for name in prompt.asks}


def model(name: str) -> ScriptedLM:
    return ScriptedLM(answered, model=name)


def ask(q: str, predict: dspy.Module) -> dict[str, str]:
    return {"a": predict(q=q).a}


def ask_in_threads(q: str, predict: dspy.Module) -> dict[str, str]:
    rows = [(predict, dspy.Example(q=text).with_inputs("q")) for text in "abc"]
    return {"a": dspy.Parallel(num_threads=3, disable_progress_bar=True)(rows)[0].a}


async def ask_inside(q: str, ctx: Context, inner: Any) -> dict[str, str]:
    return {"a": (await ctx.acall(inner, {"q": q})).a}


def shout(q: str) -> dict[str, str]:
    return {"a": q * 3}


def one(node: Any, **options: Any) -> Graph:
    graph = Graph(Fields).add_node("asks", node, **options)
    return graph.add_path(START, "asks", END)


Answer = dspy.Predict("q -> a")


def checked(lm: Any) -> Graph:
    graph = Graph(Fields).add_node("asks", Answer, lm=lm)
    graph.add_check("fine", lambda a: [] if a == "never" else ["no"], of="asks", max_fixes=2, accept=True)
    return graph.add_path(START, "asks", END)


def mapped(lm: Any) -> Graph:
    graph = Graph(Fields).add_map("asks", Answer, over="qs", item="q", into="all", lm=lm)
    return graph.add_path(START, "asks", END)


KINDS: dict[str, tuple[Callable[[Any], Graph], int]] = {
    "predictor": (lambda lm: one(Answer, lm=lm), 1),
    "chain of thought": (lambda lm: one(dspy.ChainOfThought("q -> a"), lm=lm), 1),
    "function": (lambda lm: one(ask, modules={"predict": Answer}, lm=lm), 1),
    "threads of DSPy": (lambda lm: one(ask_in_threads, modules={"predict": Answer}, lm=lm), 3),
    "graph": (lambda lm: one(one(Answer), lm=lm), 1),
    "graph in a graph": (lambda lm: one(one(one(Answer)), lm=lm), 1),
    "graph of a function": (lambda lm: one(ask_inside, modules={"inner": one(Answer)}, lm=lm), 1),
    "agent": (lambda lm: one(agents.tool_loop("q -> a", []), lm=lm, writes=["a"]), 1),
    "map": (mapped, 2),
    "condenser": (lambda lm: one(shout, writes=["a"], condense={"a": dspy.Predict("long -> short")}, lm=lm), 1),
    "fixes of a check": (checked, 3),
}


def called(*models: ScriptedLM) -> dict[str, int]:
    return {lm.model: len(lm.calls) for lm in models if lm.calls}


def play(program: CompiledGraph, mode: str) -> Any:
    return program(q="?") if mode == "sync" else asyncio.run(program.acall(q="?"))


@MODES
@each("kind", KINDS)
def test_all_predictors_of_the_node_use_it(kind: str, mode: str) -> None:
    make, count = KINDS[kind]
    small, large = model("small"), model("large")
    program = make(small).compile()
    with dspy.context(lm=large):
        play(program, mode)
        assert called(small, large) == {"small": count}
        assert dspy.settings.lm is large
        play(make(None).compile(), mode)
    assert called(small, large) == {"small": count, "large": count}


def two(first: Any, second: Any) -> CompiledGraph:
    graph = Graph(Fields).add_node("one", dspy.Predict("q -> a"), lm=first)
    graph.add_node("two", dspy.Predict("q -> b"), lm=second).add_edge(START, ["one", "two"])
    return graph.add_edge(["one", "two"], END).compile()


@MODES
def test_parallel_nodes_have_their_own(mode: str) -> None:
    small, middle, large = map(model, ("small", "middle", "large"))
    program = two(small, middle)
    with dspy.context(lm=large):
        play(program, mode)
    assert called(small, middle, large) == {"small": 1, "middle": 1}


@MODES
def test_the_nearest_wins(mode: str) -> None:
    small, middle, large, own = map(model, ("small", "middle", "large", "own"))
    inner = Graph(Fields).add_node("one", dspy.Predict("q -> a"), lm=small).add_node("two", dspy.Predict("q -> b"))
    inner.add_path(START, "one", "two", END)
    program = one(inner, lm=middle).compile()
    with dspy.context(lm=large):
        play(program, mode)
        assert called(small, middle, large) == {"small": 1, "middle": 1}
        program.asks.two.lm = own
        play(program, mode)
        assert called(small, middle, large, own) == {"small": 2, "middle": 1, "own": 1}
        program.set_lm(large)
        play(program, mode)
    assert called(small, middle, large, own) == {"small": 2, "middle": 1, "own": 1, "large": 2}


def test_saved_states_do_not_have_it(tmp_path: Any) -> None:
    small, large = model("small"), model("large")
    program, plain = two(small, None), two(None, None)
    assert program.dump_state() == plain.dump_state()
    assert [name for name, _ in program.named_predictors()] == ["one", "two"]
    assert program.get_lm() is None
    plain.one.demos = [dspy.Example(q="1", a="2").with_inputs("q")]
    plain.save(tmp_path / "state.json")
    program.load(tmp_path / "state.json")
    with dspy.context(lm=large):
        program(q="?")
    assert called(small, large) == {"small": 1, "large": 1}
    assert len(small.calls[0].prompt.demos) == 1


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy()": lambda program: program.deepcopy(),
    "copy.deepcopy": copy.deepcopy,
    "reset_copy": lambda program: program.reset_copy(),
    "with_resources": lambda program: program.with_resources([]),
}


@each("name", COPIES)
def test_copies_of_a_program_keep_it(name: str) -> None:
    small, large = model("small"), model("large")
    found = COPIES[name](two(small, None))
    with dspy.context(lm=large):
        found(q="?")
    assert called(small, large) == {"small": 1, "large": 1}


def test_a_pickle_keeps_it() -> None:
    small = DummyLM([{"a": "pickled"}] * 3)
    program = cloudpickle.loads(cloudpickle.dumps(two(small, None)))
    with dspy.context(lm=DummyLM([{"b": "of the settings"}])):
        found = program(q="?")
    assert (found.a, found.b) == ("pickled", "of the settings")


def test_threads_of_dspy_and_of_an_evaluation_keep_them_apart() -> None:
    small, middle, large = map(model, ("small", "middle", "large"))
    program = two(small, middle)
    rows = [dspy.Example(q=str(number), a="yes").with_inputs("q") for number in range(12)]
    with dspy.context(lm=large):
        dspy.Parallel(num_threads=4, disable_progress_bar=True)([(program, row) for row in rows])
        dspy.Evaluate(devset=rows, metric=lambda row, found, _=None: 1.0, num_threads=4, display_progress=False)(
            program
        )
        program.batch(rows, disable_progress_bar=True)
    assert called(small, middle, large) == {"small": 36, "middle": 36}


@MODES
def test_retries_and_a_resume_use_it(mode: str, tmp_path: Any) -> None:
    replies: list[Any] = [LMServerError("one", model="m"), LMServerError("two", model="m"), {"a": "yes"}]
    small, large = ScriptedLM(lambda prompt: replies.pop(0), model="small"), model("large")
    graph = Graph(Fields).add_interrupt("ok", question="Go on?", into="ok")
    graph.add_node("asks", dspy.Predict("q -> a"), lm=small, retry=Retry(3, wait=wait_none())).add_path(
        START, "ok", "asks", END
    )
    program = graph.compile(store=tmp_path / "runs.db")
    program.thread("t").run({"q": "?"})
    thread = program.deepcopy().thread("t")
    with dspy.context(lm=large):
        answers = {"ok": True}
        run = thread.resume(answers) if mode == "sync" else asyncio.run(thread.aresume(answers))
    assert (run.status, run.error, run.state["a"], called(small, large)) == ("completed", None, "yes", {"small": 3})
    assert {call.model for call in thread.lm_calls(run.commits[-1].id)} == {"small"}


@each("given", ["openai/gpt-4o-mini", 3, dspy.LM])
def test_what_is_no_language_model_is_refused(given: Any) -> None:
    with pytest.raises(GraphError, match=r"node 'asks': lm=.* is no language model: give one, lm=dspy.LM"):
        one(Answer, lm=given).compile()


def test_a_function_without_predictors_takes_none() -> None:
    with pytest.raises(GraphError, match="node 'asks': lm= is for predictors, and it has none"):
        one(shout, writes=["a"], lm=model("small")).compile()


# --- optimizers tune the predictors apart


def team(first: Any, second: Any) -> CompiledGraph:
    graph = Graph(Fields).add_node("one", agents.tool_loop("q -> a", []), writes=["a"], lm=first)
    graph.add_node("two", agents.tool_loop("q -> b", []), writes=["b"], lm=second)
    return graph.add_path(START, "one", "two", END).compile()


def playing(name: str, output: str, answer: str | None = None) -> ScriptedLM:
    def reply(prompt: Prompt) -> dict[str, Any]:
        submit = {"name": "submit", "args": {output: answer or f"{output} of {prompt.inputs['q']}"}}
        return {"next_thought": name, "tool_calls": {"tool_calls": [submit]}}

    return ScriptedLM(reply, model=name)


ROWS = [dspy.Example(q=f"q{number}", a=f"a of q{number}", b=f"b of q{number}").with_inputs("q") for number in range(4)]


def right(row: Any, found: Any, trace: Any = None) -> bool:
    return bool(found.a == row.a and found.b == row.b)


def test_bootstrap_tunes_agents_with_their_own_models() -> None:
    small, middle, large = playing("small", "a"), playing("middle", "b"), model("large")
    program = team(small, middle)
    with dspy.context(lm=large):
        tuned = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=2, max_labeled_demos=0).compile(
            program, trainset=ROWS
        )
        assert not large.calls
        demos = {name: [demo["next_thought"] for demo in part.demos] for name, part in tuned.named_predictors()}
        assert demos == {"one.react": ["small", "small"], "two.react": ["middle", "middle"]}
        before = Counter(called(small, middle))
        assert right(ROWS[3], tuned(q="q3"))
    assert Counter(called(small, middle)) - before == {"small": 1, "middle": 1}


def test_gepa_tunes_agents_with_their_own_models() -> None:
    small, middle, large = playing("small", "a", "wrong"), playing("middle", "b"), model("large")
    reflection = ScriptedLM(lambda prompt: "```\nSay it better.\n```", model="reflection")
    metric = optimize.by_field({"a": optimize.equals("a"), "b": optimize.equals("b")}, goal="a")
    with dspy.context(lm=large):
        gepa = optimize.GEPA(metric, reflection_lm=reflection, max_metric_calls=20)
        tuned = gepa.compile(team(small, middle), trainset=ROWS, valset=ROWS)
        tuned(q="q1")
    assert not large.calls
    assert small.calls
    assert middle.calls
    assert reflection.calls
