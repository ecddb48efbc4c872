"""Two programs as a user would write them: a support agent with an approval, and a team whose lead asks a reader."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import dspy
from pydantic import BaseModel

from dspyer import END, START, Budget, Graph, agents, reducers, search, to_chat, view
from dspyer.testing import ScriptedLM
from tests.agents.test_loop import turn


def find_order(id: str) -> dict[str, str]:  # noqa: A002 - the argument that the model gives
    """Finds an order."""
    return {"id": id}


def refund(amount: float, key: str = "") -> str:
    """Refunds an amount."""
    return f"refunded {amount}"


def test_a_support_agent() -> None:
    support = agents.tool_loop(
        "message -> reply",
        tools=[
            find_order,
            agents.tool(refund, approve=lambda amount: amount > 50, effect=True, retry=3, timeout=20),
        ],
        context=view("messages").turns(20),
    )
    program = support.compile(store=":memory:", budget=Budget(seconds=60))
    thread = program.thread("chat-1")

    async def talk() -> None:
        async with thread.astream({"message": "Refund me"}, tokens=True, if_open="abandon") as events:
            assert [event async for event in events]
        assert [question.text for question in thread.questions] == ["refund(amount=80)?"]
        async with thread.astream_resume({"refund": True}, tokens=True) as events:
            assert [event async for event in events]

    calls = turn(("find_order", {"id": "a"}), ("refund", {"amount": 80}))
    with ScriptedLM([calls, turn(("submit", {"reply": "Done."}))]):
        asyncio.run(talk())
    assert (thread.status, thread.state["reply"]) == ("completed", "Done.")
    roles = [message["role"] for message in to_chat(thread.state["messages"])]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]


def search_web(query: str) -> str:
    """Searches the web."""
    return query


class Team(BaseModel):
    findings: Annotated[list[str], reducers.extend] = []


def answer(prompt: Any) -> dict[str, Any]:
    given = {"quality": 0.95, "report": "a report", "problems": []}
    if "tool_calls" not in prompt.asks:
        return {name: given[name] for name in prompt.asks if name != "reasoning"}
    first = not any(message.role == "assistant" for message in prompt.turns)
    if "findings" in prompt.turns[0].content:
        return turn(("search_web", {"query": "x"})) if first else turn(("submit", {"findings": ["f"]}))
    both = turn(("research", {"topic": "a"}), ("research", {"topic": "b"}))
    return both if first else turn(("submit", {"outline": ["o"]}))


def test_a_research_team() -> None:
    reader = agents.tool_loop("topic -> findings: list[str]", [search_web], max_turns=8, name="Reader")
    writer = search.best_of(
        dspy.ChainOfThought("task, findings: list[str] -> report"),
        n=4,
        reward=dspy.Predict("task, report -> quality: float"),
        threshold=0.9,
        per_round=2,
    )
    research = agents.tool(
        reader, name="research", desc="Reads about one topic.", writes={"findings": "findings"}, timeout=300
    )
    lead = agents.tool_loop(
        "task -> outline: list[str]",
        tools=[research],
        schema=Team,
        check=dspy.Predict("task, outline: list[str] -> problems: list[str]"),
    )
    graph = Graph(name="Report")
    graph.add_node("lead", lead).add_node("write", writer)
    graph.add_path(START, "lead", "write", END)
    program = graph.compile(store=":memory:", budget=Budget(seconds=1800))
    with ScriptedLM(answer):
        run = program.thread("q3").run({"task": "Who makes heat pumps in Norway?"})
    assert (run.status, run.state["report"], list(run.state["findings"])) == ("completed", "a report", ["f", "f"])
    author = run.blame("report")
    assert author is not None
    assert author.node == "write"
