"""Which calls `optimize.cache` takes for the same: one row for each thing that a result may depend on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, create_model

from dspyer import END, START, Graph, Send, fill, messages, optimize, view
from dspyer.dspy_module.lm_requests import in_rollout, with_new_responses
from dspyer.nodes.module_key import ModuleDescriber
from dspyer.runtime.optimizer_layers import asking_for
from tests.nodes.test_cache_key import compiled
from tests.optimize.cached import answers, caching, caching_lm, ending, facts, look

pytestmark = pytest.mark.usefixtures("no_dspy_cache")


def program(module: Any = None, name: str = "One", node: str = "answer", **options: Any) -> Any:
    graph = Graph(name=name).add_node(node, module or dspy.Predict("question -> answer"), **options)
    return graph.add_path(START, node, END).compile()


def instructed(text: str) -> Any:
    made = program()
    made.answer.signature = made.answer.signature.with_instructions(text)
    return made


def with_demos(*demos: dspy.Example) -> Any:
    made = program()
    made.answer.demos = list(demos)
    return made


def with_lm(**kwargs: Any) -> Any:
    made = program()
    made.set_lm(caching_lm(**kwargs))
    return made


def told(text: str) -> Any:
    return program(dspy.Predict(dspy.Signature("question -> answer", f"{text} {{place}}")))


class Kinds(dspy.Signature):
    """Say it."""

    question: str = dspy.InputField()
    answer: Literal["a", "b"] = dspy.OutputField()


class MoreKinds(dspy.Signature):
    """Say it."""

    question: str = dspy.InputField()
    answer: Literal["a", "b", "c"] = dspy.OutputField()


def with_model(**fields: Any) -> Any:
    """Two models of one name, one of which has another field."""
    made: Any = create_model("Answer", **fields)
    return program(dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", type_=made)))


def constrained(end: str) -> Any:
    made = Annotated[str, AfterValidator(ending(end))]
    return program(dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", type_=list[made])))


def coded(source: str, file: str = "", **used: Any) -> Any:
    """A module whose code is given, in a file of its own, with the global variables that it uses."""
    text = f"""
        class Own(dspy.Module):
            def __init__(self):
                super().__init__()
                self.ask = dspy.Predict("question -> answer")
                self.limit = 3
            def forward(self, question):
                {source}
    """
    made: Any = compiled(text, "Own", f"of_the_test_{hash((source, file))}", dspy=dspy, **used)
    return program(made(), writes=["answer"])


def with_other_lm(model: str) -> Any:
    """A module that asks an LM behind a global variable."""
    return coded(
        """with dspy.context(lm=OTHER):
                    return self.ask(question=question)""",
        file=model,
        OTHER=caching_lm(model=model),
    )


def with_judge(instructions: str) -> Any:
    """A module that asks a predictor behind a global variable, outside of the trace."""
    return coded(
        """found = self.ask(question=question)
                with dspy.context(trace=[]):
                    return dspy.Prediction(answer=found.answer + JUDGE(question="fair?").answer)""",
        file=instructions,
        JUDGE=dspy.Predict(dspy.Signature("question -> answer", instructions)),
    )


def limited(limit: int) -> Any:
    made = coded("return self.ask(question=question)")
    made.answer.limit = limit
    return made


def tooled(fn: Callable[..., Any], desc: str = "looks") -> Any:
    return program(dspy.ReAct("question -> answer", tools=[dspy.Tool(fn, name="look", desc=desc)], max_iters=1))


def look_twice(place: str) -> str:
    return place + place


EXAMPLE = dspy.Example(question="q", answer="a")
ASK = {"question": "Where?"}

EQUAL: dict[str, Callable[[], Any]] = {
    "another copy": lambda: program().deepcopy(),
    "the same instructions": lambda: instructed(program().answer.signature.instructions),
    "an id of a data set in a demo": program,
    "traces and stage": lambda: _changed(program(), stage="other", traces=[1], train=[2]),
    "a compiled copy": lambda: _changed(program(), _compiled=True),
}


def _changed(made: Any, **attributes: Any) -> Any:
    vars(made.answer).update(attributes)
    return made


# What is asked first, and then as something else: (program, further settings), twice.
DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "graph": (program, lambda: program(name="Two")),
    "node": (program, lambda: program(node="other")),
    "instructions": (program, lambda: instructed("Be brief.")),
    "a demo": (program, lambda: with_demos(EXAMPLE)),
    "another demo": (lambda: with_demos(EXAMPLE), lambda: with_demos(dspy.Example(question="q", answer="b"))),
    "order of demos": (
        lambda: with_demos(EXAMPLE, dspy.Example(question="r", answer="s")),
        lambda: with_demos(dspy.Example(question="r", answer="s"), EXAMPLE),
    ),
    "type of a field": (lambda: program(dspy.Predict(Kinds)), lambda: program(dspy.Predict(MoreKinds))),
    "fields of a type": (lambda: with_model(a=(int, 1)), lambda: with_model(a=(int, 1), b=(str, ""))),
    "description of a field": (
        program,
        lambda: program(dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", desc="short"))),
    ),
    "class of the module": (program, lambda: program(dspy.ChainOfThought("question -> answer"))),
    "config of a predictor": (program, lambda: program(dspy.Predict("question -> answer", temperature=0.5))),
    "rollout id in the config": (
        lambda: program(dspy.Predict("question -> answer", temperature=1.0, rollout_id=1)),
        lambda: program(dspy.Predict("question -> answer", temperature=1.0, rollout_id=2)),
    ),
    "model": (lambda: with_lm(model="a"), lambda: with_lm(model="b")),
    "temperature of the LM": (lambda: with_lm(temperature=0.1), lambda: with_lm(temperature=0.2)),
    "rollout id of the LM": (
        lambda: with_lm(rollout_id=1, temperature=1.0),
        lambda: with_lm(rollout_id=2, temperature=1.0),
    ),
    "code of a module": (
        lambda: coded("return self.ask(question=question)"),
        lambda: coded("return self.ask(question=question + '!')"),
    ),
    "attribute of a module": (lambda: limited(3), lambda: limited(4)),
    "an LM that code uses": (lambda: with_other_lm("a"), lambda: with_other_lm("b")),
    "a predictor that code uses": (lambda: with_judge("Be kind."), lambda: with_judge("Be strict.")),
    "code of a constraint": (lambda: constrained("1"), lambda: constrained("2")),
    "code of a tool": (lambda: tooled(look), lambda: tooled(look_twice)),
    "description of a tool": (lambda: tooled(look), lambda: tooled(look, "looks well")),
    "template": (lambda: told("In"), lambda: told("At")),
}


def as_asked(prompt: Any) -> Any:
    """What the LM says, of the type of each field."""
    shapes = {"object": {"a": 1}, "array": ["x"]}
    found = answers(prompt)
    return {
        field.name: shapes.get(dict(field.schema or {}).get("type", ""), found[field.name])
        for field in prompt.output_fields
    }


def made_calls(folder: Path, first: Any, second: Any, inputs: Any = ASK, other: Any = None) -> tuple[int, int]:
    """The LM calls of one run, and of another after it."""
    counts = []
    for made, given_ in ((first, inputs), (second, other or inputs)):
        lm = made.answer.lm if isinstance(getattr(made, "answer", None), dspy.Predict) else None
        lm = lm or caching_lm(as_asked)
        with optimize.cache(folder) as spared, dspy.context(lm=lm):
            assert made.run(given_).status == "completed"
        counts.append(sum(one["lm_calls"] for one in spared.to_dict().values()))
    return counts[0], counts[1]


@pytest.mark.parametrize("case", EQUAL)
def test_equal_calls_hit(case: str, tmp_path: Path) -> None:
    first = program()
    second = EQUAL[case]()
    if "data set" in case:
        first = with_demos(dspy.Example(dspy_uuid="1", question="q", answer="a"))
        second = with_demos(dspy.Example(dspy_uuid="2", question="q", answer="a"))
    assert made_calls(tmp_path, first, second) == (1, 0)


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_changed_part_misses(case: str, tmp_path: Path) -> None:
    make_first, make_second = DIFFERENT[case]
    inputs = {**ASK, "place": "town"}
    if case != "template":
        inputs.pop("place")
    before, after = made_calls(tmp_path, make_first(), make_second(), inputs)
    assert before == after > 0
    assert made_calls(tmp_path, make_first(), make_second(), inputs) == (0, 0)


def test_of_an_lm_the_key_of_its_account_does_not_count() -> None:
    def key(**kwargs: Any) -> str:
        with dspy.context(lm=dspy.LM("openai/some", **kwargs)):
            return ModuleDescriber().key_of(("One", "answer"), dspy.Predict("question -> answer"), ASK, 0)[0]

    assert key(api_key="one") == key(api_key="two")
    assert len({key(), key(api_base="http://a"), key(api_base="http://b"), key(max_tokens=3)}) == 4


# --- what a call reads


class Place(BaseModel):
    question: str = ""
    place: str = ""
    talk: messages.Messages = []
    asks: list[str] = []
    answer: str = ""


def reading(**reads: Any) -> Any:
    graph = Graph(Place, name="Reading", inputs=["question", "place", "asks", "talk"])
    graph.add_node("answer", dspy.Predict(f"{', '.join(reads)} -> answer"), reads=reads)
    return graph.add_path(START, "answer", END).compile()


def begin() -> None:
    """Writes nothing."""


def sending() -> Any:
    graph = Graph(Place, name="Sending", inputs=["question", "asks"], merge={"answer": "last_write_wins"})
    graph.add_node("begin", begin, writes=[])
    graph.add_node("answer", dspy.Predict("question -> answer"))
    graph.add_edge(START, "begin").add_edge("answer", END)
    graph.add_conditional_edges("begin", lambda asks: [Send("answer", {"question": one}) for one in asks], ["answer"])
    return graph.compile()


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


# (program, what it is given first, then, whether that is the same to the node)
READS: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any], bool]] = {
    "a field": (program, {"question": "a"}, {"question": "b"}, False),
    "a type": (program, {"question": "1"}, {"question": 1}, False),
    "a field that it does not read": (
        lambda: reading(question="question"),
        {"question": "a", "place": "x"},
        {"question": "a", "place": "y"},
        True,
    ),
    "the value for a template": (
        lambda: told("In"),
        {"question": "a", "place": "x"},
        {"question": "a", "place": "y"},
        False,
    ),
    "a filled input": (
        lambda: reading(question=fill("{place}?")),
        {"question": "a", "place": "x"},
        {"question": "a", "place": "y"},
        False,
    ),
    "a view that shows the same": (
        lambda: reading(talk=view("talk").last(1)),
        {"talk": said("a", "c")},
        {"talk": said("b", "c")},
        True,
    ),
    "a view that shows something else": (
        lambda: reading(talk=view("talk").last(1)),
        {"talk": said("a", "b")},
        {"talk": said("a", "c")},
        False,
    ),
    "a Send": (sending, {"asks": ["a"]}, {"asks": ["b"]}, False),
    "a Send among others": (sending, {"asks": ["a", "b"]}, {"asks": ["b", "a", "b"]}, True),
    "a run value": (lambda: reading(question="run.count"), {"place": "x"}, {"place": "y"}, True),
}


@pytest.mark.parametrize("case", READS)
def test_what_a_call_reads_is_its_key(case: str, tmp_path: Path) -> None:
    make, first, second, same = READS[case]
    before, after = made_calls(tmp_path, make(), make(), first, second)
    assert before > 0
    assert after == (0 if same else before)
    assert made_calls(tmp_path, make(), make(), first, second) == (0, 0)


@pytest.mark.parametrize(
    ("block", "other"),
    [
        (lambda: with_new_responses(1), lambda: with_new_responses(2)),
        (lambda: in_rollout(1, 0.7), lambda: in_rollout(2, 0.7)),
        (lambda: dspy.context(adapter=dspy.ChatAdapter()), lambda: dspy.context(adapter=dspy.JSONAdapter())),
    ],
    ids=["attempts", "trials", "adapter"],
)
def test_settings_around_a_run_are_part_of_the_key(block: Any, other: Any, tmp_path: Path) -> None:
    made = program()
    counts = []
    for around in (block, other, block, other):
        with caching() as lm, optimize.cache(tmp_path), around():
            made.run(ASK)
        counts.append(len(lm.calls))
    assert counts == [1, 1, 0, 0]


@pytest.mark.parametrize("name", ["rm", "depth"])
def test_settings_that_only_own_code_reads_are_part_of_its_key(name: str, tmp_path: Path) -> None:
    own = coded(f"return dspy.Prediction(answer=f'{{self.ask(question=question).answer}} {{dspy.settings.{name}}}')")
    said = []
    for value in ("a", "b", "a"):
        with caching() as lm, optimize.cache(tmp_path), dspy.context(**{name: value}):
            said.append((own.run(ASK).state["answer"].split()[-1], len(lm.calls)))
            program().run(ASK)  # no code there reads it
    assert [text for text, _ in said] == ["a", "b", "a"]
    assert len(lm.calls) == 0
    assert [count for _, count in said] == [1, 1, 0]


def test_what_code_uses_may_change_within_a_block(tmp_path: Path) -> None:
    limits = {"limit": 1}

    def limited_look(place: str) -> str:
        return f"{place} {limits['limit']} {LIMIT}"

    agent = tooled(limited_look)
    own = coded("return dspy.Prediction(answer=f'{self.ask(question=question).answer} {LIMIT} {self.most}')", LIMIT=1)
    cls: Any = type(own.answer)
    cls.most = 1
    counts, said = [], []
    with optimize.cache(tmp_path):
        for limit, value in ((LIMIT_OF_TOOL, 1), (LIMIT_OF_TOOL, 2), (LIMIT_OF_OWN, 2), (LIMIT_OF_CLASS, 2), ("", 0)):
            if limit == LIMIT_OF_TOOL:
                limits["limit"] = value
            elif limit == LIMIT_OF_OWN:
                cls.forward.__globals__["LIMIT"] = value
            elif limit == LIMIT_OF_CLASS:
                cls.most = value
            with caching() as lm:
                agent.run(ASK)
                asked = len(lm.calls)
                said.append(own.run(ASK).state["answer"][-3:])
            counts.append((asked > 0, len(lm.calls) - asked))
    assert counts == [(True, 1), (True, 0), (False, 1), (False, 1), (False, 0)]
    assert said == ["1 1", "1 1", "2 1", "2 2", "2 2"]


LIMIT = 1
LIMIT_OF_TOOL, LIMIT_OF_OWN, LIMIT_OF_CLASS = "tool", "own", "class"


def test_the_default_adapter_is_the_chat_adapter(tmp_path: Path) -> None:
    with caching() as lm, optimize.cache(tmp_path):
        program().run(ASK)
        with dspy.context(adapter=dspy.ChatAdapter()):
            program().run(ASK)
    assert len(lm.calls) == 1


# --- content, not position


def pair(first: str = "", second: str = "") -> Any:
    graph = Graph(name="Pair").add_node("a", dspy.Predict("question -> a")).add_node("b", dspy.Predict("question -> b"))
    graph.add_node("c", dspy.Predict("a, b -> answer"))
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END)
    made = graph.compile()
    for predictor, text in ((made.a, first), (made.b, second)):
        predictor.signature = predictor.signature.with_instructions(text or predictor.signature.instructions)
    return made


def test_a_merge_of_two_candidates_hits_what_both_have(tmp_path: Path) -> None:
    with caching(), optimize.cache(tmp_path):
        pair("Be brief.").run(ASK)
        pair("", "Be kind.").run(ASK)
    with caching() as lm, optimize.cache(tmp_path):
        run = pair("Be brief.", "Be kind.").run(ASK)
    assert [call.prompt.asks for call in lm.calls] == [("answer",)]  # `c` alone reads something new
    assert {one.node for one in run.commits if one.cached} == {"a", "b"}


def test_after_a_changed_node_that_gives_the_same_all_else_hits(tmp_path: Path) -> None:
    with caching(lambda prompt: {prompt.asks[0]: "x"}) as lm, optimize.cache(tmp_path):
        pair().run(ASK)
        pair("Be brief.").run(ASK)
    assert [call.prompt.asks for call in lm.calls].count(("answer",)) == 1
    assert len(lm.calls) == 4


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), max_size=6))
def test_any_order_of_candidates_and_questions_gives_what_calls_would(tmp_path_factory: Any, asked: list[Any]) -> None:
    made = pair()
    with caching(), optimize.cache(tmp_path_factory.mktemp("law")):
        for first, second, demo, question in asked:
            for predictor, number in ((made.a, first), (made.b, second)):
                predictor.signature = predictor.signature.with_instructions(f"Be {number}.")
            made.a.demos = [EXAMPLE] * demo
            found = facts(made.run({"question": f"{question}?"}))
            with asking_for(results=None):  # as without the block
                assert facts(made.run({"question": f"{question}?"})) == found


OTHER_PROCESS = """
import sys, dspy
from dspyer import optimize
from tests.nodes.test_cache_key import compiled
from tests.optimize.cached import caching, look
from tests.optimize.test_cache_keys import ASK, as_asked, constrained, pair, tooled
dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
with caching() as lm, optimize.cache(sys.argv[1]):
    pair().run(ASK)
    tooled(look).run(ASK)
with caching(as_asked) as typed, optimize.cache(sys.argv[1]):
    constrained("1").run(ASK)
print(len(lm.calls) + len(typed.calls))
"""


@pytest.mark.slow("another process")
def test_a_program_that_is_built_in_another_process_hits(tmp_path: Path) -> None:
    with caching() as lm, optimize.cache(tmp_path):
        pair().run(ASK)
        tooled(look).run(ASK)
    with caching(as_asked), optimize.cache(tmp_path):
        constrained("1").run(ASK)
    assert lm.calls
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "0"
