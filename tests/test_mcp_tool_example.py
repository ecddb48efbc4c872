"""The tool of examples/mcp_tool.py and real MCP clients: of today's protocol, of the one before, over HTTP."""

from __future__ import annotations

import asyncio
import runpy
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import mcp
import pytest
from mcp.server.mcpserver import MCPServer, RequestStateSecurity
from mcp.types import CallToolResult, ElicitRequest, ElicitResult, InputRequiredResult
from pydantic import BaseModel, Field
from sse_starlette.sse import AppStatus

from dspyer import END, START, CompiledGraph, Graph, agents
from dspyer.testing import ScriptedLM
from tests.asgi_server import PATIENCE, served

EXAMPLE = Path(__file__).parent.parent / "examples" / "mcp_tool.py"
FLAT = ("string", "number", "integer", "boolean")
"""What a field of a form may be: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation"""
INTO = {"note": "draft", "go": None}
MODES = {"today": "auto", "before": "legacy"}  # protocols 2026-07-28 and 2025-11-25


@pytest.fixture(autouse=True)
def _open_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a test before has stopped by Ctrl-C ends the event streams of the whole process."""
    monkeypatch.setattr(AppStatus, "should_exit", False)


@pytest.fixture(scope="module")
def as_tool() -> Callable[..., Any]:
    """The function of the example."""
    found: Callable[..., Any] = runpy.run_path(str(EXAMPLE))["as_tool"]
    return found


class Size(BaseModel):
    height: int
    color: Literal["red", "blue"] = "red"


class Order(BaseModel):
    customer: str = Field(description="Whose order it is.")
    count: int = Field(default=1, ge=1)
    words: list[str] = []
    draft: str = ""
    approved: bool = False
    size: Size | None = None
    speed: str = ""
    status: str = "new"


class Shop:
    """A node, questions, and a payment; counts their calls."""

    def __init__(self, store: Any, *questions: str) -> None:
        self.calls: list[str] = []
        self.inside = threading.Event()
        self.cancelled = threading.Event()
        self.hangs = False
        self.paying, self.may_pay = threading.Event(), threading.Event()
        self.may_pay.set()
        graph = Graph(Order, inputs=["customer", "count", "words"], required=["customer"], outputs=["draft", "status"])
        graph.add_node("write", self.write, writes=["draft"]).add_node("pay", self.pay, writes=["status"])
        types = {"approved": bool, "size": Size, "speed": Literal["slow", "fast"], "note": Any, "go": None}
        for name in questions:
            graph.add_interrupt(
                f"ask_{name}", question=f"{name} of {{draft}}?", answer=types[name], into=INTO.get(name, name)
            )
        asked = [f"ask_{name}" for name in questions]
        graph.add_edge(START, "write").add_edge("write", asked or "pay").add_edge("pay", END)
        if asked:
            graph.add_edge(asked, "pay")
        self.program: CompiledGraph = graph.compile(store=store)

    async def write(self, customer: str, count: int, words: list[str]) -> dict[str, Any]:
        self.calls.append("write")
        if self.hangs:
            self.inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return {"draft": f"{count} for {customer}{''.join(words)}"}

    def pay(self, customer: str, approved: bool, size: Size | None, speed: str) -> dict[str, Any]:
        self.calls.append("pay")
        self.paying.set()
        assert self.may_pay.wait(PATIENCE)
        if customer == "Mallory":
            raise ConnectionError("password=hunter2")
        return {"status": f"paid {approved} {size.height if size else ''}{speed}"}

    def thread(self) -> Any:
        (name,) = self.program.threads()
        return self.program.thread(name)


def served_by(as_tool: Callable[..., Any], shop: Shop, **options: Any) -> MCPServer:
    server = MCPServer("shop", **options)
    server.add_tool(as_tool(shop.program, Order), name="order", description="Orders.")
    return server


class Person:
    """Answers forms, by the message; notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: dict[str, Any] = {}

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        name = params.message.partition(" ")[0]
        self.asked[name] = params.requested_schema
        for part in params.requested_schema["properties"].values():
            assert part["type"] in FLAT
        found: Any = next(answer for answer in self.answers if isinstance(answer, str) or name in answer)
        return (
            ElicitResult(action=found) if isinstance(found, str) else ElicitResult(action="accept", content=found[name])
        )


