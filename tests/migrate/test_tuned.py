"""A graph of LangGraph whose nodes become predictors one by one, until DSPy's optimizers tune it."""

from __future__ import annotations

import copy
from typing import Any, Literal

import dspy
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from dspyer.migrate import explain_langgraph, from_langgraph, langgraph_inputs
from dspyer.testing import Prompt, ScriptedLM
from tests.migrate.cases import Seen

DESKS = {"invoice": "billing", "charge": "billing", "crash": "support", "login": "support"}
LETTERS = [f"{word} {number}{'!' * (number % 2)}" for number in range(6) for word in DESKS]


class State(TypedDict, total=False):
    letter: str
    desk: str
    urgent: bool
    route: str


def old_graph(seen: Seen) -> Any:
    """What the user comes with: two rules that are often wrong, a router, and two nodes that end it."""

    def classify(state: State) -> State:
        seen.append("classify")
        return {"desk": "billing"}

    def weigh(state: State) -> State:
        seen.append("weigh")
        return {"urgent": False}

    def by_desk(state: State) -> Literal["pay", "help"]:
        return "pay" if state["desk"] == "billing" else "help"

    builder = StateGraph(State)
    builder.add_node("classify", classify)
    builder.add_node("weigh", weigh)
    for name in ("pay", "help"):
        builder.add_node(name, seen.node(name, lambda state, name=name: {"route": f"{name} {state['urgent']}"}))
    builder.add_edge(START, "classify")
    builder.add_edge("classify", "weigh")
    builder.add_conditional_edges("weigh", by_desk)
    return builder.compile()


def right_desk(letter: str) -> str:
    return DESKS[letter.split(maxsplit=1)[0]]


def answer(prompt: Prompt) -> dict[str, Any]:
    """A model that knows half of the letters, and all of them once it has seen demonstrations."""
    letter = str(prompt.inputs["letter"])
    knows = bool(prompt.demos) or int(letter.rstrip("!")[-1]) < 3
    if "urgent" in {field.name for field in prompt.output_fields}:
        return {"urgent": str(letter.endswith("!") == knows)}
    return {"desk": right_desk(letter) if knows else "nowhere"}


def both_right(example: dspy.Example, prediction: Any, trace: object = None) -> bool:
    way = "pay" if right_desk(example.letter) == "billing" else "help"
    return bool(prediction.route == f"{way} {example.letter.endswith('!')}")


EXAMPLES = [dspy.Example(letter=letter).with_inputs("letter") for letter in LETTERS]
CLASSIFY = "letter -> desk"
WEIGH = "letter -> urgent: bool"


def score(program: Any) -> float:
    return float(dspy.Evaluate(devset=EXAMPLES, metric=both_right, num_threads=1)(program).score)


def test_nodes_are_replaced_one_by_one_until_an_optimizer_tunes_the_graph() -> None:
    seen = Seen()
    app = old_graph(seen)
    right_before = [
        both_right(example, dspy.Prediction(**app.invoke({"letter": example.letter}))) for example in EXAMPLES
    ]
    assert sum(right_before) == 6
    assert seen.count("classify") == seen.count("weigh") == len(LETTERS)

    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        program = from_langgraph(app).compile()
        assert score(program) == 25.0
        assert program.predictors() == []
        assert len(lm.calls) == 0

        seen.clear()
        program = from_langgraph(app, nodes={"classify": dspy.Predict(CLASSIFY)}).compile()
        assert score(program) == 41.67
        assert (seen.count("classify"), seen.count("weigh"), len(lm.calls)) == (0, len(LETTERS), len(LETTERS))

        seen.clear()
        nodes = {"classify": dspy.Predict(CLASSIFY), "weigh": dspy.ChainOfThought(WEIGH)}
        program = from_langgraph(app, nodes=nodes).compile()
        before = score(program)
        assert [name for name, _ in program.named_predictors()] == ["classify", "weigh.predict"]
        assert set(seen) == {"pay", "help"}

        tuned = dspy.BootstrapFewShot(metric=both_right, max_bootstrapped_demos=2, max_labeled_demos=0).compile(
            program, trainset=EXAMPLES
        )
        assert (before, score(tuned)) == (50.0, 100.0)
        assert [len(predictor.demos) for predictor in tuned.predictors()] == [2, 2]
        assert [len(predictor.demos) for predictor in program.predictors()] == [0, 0]
        assert score(program) == 50.0, "the program that was given is as it was"


