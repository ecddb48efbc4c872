"""DSPy modules as nodes: inputs, outputs, by-products, and the table of DSPy's module classes."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.utils import DummyLM
from pydantic import BaseModel

from dspyer.errors import GraphError, NodeOutputError, UnsetFieldError
from dspyer.nodes.build import node_name
from dspyer.nodes.module import TABLE, module_io
from dspyer.nodes.node import Built
from dspyer.nodes.sync_async import uses_acall
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from tests.nodes.kit import MODES, answering, built, call_of, good, holder, reply, run_node
from tests.rows import each


class Research(BaseModel):
    question: str
    query: str = ""
    hint: str | None = None
    answer: str | None = None
    draft: str | None = None
    why: str | None = None


RESEARCH = Schema.of(Research)
STATE = {"question": "q?", "query": "x?"}


class Hinted(dspy.Signature):
    """Answer."""

    question: str = dspy.InputField()
    hint: str = dspy.InputField(default="none")
    answer: str = dspy.OutputField()


def reward(args: dict[str, Any], prediction: dspy.Prediction) -> float:
    return 1.0


def tool(query: str) -> str:
    """Finds things."""
    return query


def quiet(make: Callable[[], dspy.Module]) -> dspy.Module:
    """Makes a module whose construction warns (deprecated or experimental in DSPy)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


MAKERS: dict[str, Callable[[], dspy.Module]] = {
    "Predict": lambda: dspy.Predict("question -> answer"),
    "ChainOfThought": lambda: dspy.ChainOfThought("question -> answer"),
    "ReAct": lambda: dspy.ReAct("question -> answer", tools=[tool]),
    "ReActV2": lambda: dspy.ReActV2("question -> answer", tools=[tool]),
    "RLM": lambda: dspy.RLM("question -> answer"),
    "ProgramOfThought": lambda: dspy.ProgramOfThought("question -> answer"),
    "CodeAct": lambda: dspy.CodeAct("question -> answer", tools=[tool]),
    "MultiChainComparison": lambda: dspy.MultiChainComparison("question -> answer", M=2),
    "BestOfN": lambda: dspy.BestOfN(dspy.ChainOfThought("question -> answer"), 2, reward, 1.0),
    "Refine": lambda: dspy.Refine(dspy.ReAct("question -> answer", tools=[tool]), 2, reward, 1.0),
    "Flex": lambda: dspy.Flex("question -> answer"),
}
BY_PRODUCTS = {
    "ChainOfThought": ("reasoning",),
    "ReAct": ("trajectory", "reasoning"),
    "ReActV2": ("history", "termination_reason"),
    "RLM": ("trajectory", "final_reasoning"),
    "ProgramOfThought": ("reasoning",),
    "CodeAct": ("trajectory", "reasoning"),
    "MultiChainComparison": ("rationale",),
    "BestOfN": ("reasoning",),
    "Refine": ("trajectory", "reasoning"),
}


def exported_modules() -> set[str]:
    return {
        name
        for name in dir(dspy)
        if inspect.isclass(found := getattr(dspy, name)) and issubclass(found, dspy.Module) and found is not dspy.Module
    }


def test_the_table_has_every_module_that_dspy_exports() -> None:
    assert exported_modules() == set(MAKERS)
    assert {kind.__name__ for kind in TABLE} == set(MAKERS)


@each("name", MAKERS)
def test_inputs_outputs_and_call_modes_of_a_module_of_dspy(name: str) -> None:
    module = quiet(MAKERS[name])
    found = module_io(module)
    inputs = ["completions", "question"] if name == "MultiChainComparison" else ["question"]
    assert list(found.inputs) == inputs
    assert list(found.outputs or ()) == ["answer"]
    assert found.by_products == BY_PRODUCTS.get(name, ())
    assert found.problems == ()
    assert uses_acall(module) == ("async" in TABLE[type(module)].call_modes)
    node = good(built(module))
    assert node.reads == {field: field for field in inputs}
    assert node.writes == {"answer": "answer"}


@each("name", MAKERS)
def test_by_products_are_written_where_they_are_named(name: str) -> None:
    module = quiet(MAKERS[name])
    extra = BY_PRODUCTS.get(name, ())
    assert good(built(module, writes=["answer", *extra])).writes == {key: key for key in ("answer", *extra)}
    (problem,) = built(module, writes=["answer", "elsewhere"]).problems
    assert "'elsewhere' in writes is none of its outputs" in problem


@each("name", MAKERS)
def test_no_node_holds_its_module(name: str) -> None:
    module = quiet(MAKERS[name])
    found = built(module)
    assert found.module is module
    node = good(found)
    parts = [getattr(node, part) for part in type(node).__dataclass_fields__]
    assert not any(isinstance(part, dspy.Module) for part in parts)


