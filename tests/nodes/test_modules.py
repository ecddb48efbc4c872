"""DSPy modules as nodes: inputs, outputs, by-products, and the table of DSPy's module classes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.utils import DummyLM
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Run, Send
from dspyer.errors import GraphError, NodeOutputError, UnsetFieldError
from tests.nodes.kit import MODES, answering
from tests.rows import each


def program_of(node: Any, schema: type[BaseModel] | None = None, inputs: Any = None, **options: Any) -> CompiledGraph:
    graph = Graph(schema, inputs=inputs).add_node("node", node, **options)
    return graph.add_path(START, "node", END).compile()


def facts(node: Any, schema: type[BaseModel] | None = None, **options: Any) -> str:
    """What a node reads and writes; without a schema also the inputs, if one of them may be unset."""
    lines = program_of(node, schema, **options).graph.explain().splitlines()
    (inputs, found) = (next(line for line in lines if line.startswith(f"  {name}: ")) for name in ("inputs", "node"))
    reads, writes, _ = found.removeprefix("  node: ").split("; ")
    return "; ".join([reads, writes, *([inputs.strip()] if "optional" in inputs and schema is None else [])])


def problems(node: Any, schema: type[BaseModel] | None = None, **options: Any) -> list[str]:
    with pytest.raises(GraphError) as raised:
        program_of(node, schema, **options)
    return [*raised.value.problems]


def ran(program: CompiledGraph, state: dict[str, Any], mode: str = "sync") -> Run:
    run = program.run(state) if mode == "sync" else asyncio.run(program.arun(state))
    run.raise_error()
    return run


def given(
    node: Any, state: dict[str, Any] | None = None, mode: str = "sync", schema: Any = None, **options: Any
) -> dict[str, Any]:
    """What a node commits, after a run with these inputs."""
    program = program_of(node, schema, [*(state or {})], **options)
    return dict(ran(program, state or {}, mode).commits[1].patch)


class Research(BaseModel):
    question: str
    query: str = ""
    hint: str | None = None
    answer: str | None = None
    draft: str | None = None
    why: str | None = None


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


@each("name", MAKERS)
def test_inputs_outputs_and_by_products_of_a_module_of_dspy(name: str) -> None:
    module, extra = quiet(MAKERS[name]), BY_PRODUCTS.get(name, ())
    reads = "reads completions, question" if name == "MultiChainComparison" else "reads question"
    assert facts(module) == f"{reads}; writes answer"
    assert facts(module, writes=["answer", *extra]) == f"{reads}; writes {', '.join(('answer', *extra))}"
    (problem,) = problems(module, writes=["answer", "elsewhere"])
    assert "'elsewhere' in writes is none of its outputs" in problem
    assert all(repr(one) in problem for one in ("answer", *extra))


class Answers(dspy.Module):
    """Stands for a module of a program, as an optimizer may replace it, and notes what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def forward(self, **inputs: Any) -> dspy.Prediction:
        self.seen.append(inputs)
        for value in inputs.values():
            if isinstance(value, list):
                value.append("mine")
            if isinstance(value, dict):
                value["mine"] = 1
            if isinstance(value, dspy.History):
                value.messages.append({"mine": "c"})
        return dspy.Prediction(answer="replaced")


@each("name", MAKERS)
def test_the_module_that_the_program_has_is_called(name: str) -> None:
    """No node keeps the one that it was made of."""
    module = quiet(MAKERS[name])
    program: Any = program_of(module)
    assert type(program.node) is type(module)
    program.node = Answers()
    assert ran(program, dict.fromkeys(program.graph.inputs, "x")).state["answer"] == "replaced"


@MODES
@each("name", ["Predict", "ChainOfThought", "BestOfN"])
def test_a_module_gets_its_inputs_and_gives_its_outputs(name: str, mode: str) -> None:
    with dspy.context(lm=answering({"reasoning": "because", "answer": "42"}), trace=[]):
        assert given(MAKERS[name](), {**STATE, "more": 1}, mode) == {"answer": "42"}
        (step,) = dspy.settings.trace
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
        found = ran(program_of(MAKERS["ReAct"](), writes=["answer", "trajectory"]), {"question": "q?"}, mode).state
    assert found["answer"] == "42"
    assert found["trajectory"]["tool_name_0"] == "tool"


