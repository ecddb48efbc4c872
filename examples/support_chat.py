"""A support chat: an agent looks orders up, a person approves its refunds, and the server may be killed.

python examples/support_chat.py          # offline: a script stands for the model, two clients for the tabs
python examples/support_chat.py serve    # for your browser; needs: pip install fastapi uvicorn httpx
DSPYER_MODEL=openai/gpt-4o-mini python examples/support_chat.py serve
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel

from dspyer import Archive, Command, CompiledGraph, Kept, agents, serve
from dspyer.stores import SQLite, Store
from dspyer.testing import Prompt, ScriptedLM

PAGE = Path(__file__).parent / "data" / "support_chat.html"


class Bank:
    """Notes each call in a file, and pays once for each key. `kill` ends its process right after a payment."""

    def __init__(self, folder: Path, kill: bool = False) -> None:
        self.path = folder / "bank.txt"
        self.kill = kill

    def pay(self, key: str, order: str, amount: float) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{key} {order} {amount:.2f}\n")
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)  # no exception and no cleanup


# --8<-- [start:tools]
ORDERS = {
    "A-17": {"item": "kettle", "price": 90.0},
    "A-18": {"item": "toaster", "price": 35.0},
}


class Case(BaseModel):
    photo: str | None = None  # of this message: lives for one run
    refunds: Kept[int] = 0  # lasts as long as the conversation


def find_order(order: str) -> dict[str, Any]:
    """Finds an order by its number."""
    return ORDERS[order]


def must_ask(amount: float, photo: str | None) -> bool:
    return amount > 50 or photo is None


# --8<-- [end:tools]
# --8<-- [start:agent]
def support(bank: Bank, store: Store) -> CompiledGraph:
    def refund(
        order: str,
        amount: float,
        refunds: int,
        key: str,
    ) -> Command:
        """Pays money back, in USD."""
        bank.pay(key, order, amount)
        update = {"refunds": refunds + 1}
        return Command(update=update, result=f"paid {amount:.2f}")

    paying = agents.tool(
        refund,
        reads=["refunds"],
        approve=must_ask,
        effect=True,
    )
    tools = [find_order, paying]
    loop = agents.tool_loop("message -> reply", tools, schema=Case)
    return loop.compile(store=store)


# --8<-- [end:agent]
# --8<-- [start:users]
def user_of(request: Request) -> str:
    return request.headers["x-user"]  # in production: from your login


def own_chat(request: Request, name: str) -> str:
    return f"{user_of(request)}/{name}"


def any_chat(request: Request, name: str) -> str:
    staff(request)
    return name.replace(":", "/")  # ada:kettle in the address


def staff(request: Request) -> str:
    if user_of(request) != "eve":
        raise HTTPException(403, "the desk decides about refunds")
    return "eve"


# --8<-- [end:users]
# --8<-- [start:service]
def service(program: CompiledGraph, store: Store) -> FastAPI:
    chats = serve.router(program, thread=own_chat, by=staff, recover=True)
    cases = serve.router(program, thread=any_chat, by=staff)
    app = FastAPI(lifespan=chats.lifespan_context)
    app.mount("/chats", chats)
    app.mount("/cases", cases)

    @app.get("/waiting")
    def waiting(request: Request) -> list[str]:
        staff(request)
        with Archive(store) as archive:
            runs = archive.runs(status="interrupted")
            return [run.thread.replace("/", ":") for run in runs]

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(PAGE)

    return app


# --8<-- [end:service]
def serve_chat(folder: Path, listening: socket.socket, kill: bool = False) -> None:
    """One process of the service."""
    name = os.environ.get("DSPYER_MODEL")
    dspy.configure(lm=dspy.LM(name) if name else ScriptedLM(scripted))
    store = SQLite(folder / "chats.db")
    app = service(support(Bank(folder, kill), store), store)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


def scripted(prompt: Prompt) -> dict[str, Any]:
    """Offline: the next call of the agent, by what it has been shown last."""
    shown = prompt.inputs.get("tool_call_results", "")
    order = "A-18" if "A-18" in prompt.inputs.get("message", "") else "A-17"
    if "paid" in shown:
        call = {"name": "submit", "args": {"reply": "45 USD are on their way, half of the price."}}
    elif "refused" in shown:
        call = {"name": "submit", "args": {"reply": "Please send a photo of the toaster first."}}
    elif "price" in shown:
        call = {"name": "refund", "args": {"order": order, "amount": ORDERS[order]["price"]}}
    else:
        call = {"name": "find_order", "args": {"order": order}}
    return {"next_thought": "", "tool_calls": {"tool_calls": [call]}}


# --- the demonstration: two clients in the place of two tabs


# --8<-- [start:events]
def events(client: httpx.Client, path: str, body: Any) -> Iterator[Any]:
    """The events of a run, as the server sends them."""
    headers = {"Accept": "text/event-stream"}
    with client.stream("POST", path, json=body, headers=headers) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


# --8<-- [end:events]
def demonstrate(folder: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))  # here, so that no request is lost between two servers
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ada = httpx.Client(base_url=address, headers={"x-user": "ada"}, timeout=60)
    eve = httpx.Client(base_url=address, headers={"x-user": "eve"}, timeout=60)
    process = multiprocessing.get_context("spawn").Process
    server = process(target=serve_chat, args=(folder, listening, True), daemon=True)
    server.start()

    # --8<-- [start:ask]
    text = "My kettle, A-17, is broken. Money back?"
    message = {"message": text, "photo": "lid.jpg"}
    print("ada: ", text)
    chat = ada.post("/chats/kettle", json=message).json()
    question = chat["questions"][0]
    print("     ", chat["status"], question["text"])
    yes = {question["id"]: True}
    refused = ada.post("/chats/kettle/answers", json=yes)
    print("      may ada approve it?", refused.status_code)
    # --8<-- [end:ask]
    # --8<-- [start:approve]
    (name,) = eve.get("/waiting").json()
    print("eve:  half of it for", name)
    half = {"ok": True, "args": {"order": "A-17", "amount": 45.0}}
    try:
        eve.post(f"/cases/{name}/answers", json={question["id"]: half})
    except httpx.RemoteProtocolError:
        print("      the server is gone")
    # --8<-- [end:approve]
    server.join()
    print("      killed by SIGKILL:", server.exitcode == -signal.SIGKILL)

    server = process(target=serve_chat, args=(folder, listening), daemon=True)
    server.start()
    # --8<-- [start:recovered]
    while ada.get("/chats/kettle").json()["status"] != "completed":
        time.sleep(0.05)  # the new server resumes the run by itself
    chat = ada.get("/chats/kettle").json()
    print("ada: ", chat["outputs"]["reply"])
    print("      approved by", chat["answers"][0]["by"])
    calls = (folder / "bank.txt").read_text().splitlines()
    print("     ", len(calls), "calls of the bank,", len(set(calls)), "key")
    # --8<-- [end:recovered]

    # --8<-- [start:second]
    message = {"message": "The toaster, A-18, has a dent. Money back?"}
    print("ada: ", message["message"])
    for event in events(ada, "/chats/kettle", message):
        if event["event"] == "Asked":
            question = event["question"]
            print("     ", question["text"])
    no = {question["id"]: {"ok": False, "reason": "first a photo"}}
    for event in events(eve, f"/cases/{name}/answers", no):
        if event["event"] == "Token" and event["field"] == "reply":
            print(event["text"], end="|")
    fields = ada.get("/chats/kettle").json()["outputs"]
    print("\nphoto:", fields["photo"], "refunds:", fields["refunds"])
    # --8<-- [end:second]
    # --8<-- [start:record]
    with Archive(folder / "chats.db") as archive:
        for answer in archive.thread("ada/kettle").answers:
            print(answer.question.text, answer.value["ok"], answer.by)
    # --8<-- [end:record]
    server.kill()
    server.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1:] == ["serve"]:
            print("http://127.0.0.1:8000/?user=ada and, in another tab, http://127.0.0.1:8000/?user=eve")
            serve_chat(Path(name), socket.create_server(("127.0.0.1", 8000)))
        else:
            demonstrate(Path(name))