def text(result: CallToolResult) -> str:
    (part,) = result.content
    found: str = part.text  # type: ignore[union-attr]
    return found


def call(target: Any, mode: str, person: Any, **arguments: Any) -> CallToolResult:
    """One call by a client of its own."""

    async def run() -> CallToolResult:
        async with mcp.Client(target, mode=MODES[mode], elicitation_callback=person) as client:
            return await client.call_tool("order", arguments)

    return asyncio.run(run())


@pytest.mark.parametrize("mode", MODES)
def test_inputs_are_arguments(as_tool: Callable[..., Any], mode: str) -> None:
    shop = Shop(":memory:")
    server = served_by(as_tool, shop)

    async def schema() -> dict[str, Any]:
        async with mcp.Client(server, mode=MODES[mode]) as client:
            (tool,) = (await client.list_tools()).tools
            assert (tool.name, tool.description) == ("order", "Orders.")
            return tool.input_schema

    found = asyncio.run(schema())
    assert (list(found["properties"]), found["required"]) == (["customer", "count", "words"], ["customer"])
    assert found["properties"]["customer"]["description"] == "Whose order it is."
    assert (found["properties"]["count"]["minimum"], found["properties"]["count"]["default"]) == (1, 1)
    result = call(server, mode, None, customer="Ada", count=2, words=["!"])
    assert result.structured_content == {"draft": "2 for Ada!", "status": "paid False "}
    assert call(server, mode, None, customer="Ada").structured_content["draft"] == "1 for Ada"
    assert shop.calls == ["write", "pay"] * 2
    wrong_inputs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("count\n  Input should be greater than or equal to 1", {"customer": "Ada", "count": 0}),
        ("customer\n  Field required", {"count": 1}),
        ("customer\n  Input should be a valid string", {"customer": 7}),
    )
    for problem, wrong in wrong_inputs:
        refused = call(server, mode, None, **wrong)
        assert (refused.is_error, problem in text(refused)) == (True, True)
    assert shop.calls == ["write", "pay"] * 2


class Ticket(BaseModel):
    title: str
    number: str = Field(default_factory=lambda: uuid.uuid4().hex)
    approved: bool = False


@pytest.mark.parametrize("mode", MODES)
def test_a_default_that_is_made_for_each_run_and_an_input_without_one(as_tool: Callable[..., Any], mode: str) -> None:
    graph = Graph(Ticket, inputs=["title", "number"], required=[], outputs=["number", "approved"])
    graph.add_interrupt("ask", question="approved?", answer=bool, into="approved").add_path(START, "ask", END)
    server = MCPServer("tickets")
    server.add_tool(as_tool(graph.compile(store=":memory:"), Ticket), name="order")
    person = Person({"approved?": {"answer": True}})
    found = [call(server, mode, person).structured_content for _ in range(2)]
    assert [one["approved"] for one in found] == [True, True]
    assert len({one["number"] for one in found}) == 2
    assert call(server, mode, person, number="7").structured_content["number"] == "7"


@pytest.mark.parametrize("mode", MODES)
def test_questions_are_forms(as_tool: Callable[..., Any], mode: str) -> None:
    """Several at once: a flag, a model, a choice. No node is called twice."""
    shop = Shop(":memory:", "approved", "size", "speed")
    person = Person({"approved": {"answer": True}, "size": {"height": 7}, "speed": {"answer": "fast"}})
    result = call(served_by(as_tool, shop), mode, person, customer="Ada")
    assert result.structured_content == {"draft": "1 for Ada", "status": "paid True 7fast"}
    assert shop.calls == ["write", "pay"]
    assert person.asked["approved"] == {
        "type": "object",
        "properties": {"answer": {"type": "boolean"}},
        "required": ["answer"],
    }
    assert list(person.asked["size"]["properties"]) == ["height", "color"]
    assert person.asked["speed"]["properties"]["answer"]["enum"] == ["slow", "fast"]