def test_multi_chain_comparison_gets_completions() -> None:
    attempts = [{"reasoning": "a", "answer": "1"}, {"reasoning": "b", "answer": "2"}]
    with dspy.context(lm=answering({"rationale": "hm", "answer": "2"})):
        found = given(quiet(MAKERS["MultiChainComparison"]), {**STATE, "completions": attempts})
    assert found == {"answer": "2"}


def test_react_v2_gets_a_history_of_its_own_if_reads_names_it() -> None:
    reads = {"question": "question", "history": "talk"}
    shown = "reads question, talk (as history); writes answer; inputs: question, talk (optional)"
    assert facts(MAKERS["ReActV2"](), reads=reads) == shown
    program: Any = program_of(MAKERS["ReActV2"](), reads=reads)
    program.node = Answers()
    run = ran(program, {"question": "q", "talk": dspy.History(messages=[{"question": "a", "answer": "b"}])})
    assert list(program.node.seen[0]) == ["question", "history"]
    assert len(run.state["talk"].messages) == 1


def test_inputs_are_plain_values_in_the_order_of_the_signature() -> None:
    program: Any = program_of(dspy.Predict("question, docs: list[str], notes: dict[str, int] -> answer"))
    program.node = Answers()
    state = {"notes": {"k": 1}, "docs": ["d"], "question": "q"}
    run = ran(program, state)
    assert [(name, type(value)) for name, value in program.node.seen[0].items()] == [
        ("question", str),
        ("docs", list),
        ("notes", dict),
    ]
    assert run.state.to_dict() == {"notes": {"k": 1}, "docs": ["d"], "question": "q", "answer": "replaced"}


def test_an_input_with_a_default_may_be_unset() -> None:
    assert facts(dspy.Predict(Hinted)) == "reads question, hint; writes answer; inputs: question, hint (optional)"
    with dspy.context(lm=answering({"answer": "a"}, {"answer": "a"}), trace=[]):
        given(dspy.Predict(Hinted), {"question": "q"})
        given(dspy.Predict(Hinted), {"question": "q", "hint": "h"})
        assert [step[1]["hint"] for step in dspy.settings.trace] == ["none", "h"]


def test_an_input_that_is_no_field_but_has_a_default_is_left_out() -> None:
    class Small(BaseModel):
        question: str
        answer: str = ""

    assert facts(dspy.Predict(Hinted), Small) == "reads question; writes answer"


@MODES
def test_an_unset_input_raises_naming_field_and_reader(mode: str) -> None:
    graph = Graph().add_node("first", lambda: None, writes=["question"]).add_node("node", dspy.Predict("question -> a"))
    with pytest.raises(UnsetFieldError, match="node 'node' reads 'question', which nothing has written yet"):
        ran(graph.add_path(START, "first", "node", END).compile(), {}, mode)


def test_reads_and_writes_rename() -> None:
    with dspy.context(lm=answering({"reasoning": "r", "answer": "a"}), trace=[]):
        found = given(
            dspy.ChainOfThought("question -> answer"),
            STATE,
            schema=Research,
            reads={"question": "query"},
            writes={"answer": "draft", "reasoning": "why"},
        )
        assert dspy.settings.trace[0][1] == {"question": "x?"}
    assert found == {"draft": "a", "why": "r"}


def test_what_a_send_brings_hides_fields() -> None:
    graph = Graph(Research, inputs=["question"]).add_node("node", dspy.Predict("question -> answer"))
    graph.add_conditional_edges(START, lambda: [Send("node", {"question": "sent"})], ["node"]).add_edge("node", END)
    with dspy.context(lm=answering({"answer": "a"}), trace=[]):
        ran(graph.compile(), {"question": "q?"})
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
    text = "\n".join(problems(dspy.Predict(signature), Research, **options))
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
    assert given(Own(), {**STATE, "hint": "!"}, mode, schema=Research, writes=["answer"]) == {"answer": "q?!"}
    assert facts(Own(), writes=["answer"]) == "reads question, hint; writes answer; inputs: question, hint (optional)"


