"""The form of a question is that of the type of its answer: None is a choice, a float stays one; calls are approved."""

from __future__ import annotations

from typing import Any, Literal

import dspy
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, Graph, agents
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.agents.kit import turn
from tests.asgi_server import served


class Person(BaseModel):
    name: str
    nick: str | None = None
    age: int | None


ANSWERS: dict[str, Any] = {
    "text": str | None,
    "yes": bool | None,
    "number": int | None,
    "kind": Literal["a", "b"] | None,
    "person": Person | None,
    "several": int | str | None,
    "price": float | int,
    "words": list[str],
}


def test_each_type_of_an_answer_can_be_given(page: Any) -> None:
    graph = Graph(name="Asking", inputs=["n"])
    for name, answer in ANSWERS.items():
        graph.add_interrupt(name, question=f"What {name}?", answer=answer, into=f"{name}_given")
    graph.add_path(START, *ANSWERS, END)
    store = Memory()
    program = graph.compile(store=store)
    thread = program.thread("t")
    thread.run({"n": 1})

    with served(dspyer.inspector.app(store, program, token="token")) as address:
        page.goto(f"{address}/#token=token/questions")
        form = page.locator("form.answer")

        def ready(name: str) -> None:
            page.locator(".ask", has_text=f"What {name}?").click()
            page.get_by_role("heading", name=f"{name} asks").wait_for()

        def send() -> None:
            form.get_by_role("button", name="Answer and resume").click()

        ready("text")
        send()
        form.get_by_text("an answer is needed, or None").wait_for()
        form.get_by_label("None").check()
        assert form.get_by_label("Answer", exact=True).count() == 0
        send()
        ready("yes")
        form.get_by_label("None").check(force=True)
        send()
        ready("number")
        form.get_by_label("Answer").fill("7")
        send()
        ready("kind")
        form.get_by_label("b", exact=True).check(force=True)
        send()
        ready("person")
        form.get_by_label("Name").fill("Ann")
        form.get_by_label("None").nth(1).check()  # of the age; the nickname has a default
        send()
        ready("several")
        form.get_by_label("Answer").fill('"x"')
        send()
        ready("price")
        form.get_by_label("Answer").fill("3.0")
        send()
        ready("words")
        for number, word in ((1, "p"), (2, "q")):
            form.get_by_role("button", name="Add an item").click()
            form.get_by_role("textbox", name=f"Answer {number}").fill(word)
        send()
        page.get_by_role("heading", name="Nothing waits").wait_for()
        page.get_by_text("You have answered").wait_for()

    given = {name: thread.state[f"{name}_given"] for name in ANSWERS}
    person = given.pop("person")
    assert (person.name, person.nick, person.age) == ("Ann", None, None)
    assert type(given["price"]) is float
    assert given == {
        "text": None,
        "yes": None,
        "number": 7,
        "kind": "b",
        "several": "x",
        "price": 3.0,
        "words": ["p", "q"],
    }


def test_a_call_is_approved_with_other_arguments_or_refused(page: Any) -> None:
    paid: list[tuple[int, str]] = []

    def pay(amount: int, note: str = "") -> str:
        """Pays."""
        paid.append((amount, note))
        return "paid"

    store = Memory()
    payer = agents.tool_loop("question -> answer", [agents.tool(pay, approve=True)], name="Payer")
    program = payer.compile(store=store)
    with dspy.context(lm=ScriptedLM(lambda prompt: turn(("pay", {"amount": 90})))):
        for name in ("one", "two"):
            program.thread(name).run({"question": "Why?"})

    with served(dspyer.inspector.app(store, program, token="token")) as address:
        page.goto(f"{address}/#token=token/questions")
        form = page.locator("form.answer")
        send = form.get_by_role("button", name="Answer and resume")
        page.locator(".ask", has_text="one").click()
        page.locator(".asking .askcall", has_text="90").wait_for()
        send.click()
        form.get_by_text("approve the call or refuse it").wait_for()
        form.get_by_label("Approve").check(force=True)
        form.get_by_label("Call it with other arguments").check()
        assert form.get_by_label("Amount").input_value() == "90"
        form.get_by_label("Amount").fill("7")
        form.get_by_label("Comment").fill("less")
        send.click()
        page.get_by_text("You have answered").wait_for()
        page.locator(".ask", has_text="two").click()
        form.get_by_label("Refuse").check(force=True)
        form.get_by_label("Reason").fill("too much")
        send.click()
        page.get_by_text("You have answered").wait_for()

    answers = [program.thread(name).record().answers()[0] for name in ("one", "two")]
    assert [(one.value["ok"] if isinstance(one.value, dict) else one.value.ok) for one in answers] == [True, False]
    assert answers[0].comment == "less"
    assert paid == [(7, "")]
