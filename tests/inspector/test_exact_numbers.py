"""Numbers that JavaScript does not have, as long ids and 1.0, are shown, answered and copied as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph
from dspyer.stores import Memory
from tests.asgi_server import served

ID = 12345678901234567891
OTHER = 98765432109876543211


def asking() -> Graph:
    graph = Graph(name="Ids", inputs=["order"], keep=["order"])
    graph.add_interrupt("ask", question="Which id?", answer=int, into="chosen")
    return graph.add_path(START, "ask", END)


class Served(NamedTuple):
    program: CompiledGraph
    address: str


@pytest.fixture(scope="module")
def desk() -> Iterator[Served]:
    store = Memory()
    program = asking().compile(store=store)
    with served(dspyer.inspector.app(store, program, token="token")) as address:
        yield Served(program, address)


def test_ids_keep_their_digits(page: Any, desk: Served, tmp_path: Path) -> None:
    inputs = {"order": {"id": ID, "price": 1}}
    thread = desk.program.thread("t")
    run = thread.run(inputs)
    page.goto(f"{desk.address}/#token=token/run?thread=t")
    page.get_by_label("Answer").fill(str(OTHER))
    page.get_by_role("button", name="Answer and resume").click()
    page.locator(".bar", has_text="completed").wait_for()
    assert thread.state["chosen"] == OTHER
    page.goto(f"{desk.address}/#/run?thread=t&step={thread.history()[-1].id}&tab=state")
    page.get_by_text(str(OTHER)).first.wait_for()
    page.get_by_role("button", name="Copy with edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile("^order")).click()
    text = dialog.get_by_label("order").input_value()
    assert json.loads(text) == inputs["order"]
    dialog.get_by_label("order").fill(text.replace("1\n}", "2\n}"))
    dialog.get_by_label("Run it at once").uncheck()
    dialog.get_by_role("button", name="Copy", exact=True).click()
    page.locator(".bar", has_text="t-try-1").wait_for()
    assert desk.program.thread("t-try-1").state == {"order": {"id": ID, "price": 2}, "chosen": OTHER}
    page.goto(run.to_html(tmp_path / "run.html").as_uri() + f"#/run?step=t.1/{run.commits[0].id}&tab=state")
    page.get_by_text(str(ID)).first.wait_for()


def test_a_float_stays_one_when_another_part_of_its_field_is_edited(page: Any, desk: Served) -> None:
    order = {"price": 1.0, "large": 1e16, "less": -0.0, "all": [2.0, 2], "pieces": 2}
    desk.program.thread("floats").run({"order": order})
    page.goto(f"{desk.address}/#token=token/run?thread=floats&step=floats.1/trunk:0&tab=state")
    page.locator("#panel", has_text="1.0").wait_for()
    page.get_by_role("button", name="Copy with edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile("^order")).click()
    text = dialog.get_by_label("order")
    text.fill(text.input_value().replace('"pieces": 2', '"pieces": 3, "new": 4.0'))
    dialog.get_by_label("Run it at once").uncheck()
    dialog.get_by_role("button", name="Copy", exact=True).click()
    page.locator(".bar", has_text="floats-try-1").wait_for()
    copied = dict(desk.program.thread("floats-try-1").state["order"])
    assert str(copied.pop("all")) == "FrozenList([2.0, 2])"
    assert repr(copied) == repr({"price": 1.0, "large": 1e16, "less": -0.0, "pieces": 3, "new": 4.0})
