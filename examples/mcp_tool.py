"""A program as a tool of an MCP server: its question becomes a form that the client shows to its user.

python examples/mcp_tool.py           # a client asks in this process; needs: pip install "mcp>=2.3"
python examples/mcp_tool.py stdio     # serves an assistant that starts it
"""

import asyncio
import sys
import uuid
from inspect import Parameter, Signature
from typing import Annotated, Any

from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel, Field

from dspyer import END, START, Graph, errors


class Refund(BaseModel):
    order: str = Field(description="The number of the order.")
    amount: float = 20.0
    approved: bool = False
    status: str = "new"


graph = Graph(Refund, inputs=["order", "amount"], required=["order"], outputs=["status"], name="Refunds")
graph.add_interrupt("approve", question="Pay {amount} for {order}?", answer=bool, into="approved")
graph.add_node("pay", lambda approved: {"status": "paid" if approved else "declined"}, writes=["status"])
graph.add_path(START, "approve", "pay", END)


def form(question):
    """What a client shows: the fields of an answer that is a flat model, one field, or only a button."""
    if question.answer is None:  # it asks only for permission to continue
        return {"type": "object", "properties": {}}
    if question.answer.get("type") == "object":
        return question.answer
    return {"type": "object", "properties": {"answer": question.answer or {"type": "string"}}, "required": ["answer"]}


def answered(question, response):
    """The answer in what the client has sent."""
    if response.action != "accept":
        raise ToolError(f"not answered: {question.text}")
    content = response.content or {}
    return content if (question.answer or {}).get("type") == "object" else content.get("answer")


def can_be_asked(ctx):
    return ctx.client_capabilities is not None and ctx.client_capabilities.elicitation is not None


# --8<-- [start:begun]
async def begun(program, ctx, inputs):
    """A client that was asked calls again, with answers and state."""
    thread = program.thread(ctx.request_state or f"mcp/{uuid.uuid4()}")
    run = await thread.arun(inputs, key="call")  # once, however often
    sent = ctx.input_responses or {}
    answers = {}
    for question in run.questions:
        if question.id in sent:
            answers[question.id] = answered(question, sent[question.id])
    return thread, (await thread.aresume(answers) if answers else run)


def ask_later(thread, questions):
    """Ends the call with a form for each question."""
    requests = {}
    for question in questions:
        asked = ElicitRequestFormParams(
            message=question.text,
            requested_schema=form(question),
        )
        requests[question.id] = ElicitRequest(params=asked)
    return InputRequiredResult(
        input_requests=requests,
        request_state=thread.name,
    )


# --8<-- [end:begun]


async def ask_now(ctx, questions):
    """The answers of a client of an older protocol, which is asked while its call is open."""
    sent = [(one, await ctx.session.elicit_form(one.text, form(one), ctx.request_id)) for one in questions]
    return {one.id: answered(one, response) for one, response in sent}


LEFT_OUT = object()
"""Stands for an argument that was not given and has no default here: none, or one that each run makes anew."""


def as_tool(program, schema):
    """A function for `MCPServer.add_tool`: its parameters are the inputs of the graph, with the types of its schema."""

    async def call(ctx: Context, **inputs):
        given = {k: v for k, v in inputs.items() if v is not LEFT_OUT}
        try:
            thread, run = await begun(program, ctx, given)
            while run.status == "interrupted":
                if not can_be_asked(ctx):
                    raise ToolError(f"cannot ask: {run.questions[0].text}")
                if ctx.protocol_version >= "2026-07-28":
                    return ask_later(thread, run.questions)
                answers = await ask_now(ctx, run.questions)
                run = await thread.aresume(answers)
        except errors.ConcurrentRunError as error:  # its text names the host
            raise ToolError("another call works on this: try later") from error
        except (errors.InputError, errors.ThreadError) as error:
            raise ToolError(str(error)) from error
        run.raise_error()
        return run.prediction.toDict()

    parameters = [Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=Context)]
    for name in program.graph.inputs:
        field = schema.model_fields[name]
        kind = Annotated[field.annotation, *field.metadata, Field(description=field.description)]
        if name in program.graph.required:
            default = Parameter.empty
        elif field.default_factory or field.is_required():
            default = Field(default_factory=lambda: LEFT_OUT)
        else:
            default = field.default
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default))
    call.__signature__ = Signature(parameters, return_annotation=dict[str, Any] | InputRequiredResult)
    return call


async def person(context, params):
    """The user of the client, who reads the form and agrees."""
    print(params.message, params.requested_schema["properties"])
    return ElicitResult(action="accept", content={"answer": True})


async def use(server):
    # --8<-- [start:use]
    async with Client(server, elicitation_callback=person) as client:
        result = await client.call_tool("refund", {"order": "A-17"})
    print(result.structured_content)
    # --8<-- [end:use]


def main():
    # --8<-- [start:server]
    program = graph.compile(store="refunds.db")
    server = MCPServer("refunds")
    about = "Pays money back, if the user agrees."
    tool = as_tool(program, Refund)
    server.add_tool(tool, name="refund", description=about)
    # --8<-- [end:server]
    if sys.argv[1:] == ["stdio"]:
        server.run("stdio")
    else:
        asyncio.run(use(server))


if __name__ == "__main__":
    main()