def test_a_tuned_program_is_saved_loaded_and_run_on_a_thread(tmp_path: Any) -> None:
    app = old_graph(Seen())
    graph = from_langgraph(app, nodes={"classify": dspy.Predict(CLASSIFY)})
    program = graph.compile()
    program.predictors()[0].demos = [dspy.Example(letter="charge 5", desk="billing")]
    program.save(tmp_path / "tuned.json")
    again = from_langgraph(app, nodes={"classify": dspy.Predict(CLASSIFY)}).compile(store=":memory:")
    again.load(tmp_path / "tuned.json")
    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        run = again.thread("1").run(langgraph_inputs(app, {"letter": "crash 5"}))
    assert run.state.to_dict() == {"letter": "crash 5", "desk": "support", "urgent": False, "route": "help False"}
    assert len(lm.calls) == 1
    assert [step.node for step in run.trace_steps] == ["classify"]


@pytest.mark.parametrize("kind", ["module", "function", "program", "graph"])
def test_a_node_is_replaced_by(kind: str) -> None:
    seen = Seen()

    def desk_of(letter: str) -> dict[str, str]:
        seen.append("new")
        return {"desk": right_desk(letter)}

    inner = StateGraph(State)
    inner.add_node("new", lambda state: desk_of(state["letter"]))
    inner.add_edge(START, "new")
    graph = from_langgraph(inner)
    replacements = {
        "module": dspy.Predict(CLASSIFY),
        "function": desk_of,
        "graph": graph,
        "program": graph.compile(),
    }
    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        converted = from_langgraph(old_graph(seen), nodes={"classify": replacements[kind]}).compile()
        state = copy.deepcopy(converted).run({"letter": "login 1"}).state.to_dict()
    assert state == {"letter": "login 1", "desk": "support", "urgent": False, "route": "help False"}
    assert (seen.count("classify"), seen.count("new"), len(lm.calls)) == ((0, 0, 1) if kind == "module" else (0, 1, 0))


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def chat(messages: Any, decide: Any) -> dict[str, Any]:
    """In the place of an agent's model: it calls the tool, and then says what that has found."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"It is {last.content}.")]}
    call = {"name": "weather", "args": {"city": decide(question=last.content).city}, "id": "c1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def test_the_model_of_an_agent_is_tuned_and_its_middleware_stays(caplog: pytest.LogCaptureFixture) -> None:
    approval = HumanInTheLoopMiddleware(interrupt_on={"weather": True})
    app: Any = create_agent(
        GenericFakeChatModel(messages=iter(())), [weather], middleware=[approval, ModelRetryMiddleware()]
    )
    assert "{'predict': dspy.Predict(\"conversation -> reply\")}" in str(explain_langgraph(app))
    with caplog.at_level("INFO", "dspyer.migrate"):
        model = {"node": chat, "modules": {"decide": dspy.Predict("question -> city")}}
        graph = from_langgraph(app, nodes={"model": model})
    assert "replaced by chat, and what wraps its model call is left out: ModelRetryMiddleware" in caplog.text
    key, approve = "HumanInTheLoopMiddleware_after_model-0", {"decisions": [{"type": "approve"}]}
    asked = {city: HumanMessage(f"Weather in {city}") for city in ("Oslo", "Rome", "Lima")}
    examples = [dspy.Example(messages=[one], city=city).with_inputs("messages") for city, one in asked.items()]

    def answered(prompt: Prompt) -> dict[str, Any]:
        city = str(prompt.inputs["question"]).split()[-1]
        return {"city": city if prompt.demos or city == "Oslo" else "nowhere"}

    def right(example: dspy.Example, prediction: Any, trace: object = None) -> bool:
        return bool(prediction.messages[-1].content == f"It is sunny in {example.city}.")

    with dspy.context(lm=ScriptedLM(answered)):
        program = graph.compile(answers={key: approve})
        assert [right(example, program(**example.inputs())) for example in examples] == [True, False, False]
        optimizer = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=1, max_labeled_demos=0)
        tuned = optimizer.compile(program, trainset=examples)
        assert [(name, len(one.demos)) for name, one in tuned.named_predictors()] == [("model.decide", 1)]
        asks = graph.compile(store=":memory:")
        asks.load_state(tuned.dump_state())
        thread = asks.thread("1")
        run = thread.run({"messages": [asked["Lima"]]})
        assert [question.key for question in run.questions] == [key]
        assert thread.resume({key: approve}).state["messages"][-1].content == "It is sunny in Lima."
