"""An operator looks for yesterday's failed run, and lets a corrected copy go on: the code, in a file and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Budget, CompiledGraph, Graph
from dspyer.testing import ScriptedLM

SCENARIO = """
from datetime import datetime, timedelta
from dspyer import Archive

with Archive("postgresql://db/support") as archive:
    for info in archive.runs(status="failed", since=datetime.now() - timedelta(days=1)):
        print(info.thread, info.started, f"{info.cost:.2f} USD", info.failure)
    thread = archive.thread(info.thread)
    last = thread.history(run=info.run_id, newest=True, count=1)[0]
    print(thread.diff(last.parents[0], last.id))
    for call in thread.lm_calls(info.failure.execution):             # also of the node that failed
        print(call.model, call.attempt, call.cost, call.finish_reason)
    print(thread.blame("order.id", at=last.id).node)

t = program.thread(info.thread)                                      # acting needs the program
t.copy(to="try-1", at=last.id, patch={"order": {"id": "A-17"}}).resume()
"""


class Refund(dspy.Module):
    def __init__(self) -> None:
        self.reply = dspy.Predict("order -> reply")

    def forward(self, order: Any) -> dspy.Prediction:
        reply = self.reply(order=order["id"]).reply
        if order["id"] != "A-17":
            raise LookupError(f"no order {order['id']}")
        return dspy.Prediction(reply=reply)


def support(store: str) -> CompiledGraph:
    graph = Graph(name="Support")
    graph.add_node("find", lambda letter: {"order": {"id": letter}}, writes=["order"])
    graph.add_node("refund", Refund(), reads=["order"], writes=["reply"])
    graph.add_path(START, "find", "refund", END)
    return graph.compile(store=store, budget=Budget(cost=1, prices={"scripted": (0.15, 0.60)}))


@pytest.fixture(params=["file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "support.db")
    else:
        yield request.getfixturevalue("postgres")


def test_the_scenario_runs_as_written(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedLM(lambda prompt: {"reply": "done"}):
        program = support(address)
        program.thread("one").run({"letter": "A-17"})
        program.thread("two").run({"letter": "A-71"})
        exec(SCENARIO.replace("postgresql://db/support", address), {"program": program})
    first, diff, call, writer = capsys.readouterr().out.splitlines()
    assert first.startswith("two ")
    assert first.endswith("0.00 USD refund (execution two.1/trunk:2, attempt 1): LookupError: no order A-71")
    assert (diff, writer) == ("{'order': {'id': 'A-71'}}", "find")
    assert call.startswith("scripted 1 ")
    thread = program.thread("try-1")
    assert (thread.status, thread.state["reply"]) == ("completed", "done")
    assert program.thread("two").status == "failed"