@pytest.mark.parametrize("mode", MODES)
def test_any_value_is_a_text_and_a_permission_has_no_field(as_tool: Callable[..., Any], mode: str) -> None:
    shop = Shop(":memory:", "note", "go")
    person = Person({"note": {"answer": "later"}, "go": {}})
    result = call(served_by(as_tool, shop), mode, person, customer="Ada")
    assert result.structured_content == {"draft": "later", "status": "paid False "}
    assert [list(person.asked[name]["properties"]) for name in ("note", "go")] == [["answer"], []]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_question_that_is_declined_stays_open(as_tool: Callable[..., Any], mode: str, action: str) -> None:
    shop = Shop(":memory:", "approved")
    result = call(served_by(as_tool, shop), mode, Person(action), customer="Ada")
    assert (result.is_error, text(result)) == (True, "Error executing tool order: not answered: approved of 1 for Ada?")
    assert (shop.thread().status, shop.calls) == ("interrupted", ["write"])
    assert shop.thread().resume({"ask_approved": False}).state["status"] == "paid False "


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_of_another_type_is_refused(as_tool: Callable[..., Any], mode: str) -> None:
    shop = Shop(":memory:", "approved")
    result = call(served_by(as_tool, shop), mode, Person({"approved": {"answer": "perhaps"}}), customer="Ada")
    assert (result.is_error, "bool" in text(result)) == (True, True)
    assert (shop.thread().status, shop.calls) == ("interrupted", ["write"])


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_cannot_be_asked(as_tool: Callable[..., Any], mode: str) -> None:
    shop = Shop(":memory:", "approved")
    result = call(served_by(as_tool, shop), mode, None, customer="Ada")
    assert result.is_error
    assert text(result).endswith("cannot ask: approved of 1 for Ada?")


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_keeps_its_text_on_the_server(
    as_tool: Callable[..., Any], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(":memory:")
    result = call(served_by(as_tool, shop), mode, None, customer="Mallory")
    assert (result.is_error, text(result)) == (True, "Error executing tool order")
    assert "hunter2" in caplog.text
    assert shop.thread().status == "failed"


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_cancelled_stops_its_run(as_tool: Callable[..., Any], mode: str) -> None:
    shop = Shop(":memory:")
    shop.hangs = True

    async def run() -> None:
        async with mcp.Client(served_by(as_tool, shop), mode=MODES[mode]) as client:
            calling = asyncio.create_task(client.call_tool("order", {"customer": "Ada"}))
            assert await asyncio.to_thread(shop.inside.wait, PATIENCE)
            calling.cancel()
            with suppress(asyncio.CancelledError):
                await calling
            assert await asyncio.to_thread(shop.cancelled.wait, PATIENCE)

    asyncio.run(run())
    assert (shop.thread().status, shop.calls) == ("stopped", ["write"])


def test_another_process_of_the_service_continues_and_a_repeated_answer_calls_nothing(
    as_tool: Callable[..., Any], tmp_path: Path
) -> None:
    """Today's protocol: the call has ended, and all that it left is the thread and its sealed name."""
    first, second = Shop(tmp_path / "shop.db", "approved"), Shop(tmp_path / "shop.db", "approved")
    security = RequestStateSecurity(keys=["k" * 32])

    async def run() -> list[Any]:
        servers = [served_by(as_tool, shop, request_state_security=security) for shop in (first, second)]
        async with mcp.Client(servers[0], elicitation_callback=Person()) as client:
            asked = await client.session.call_tool("order", {"customer": "Ada"}, allow_input_required=True)
            assert isinstance(asked, InputRequiredResult)
            (key, form) = next(iter((asked.input_requests or {}).items()))
            assert (isinstance(form, ElicitRequest), "mcp/" in str(asked.request_state)) == (True, False)
        given: Any = {key: ElicitResult(action="accept", content={"answer": True})}
        options: dict[str, Any] = {"input_responses": given, "allow_input_required": True}
        async with mcp.Client(servers[1], elicitation_callback=Person()) as client:
            again = {"request_state": asked.request_state, **options}
            found = [await client.session.call_tool("order", {"customer": "Ada"}, **again) for _ in range(2)]
            for state, name in (("mcp/1", "Ada"), (str(asked.request_state)[:-4], "Ada"), (asked.request_state, "Eve")):
                with pytest.raises(mcp.MCPError, match="requestState"):
                    await client.session.call_tool("order", {"customer": name}, **{**again, "request_state": state})
            return found

    results = asyncio.run(run())
    assert [result.structured_content for result in results] == [{"draft": "1 for Ada", "status": "paid True "}] * 2
    assert (first.calls, second.calls) == (["write"], ["pay"])


def test_the_same_answers_while_the_run_is_at_work(as_tool: Callable[..., Any]) -> None:
    shop = Shop(":memory:", "approved")
    shop.may_pay.clear()

    async def run() -> None:
        async with mcp.Client(served_by(as_tool, shop), elicitation_callback=Person()) as client:

            async def order(**options: Any) -> Any:
                return await client.session.call_tool(
                    "order", {"customer": "Ada"}, allow_input_required=True, **options
                )

            asked = await order()
            given = {key: ElicitResult(action="accept", content={"answer": True}) for key in asked.input_requests}
            again = {"input_responses": given, "request_state": asked.request_state}
            first = asyncio.create_task(order(**again))
            assert await asyncio.to_thread(shop.paying.wait, PATIENCE)
            assert text(await order(**again)) == "Error executing tool order: another call works on this: try later"
            shop.may_pay.set()
            paid = (await first).structured_content
            assert (await order(**again)).structured_content == paid == {"draft": "1 for Ada", "status": "paid True "}

    asyncio.run(run())
    assert shop.calls == ["write", "pay"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db", "approved")


@pytest.fixture
def address(as_tool: Callable[..., Any], shop: Shop) -> Iterator[str]:
    with served(served_by(as_tool, shop).streamable_http_app(), lifespan="on") as address:
        yield f"{address}/mcp"


@pytest.mark.parametrize("mode", MODES)
def test_users_at_once_over_http(shop: Shop, address: str, mode: str) -> None:
    async def order(name: str, approved: bool) -> Any:
        person = Person({"approved": {"answer": approved}})
        async with mcp.Client(address, mode=MODES[mode], elicitation_callback=person) as client:
            return (await client.call_tool("order", {"customer": name})).structured_content

    async def run() -> list[Any]:
        return await asyncio.gather(*(order(f"user {n}", n % 2 == 0) for n in range(6)))

    found = asyncio.run(run())
    assert found == [{"draft": f"1 for user {n}", "status": f"paid {n % 2 == 0} "} for n in range(6)]
    assert sorted(shop.calls) == ["pay"] * 6 + ["write"] * 6
    assert len(shop.program.threads()) == 6


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_hangs_up_over_http(shop: Shop, address: str, mode: str) -> None:
    shop.hangs = True

    async def run() -> None:
        async with mcp.Client(address, mode=MODES[mode]) as client:
            calling = asyncio.create_task(client.call_tool("order", {"customer": "Ada"}))
            assert await asyncio.to_thread(shop.inside.wait, PATIENCE)
            calling.cancel()
            with suppress(asyncio.CancelledError):
                await calling

    asyncio.run(run())
    assert shop.cancelled.wait(PATIENCE)


def test_an_agent_that_asks_before_a_call_has_no_flat_form(as_tool: Callable[..., Any]) -> None:
    def pay(amount: int) -> str:
        """Pays."""
        return f"paid {amount}"

    program = agents.tool_loop("question -> answer", [agents.tool(pay, approve=True)]).compile(store=":memory:")
    step = {"next_thought": "", "tool_calls": {"tool_calls": [{"name": "pay", "args": {"amount": 3}}]}}
    with ScriptedLM([step]):
        (question,) = program.thread("t").run({"question": "?"}).questions
    assert (question.answer or {}).get("type") not in {*FLAT, "null", "object"}
