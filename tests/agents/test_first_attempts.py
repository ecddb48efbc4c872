"""What an author at the first attempt, and the model, are told when a run shows that something is wrong."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import Annotated, Any

import dspy
import pytest
from pydantic import AfterValidator, BaseModel, Field

from dspyer import Command, agents
from dspyer.errors import ConcurrentRunError, StoreError
from dspyer.testing import ScriptedLM
from tests.agents.kit import agent, results, run_turn, turn


def known(sku: str) -> str:
    if not sku.startswith("A-"):
        raise ValueError("a SKU begins with A-")
    return sku


class Item(BaseModel):
    sku: Annotated[str, AfterValidator(known)]


class Order(BaseModel):
    items: list[Item]


def place(order: Order, express: bool = False) -> str:
    """Places an order."""
    return "placed"


def test_a_wrong_part_of_an_argument_is_named() -> None:
    run = run_turn(agent(place), ("place", {"express": True, "order": {"items": [{"sku": "A-1"}, {"sku": "B-2"}]}}))
    [(_, told, error)] = results(run)
    assert error
    assert "the argument 'order' is invalid: ['items'][1]['sku']: Value error, a SKU begins with A-" in told


@pytest.mark.parametrize("wrap", [agents.tool, lambda fn: agents.tool(dspy.Tool(fn, arg_desc={"amount": "in EUR"}))])
def test_constraints_of_an_annotated_argument_hold(wrap: Any) -> None:
    def pay(amount: Annotated[int, Field(gt=0)], parts: list[Annotated[int, Field(lt=9)]]) -> int:
        """Pays."""
        return amount

    calls = [{"amount": 3, "parts": [1]}, {"amount": 0, "parts": [1]}, {"amount": 3, "parts": [1, 9]}]
    run = run_turn(agent(wrap(pay)), *[("pay", args) for args in calls])
    (_, paid, _), (_, first, _), (_, second, _) = results(run)
    assert paid == 3
    assert "the argument 'amount' is invalid: Input should be greater than 0" in first
    assert "the argument 'parts' is invalid: [1]: Input should be less than 9" in second


def test_a_wrong_part_of_an_output_is_named() -> None:
    signature = dspy.Signature("question -> note").append("order", dspy.OutputField(), Order)
    program = agents.tool_loop(signature, []).compile()
    outputs = [{"note": "x", "order": {"items": [{"sku": sku}]}} for sku in ("B-2", "A-2")]
    with ScriptedLM([turn(("submit", one)) for one in outputs]):
        run = program.run({"question": "q"})
    told = run.state["messages"][2]
    assert told["error"]
    assert "the argument 'order' is invalid: ['items'][0]['sku']: Value error, a SKU begins with A-" in told["content"]
    assert run.state["order"].items[0].sku == "A-2"


def test_a_store_that_breaks_in_a_validator_is_no_mistake_of_the_model() -> None:
    error = StoreError("full")

    def stored(sku: str) -> str:
        raise error

    class Stored(BaseModel):
        sku: Annotated[str, AfterValidator(stored)]

    signature = dspy.Signature("question -> note").append("item", dspy.OutputField(), Stored)
    with ScriptedLM([turn(("submit", {"note": "x", "item": {"sku": "A-1"}}))]):
        assert agents.tool_loop(signature, []).compile().run({"question": "q"}).error is error


def test_a_fault_before_the_request_is_not_called_a_response() -> None:
    with dspy.context(lm="openai/gpt-4o"):
        run = agent(place).run({"question": "q"})
    assert "a turn failed with ValueError, and the last turn failed: LM must be an instance" in str(run.error)


def test_a_loop_says_that_it_has_no_other_mode() -> None:
    def leave() -> Command[Any]:
        """Leaves."""
        return Command(goto="somewhere", result="left")

    run = run_turn(agent(leave), ("leave", {}))
    text = "left; no handoff to somewhere: 'somewhere' cannot follow 'react'; no other mode can"
    assert [told for _, told, _ in results(run)] == [text]


def test_a_guard_that_is_a_partial_refuses_with_the_docstring_of_its_function() -> None:
    def has_words(question: str, least: int) -> bool:
        """The question is too short."""
        return len(question.split()) >= least

    guard = functools.partial(has_words, least=2)
    modes = {"first": agents.Mode(to=["last"]), "last": agents.Mode(guard=guard)}
    program = agents.modes("question -> answer", modes).compile()
    with ScriptedLM([turn(("to_last", {})), turn(("submit", {"answer": "x"}))]):
        run = program.run({"question": "Why?"})
    assert results(run) == [("to_last", "no handoff to last: The question is too short.", True)]


def test_what_a_check_may_give_is_said_for_the_agent() -> None:
    program = agent(place, check=lambda answer: "too short")
    with ScriptedLM([turn(("submit", {"answer": "x"}))]):
        run = program.run({"question": "q"})
    assert str(run.error).startswith("the check of the agent gave 'too short', a str: write a list around it.")


def test_an_input_may_have_a_default_factory() -> None:
    class Asks(dspy.Signature):
        question: str = dspy.InputField()
        names: list[str] = dspy.InputField(default_factory=list)
        answer: str = dspy.OutputField()

    program = agents.tool_loop(Asks, []).compile()
    with ScriptedLM([turn(("submit", {"answer": "x"}))] * 2):
        assert program(question="q").answer == "x"
        assert program.run({"question": "q", "names": ["Ada"]}).state["names"] == ["Ada"]


@pytest.mark.parametrize("count", [2, 5])
def test_requests_that_begin_a_thread_at_once_are_not_told_to_delete_it(count: int) -> None:
    others_refused = asyncio.Event()

    async def wait() -> str:
        """Waits."""
        await others_refused.wait()
        return "waited"

    program = agent(wait, store=":memory:")

    async def all_at_once() -> list[Any]:
        thread = program.thread("t")
        tasks = [asyncio.create_task(thread.arun({"question": "q"})) for _ in range(count)]
        for number, task in enumerate(asyncio.as_completed(tasks), 1):
            with suppress(ConcurrentRunError):
                await task
            if number == count - 1:
                others_refused.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with ScriptedLM([turn(("wait", {})), turn(("submit", {"answer": "x"}))]):
        found = asyncio.run(all_at_once())
    refused = [error for error in found if isinstance(error, ConcurrentRunError)]
    assert len(refused) == count - 1
    assert all("on_conflict=" in str(error) and "delete" not in str(error) for error in refused)
