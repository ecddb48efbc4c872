"""A support desk as a service: a customer's tab, a supervisor's tab, another amount, a killed server, who approved.

python examples/desk.py          # offline: a script responds for the model, two clients stand for the tabs
python examples/desk.py serve    # for your browser; needs: pip install starlette uvicorn httpx

The server is killed by SIGKILL when the bank has paid and nothing of that is stored yet: the worst moment. The next one
calls the bank again under the same key, so it pays once; no LM call is repeated.
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
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dspy
import httpx
import uvicorn
from model import language_model
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from dspyer import Archive, CompiledGraph, agents, serve
from dspyer.testing import ScriptedLM
from dspyer.testing.prompt import Prompt

PAGE = Path(__file__).parent / "data" / "desk.html"
ORDERS = {"A-17": {"item": "kettle", "price": 90.0}, "A-18": {"item": "toaster", "price": 35.0}}
STAFF = {"eve"}


class Bank:
    """A bank that pays once for each key. It notes the calls in a file, and kills its process at the call `kill_at`."""

    def __init__(self, path: Path, kill_at: int = 0) -> None:
        self.path = path
        self.kill_at = kill_at

    def note(self, *call: object) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")

    def noted(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def pay(self, key: str, order: str, amount: float) -> None:
        self.note("asked", key)
        if ["paid", key, order, amount] not in self.noted():
            self.note("paid", key, order, amount)
        if sum(kind == "asked" for kind, *_ in self.noted()) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # no exception and no cleanup: the process ends at once


def support_desk(bank: Bank, store: Path) -> CompiledGraph:
    """The agent. `refund` asks above 50 USD."""

    def find_order(order: str) -> dict[str, Any]:
        """Finds an order by its number."""
        return ORDERS[order]

    def refund(order: str, amount: float, key: str) -> str:
        """Pays money back, in USD."""
        bank.pay(key, order, amount)
        return f"paid {amount:.2f}"

    tools = [find_order, agents.tool(refund, approve=lambda amount: amount > 50, effect=True)]
    return agents.tool_loop("message -> reply", tools, name="Desk").compile(store=store)


# --- the service


def user_of(request: Request) -> str:
    """The user; in production the one whom your login has authenticated."""
    return request.headers["x-user"]


def staff_of(request: Request) -> str:
    """The user, who must be one of the staff."""
    user = user_of(request)
    if user not in STAFF:
        raise HTTPException(403, "for the staff of the desk")
    return user


def nobody(request: Request) -> None:
    """No customer approves a refund of his own."""
    raise HTTPException(403, "the desk decides about refunds")


def thread_of_staff(request: Request, name: str) -> str:
    """A thread of any customer, `ada:kettle` in a path."""
    staff_of(request)
    return name.replace(":", "/")


def service(program: CompiledGraph, store: Path) -> Starlette:
    """The chats of customers, the same threads for the staff, and the page."""

    def waiting(request: Request) -> Response:
        """The threads that wait for an answer."""
        staff_of(request)
        with Archive(store) as archive:
            runs = archive.runs(status="interrupted")
            return JSONResponse({"names": [run.thread.replace("/", ":") for run in runs]})

    def page(_request: Request) -> Response:
        return FileResponse(PAGE)

    chats = serve.router(program, thread=lambda request, name: f"{user_of(request)}/{name}", by=nobody, recover=True)
    cases = serve.router(program, thread=thread_of_staff, by=staff_of)
    routes = [Route("/", page), Route("/waiting", waiting), Mount("/chats", app=chats), Mount("/cases", app=cases)]
    return Starlette(routes=routes, lifespan=chats.lifespan_context)


def serve_desk(folder: Path, listening: socket.socket, kill_at: int = 0) -> None:
    """A process of the service."""
    bank = Bank(folder / "calls.txt", kill_at)

    def noted(prompt: Prompt) -> dict[str, Any]:
        bank.note("LM call")
        return scripted(prompt)

    dspy.configure(lm=language_model() if os.environ.get("DSPYER_MODEL") else ScriptedLM(noted))
    app = service(support_desk(bank, folder / "desk.db"), folder / "desk.db")
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


# --- offline, a script responds for the model


def scripted(prompt: Prompt) -> dict[str, Any]:
    """A turn of the agent, by the results of the one before."""
    shown = prompt.inputs.get("tool_call_results", "")
    if "kettle" in shown:
        call = {"name": "refund", "args": {"order": "A-17", "amount": 90.0}}
    elif "paid" in shown:
        call = {
            "name": "submit",
            "args": {"reply": "45 USD are on their way, half of the price: the lid is fine."},
        }
    else:
        call = {"name": "find_order", "args": {"order": "A-17"}}
    return {"next_thought": "", "tool_calls": {"tool_calls": [call]}}


# --- the demonstration: two clients in the place of the tabs


def shown(response: httpx.Response) -> dict[str, Any]:
    """What the service has answered; stop at an error."""
    found: dict[str, Any] = response.raise_for_status().json()
    return found


def demonstrate(folder: Path) -> None:
    # This process listens, so no request is lost between the two servers.
    listening = socket.create_server(("127.0.0.1", 0))
    processes = multiprocessing.get_context("spawn")
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ada = httpx.Client(base_url=address, headers={"x-user": "ada"}, timeout=60)
    eve = httpx.Client(base_url=address, headers={"x-user": "eve"}, timeout=60)

    server = processes.Process(target=serve_desk, args=(folder, listening, 1))
    server.start()
    message = {"message": "The lid of my kettle, order A-17, is fine, and the rest is broken. Money back, please!"}
    print(f"ada:  {message['message']}")
    chat = shown(ada.post("/chats/kettle", json=message, headers={"Idempotency-Key": "kettle-1"}))
    print(f"      {chat['status']}: {chat['questions'][0]['text']}")
    own = ada.post("/chats/kettle/answers", json={chat["questions"][0]["id"]: True})
    print(f"      ada approves it herself: {own.status_code} {own.json()['error']['message']}")

    (name,) = shown(eve.get("/waiting"))["names"]
    (question,) = shown(eve.get(f"/cases/{name}"))["questions"]
    print(f"eve:  {name} asks for {question['call']['args']}; half of it is enough")
    answer = {"ok": True, "args": {"order": "A-17", "amount": 45.0}}
    try:
        eve.post(f"/cases/{name}/answers", json={question["id"]: answer})
    except httpx.RemoteProtocolError:
        print("      the server is gone")
    server.join()
    print(f"      it was {'killed by SIGKILL' if server.exitcode == -signal.SIGKILL else server.exitcode}")

    server = processes.Process(target=serve_desk, args=(folder, listening))
    server.start()
    while (chat := shown(ada.get("/chats/kettle")))["status"] != "completed":
        time.sleep(0.05)  # the new server resumes the run in the background
    print(f"ada:  {chat['outputs']['reply']}")
    for given in chat["answers"]:
        decided = given["value"]
        print(f"      refund of {decided['args']['amount']:.2f}, approved by {given['by']}")
    server.kill()
    server.join()

    calls = Bank(folder / "calls.txt").noted()
    count = Counter(kind for kind, *_ in calls)
    keys = {call[1] for call in calls if call[0] == "asked"}
    print(f"the bank was asked {count['asked']} times under {len(keys)} key, and paid {count['paid']} time")
    print(f"LM calls of both servers: {count['LM call']}")
    with Archive(folder / "desk.db") as archive:
        for given in archive.thread("ada/kettle").answers:
            when = datetime.fromtimestamp(given.at or 0, UTC)
            print(f"the record, {when:%Y-%m-%d}: {given.question.text} {given.value} by {given.by}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1:] == ["serve"]:
            print("http://127.0.0.1:8000/?user=ada for the customer, http://127.0.0.1:8000/?user=eve for the desk")
            serve_desk(Path(name), socket.create_server(("127.0.0.1", 8000)))
        else:
            demonstrate(Path(name))


if __name__ == "__main__":
    main()
