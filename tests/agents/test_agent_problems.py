"""What is wrong with an agent is said when its graph is built: what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import Command, agents, reducers, view
from dspyer.errors import GraphError
from tests.rows import each


def look_up(word: str) -> str:
    """Looks a word up."""
    return word


def submit(text: str) -> str:
    """Submits."""
    return text


class Tree(BaseModel):
    branches: list[Tree] = []


def plant(tree: Tree) -> str:
    """Plants a tree."""
    return str(tree)


class Desk:
    def find(self, word: str) -> str:
        """Finds a word."""
        return word


class Fields(BaseModel):
    plan: list[str] = []


class WithTask(BaseModel):
    task: str = ""


class Adding(BaseModel):
    problems: Annotated[list[str], reducers.extend] = []


class WithMode(BaseModel):
    mode: str = ""


def to_another() -> Command[Literal["wrok"]]:
    """Hands off."""
    return Command(goto="wrok")


async def later(plan: list[str]) -> bool:
    return bool(plan)


def names_another(plan: list[str]) -> Literal["work", "wrok"] | None:
    return "work" if plan else None


def loop(signature: Any = "task -> report", tools: Any = (look_up,), **options: Any) -> Any:
    return agents.tool_loop(signature, tools, **options).compile()


def tool(**options: Any) -> Any:
    return agents.tool(look_up, **options)


def modes(plan: Any = None, work: Any = None, more: Any = None, **options: Any) -> Any:
    given = {"plan": agents.Mode(**{"to": ["work"], **(plan or {})}), "work": agents.Mode(**(work or {}))}
    return agents.modes("task -> report", given | (more or {}), schema=Fields, **options).compile()


PROBLEMS: dict[str, tuple[Callable[[], Any], str]] = {
    "two tools of one name": (
        lambda: loop(tools=[look_up, agents.tool(lambda word: word, name="look_up", desc="x")]),
        "look_up",
    ),
    "a tool called submit": (lambda: loop(tools=[submit]), r"'submit' cannot name a tool.*agents.tool\(..., name="),
    "a tool called like a node": (lambda: loop(tools=[agents.tool(look_up, name="settle")]), "a node 'settle'"),
    "a tool called like the mode": (lambda: loop(tools=[agents.tool(look_up, name="react")]), "a mode and a tool"),
    "a tool that is no identifier": (lambda: loop(tools=[agents.tool(look_up, name="look-up")]), "are identifiers"),
    "a tool called like a handoff": (
        lambda: modes({"tools": [agents.tool(look_up, name="to_work")]}),
        "hands off to 'work'",
    ),
    "tools that are no list": (lambda: loop(tools=look_up), r"give a list of tools, tools=\[...\]"),
    "tools that are a set": (lambda: loop(tools={look_up}), r"give a list of tools, tools=\[...\]"),
    "a method without its object": (
        lambda: loop(tools=[Desk.find]),
        "'self' would be an argument",
    ),
    "a type that contains itself": (
        lambda: loop(tools=[plant]),
        "tool 'plant': the type of a parameter con",
    ),
    "a name that is no text": (lambda: loop(tools=[tool(name=3)]), r"tool\(..., name=3\): give a text"),
    "a description that is no text": (lambda: loop(tools=[tool(desc=3)]), "desc=3.: give a text"),
    "a render without a call": (
        lambda: loop(tools=[tool(render=lambda: "x")]),
        "tool 'look_up': its render takes no call: give it a first parameter for one",
    ),
    "a render of an unknown field": (
        lambda: loop(tools=[tool(render=lambda call, mod: "x")]),
        "the render of tool 'look_up': its parameter 'mod' is no field",
    ),
    "a render with ctx": (
        lambda: loop(tools=[tool(render=lambda call, ctx: "x")]),
        "the render of tool 'look_up' gets values only",
    ),
    "a signature of another type": (
        lambda: loop(dspy.Predict("task -> report")),
        "is no signature: give a text",
    ),
    "a schema that is no model": (lambda: loop(schema={"plan": []}), "schema=.*give a class of pydantic's BaseModel"),
    "an LM by its name": (lambda: loop(lm="openai/x"), r"is a name: give the LM itself, lm=dspy.LM\('openai/x'\)"),
    "an LM of a mode by its name": (lambda: modes(work={"lm": "openai/x"}), "is a name: give the LM itself"),
    "settings that are no dict": (lambda: loop(config="cold"), "config='cold': give settings of the LM"),
    "an input that DSPy uses": (lambda: loop("history -> report"), "'history' cannot be an input or output"),
    "an output that the agent uses": (lambda: loop("task -> messages"), "'messages' cannot be an input or output"),
    "a field of signature and schema": (
        lambda: loop(schema=WithTask),
        "'task' is a field of the signature and.*if Kept",
    ),
    "a field that the agent has": (
        lambda: agents.modes("task -> report", {"a": agents.Mode()}, schema=WithMode),
        "'mode' cannot be a field of the schema",
    ),
    "max_turns": (lambda: loop(max_turns=-1), "max_turns=-1: give the most turns"),
    "max_fixes": (lambda: loop(max_fixes=-1), "max_fixes=-1: give the most corrections"),
    "accept without a check": (lambda: loop(accept=True), "give check= as well"),
    "problems that add up": (
        lambda: loop(check=lambda report: [], schema=Adding),
        "the field 'problems' folds what is written.*: give it a field without a reducer$",
    ),
    "a check that is no mode": (lambda: loop(check="raect"), "check='raect' is no mode of the agent. Did you mean"),
    "a check without problems": (lambda: loop(check=dspy.Predict("report -> ok: bool")), "`problems: list"),
    "a check of unknown fields": (lambda: loop(check=lambda reprot: []), "'reprot'"),
    "no modes": (lambda: agents.modes("task -> report", {}), "give the modes by name"),
    "an unknown start": (lambda: modes(start="wrok"), "start='wrok' is no mode. Did you mean 'work'"),
    "a start that is a mode": (lambda: modes(start=agents.Mode()), "start=.* is no mode"),
    "a mode whose name is no text": (
        lambda: modes(more={1: agents.Mode()}),
        "give the modes by name",
    ),
    "instructions that are no text": (lambda: modes({"instructions": ["Do it."]}), "instructions=.*: give a text"),
    "no instructions": (lambda: modes({"instructions": None}), "instructions=None.: give a text"),
    "a mode in to": (lambda: modes({"to": [agents.Mode()]}), "give the names of modes, to="),
    "nothing as to": (lambda: modes({"to": None}), "to=None.: give the names of modes"),
    "an unknown mode in to": (lambda: modes({"to": ["work", "wrok"]}), "hands off to 'wrok', which is no mode. Did"),
    "a mode that nothing reaches": (lambda: modes({"to": []}), "nothing reaches the mode 'work'"),
    "a route to an unknown mode": (lambda: modes({"route": names_another}), "may return 'wrok'"),
    "a route that reads nothing": (lambda: modes({"route": lambda: "work"}), "route of mode 'plan' reads no field"),
    "a guard that reads nothing": (lambda: modes(work={"guard": lambda: True}), "guard of mode 'work' reads no field"),
    "a guard of an unknown field": (lambda: modes(work={"guard": lambda paln: True}), "'paln'"),
    "an async guard": (lambda: modes(work={"guard": later}), "is an async function"),
    "a guard with ctx": (lambda: modes(work={"guard": lambda plan, ctx: True}), "gets values only"),
    "a guard that is no function": (lambda: modes(work={"guard": "plan"}), "is 'plan': give a function of fields"),
    "an unknown field in instructions": (lambda: modes(work={"instructions": "Do {paln}."}), "{paln} in its instr"),
    "a context of another field": (lambda: modes(work={"context": view("plan")}), "no view of the conversation"),
    "a tool to an unknown mode": (lambda: modes({"tools": [to_another]}), "tool 'to_another' hands off to 'wrok'"),
    "a mode called begin": (
        lambda: agents.modes("task -> report", {"begin": agents.Mode()}),
        "'begin' cannot name a mode",
    ),
}


@each("case", PROBLEMS)
def test_the_error_says_what_is_wrong(case: str) -> None:
    build, text = PROBLEMS[case]
    with pytest.raises(GraphError, match=text):
        build()


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(GraphError) as raised:
        loop("history -> report", max_turns=-1, tools=[submit])
    assert len(raised.value.problems) == 3


def test_a_tool_without_a_description_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="'silent' has no description"):
        loop(tools=[agents.tool(lambda word: word, name="silent")])


def test_a_tool_of_several_modes_is_one_node() -> None:
    program = modes({"tools": [look_up]}, {"tools": [look_up]})
    assert [name for name, node in program.graph.nodes.items() if node.kind == "tool"] == ["look_up"]


def test_a_problem_that_two_checks_find_is_said_once() -> None:
    program = agents.tool_loop("topic -> findings", [look_up], name="Sub")
    with pytest.raises(GraphError) as raised:
        loop(tools=[agents.tool(program, desc="Finds.", writes=["findings"])])
    assert raised.value.problems == tuple(dict.fromkeys(raised.value.problems))
    assert "'findings' in writes is no field of the state" in str(raised.value)