@MODES
def test_without_a_schema_all_but_by_products_is_written(mode: str) -> None:
    assert given(Own(), STATE, mode) == {"answer": "q?", "more": 1}
    assert "; writes ?;" in facts(Own())


@MODES
def test_a_module_with_aforward_alone(mode: str) -> None:
    assert given(OnlyAsync(), STATE, mode) == {"answer": "q?"}


def test_with_a_schema_writes_is_required_and_the_line_is_printed() -> None:
    (problem,) = problems(Own(), Research)
    assert "Own does not say what it gives" in problem
    assert "add_node('node', ..., writes=['" in problem


def test_kwargs_of_forward_need_reads() -> None:
    (problem,) = problems(TakesAll())
    assert "takes **kwargs, which does not say what it reads: give reads=[...]" in problem
    assert given(TakesAll(), STATE, reads={"answer": "question"}) == {"answer": "q?"}


def test_kwargs_together_with_named_inputs() -> None:
    reads = ["question", "hint"]
    assert facts(PartlyNamed(), reads=reads).startswith("reads question, hint; writes ?")
    assert given(PartlyNamed(), {**STATE, "hint": "h"}, reads=reads) == {"answer": "q?h"}
    assert facts(PartlyNamed()) == "reads question; writes ?"


def test_the_signature_of_an_unknown_module_gives_its_inputs_and_outputs() -> None:
    assert facts(WithSignature(), Research) == "reads question; writes answer"


def test_a_subclass_that_names_its_inputs_takes_those() -> None:
    found = facts(NamedPredict("question -> answer"), Research)
    assert found.startswith("reads query; writes answer")
    found = facts(PartlyNamedPredict("question -> answer"), Research)
    assert found.startswith("reads hint, question; writes answer")


@MODES
def test_an_overridden_forward_is_called_in_async_code_too(mode: str) -> None:
    assert given(ChangedPredict("question -> answer"), STATE, mode) == {"answer": "changed q?"}


@pytest.mark.parametrize(
    ("module", "message"),
    [(Variadic(), "takes *inputs"), (Empty(), "has neither `forward` nor `aforward`")],
)
def test_a_module_that_cannot_be_called_by_name_is_a_problem(module: dspy.Module, message: str) -> None:
    found = problems(module, writes=["answer"])
    assert any(message in problem for problem in found), found


@MODES
@each(
    ("result", "expected"),
    [
        (None, {"more": 0}),
        ({"answer": {"k": None}}, {"k": None}),
        (dspy.Prediction(answer=None), None),
    ],
)
def test_outputs_of_a_module_replace_values_without_a_merge(result: object, expected: object, mode: str) -> None:
    program = program_of(Gives(result), inputs=["answer"])
    before = {"answer": {"more": 0}}
    assert ran(program, before, mode).state["answer"] == expected


@MODES
@each("result", ["text", ["a"], dspy.Example(answer="a"), 3])
def test_a_module_that_gives_something_else_is_an_error(result: object, mode: str) -> None:
    with pytest.raises(NodeOutputError, match="a module gives a dspy"):
        given(Gives(result), mode=mode)


def test_a_module_that_does_not_give_what_it_writes_is_an_error() -> None:
    with pytest.raises(NodeOutputError, match=r"gave no 'anser'.*it gave 'answer'.*Did you mean 'answer'"):
        given(Gives({"answer": 1}), writes=["anser"])


def test_a_known_module_that_gives_nothing_is_an_error() -> None:
    class GivesNothing(dspy.Predict):
        def forward(self, **inputs: Any) -> None:
            return None

    with pytest.raises(NodeOutputError, match="gave None"):
        given(GivesNothing("question -> answer"), {"question": "q?"})


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
        (None, "has no function or module"),
    ],
)
def test_what_cannot_be_a_node_says_what_to_give(node: object, message: str) -> None:
    assert message in problems(node)[0]


def test_a_node_without_a_name_of_its_own_must_be_given_one() -> None:
    assert "  reward: reads" in Graph().add_node(reward).add_path(START, "reward", END).compile().graph.explain()
    for node in (lambda state: None, functools.partial(reward), dspy.Predict("a -> b")):
        with pytest.raises(GraphError, match="has no name of its own"):
            Graph().add_node(node)
