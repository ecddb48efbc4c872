"""The form of a question is that of the type of its answer: None is a choice, and a float stays one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, Graph
from dspyer.stores import Memory
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
        page.goto(f"{address}/#token=token/run?thread=t")
        form = page.locator("form.answer")

        def ready(name: str) -> None:
            page.locator(".panehead h2", has_text=f"{name} asks").wait_for()

        def send() -> None:
            form.get_by_role("button", name="Answer and resume").click()

        ready("text")
        send()
        form.get_by_text("an answer is needed, or None").wait_for()
        form.get_by_label("None").check()
        assert form.get_by_label("Answer", exact=True).count() == 0
        send()
        ready("yes")
        form.get_by_label("None").check()
        send()
        ready("number")
        form.get_by_label("Answer").fill("7")
        send()
        ready("kind")
        form.get_by_label("b", exact=True).check()
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
        form.get_by_label("Answer").fill('["p", "q"]')
        send()
        page.locator(".runhead .status.s-completed").wait_for()

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
