"""One canary that `redact` hides, put wherever a value can be, and all exits looked through for it."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import dspy
import httpx
import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount
from tenacity import wait_none

from dspyer import (
    END,
    START,
    Archive,
    CompiledGraph,
    Context,
    Graph,
    Messages,
    Retry,
    Run,
    Thread,
    agents,
    live,
    progress,
    reducers,
)
from dspyer.__main__ import main
from dspyer.events import Event
from dspyer.inspector import app
from dspyer.serve import router
from dspyer.testing import Prompt, ScriptedLM
from tests.inspector.asking import TOKEN, get
from tests.runtime.traces import Traces
from tests.serve.posting import app_of, body, send

CANARY = "canary-4711 \"é\\\\'"
"""Its JSON and its `repr` differ from it, and its first characters are in both."""

PATTERNS = ["token", "user.email"]


class User(BaseModel):
    name: str
    email: str = ""


@dataclass(frozen=True)
class Sighting(Event):
    node: str
    text: str


class State(BaseModel):
    token: str
    user: User | None = None
    copied: dict[str, Any] = {}
    model: User | None = None
    notes: Annotated[list[str], reducers.append, live] = []
    pages: list[str] = []
    read: list[str] = []
    side: str = ""
    messages: Messages = []
    task: str = ""
    found: str = ""
    draft: str = ""
    problems: list[str] = []
    sure: bool = False
    summary: str = ""
    answer: str = ""


def plan(token: str, ctx: Context) -> dict[str, Any]:
    ctx.doing(f"looks at {token}")
    for value in ({token: [token]}, User(name=token), token.encode(), Sighting("plan", token)):
        ctx.emit(value)
    ctx.post("notes", f"note of {token}")
    if ctx.attempt == 1:
        raise ConnectionError(f"refused: {token!r}") from KeyError(token)
    return {
        "user": {"name": "Ada", "email": token},
        "copied": {"text": f"<{token}>", "json": json.dumps({"t": token}), "repr": repr({"t": token}), token: 1},
        "model": User(name=token),
        "pages": ["a page", f"page {token}"],
        "task": f"Find {token}.",
    }


def look_up(words: str) -> str:
    """Looks words up."""
    return f"{words} is a bird"


def read(page: str, ctx: Context) -> str:
    ctx.emit(page)
    return f"read {page}"


def deliver(token: str, sure: bool) -> dict[str, Any]:
    if not sure:
        raise ValueError(json.dumps({"not sent": token}))
    return {"answer": token}


def turn(prompt: Prompt) -> dict[str, Any]:
    if "summary" in prompt.asks:
        return {"summary": f"About {CANARY}."}
    seen = "is a bird" in "".join(one.content for one in prompt.turns)
    call = {"name": "submit", "args": {"found": CANARY}} if seen else {"name": "look_up", "args": {"words": CANARY}}
    return {"next_thought": f"I look for {CANARY}.", "tool_calls": {"tool_calls": [call]}}


def program(store: str) -> CompiledGraph:
    graph = Graph(State, name="Canary", inputs=["token"], merge={"side": "last_write_wins"})
    writes = ["user", "copied", "model", "notes", "pages", "task"]
    graph.add_node("plan", plan, writes=writes, retry=Retry(2, wait=wait_none()))
    graph.add_node("left", lambda token: {"side": token}, writes=["side"])
    graph.add_node("right", lambda token: {"side": f"right {token}"}, writes=["side"])
    graph.add_node("agent", agents.tool_loop("task -> found", [look_up], name="Agent"))
    graph.add_map("each", read, over="pages", item="page", into="read")
    graph.add_node("write", lambda token: {"draft": f"Dear {token}"}, writes=["draft"])
    graph.add_check(
        "polite",
        lambda draft: [f"{draft} is rude"] if "Dear" in draft else [],
        of="write",
        fix=lambda token: {"draft": f"Sir {token}"},
    )
    graph.add_node("sum", dspy.Predict("draft -> summary"))
    graph.add_interrupt("ask", question="Send {token}?", answer=bool, into="sure")
    graph.add_node("send", deliver, writes=["answer"])
    graph.add_edge(START, "plan").add_edge("plan", ["left", "right"]).add_edge(["left", "right"], "agent")
    graph.add_path("agent", "each", "write", "sum", "ask", "send", END)
    return graph.compile(store=store, redact=PATTERNS, record_lm_calls="full")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Played(NamedTuple):
    """Two runs of the canary: `done` was asked and answered, `failed` was refused; and what was seen of them."""

    folder: Path
    done: Run
    failed: Run
    thread: Thread
    archive: Archive
    seen: dict[str, str]


def talked(program: CompiledGraph) -> list[Any]:
    """The events that an AG-UI client gets which answers the question of a run."""
    agent = app_of(program, inputs=lambda body: {"token": CANARY}, text="draft")
    asked = send(agent, body(thread="c"))[-1]["outcome"]["interrupts"][0]
    answer = {"interruptId": asked["id"], "status": "resolved", "payload": True}
    return send(agent, body(thread="c", run="r2", resume=[answer]))


def inspected(p: Played) -> list[Any]:
    """What the inspector answers to a page that shows the runs, and all values of one."""
    page = app(p.folder / "runs.db", token=TOKEN)
    found = [get(page, "runs"), get(page, "overview"), get(page, "examples", node="sum")]
    for name in ("t", "f"):
        record = get(page, "record", thread=name)
        ids = {one["value"] for step in record["items"] for one in step["wrote"].values()}
        ids |= {
            more for step in record["items"] for call in step["lm"] for more in (*call["messages"], call["response"])
        }
        values = [get(page, "values", thread=name, id=one) for one in ids - {None}]
        found += [record, values, get(page, "compare", thread="t", other_thread=name)]
    return found


async def streamed(program: CompiledGraph) -> str:
    """The responses of a client that starts a run and answers, with all that the run sends meanwhile."""
    app = Starlette(routes=[Mount("/", router(program, thread=lambda request, name: name, by=lambda request: CANARY))])
    transport, accept = httpx.ASGITransport(app=app), {"accept": "text/event-stream"}
    async with httpx.AsyncClient(transport=transport, base_url="http://canary") as client:
        (await client.post("/web", json={"token": CANARY})).raise_for_status()
        (asked,) = (await client.get("/web")).json()["questions"]
        told = await client.post("/web/answers", json={asked["id"]: True}, headers=accept)
        return told.raise_for_status().text + (await client.get("/web")).text


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, traces: Traces) -> Played:
    for name, value in {
        "TERM": "xterm",
        "CI": "",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    made, terminal = program(str(tmp_path / "runs.db")), Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    thread = made.thread("t")
    with caplog.at_level(logging.DEBUG, "dspyer"), ScriptedLM(turn), progress():
        thread.run({"token": CANARY})
        traces.clear()  # an open question is shown as it was asked
        terminal.truncate(0)
        done = thread.resume({"ask": True}, by=CANARY, comment=f"yes: {CANARY}")
        other = made.thread("f")
        other.run({"token": CANARY})
        failed = other.resume({"ask": False})
        seen = {"served": asyncio.run(streamed(made)), "AG-UI": str(talked(made))}
    assert (done.status, failed.status) == ("completed", "failed")
    seen |= {
        "logs": caplog.text,
        "spans": "".join([one.to_json() for one in traces.spans]),
        "progress": terminal.getvalue(),
    }
    return Played(tmp_path, done, failed, thread, Archive(tmp_path / "runs.db"), seen)


EXITS: dict[str, Callable[[Played], Any]] = {
    "logs": lambda p: p.seen["logs"],
    "spans": lambda p: p.seen["spans"],
    "progress": lambda p: p.seen["progress"],
    "served": lambda p: p.seen["served"],
    "AG-UI": lambda p: p.seen["AG-UI"],
    "inspector": inspected,
    "comparisons": lambda p: [p.done.record().compare(p.failed.record()), p.archive.overview()],
    "examples": lambda p: p.done.record().examples("sum"),
    "answers": lambda p: [p.archive.thread("t").answers, p.done.record().answers()],
    "events": lambda p: [
        [event.to_dict(), event.label(), repr(event)] for run in (p.done, p.failed) for event in run.events
    ],
    "errors": lambda p: "".join(traceback.format_exception(p.failed.error)),
    "failures": lambda p: [
        *p.failed.failures,
        *p.archive.thread("f").failures(),
        p.archive.runs(status="failed")[0].failure,
    ],
    "repr": lambda p: [p.done, *p.done.commits, p.done.record(), *p.done.record().steps, *p.thread.history()],
    "report": lambda p: [
        p.done.report(),
        p.failed.report(),
        p.archive.thread("t").report(),
        p.archive.thread("f").report(),
    ],
    "pictures": lambda p: [p.done.to_svg(), p.archive.thread("f").to_svg()],
    "pages": lambda p: [run.to_html(p.folder / "run.html").read_text() for run in (p.done, p.failed)],
    "page of an archive": lambda p: p.archive.thread("f").to_html(p.folder / "run.html").read_text(),
    "records": lambda p: [
        p.done.record().to_dict(),
        p.thread.record().to_dict(),
        p.archive.thread("f").record().to_dict(),
    ],
    "stats": lambda p: [p.done.stats(), p.thread.stats().to_dict(), p.archive.thread("f").stats()],
    "items": lambda p: [p.done.items("each"), p.archive.thread("t").items("each").to_dict()],
    "repairs": lambda p: [p.done.repairs(), p.thread.repairs()],
    "LM calls": lambda p: [
        p.done.lm_calls,
        p.thread.lm_calls("t.1/trunk:4"),
        p.archive.thread("t").lm_calls("t.1/trunk:4"),
    ],
    "lists": lambda p: [[one, one.to_dict()] for one in (*p.archive.runs(), *p.archive.threads())],
    "what is found": lambda p: p.archive.runs(contains="canary-4711"),
}
COMMANDS = (
    *("runs", "threads", "show t", "show f", "show t 1 --prompts", "show t 4", "log t", "log f", "log t --inside 5"),
    *("diff t 0 5", "blame t", "stats t", "graph t", "compare t f", "overview"),
)


def printed(p: Played, command: str, *options: str) -> str:
    """What a command prints, for people and as JSON."""
    out = ""
    for form in ((), ("--json",)):
        name, *rest = command.split()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", shown := StringIO())
            with pytest.raises(SystemExit):
                main([name, *rest, "--store", str(p.folder / "runs.db"), *form, *options])
        out += shown.getvalue()
    return out


def found_in(shown: dict[str, str]) -> list[str]:
    """The exits at which the canary is, each with what is around it."""
    places = {name: text.find("canary") for name, text in shown.items()}
    return [f"{name}: {shown[name][max(0, at - 150) : at + 50]}" for name, at in places.items() if at >= 0]


def test_a_hidden_value_is_at_no_exit_and_whole_where_values_are_kept(played: Played) -> None:
    shown = {name: str(read(played)) for name, read in EXITS.items()}
    shown |= {f"dspyer {command}": printed(played, command) for command in COMMANDS}
    assert found_in(shown) == []
    assert [name for name, text in shown.items() if not text] == []
    assert played.done.record().examples("sum") == []  # its input repeats what is hidden
    whole = {
        "state": played.done.state["copied"]["text"],
        "at": played.thread.at(0)["token"],
        "diff": str(played.done.diff(0, 1)),
        "commits": str(dict(played.done.commits[0].patch)),
        "archive": played.archive.thread("t").state()["token"],
        "history": str(dict(played.archive.thread("t").history()[0].patch)),
        "export": str(played.thread.export(played.folder / "t.jsonl")) + (played.folder / "t.jsonl").read_text(),
        "no redaction": str(Archive(played.folder / "runs.db", redact=False).thread("t").record().to_dict()),
        **{
            f"dspyer {one} --unredacted": printed(played, one, "--unredacted")
            for one in ("show t", "log t", "diff t 0 5")
        },
    }
    assert [name for name, text in whole.items() if "canary" not in text] == []