@MODES
@each("name", ["Predict", "ChainOfThought", "BestOfN"])
def test_a_module_gets_its_inputs_and_gives_its_outputs(name: str, mode: str) -> None:
    with dspy.context(lm=answering({"reasoning": "because", "answer": "42"}), trace=[]):
        given = run_node(MAKERS[name](), {**STATE, "more": 1}, mode)
        (step,) = dspy.settings.trace
    assert (dict(given.updates), given.whole, given.goto) == ({"answer": "42"}, True, None)
    assert step[1] == {"question": "q?"}


@MODES
def test_react_runs_and_its_trajectory_is_plain(mode: str) -> None:
    lm = DummyLM(
        [
            {"next_thought": "look", "next_tool_name": "tool", "next_tool_args": '{"query": "x"}'},
            {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": "{}"},
            {"reasoning": "because", "answer": "42"},
        ]
    )
    with dspy.context(lm=lm):
        given = run_node(MAKERS["ReAct"](), STATE, mode, writes=["answer", "trajectory"])
    assert given.updates["answer"] == "42"
    assert type(given.updates["trajectory"]) is dict


def test_multi_chain_comparison_gets_completions() -> None:
    attempts = [{"reasoning": "a", "answer": "1"}, {"reasoning": "b", "answer": "2"}]
    with dspy.context(lm=answering({"rationale": "hm", "answer": "2"})):
        given = run_node(quiet(MAKERS["MultiChainComparison"]), {**STATE, "completions": attempts})
    assert given.updates == {"answer": "2"}


def test_react_v2_gets_a_history_of_its_own_if_reads_names_it() -> None:
    state = ImmutableState({**STATE, "talk": dspy.History(messages=[{"question": "a", "answer": "b"}])})
    found = built(MAKERS["ReActV2"](), reads={"question": "question", "history": "talk"})
    node = good(found)
    assert node.reads == {"question": "question", "history": "talk"}
    assert node.optional == frozenset({"talk"})
    seen: list[Any] = []

    class Spy(dspy.Module):
        def forward(self, **inputs: Any) -> dspy.Prediction:
            seen.append(inputs)
            inputs["history"].messages.append({"mine": "c"})
            return dspy.Prediction(answer="x")

    reply(node, call_of(state, program=holder(node=Spy())))
    assert list(seen[0]) == ["question", "history"]
    assert len(state["talk"].messages) == 1


def test_inputs_are_plain_values_in_the_order_of_the_signature() -> None:
    seen: list[dict[str, Any]] = []

    class Spy(dspy.Module):
        def forward(self, **inputs: Any) -> dspy.Prediction:
            seen.append(inputs)
            inputs["docs"].append("mine")
            inputs["notes"]["mine"] = 1
            return dspy.Prediction(answer="x")

    node = good(built(dspy.Predict("question, docs: list[str], notes: dict[str, int] -> answer")))
    state = ImmutableState({"notes": {"k": 1}, "docs": ["d"], "question": "q", "answer": "old"})
    reply(node, call_of(state, program=holder(node=Spy())))
    assert list(seen[0]) == ["question", "docs", "notes"]
    assert [type(value) for value in seen[0].values()] == [str, list, dict]
    assert state == {"notes": {"k": 1}, "docs": ["d"], "question": "q", "answer": "old"}


def test_an_input_with_a_default_may_be_unset() -> None:
    node = good(built(dspy.Predict(Hinted)))
    assert (node.reads, node.optional) == ({"question": "question", "hint": "hint"}, frozenset({"hint"}))
    with dspy.context(lm=answering({"answer": "a"}, {"answer": "a"}), trace=[]):
        run_node(dspy.Predict(Hinted), {"question": "q"})
        run_node(dspy.Predict(Hinted), {"question": "q", "hint": "h"})
        assert [step[1]["hint"] for step in dspy.settings.trace] == ["none", "h"]


def test_an_input_that_is_no_field_but_has_a_default_is_left_out() -> None:
    class Small(BaseModel):
        question: str
        answer: str = ""

    assert good(built(dspy.Predict(Hinted), schema=Schema.of(Small))).reads == {"question": "question"}


@MODES
def test_an_unset_input_raises_naming_field_and_reader(mode: str) -> None:
    with pytest.raises(UnsetFieldError, match="node 'node' reads 'question', which nothing has written yet"):
        run_node(dspy.Predict("question -> answer"), {}, mode)


def test_reads_and_writes_rename() -> None:
    with dspy.context(lm=answering({"reasoning": "r", "answer": "a"}), trace=[]):
        given = run_node(
            dspy.ChainOfThought("question -> answer"),
            STATE,
            schema=RESEARCH,
            reads={"question": "query"},
            writes={"answer": "draft", "reasoning": "why"},
        )
        assert dspy.settings.trace[0][1] == {"question": "x?"}
    assert given.updates == {"draft": "a", "why": "r"}


def test_an_overlay_hides_fields() -> None:
    with dspy.context(lm=answering({"answer": "a"}), trace=[]):
        run_node(dspy.Predict("question -> answer"), STATE, schema=RESEARCH, overlay={"question": "sent"})
        assert dspy.settings.trace[0][1] == {"question": "sent"}


@each(
    ("signature", "options", "messages"),
    [
        ("qestion -> answer", {}, ["its input 'qestion' is no field of the state", "reads={'qestion': 'a field'}"]),
        ("qestion -> answer", {}, ["Did you mean 'question'?"]),
        ("question -> anser", {}, ["its output 'anser' is no field of the state", "writes={'anser': 'a field'}"]),
        ("question -> answer", {"reads": {"query": "question"}}, ["write reads={'question': 'query'}"]),
        ("question, hint -> answer", {"reads": ["question"]}, ["its input 'hint' is not in reads ('question')"]),
        ("question -> answer", {"writes": {"draft": "answer"}}, ["write writes={'answer': 'draft'}"]),
        ("question -> answer", {"writes": {"answer": "drafts"}}, ["Did you mean 'draft'?"]),
        ("question -> answer", {"modules": {"a": dspy.Predict("a -> b")}}, ["this node is a module itself"]),
        ("question -> answer", {"goto": ["a"]}, ["for functions that return Command"]),
    ],
)
def test_inputs_and_outputs_that_are_no_fields_are_problems(
    signature: str, options: dict[str, Any], messages: list[str]
) -> None:
    found = built(dspy.Predict(signature), schema=RESEARCH, **options)
    text = "\n".join((*found.problems, *found.unknown))
    assert all(message in text for message in messages), text


# --- other modules


class Own(dspy.Module):
    """Names its inputs as parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question: str, hint: str = "") -> dspy.Prediction:
        return dspy.Prediction(answer=f"{question}{hint}", reasoning="because", more=1)


class OnlyAsync(dspy.Module):
    async def aforward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer=question)


class TakesAll(dspy.Module):
    def forward(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(**inputs)


class PartlyNamed(dspy.Module):
    def forward(self, question: str, **more: str) -> dspy.Prediction:
        return dspy.Prediction(answer=question + more["hint"])


class WithSignature(TakesAll):
    def __init__(self) -> None:
        super().__init__()
        self.signature = dspy.Signature("question -> answer")


class Variadic(dspy.Module):
    def forward(self, *inputs: Any) -> None:
        return None


class Empty(dspy.Module):
    pass


class Gives(dspy.Module):
    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result

    def forward(self) -> object:
        return self.result


class NamedPredict(dspy.Predict):
    def forward(self, query: str) -> dspy.Prediction:
        return super().forward(question=query)


class PartlyNamedPredict(dspy.Predict):
    def forward(self, hint: str, **inputs: Any) -> dspy.Prediction:
        return super().forward(**inputs)


class ChangedPredict(dspy.Predict):
    def forward(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(answer=f"changed {inputs['question']}")


@MODES
def test_any_other_module_names_its_inputs_as_parameters(mode: str) -> None:
    given = run_node(Own(), {**STATE, "hint": "!"}, mode, schema=RESEARCH, writes=["answer"])
    assert given.updates == {"answer": "q?!"}
    node = good(built(Own(), schema=RESEARCH, writes=["answer"]))
    assert (node.reads, node.optional) == ({"question": "question", "hint": "hint"}, frozenset({"hint"}))


@MODES
def test_without_a_schema_all_but_by_products_is_written(mode: str) -> None:
    assert run_node(Own(), STATE, mode).updates == {"answer": "q?", "more": 1}
    assert good(built(Own())).writes is None


@MODES
def test_a_module_with_aforward_alone(mode: str) -> None:
    assert run_node(OnlyAsync(), STATE, mode).updates == {"answer": "q?"}


def test_with_a_schema_writes_is_required_and_the_line_is_printed() -> None:
    (problem,) = built(Own(), "own", schema=RESEARCH).problems
    assert "a Own does not say what it gives" in problem or "Own does not say what it gives" in problem
    assert "add_node('own', ..., writes=['" in problem


def test_kwargs_of_forward_need_reads() -> None:
    (problem,) = built(TakesAll()).problems
    assert "takes **kwargs, which does not say what it reads: give reads=[...]" in problem
    given = run_node(TakesAll(), STATE, reads={"answer": "question"})
    assert given.updates == {"answer": "q?"}


def test_kwargs_together_with_named_inputs() -> None:
    node = good(built(PartlyNamed(), reads=["question", "hint"]))
    assert list(node.reads or ()) == ["question", "hint"]
    assert run_node(PartlyNamed(), {**STATE, "hint": "h"}, reads=["question", "hint"]).updates == {"answer": "q?h"}
    assert good(built(PartlyNamed())).reads == {"question": "question"}


def test_the_signature_of_an_unknown_module_gives_its_inputs_and_outputs() -> None:
    node = good(built(WithSignature(), schema=RESEARCH))
    assert (node.reads, node.writes) == ({"question": "question"}, {"answer": "answer"})


def test_a_subclass_that_names_its_inputs_takes_those() -> None:
    node = good(built(NamedPredict("question -> answer"), schema=RESEARCH))
    assert (node.reads, node.writes) == ({"query": "query"}, {"answer": "answer"})
    node = good(built(PartlyNamedPredict("question -> answer"), schema=RESEARCH))
    assert list(node.reads or ()) == ["hint", "question"]


@MODES
def test_an_overridden_forward_is_called_in_async_code_too(mode: str) -> None:
    given = run_node(ChangedPredict("question -> answer"), STATE, mode)
    assert given.updates == {"answer": "changed q?"}


@pytest.mark.parametrize(
    ("module", "message"),
    [(Variadic(), "takes *inputs"), (Empty(), "has neither `forward` nor `aforward`")],
)
def test_a_module_that_cannot_be_called_by_name_is_a_problem(module: dspy.Module, message: str) -> None:
    problems = built(module, writes=["answer"]).problems
    assert any(message in problem for problem in problems), problems


@MODES
@each(
    ("result", "expected"),
    [
        (None, {}),
        ({"answer": {"k": None}}, {"answer": {"k": None}}),
        (dspy.Prediction(answer=None), {"answer": None}),
    ],
)
def test_outputs_of_a_module_replace_values_without_a_merge(
    result: object, expected: dict[str, Any], mode: str
) -> None:
    given = run_node(Gives(result), mode=mode)
    assert (given.updates, given.whole) == (expected, True)


@MODES
@each("result", ["text", ["a"], dspy.Example(answer="a"), 3])
def test_a_module_that_gives_something_else_is_an_error(result: object, mode: str) -> None:
    with pytest.raises(NodeOutputError, match="a module gives a dspy"):
        run_node(Gives(result), mode=mode)


def test_a_module_that_does_not_give_what_it_writes_is_an_error() -> None:
    with pytest.raises(NodeOutputError, match=r"gave no 'anser'.*it gave 'answer'.*Did you mean 'answer'"):
        run_node(Gives({"answer": 1}), writes=["anser"])


def test_a_known_module_that_gives_nothing_is_an_error() -> None:
    node = good(built(dspy.Predict("question -> answer")))
    with pytest.raises(NodeOutputError, match="gave None"):
        reply(node, call_of(STATE, program=holder(node=TakesNothing())))


class TakesNothing(dspy.Module):
    def forward(self, **inputs: Any) -> None:
        return None


# --- what is no node


class NotCallable:
    pass


class Uncompiled:
    def add_node(self) -> None: ...

    def __call__(self) -> None: ...


@each(
    ("node", "message"),
    [
        ("question -> answer", "a signature needs a module, dspy.Predict('question -> answer')"),
        (Hinted, "is the signature Hinted: give a module of it, dspy.Predict(Hinted)"),
        (dspy.Predict, "is the class Predict: give a module"),
        (Research, "is the model Research"),
        (NotCallable, "is the class NotCallable"),
        (dspy.Parallel(), "fork with add_edge, or run one node per item with add_map"),
        (dspy.Tool(tool), "is a Tool, which is no dspy.Module"),
        (dspy.LM("x/y"), "is a LM, which is no dspy.Module"),
        (Uncompiled(), "is a Uncompiled that is not compiled: call .compile()"),
        (NotCallable(), "of type NotCallable: give a function or a dspy.Module"),
        (3, "of type int: give a function or a dspy.Module"),
        (None, "of type NoneType"),
    ],
)
def test_what_cannot_be_a_node_says_what_to_give(node: object, message: str) -> None:
    found: Built = built(node)
    assert found.node is None
    assert message in found.problems[0]


def test_a_node_without_a_name_of_its_own_must_be_given_one() -> None:
    assert node_name(reward) == "reward"
    for node in (lambda state: None, functools.partial(reward), dspy.Predict("a -> b")):
        with pytest.raises(GraphError, match="has no name of its own"):
            node_name(node)
