"""`errors.public` and `sse(public=True)`: what a customer may read of an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from dspyer import END, START, Budget, Graph, errors, stores
from dspyer.errors import public
from dspyer.testing import ScriptedLM

SECRET = "card 4242"


def failing(error: BaseException | None = None, **options: Any) -> Any:
    """A program whose node `pay` raises, or asks."""

    def pay(card: str, ctx: Any) -> dict[str, bool]:
        if error is not None:
            raise error
        return {"paid": ctx.interrupt("ok", f"pay with {card}?", bool)}

    graph = Graph().add_node("pay", pay, writes=["paid"]).add_path(START, "pay", END)
    return graph.compile(store=stores.Memory(), **options)


def spending(budget: Budget) -> Any:
    graph = Graph().add_node("a", lambda card: None, writes=[]).add_node("b", lambda card: None, writes=[])
    return graph.add_path(START, "a", "b", END).compile().run({"card": SECRET}, budget=budget)


def asking_a_model(budget: Budget) -> Any:
    graph = Graph().add_node("a", dspy.Predict("card -> paid")).add_path(START, "a", END)
    with ScriptedLM(lambda prompt: {"paid": SECRET}):
        return graph.compile().run({"card": SECRET}, budget=budget)


def open_run(error: BaseException | None) -> None:
    thread = failing(error).thread("ada/1")
    thread.run({"card": SECRET})
    thread.run({"card": SECRET})


def wrong_answer() -> None:
    thread = failing().thread("ada/1")
    thread.run({"card": SECRET})
    thread.resume({"ok": SECRET})


def no_question() -> None:
    thread = failing().thread("ada/1")
    thread.run({"card": SECRET})
    thread.resume({"other": True})


def busy() -> None:
    program = failing()

    def start_again() -> None:
        program.thread("ada/1").run({"card": SECRET})

    graph = Graph().add_node("again", lambda card: start_again(), writes=[]).add_path(START, "again", END)
    program = graph.compile(store=stores.Memory())
    error = program.thread("ada/1").run({"card": SECRET}).error
    assert error is not None
    raise error.with_traceback(None)


def busy_here() -> None:
    raise errors.ConcurrentRunError("thread 'ada/1' is owned by another run (process 7 on 'db-7')")


CASES: dict[str, tuple[Callable[[], Any], str, int]] = {
    "a run that waits": (lambda: failing().run({"card": SECRET}).raise_error(), "waiting", 409),
    "a new run beside it": (lambda: open_run(None), "waiting", 409),
    "a new run after a failure": (lambda: open_run(ValueError(SECRET)), "conflict", 409),
    "another owner": (busy_here, "busy", 409),
    "an unknown input": (lambda: failing().run({"card": SECRET, "cart": 1}), "invalid", 422),
    "a missing input": (lambda: failing().run({}), "invalid", 422),
    "an answer of another type": (wrong_answer, "invalid", 422),
    "an unknown question": (no_question, "conflict", 409),
    "an unknown version": (lambda: failing().thread("ada/1").at(SECRET), "unknown", 404),
    "a budget": (lambda: spending(Budget(node_calls=1)).raise_error(), "limit", 429),
    "a budget without a price": (
        lambda: asking_a_model(Budget(cost=1)).raise_error(),
        "failed",
        500,
    ),
    "an error of a node": (lambda: failing(ValueError(SECRET)).run({"card": SECRET}).raise_error(), "failed", 500),
    "an input error of a node": (
        lambda: failing(errors.InputError(SECRET)).run({"card": SECRET}).raise_error(),
        "failed",
        500,
    ),
    "a key error of a node": (lambda: failing(KeyError(SECRET)).run({"card": SECRET}).raise_error(), "failed", 500),
    "a busy thread in a node": (busy, "failed", 500),
}


def test_it_names_a_code_and_a_status_and_no_node_thread_host_or_value() -> None:
    for case, (call, code, status) in CASES.items():
        with pytest.raises(Exception) as raised:
            call()
        found = public(raised.value)
        assert (found.code, found.status) == (code, status), (case, raised.value)
        assert not any(
            word in found.message for word in ("pay", "ada", SECRET, "4242", "card", "db-7", "thread", "node")
        )


def test_of_several_errors_it_is_the_one_code_that_they_have_in_common() -> None:
    busy_one, waiting = errors.ConcurrentRunError("a"), errors.Interrupted("b")
    assert public(ExceptionGroup("", [busy_one, busy_one])).code == "busy"
    assert public(ExceptionGroup("", [busy_one, waiting])).code == "failed"


def told(program: Any, public: bool) -> tuple[Any, str]:
    async def body() -> bytes:
        return b"".join([part async for part in program.astream({"card": SECRET}).sse(public=public)])

    lines = [line for line in asyncio.run(body()).decode().splitlines() if line.startswith("data: ")]
    failures = [line for line in lines if '"error"' in line or '"failure"' in line]
    return json.loads(lines[-1][6:])["error"], "\n".join(failures)


def test_a_public_stream_says_no_more_of_an_error_than_that() -> None:
    last, lines = told(failing(ValueError("the bank said 51")), public=True)
    assert last == public(ValueError())._asdict()
    assert "the bank" not in lines
    last, lines = told(failing(ValueError("the bank said 51")), public=False)
    assert last["type"] == "ValueError"
    assert "the bank" in lines


def test_a_public_stream_says_why_it_was_refused() -> None:
    program = failing()
    program.thread("ada/1").run({"card": SECRET})
    last, _ = told(program.thread("ada/1"), public=True)
    assert (last["code"], last["status"]) == ("waiting", 409)
    wrong: Any = "yes"
    with pytest.raises(TypeError, match="public='yes': give True or False"):
        program.astream({"card": SECRET}).sse(public=wrong)


@pytest.mark.parametrize("public", [True, False])
def test_a_public_stream_does_not_say_who_has_answered(public: bool) -> None:
    asks = Graph(inputs=["n"]).add_interrupt("ok", question="Pay {n}?", answer=bool, into="paid")
    thread = asks.add_path(START, "ok", END).compile(store=":memory:").thread("ada/1")
    thread.run({"n": 5})

    async def body() -> bytes:
        stream = thread.astream_resume({"ok": True}, by="eve@bank", comment="she is a friend")
        return b"".join([part async for part in stream.sse(public=public)])

    text = asyncio.run(body()).decode()
    assert "event: Answered" in text
    assert ("eve@bank" not in text and "a friend" not in text) is public
