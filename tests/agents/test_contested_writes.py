"""Calls of one turn that write the same path: the first in their order is kept."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel

from dspyer import Breakpoints, Command, Replace, agents, reducers
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, agent, results, run_turn, start, turn
from tests.rows import each, in_turn


class Shared(BaseModel):
    plan: list[str] = []
    mood: str = "calm"
    tree: dict[str, Any] = {"a": 1, "b": {"c": 1}}
    notes: Annotated[list[str], reducers.append] = []
    votes: Annotated[dict[str, int], reducers.update] = {}
    log: Annotated[list[dict[str, Any]], reducers.add_messages] = []


ONE, TWO = {"plan": ["one"]}, {"plan": ["two"]}
WRITES: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any], list[str]]] = {
    "different values": ((ONE, TWO), ONE, ["", "plan"]),
    "equal values are no conflict": ((ONE, ONE), ONE, ["", ""]),
    "of four": (
        (ONE, TWO, ONE, {"plan": ["three"], "mood": "cross"}),
        {**ONE, "mood": "cross"},
        ["", "plan", "", "plan"],
    ),
    "several fields": (
        ({**ONE, "mood": "sad"}, {**TWO, "mood": "cross"}),
        {**ONE, "mood": "sad"},
        ["", "plan', 'mood"],
    ),
    "paths of one field": (
        ({"tree": {"a": 2}}, {"tree": {"b": 5}}, {"tree": {"b": {"c": 2}}}),
        {"tree": {"a": 2, "b": 5}},
        ["", "", "tree.b"],
    ),
    "a deletion": (({"tree": {"a": None}}, {"tree": {"a": 2}}), {"tree": {"b": {"c": 1}}}, ["", "tree.a"]),
    "reducers fold both": (({"notes": "x"}, {"notes": "y"}), {"notes": ["x", "y"]}, ["", ""]),
    "a key of a reducer": (
        ({"votes": {"a": 1, "b": 1}}, {"votes": {"a": 2, "c": 2}}, {"votes": {"a": 1}}),
        {"votes": {"a": 1, "b": 1, "c": 2}},
        ["", "votes.a", ""],
    ),
    "an item of a reducer": (
        ({"log": {"id": "x", "role": "user", "content": "1"}}, {"log": {"id": "x", "role": "user", "content": "2"}}),
        {"log": [{"id": "x", "role": "user", "content": "1"}]},
        ["", "log.x"],
    ),
    "a reset": (
        ({"notes": Replace(["x"])}, {"notes": "y"}, {"notes": Replace(["x"])}),
        {"notes": ["x"]},
        ["", "notes", ""],
    ),
}


@each(("case", "mode"), in_turn(WRITES))
def test_of_calls_that_write_one_path_the_first_is_kept_whichever_ends_first(case: str, mode: str) -> None:
    updates, state, lost = WRITES[case]
    ended = [threading.Event() for _ in updates]

    def note(number: int) -> Command[str]:
        """Notes; the later calls end first."""
        assert number + 1 == len(updates) or ended[number + 1].wait(20)
        ended[number].set()
        return Command(update=updates[number], result="noted")

    async def anote(number: int) -> Command[str]:
        """Notes."""
        return await asyncio.to_thread(note, number)

    program = agent(agents.tool(note if mode == "sync" else anote, name="note"), schema=Shared)
    run = run_turn(program, *[("note", {"number": number}) for number in range(len(updates))], mode=mode)
    assert run.status == "completed", run.error
    assert {name: run.state[name] for name in state} == state
    told = [
        (
            f"noted; the call was made, but '{path}' was not set: an earlier call of this turn has set another value",
            True,
        )
        if path
        else ("noted", False)
        for path in lost
    ]
    assert [(value, error) for _, value, error in results(run)] == told
    assert "plan" not in state or run.blame("plan").node == "note"


def test_a_conflict_of_calls_is_told_after_a_stop_an_update_and_a_handoff(tmp_path: Path) -> None:
    """And a policy that was chosen for the path holds."""

    def note(steps: list[str]) -> Command[str]:
        """Notes."""
        return Command(update={"plan": steps}, result="noted")

    calls = [("note", {"steps": ["one"]}), ("note", {"steps": ["two"]})]
    loop = agents.tool_loop("question -> answer", [note], schema=Shared)
    thread = loop.compile(store=tmp_path / "a.db", layers=[Breakpoints(before=["settle"])]).thread("t")
    with ScriptedLM([turn(*calls)]):
        assert start(thread).status == "interrupted"
    thread = loop.compile(store=tmp_path / "a.db", layers=[Breakpoints(before=["settle"])]).thread("t")
    thread.update({"notes": "meanwhile"})
    with ScriptedLM([SUBMIT]):
        assert thread.resume().status == "interrupted"
        run = thread.resume()
    assert [error for _, _, error in results(run)] == [False, True]
    assert (run.state["plan"], run.state["notes"]) == (["one"], ["meanwhile"])

    run = run_turn(loop.add_edge("note", "settle", policy={"plan": "last_write_wins"}).compile(), *calls)
    assert (run.state["plan"], [error for _, _, error in results(run)]) == (["two"], [False, False])

    def leave(steps: list[str]) -> Command[str]:
        """Leaves."""
        return Command(update={"plan": steps}, goto="rest")

    both = {"work": agents.Mode("Work.", tools=[note, leave], to=["rest"]), "rest": agents.Mode("Rest.")}
    with ScriptedLM([turn(calls[0], ("leave", {"steps": ["two"]})), SUBMIT]):
        run = agents.modes("question -> answer", both, schema=Shared).compile().run({"question": "Why?"})
    assert (run.state["mode"], run.state["plan"]) == ("work", ["one"])
    assert "no handoff to rest: the call was made, but 'plan' was not set" in results(run)[1][1]
