"""`modes`: handoffs by tools, commands and routes, guards, and the check of an agent."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from pydantic import BaseModel

from dspyer import Command, Kept, agents
from dspyer.errors import CheckError, RouteError
from dspyer.testing import ScriptedLM
from tests.agents.test_loop import turn


class Work(BaseModel):
    plan: Kept[list[str]] = []


def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word} is a word"


def report_plan(steps: list[str]) -> Command[str]:
    """Reports the plan."""
    return Command(update={"plan": steps}, goto="work", result="noted")


def has_plan(plan: list[str]) -> bool:
    """There is no plan yet: report one."""
    return bool(plan)


def agent(plan: dict[str, Any] | None = None, work: dict[str, Any] | None = None, **options: Any) -> Any:
    modes = {
        "plan": agents.Mode("Make a plan.", tools=[look_up, report_plan], **({"to": ["work"]} | (plan or {}))),
        "work": agents.Mode("Carry out {plan}.", tools=[look_up], **({"to": ["plan"]} | (work or {}))),
    }
    return agents.modes("task -> report", modes, schema=Work, **options)


def submit(report: str = "done") -> dict[str, Any]:
    return turn(("submit", {"report": report}))


PLAN = turn(("report_plan", {"steps": ["one"]}))
TO_WORK, TO_PLAN = turn(("to_work", {})), turn(("to_plan", {}))


def run_of(graph: Any, *answers: Any) -> Any:
    with ScriptedLM(list(answers)) as lm:
        run = graph.compile().run({"task": "tidy up"})
    return run, lm


def results(run: Any) -> list[tuple[str, str, bool]]:
    found = [message for message in run.state["messages"] if message["role"] == "tool"]
    return [(one["name"], one["content"], one["error"]) for one in found]


def taken(run: Any) -> list[str]:
    return [commit.node for commit in run.commits if commit.node in ("plan", "work")]


def test_a_tool_hands_off_by_a_command_and_the_instructions_show_its_update() -> None:
    run, lm = run_of(agent(), PLAN, submit())
    assert (run.state["mode"], run.state["plan"]) == ("work", ["one"])
    assert results(run)[0] == ("report_plan", "noted", False)
    first, second = (call.messages[0]["content"] for call in lm.calls)
    assert "Make a plan." in first
    assert 'Carry out ["one"].' in second
    assert "Make a plan." not in second


def test_a_model_hands_off_by_a_tool_that_has_the_instructions_as_description() -> None:
    run, lm = run_of(agent(), TO_WORK, submit())
    assert taken(run) == ["plan", "work"]
    assert results(run)[0] == ("to_work", "The next mode is work.", False)
    assert "to_plan, whose description is <desc>Make a plan.</desc>" in str(lm.calls[1].messages)
    assert "to_work, whose description is <desc>Carry out [].</desc>" in str(lm.calls[0].messages)


def test_a_guard_refuses_with_its_docstring_and_sees_the_joined_state() -> None:
    guarded = agent(work={"guard": has_plan})
    run, _ = run_of(guarded, TO_WORK, PLAN, submit())
    assert taken(run) == ["plan", "plan", "work"]
    assert results(run)[0] == ("to_work", "no handoff to work: There is no plan yet: report one.", True)


def test_the_first_handoff_of_a_turn_is_taken_and_all_calls_have_results() -> None:
    both = turn(("report_plan", {"steps": ["one"]}), ("look_up", {"word": "tide"}), ("to_work", {}))
    run, _ = run_of(agent(), both, submit())
    assert [(name, error) for name, _, error in results(run)][:3] == [
        ("look_up", False),
        ("report_plan", False),
        ("to_work", True),
    ]
    assert taken(run) == ["plan", "work"]


def test_a_handoff_beside_submit_counts_for_the_next_run() -> None:
    thread = agent().compile(store=":memory:").thread("t")
    with ScriptedLM([turn(("to_work", {}), ("submit", {"report": "early"})), submit("late")]):
        assert thread.run({"task": "one"}).state["report"] == "early"
        run = thread.run({"task": "two"})
    assert taken(run) == ["work"]


def test_a_tool_may_not_hand_off_to_a_mode_that_is_not_in_to() -> None:
    run, _ = run_of(agent(plan={"to": [], "route": lambda plan: "work" if len(plan) > 1 else None}), PLAN, submit())
    name, text, error = results(run)[0]
    assert (name, error) == ("report_plan", True)
    assert text.startswith("noted; no handoff to work: 'work' cannot follow 'plan'")
    assert taken(run) == ["plan", "plan"]


def test_a_route_decides_before_the_model() -> None:
    routed = agent(plan={"route": lambda plan: "work" if plan else None}, work={"guard": lambda plan: len(plan) > 9})
    run, _ = run_of(routed, submit("draft"))
    assert (run.state["report"], taken(run)) == ("draft", ["plan"])  # no plan: the model decides
    both = turn(("report_plan", {"steps": ["one"]}), ("submit", {"report": "draft"}))
    run, _ = run_of(routed, both, submit("final"))
    assert (run.state["report"], taken(run)) == ("final", ["plan", "work"])  # no guard holds it back


def test_a_route_that_names_no_mode_that_may_follow_fails() -> None:
    run, _ = run_of(agent(plan={"route": lambda plan: "wrok"}), TO_WORK)
    assert isinstance(run.error, RouteError)
    assert "'wrok': return one of 'plan', 'work', or None" in str(run.error), "each once"


def test_a_forced_last_turn_ends_whatever_the_route_says() -> None:
    run, _ = run_of(agent(plan={"route": lambda plan: "plan"}, max_turns=1), TO_WORK, submit())
    assert (run.status, run.state["report"]) == ("completed", "done")


def test_a_thread_continues_in_its_mode() -> None:
    thread = agent().compile(store=":memory:").thread("t")
    with ScriptedLM([PLAN, submit(), submit("more")]) as lm:
        thread.run({"task": "tidy up"})
        run = thread.run({"task": "and then?"})
    assert taken(run) == ["work"]
    assert (run.state["report"], run.state["plan"]) == ("more", ["one"])
    assert "Carry out" in lm.calls[-1].messages[0]["content"]


# --- the check of an agent


def no_draft(report: str) -> list[str]:
    return ["it is a draft"] if "draft" in report else []


def test_problems_become_a_message_and_the_mode_resumes() -> None:
    run, lm = run_of(agent(check=no_draft), PLAN, submit("draft"), submit("final"))
    assert (run.state["report"], run.state["problems"], taken(run)) == ("final", [], ["plan", "work", "work"])
    assert "- it is a draft" in lm.calls[-1].messages[-1]["content"]
    assert [(step.node, step.status) for step in run.trace_steps] == [
        ("plan", "used"),
        ("work", "rejected"),
        ("work", "used"),
    ]


@pytest.mark.parametrize("accept", [True, False])
def test_after_the_last_correction_accept_decides(accept: bool) -> None:
    graph = agent(check=no_draft, max_fixes=1, accept=accept)
    run, _ = run_of(graph, submit("draft 1"), submit("draft 2"))
    assert run.state["problems"] == ["it is a draft"]
    if accept:
        assert (run.status, run.state["report"]) == ("completed", "draft 2")
    else:
        assert isinstance(run.error, CheckError)
        assert "after 1 correction" in str(run.error)


def test_the_corrections_of_each_run_are_counted_anew() -> None:
    thread = agent(check=no_draft, max_fixes=1).compile(store=":memory:").thread("t")
    with ScriptedLM([submit("draft"), submit("final")] * 2):
        for _ in range(2):
            assert thread.run({"task": "tidy up"}).state["report"] == "final"


def test_the_source_of_the_program_says_what_its_nodes_call() -> None:
    graph = agent(plan={"guard": has_plan}, check="work")
    source = inspect.getsource(type(graph.compile()))
    lines = [line.strip() for line in source.splitlines() if line.strip().startswith("graph.add_node(")]
    assert [line for line in lines if "take_turn" not in line] == [
        'graph.add_node("begin", agents.add_task_to_messages())',
        'graph.add_node("look_up", agents.tool(look_up))',
        'graph.add_node("report_plan", agents.tool(report_plan))',
        'graph.add_node("settle", agents.end_turn_and_choose_what_follows(has_plan))',
        'graph.add_node("check", agents.check_outputs())',
    ]
    assert [line.partition("(dspy.Predict(")[0] for line in lines if "take_turn" in line] == [
        'graph.add_node("plan", agents.take_turn',
        'graph.add_node("work", agents.take_turn',
    ]
    assert "def has_plan(plan: list[str])" in source
