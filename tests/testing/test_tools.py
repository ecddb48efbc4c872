"""Offline LMs with tools: prompts of several user messages, and native function calls."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from dspy.adapters.xml_adapter import XMLAdapter

from dspyer import END, START, Graph
from dspyer.testing import Asks, NearestLM, ScriptedLM, UnexpectedCallError
from tests.nodes.kit import MODES

NATIVE = [dspy.ChatAdapter(use_native_function_calling=True), dspy.JSONAdapter()]
TEXT = [dspy.ChatAdapter(), dspy.JSONAdapter(use_native_function_calling=False), XMLAdapter()]
adapters = pytest.mark.parametrize("adapter", [*NATIVE, *TEXT], ids=lambda found: type(found).__name__)


def people(city: str) -> str:
    """Counts the people of a city."""
    return f"{city} has 4 people"


def weather(city: str, day: str = "today") -> str:
    """Tells the weather, sun or rain."""
    return f"rain in {city} {day}"


def agent(max_iters: int = 5) -> dspy.ReActV2:
    return dspy.ReActV2("question -> answer", tools=[people, weather], max_iters=max_iters)


def called(name: str, **args: Any) -> dict[str, Any]:
    return {"next_thought": f"{name}!", "tool_calls": {"tool_calls": [{"name": name, "args": args}]}}


def ask(mode: str, module: Any, question: str = "How many?") -> Any:
    return module(question=question) if mode == "sync" else asyncio.run(module.acall(question=question))


@MODES
@adapters
def test_an_agent_follows_its_script(adapter: dspy.Adapter, mode: str) -> None:
    script = [called("people", city="Rome"), called("weather", city="Rome"), called("submit", answer="4")]
    with dspy.context(adapter=adapter), ScriptedLM(script) as lm:
        found = ask(mode, agent())
    assert (found.answer, found.termination_reason) == ("4", "submit")
    results = [call.prompt.inputs.get("tool_call_results", "") for call in lm.calls]
    assert results[0] == ""
    assert "Rome has 4 people" in results[1]
    assert "rain in Rome today" in results[2]
    assert [call.prompt.inputs["question"] for call in lm.calls] == ["How many?"] * 3
    native = adapter in NATIVE
    assert [call.name for each in lm.calls for call in each.tool_calls] == (
        ["people", "weather", "submit"] if native else []
    )
    assert [tool.name for tool in lm.calls[0].prompt.tools] == (["people", "weather", "submit"] if native else [])
    ids = [call.id for message in found.history.messages for call in message["tool_calls"].tool_calls]
    assert len(set(ids)) == 3


@adapters
def test_answers_can_be_chosen_by_the_results_of_tools(adapter: dspy.Adapter) -> None:
    script = [
        (Asks(tool_call_results="4 people"), called("submit", answer="four")),
        (Asks(question="How many"), called("people", city="Rome")),
    ]
    with dspy.context(adapter=adapter), ScriptedLM(script):
        assert agent()(question="How many?").answer == "four"


@adapters
def test_several_tools_may_be_called_at_once(adapter: dspy.Adapter) -> None:
    both = [{"name": "people", "args": {"city": "Rome"}}, {"name": "weather", "args": {"city": "Rome"}}]
    script = [{"next_thought": "both", "tool_calls": {"tool_calls": both}}, called("submit", answer="4")]
    with dspy.context(adapter=adapter), ScriptedLM(script) as lm:
        assert agent()(question="q").answer == "4"
    assert "4 people" in lm.calls[1].prompt.inputs["tool_call_results"]
    assert "rain in Rome" in lm.calls[1].prompt.inputs["tool_call_results"]


@MODES
@pytest.mark.parametrize("adapter", NATIVE, ids=lambda found: type(found).__name__)
def test_the_nearest_lm_calls_the_most_similar_tool_and_submits(adapter: dspy.Adapter, mode: str) -> None:
    for question, expected in [("How many people live in Rome?", "people"), ("Is there rain or sun?", "weather")]:
        with dspy.context(adapter=adapter, lm=NearestLM()):
            found = ask(mode, agent(), question)
        names = [call.name for message in found.history.messages for call in message["tool_calls"].tool_calls]
        assert names == [expected, "submit"]
        assert found.answer


@pytest.mark.parametrize("lm", [NearestLM(), ScriptedLM(lambda prompt: called(prompt.must_call[0], answer="end"))])
def test_a_tool_that_must_be_called_is_called(lm: dspy.LM) -> None:
    with dspy.context(adapter=NATIVE[0], lm=lm):
        found = agent(max_iters=0)(question="How many people?")
    assert found.termination_reason == "forced_submit"


@adapters
def test_a_script_may_give_ids(adapter: dspy.Adapter) -> None:
    """A call without an id gets a new one: from a provider if the calls are native, else from the agent."""
    calls = [{"id": "mine", "name": "people", "args": {"city": "Rome"}}, {"name": "weather", "args": {"city": "Rome"}}]
    with (
        dspy.context(adapter=adapter),
        ScriptedLM([{"next_thought": "both", "tool_calls": calls}, called("submit", answer="4")]),
    ):
        found = agent()(question="q")
    ids = [call.id for call in found.history.messages[0]["tool_calls"].tool_calls]
    assert ids == ["mine", "call_1" if adapter in NATIVE else "call_0_1"]


def test_a_signature_of_calls_alone_is_answered() -> None:
    calls = dspy.Predict("question, tools: list[dspy.Tool] -> calls: dspy.ToolCalls")
    tools = [dspy.Tool(people), dspy.Tool(weather)]
    script = [{"calls": [{"name": "people", "args": {"city": "Rome"}}]}]
    with dspy.context(adapter=NATIVE[0]), ScriptedLM(script) as lm:
        (call,) = calls(question="q", tools=tools).calls.tool_calls
    assert (call.name, call.args) == ("people", {"city": "Rome"})
    assert lm.calls[0].prompt.inputs == {"question": "q"}
    with dspy.context(adapter=NATIVE[0], lm=NearestLM()):
        (call,) = calls(question="How many people are there?", tools=tools).calls.tool_calls
    assert call.name == "people"


def test_an_answer_that_is_no_call_and_no_field_is_refused() -> None:
    lm = ScriptedLM([{"next_thought": "t", "tool_clals": "people"}])
    with dspy.context(adapter=NATIVE[0], lm=lm), pytest.raises(Exception, match="it has tool_clals"):
        agent()(question="q")
    assert isinstance(lm.calls[0].error, UnexpectedCallError)


@MODES
def test_calls_are_streamed(mode: str) -> None:
    predict = dspy.Predict("question, tools: list[dspy.Tool] -> note, calls: dspy.ToolCalls")
    listener = dspy.streaming.StreamListener(signature_field_name="note")
    stream = dspy.streamify(predict, stream_listeners=[listener], is_async_program=mode == "async")

    async def collect() -> list[Any]:
        return [one async for one in stream(question="hi", tools=[dspy.Tool(people)])]

    lm = ScriptedLM([{"note": "two words", "calls": [{"name": "people", "args": {"city": "Rome"}}]}])
    with dspy.context(adapter=NATIVE[0], lm=lm):
        *chunks, last = asyncio.run(collect())
    assert "".join(chunk.chunk for chunk in chunks).strip() == "two words"
    assert len(chunks) > 1
    assert [(call.name, call.args) for call in last.calls.tool_calls] == [("people", {"city": "Rome"})]


@MODES
def test_an_agent_is_a_node(mode: str) -> None:
    program = Graph().add_node("ask", agent()).add_path(START, "ask", END).compile()
    script = [called("people", city="Rome"), called("submit", answer="4")]
    with dspy.context(adapter=NATIVE[0]), ScriptedLM(script):
        assert ask(mode, program).answer == "4"
