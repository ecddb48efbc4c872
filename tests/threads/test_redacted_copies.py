"""A copy of a value that `compile(redact=...)` hides is hidden too, wherever a run or a thread is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, live, reducers

SECRET = "SECRET-123"


class State(BaseModel):
    q: str = ""
    token: str = ""
    info: dict[str, Any] = {}
    n: int = 0
    problems: list[str] = []


def copying() -> CompiledGraph:
    """A program that writes a hidden value to fields that are not hidden, and whose check quotes it."""

    def find(q: str, token: str) -> list[str]:
        return [f"{token} is in it"] if token in q else []

    graph = Graph(State, inputs=["token"])
    graph.add_node("copy", lambda token: {"q": f"<{token}>", "info": {"token": token}}, writes=["q", "info"])
    graph.add_check("check", find, of="copy", fix=lambda q: {"q": ""})
    return graph.add_path(START, "copy", END).compile(redact="token", store=":memory:")


def test_a_copy_of_a_hidden_value_is_hidden_wherever_a_run_or_a_thread_is_shown(tmp_path: Path) -> None:
    thread = copying().thread("t")
    run = thread.run({"token": SECRET})
    assert run.status == "completed"
    run.to_html(tmp_path / "run.html")
    shown = {
        "events": str([event.to_dict() for event in run.events]),
        "record": str(run.record().to_dict()),
        "report": run.report(),
        "picture": run.to_svg(),
        "stats": str(run.stats()),
        "repairs": repr(run.repairs()),
        "page": (tmp_path / "run.html").read_text(),
        "stats of the thread": str(thread.stats()),
        "repairs of the thread": repr(thread.repairs()),
    }
    assert [name for name, text in shown.items() if SECRET in text] == []
    assert "<[redacted]>" in shown["report"]
    assert "[redacted] is in it" in shown["stats of the thread"]


def asking(*, parallel: bool = False) -> Graph:
    graph = Graph(State, inputs=["q"])
    graph.add_node("write", lambda: {"token": SECRET}, writes=["token"])
    graph.add_node("ask", ask_for, writes=["info"])
    graph.add_edge("write", "ask").add_edge("ask", END)
    if not parallel:
        return graph.add_edge(START, "write")
    graph.add_node("beside", lambda: {"n": 1}, writes=["n"])
    return graph.add_edge(START, ["write", "beside"]).add_edge("beside", END)


def ask_for(token: str, ctx: Context) -> dict[str, Any]:
    return {"info": {"said": ctx.interrupt("sure", f"Send {token}?")}}


@pytest.mark.parametrize("where", ["a branch", "overwritten", "inside", "a post"])
def test_a_question_is_shown_as_it_was_asked_and_hidden_once_it_is_answered(where: str) -> None:
    if where == "a branch":
        graph = asking(parallel=True)
    elif where == "inside":
        graph = Graph(name="Outer").add_node("inner", asking(), writes=["info"])
        graph.add_path(START, "inner", END)
    elif where == "overwritten":
        graph = Graph(State, inputs=["q"]).add_node("write", lambda: {"token": SECRET}, writes=["token"])
        graph.add_node("clear", lambda token: {"token": "", "q": token}, writes=["token", "q"])
        graph.add_interrupt("ask", question="Send {q}?", answer=None)
        graph.add_path(START, "write", "clear", "ask", END)
    else:

        class Posts(BaseModel):
            token: Annotated[list[str], reducers.append, live] = []

        def post(ctx: Context) -> None:
            ctx.post("token", SECRET)
            ctx.interrupt("sure", f"Send {SECRET}?")

        graph = Graph(Posts).add_node("post", post, writes=["token"]).add_path(START, "post", END)
    thread = graph.compile(redact="token", store=":memory:").thread("t")
    run = thread.run({})
    assert [question.text for question in run.questions] == [f"Send {SECRET}?"]
    assert thread.questions == run.questions
    done = thread.resume({} if where == "overwritten" else {"sure": True}, by="ada")
    assert done.status == "completed"
    shown = f"{[one.to_dict() for one in done.events]} {done.report()} {done.record().to_dict()}"
    assert "Send [redacted]?" in shown
    assert SECRET not in shown


def test_explain_names_what_is_made_of_hidden_values() -> None:
    graph = Graph(State, inputs=["token"])
    graph.add_node("copy", lambda token: {"q": token}, writes=["q", "token"])
    graph.add_node("size", lambda info: {"n": len(info)}, writes=["n"])
    graph.add_node("count", lambda q: {"problems": [q]}, writes=["problems"])
    graph.add_path(START, "copy", "size", "count", END)
    shown = graph.compile(redact=["token", "info.key"]).graph.explain()
    assert "\n  hidden: token, info.key\n  not hidden: what nodes make of it, q by copy; n by size" in shown
    assert "hidden: what a function decides" in graph.compile(redact=lambda path, value: value).graph.explain()
    assert "hidden" not in graph.compile().graph.explain()
