"""Promises of the article on steering agents (S002); the numbers are those of the project's list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Barrier
from typing import Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Command, Graph, Kept, Run, agents, search, view
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.recording import RecordingLM
from tests.agents.scripts import submit, turn


def tide(place: str) -> str:
    """Tells when the tide turns."""
    return f"9:40 in {place}"


LOOK = turn(("tide", {"place": "Brest"}))
NATIVE = dspy.ChatAdapter(use_native_function_calling=True)


def talk(
    program: Any, *answers: Any, inputs: dict[str, Any] | None = None, thread: Any = None
) -> tuple[Any, ScriptedLM]:
    """Runs a program with answers of the model."""
    with dspy.context(adapter=NATIVE), ScriptedLM(list(answers)) as lm:
        run = (program if thread is None else thread).run(inputs or {"question": "When?"})
    return run, lm


def done(run: Run) -> Run:
    """A run that has ended without an error."""
    run.raise_error()
    assert run.status == "completed"
    return run


def shown(lm: ScriptedLM, call: int) -> str:
    """All that the model was shown in a call."""
    return "\n".join(each["content"] for each in lm.calls[call].messages)


def tools_of(lm: ScriptedLM, call: int) -> list[str]:
    return [tool.name for tool in lm.calls[call].prompt.tools]


def test_a_loop_takes_turns_until_it_has_finished_and_its_history_only_grows() -> None:
    """S002-1, S002-2: each turn and each result is a commit; the last message says what is next."""
    run, lm = talk(agents.tool_loop("question -> answer", [tide]).compile(), LOOK, LOOK, submit(answer="9:40"))
    assert run.state["answer"] == "9:40"
    versions = [run.at(commit.version).get("messages", []) for commit in run.commits if commit.version is not None]
    lengths = [len(messages) for messages in versions]
    assert lengths == sorted(lengths)
    final = run.state.to_dict()["messages"]
    for messages in versions:
        assert list(messages) == final[: len(messages)]
    nodes = [commit.node for commit in run.commits if commit.node in ("begin", "react", "tide", "settle")]
    assert nodes == ["begin", "react", "tide", "settle", "react", "tide", "settle", "react", "settle"]
    assert len(lm.calls) == 3


def test_the_kinds_of_interactions() -> None:
    """S002-3: of the user, of the assistant, results; questions to the user and answers; finished."""
    program = agents.tool_loop("question -> answer", [tide, agents.ask_user]).compile(store=":memory:")
    thread = program.thread("t")
    ask = turn(("ask_user", {"question": "Which place?"}))
    run, _ = talk(program, ask, thread=thread)
    assert run.status == "interrupted"
    assert "Which place?" in run.questions[0].text
    with dspy.context(adapter=NATIVE), ScriptedLM([LOOK, submit(answer="9:40")]):
        run = thread.resume({"ask_user": "Brest"})
    messages = run.state.to_dict()["messages"]
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 3]
    assert [message["content"] for message in messages if message["role"] == "tool"][:2] == ["Brest", "9:40 in Brest"]
    assert run.status == thread.status == "completed"


def team(**options: Any) -> Any:
    """A main agent with a specialised sub-agent."""
    signature = dspy.Signature("topic -> findings").with_instructions("You know the sea.")
    reader = agents.tool_loop(signature, [tide], config={"temperature": 0.3}, name="Reader")
    helper = agents.tool(reader, name="research", desc="Reads about one topic.", **options)
    return agents.tool_loop("question -> answer", [helper]).compile(store=":memory:")


def test_a_sub_agent_has_its_own_definition_and_an_empty_history_and_the_caller_waits() -> None:
    """S002-4, S002-6, S002-7, S002-9, S002-10, S002-11."""
    delegate = turn(("research", {"topic": "the tide in Brest"}))
    with (
        dspy.context(adapter=NATIVE),
        RecordingLM([delegate, LOOK, submit(findings="9:40"), submit(answer="end")]) as lm,
    ):
        run = team().run({"question": "When?"})
    assert done(run).state["answer"] == "end"
    assert ['"temperature": 0.3' in request for request in lm.requests] == [False, True, True, False]
    (call,) = [message for message in run.state["messages"] if message.get("name") == "research"]
    assert (call["role"], call["value"]) == ("tool", "9:40")
    nodes = [commit.node for commit in run.commits if commit.node in ("react", "research")]
    assert nodes == ["react", "research", "react"], "the caller takes no turn until it has the result"
    assert [tools_of(lm, n) for n in range(4)] == [
        ["research", "submit"],
        *[["tide", "submit"]] * 2,
        ["research", "submit"],
    ]
    assert "You know the sea." in shown(lm, 1)
    assert "the tide in Brest" in shown(lm, 1)
    assert "When?" not in shown(lm, 1) + shown(lm, 2), "it sees its arguments alone"
    assert "9:40" in shown(lm, 3), "the result is the caller's"
    assert "You know the sea." not in shown(lm, 3)
    assert "9:40 in Brest" not in shown(lm, 3), "the sub-agent's own history is not"


def test_a_sub_agent_is_launched_anew_or_restarted_by_a_parameter() -> None:
    """S002-5, S002-8, S002-12: a session continues where it left off, another one starts empty."""
    program = team()
    first = turn(("research", {"topic": "Brest", "session": "sea"}))
    again = turn(("research", {"topic": "and tomorrow?", "session": "sea"}))
    other = turn(("research", {"topic": "the hills", "session": "land"}))
    script = [first, submit(findings="9:40"), again, submit(findings="10:20"), other, submit(findings="none")]
    run, lm = talk(program, *script, submit(answer="end"))
    assert done(run).state["answer"] == "end"
    assert "Brest" in shown(lm, 3)
    assert "9:40" in shown(lm, 3)
    assert "Brest" not in shown(lm, 5)
    assert set(run.state["sessions"]) == {"research/sea", "research/land"}


def test_the_user_continues_a_finished_agent() -> None:
    """S002-12, S002-13."""
    program = agents.tool_loop("question -> answer", [tide]).compile(store=":memory:")
    thread = program.thread("t")
    talk(program, LOOK, submit(answer="9:40"), thread=thread)
    run, lm = talk(program, submit(answer="yes"), inputs={"question": "Are you sure?"}, thread=thread)
    assert run.state["answer"] == "yes"
    assert "9:40 in Brest" in shown(lm, 0)
    assert "Are you sure?" in shown(lm, 0)


def test_a_long_conversation_is_branched_many_times_and_stays_as_it_is() -> None:
    """S002-14, S002-17: side conversations from one point, without a call for what was said before."""
    program = agents.tool_loop("question -> answer", [tide]).compile(store=":memory:")
    main = program.thread("t")
    talk(program, LOOK, submit(answer="9:40"), thread=main)
    before = main.state
    with ScriptedLM([]):
        sides = [main.copy(to=f"side {n}") for n in range(3)]
    for n, side in enumerate(sides):
        run, lm = talk(program, submit(answer=str(n)), inputs={"question": f"aside {n}"}, thread=side)
        assert run.state["answer"] == str(n)
        assert "9:40 in Brest" in shown(lm, 0)
        assert "aside" not in shown(lm, 0).replace(f"aside {n}", "")
    assert main.state == before


def test_live_branches_of_an_agent_step_side_by_side_until_all_have_finished() -> None:
    """S002-14, S002-15, S002-16: alternatives of one state in parallel, each agent in a branch of its own."""

    class Sides(BaseModel):
        question: str
        short: str = ""
        long: str = ""

    graph = Graph(Sides)
    for name in ("short", "long"):
        graph.add_node(name, agents.tool_loop(f"question -> {name}", [tide], name=name.title()))
    graph.add_edge(START, ["short", "long"]).add_edge(["short", "long"], END)

    both, asked = Barrier(2, timeout=20), Counter[str]()

    def answer(prompt: Prompt) -> Any:
        (output,) = next(tool.schema["required"] for tool in prompt.tools if tool.name == "submit")
        asked[output] += 1
        if asked[output] == 1:
            both.wait()  # both branches are stepped while neither has ended
        return submit(**{output: "9:40"}) if output == "short" or asked[output] == 2 else LOOK

    with dspy.context(adapter=NATIVE), ScriptedLM(answer) as lm:
        run = graph.compile().run({"question": "When?"})
    assert (done(run).state["short"], run.state["long"]) == ("9:40", "9:40")
    assert {commit.node: commit.branch for commit in run.commits if commit.branch} == {"short": (0,), "long": (1,)}
    assert asked == {"short": 1, "long": 2}, "the branch that has finished is left alone"
    assert len(lm.calls) == 3


def test_the_context_is_rendered_again_at_every_call_and_selects_what_is_shown() -> None:
    """S002-18, S002-20, S002-22: the conversation stays whole, whatever a call is shown of it."""
    program = agents.tool_loop("question -> answer", [tide], context=view("messages").turns(1)).compile()
    places = [turn(("tide", {"place": place})) for place in ("Brest", "Dover", "Ostend")]
    run, lm = talk(program, *places, submit(answer="9:40"))
    assert [("Brest" in shown(lm, n), "Dover" in shown(lm, n)) for n in range(4)] == [
        (False, False),
        (True, False),
        (False, True),
        (False, False),
    ]
    assert "Ostend" in shown(lm, 3)
    assert "When?" in shown(lm, 3), "the task is always shown"
    assert [message["value"] for message in run.state["messages"] if message["role"] == "tool"][:3] == [
        f"9:40 in {place}" for place in ("Brest", "Dover", "Ostend")
    ]


def test_kinds_of_messages_are_left_out_of_the_context() -> None:
    """S002-20: those of one author here; the conversation has them."""

    def without_notes(messages: list[Any]) -> list[Any]:
        return [message for message in messages if message.get("name") != "note"]

    for context, is_shown in ((None, True), (without_notes, False)):
        program = agents.tool_loop("question -> answer", [tide], context=context).compile(store=":memory:")
        thread = program.thread("t")
        talk(program, submit(answer="9:40"), thread=thread)
        thread.update({"messages": {"role": "user", "name": "note", "content": "It rains."}})
        run, lm = talk(program, submit(answer="yes"), inputs={"question": "Sure?"}, thread=thread)
        assert ("It rains." in shown(lm, 0)) == is_shown
        assert "It rains." in str(run.state["messages"])


def test_each_interaction_renders_itself_by_the_state() -> None:
    """S002-19, S002-23, S002-24: the tool says how its call and its result are shown; old ones get short."""

    def brief(call: Any, language: str) -> Any:
        short = call._replace(args={"place": "..."}, value=f"({len(call.value)} characters, {language})")
        return call.value if call.age < 2 else short

    signature = dspy.Signature("question -> answer").with_instructions("You speak {language}.")
    program = agents.tool_loop(signature, [agents.tool(tide, render=brief)], schema=Tongue).compile()
    places = [turn(("tide", {"place": place})) for place in ("Brest", "Dover", "Ostend")]
    with dspy.context(adapter=NATIVE), RecordingLM([*places, submit(answer="9:40")]) as lm:
        run = program.run({"question": "When?"})
    assert ["9:40 in Brest" in shown(lm, n) for n in range(4)] == [False, True, True, False]
    assert "(13 characters, French)" in shown(lm, 3)
    assert ["Brest" in request for request in lm.requests] == [False, True, True, False], (
        "nor is the place of the old call shown"
    )
    assert "You speak French." in shown(lm, 0)
    assert "9:40 in Brest" in str(run.state["messages"])


def test_messages_are_templates_that_are_filled_at_each_call() -> None:
    """S002-19, S002-21: one message of the user is shown by the state at the time of the call."""

    def translate(to: str) -> Command[Any]:
        """Changes the language."""
        return Command(update={"language": to}, result="done")

    def filled(messages: list[Any], language: str) -> list[Any]:
        return [{**message, "content": message["content"].replace("{language}", language)} for message in messages]

    loop = agents.tool_loop("question -> answer", [translate], schema=Tongue, context=filled)
    program = loop.compile(store=":memory:")
    thread = program.thread("t")
    talk(program, submit(answer="9:40"), thread=thread)
    thread.update({"messages": {"role": "user", "content": "Speak {language} to me."}})
    script = [turn(("translate", {"to": "Dutch"})), submit(answer="ja")]
    _, lm = talk(program, *script, inputs={"question": "Sure?"}, thread=thread)
    assert ["Speak French to me." in shown(lm, n) for n in (0, 1)] == [True, False]
    assert ["Speak Dutch to me." in shown(lm, n) for n in (0, 1)] == [False, True]


class Tongue(BaseModel):
    language: Kept[str] = "French"


class Plan(BaseModel):
    plan: list[str] = []


def report_plan(steps: list[str]) -> Command[Any]:
    """Reports the plan."""
    return Command(update={"plan": steps}, goto="work", result="noted")


def planner(**work: Any) -> Any:
    modes = {
        "plan": agents.Mode("Make a plan.", tools=[report_plan], to=["work"], config={"temperature": 0.9}),
        "work": agents.Mode("Carry out {plan}.", tools=[tide], to=["plan"], context=view("messages").turns(1), **work),
    }
    return agents.modes("question -> answer", modes, schema=Plan).compile(store=":memory:")


PLANNED = turn(("report_plan", {"steps": ["look", "tell"]}))


def test_a_tool_that_reports_the_plan_changes_prompt_tools_parameters_and_context() -> None:
    """S002-25, S002-26, S002-27, S002-29."""
    other = ScriptedLM([LOOK, LOOK, submit(answer="9:40")])
    with dspy.context(adapter=NATIVE), RecordingLM([PLANNED]) as lm:
        run = planner(lm=other).run({"question": "When?"})
    assert done(run).state["plan"] == ["look", "tell"]
    assert run.state["answer"] == "9:40"
    assert "Make a plan." in shown(lm, 0)
    assert '"temperature": 0.9' in lm.requests[0]
    assert tools_of(lm, 0) == ["report_plan", "to_work", "submit"]
    assert tools_of(other, 0) == ["tide", "to_plan", "submit"]
    assert "Carry out" in shown(other, 0)
    assert "look" in shown(other, 0)
    assert "Make a plan." not in shown(other, 0)
    assert "noted" in shown(other, 0)
    assert "noted" not in shown(other, 2), "the context of the mode leaves it out"


def in_a_mode() -> Any:
    return planner()


def in_a_branch() -> Any:
    """Two plans are made at once before the agent starts, and it follows both."""
    graph = Graph(Planned)
    for name in ("careful", "quick"):
        graph.add_node(name, dspy.Predict(f"question -> {name}"))
    signature = dspy.Signature("question -> answer").with_instructions("Carry out {careful} or {quick}.")
    graph.add_node("work", agents.tool_loop(signature, [tide], schema=Plans))
    return graph.add_edge(START, ["careful", "quick"]).add_edge(["careful", "quick"], "work").add_edge("work", END)


class Plans(BaseModel):
    careful: str = ""
    quick: str = ""


class Planned(Plans):
    question: str
    answer: str = ""


def by_a_sub_agent() -> Any:
    plans = agents.tool_loop("task -> steps: list[str]", [], name="Planner")
    return agents.tool_loop("question -> answer", [tide, agents.tool(plans, name="plan", desc="Makes a plan.")])


def without_a_model() -> Any:
    graph = Graph(Steps).add_node("plan", lambda question: {"plan": ["look", "tell"]}, writes=["plan"])
    signature = dspy.Signature("question -> answer").with_instructions("Carry out {plan}.")
    return graph.add_node("work", agents.tool_loop(signature, [tide], schema=Plan)).add_path(START, "plan", "work", END)


class Steps(Plan):
    question: str
    answer: str = ""


@pytest.mark.parametrize("make", [in_a_mode, in_a_branch, by_a_sub_agent, without_a_model])
def test_a_plan_is_made_anywhere(make: Callable[[], Any]) -> None:
    """S002-28: in the main context, in a branch, by a sub-agent, by a step without a model."""

    def answer(prompt: Prompt) -> Any:
        tools = [tool.name for tool in prompt.tools]
        text = str(prompt.turns)
        if not tools:
            return dict.fromkeys(prompt.asks, "look, tell")
        if "report_plan" in tools:
            return PLANNED
        if "plan" in tools and "tell" not in text:
            return turn(("plan", {"task": "t"}))
        return submit(steps=["look", "tell"]) if tools == ["submit"] else submit(answer="9:40")

    made = make()
    program = made.compile() if isinstance(made, Graph) else made
    with dspy.context(adapter=NATIVE), ScriptedLM(answer) as lm:
        run = program.run({"question": "When?"})
    assert done(run).state["answer"] == "9:40"
    assert "tell" in shown(lm, -1)


class Template(BaseModel):
    goal: str
    steps: list[str]


def fill_in(plan: Template) -> Command[Any]:
    """Reports the plan."""
    return Command(update={"plan": [plan.goal, *plan.steps]}, goto="work", result="noted")


def choose(plan: Literal["dive", "wait"]) -> Command[Any]:
    """Chooses a plan."""
    return Command(update={"plan": [plan]}, goto="work", result="noted")


def test_a_plan_is_revised_filled_in_or_chosen() -> None:
    """S002-30: back to planning and a new plan; a template is a model, predefined plans are a choice."""
    modes = {
        "plan": agents.Mode("Make a plan.", tools=[report_plan, fill_in, choose], to=["work"]),
        "work": agents.Mode("Carry out {plan}.", tools=[tide], to=["plan"]),
    }
    program = agents.modes("question -> answer", modes, schema=Plan).compile()
    back = turn(("to_plan", {}))
    filled = turn(("fill_in", {"plan": {"goal": "the tide", "steps": ["ask"]}}))
    wrong, chosen = turn(("choose", {"plan": "fly"})), turn(("choose", {"plan": "wait"}))
    run, lm = talk(program, PLANNED, back, filled, back, wrong, chosen, submit(answer="9:40"))
    assert done(run).state["plan"] == ["wait"]
    plans = [
        commit.patch["plan"]
        for commit in run.commits
        if commit.node in ("report_plan", "fill_in", "choose") and "plan" in commit.patch
    ]
    assert [list(plan) for plan in plans] == [["look", "tell"], ["the tide", "ask"], ["wait"]]
    assert "the tide" in shown(lm, 3)
    assert "wait" in shown(lm, 6)


def test_an_agent_asked_whether_it_is_satisfied_goes_back_to_work_until_it_is() -> None:
    """S002-31, S002-33: the same predictor is asked, as its definition says."""
    program = agents.tool_loop("question -> answer", [tide], check="react", max_fixes=2).compile()
    unhappy: dict[str, list[str]] = {"problems": ["no place is named"]}
    happy: dict[str, list[str]] = {"problems": []}

    def answer(prompt: Prompt) -> Any:
        return next(script)

    first, second = submit(answer="9:40"), submit(answer="9:40 in Brest")
    script = iter([LOOK, first, unhappy, second, happy])
    with dspy.context(adapter=NATIVE), ScriptedLM(answer) as lm:
        run = program.run({"question": "When?"})
    assert done(run).state["answer"] == "9:40 in Brest"
    assert len(lm.calls) == 5
    assert "no place is named" in shown(lm, 3)
    assert "9:40 in Brest" in shown(lm, 3), "it resumes where it left off"


def critic() -> Any:
    """A sub-agent that looks for problems, with a tool of its own."""
    signature = dspy.Signature("question, answer -> problems: list[str]")
    return agents.tool_loop(signature, [tide], name="Critic").compile()


def test_a_sub_agent_reflects_on_the_whole() -> None:
    """S002-34: its feedback is a message to the agent, which selects its next action."""
    program = agents.tool_loop("question -> answer", [tide], check=critic()).compile()
    script = [
        submit(answer="9:40"),
        LOOK,
        submit(problems=["no place is named"]),
        submit(answer="9:40 in Brest"),
        submit(problems=[]),
    ]
    run, lm = talk(program, *script)
    assert done(run).state["answer"] == "9:40 in Brest"
    assert "no place is named" in shown(lm, 3)
    (feedback,) = [m for m in run.state["messages"] if m["role"] == "user" and "no place is named" in m["content"]]
    assert feedback["id"]


class Critique(dspy.Signature):
    """Say what is wrong with the result of a tool, and with which arguments to call it again."""

    tool: str = dspy.InputField()
    result: str = dspy.InputField()
    problems: list[str] = dspy.OutputField()
    args: dict[str, str] = dspy.OutputField()


@pytest.mark.parametrize("by", ["itself", "a sub-agent"])
def test_one_tool_call_is_redone(by: str) -> None:
    """S002-32, S002-33, S002-35: only this call, as the tool says; the conversation has its last result."""
    calls: list[str] = []

    def look(place: str) -> str:
        """Looks."""
        calls.append(place)
        return f"9:40 in {place}"

    check = agents.tool_loop(Critique, [], name="Critic").compile() if by == "a sub-agent" else dspy.Predict(Critique)

    def answer(prompt: Prompt) -> Any:
        if "next_thought" in prompt.asks and "Say what is wrong" not in prompt.instructions:
            return next(script)
        good = "Brest" in prompt.inputs["result"]
        found = {"problems": [] if good else ["not Brest"], "args": {} if good else {"place": "Brest"}}
        return submit(**found) if "next_thought" in prompt.asks else found

    script = iter([turn(("look", {"place": "Dover"}), ("look", {"place": "Brest"})), submit(answer="9:40")])
    # An effect too: other arguments make it another call.
    program = agents.tool_loop("question -> answer", [agents.tool(look, check=check, effect=True)]).compile()
    with dspy.context(adapter=NATIVE), ScriptedLM(answer):
        run = program.run({"question": "When?"})
    results = [m["value"] for m in done(run).state["messages"] if m["role"] == "tool"]
    assert results[:2] == ["9:40 in Brest", "9:40 in Brest"]
    assert sorted(calls) == ["Brest", "Brest", "Dover"], "two calls, and one of them once more"


def test_deterministic_and_autonomous_flows_and_both() -> None:
    """S002-36: `route` alone decides, `to` lets the model decide, both: the model within bounds."""
    fixed = {
        "a": agents.Mode("A.", tools=[tide], to=["b"], route=lambda language: "b"),
        "b": agents.Mode("B.", tools=[tide]),
    }
    run, _ = talk(agents.modes("question -> answer", fixed, schema=Tongue).compile(), LOOK, submit(answer="x"))
    assert [commit.node for commit in run.commits if commit.node in ("a", "b")] == ["a", "b"]
    free = {"a": agents.Mode("A.", to=["b"]), "b": agents.Mode("B.", to=["a"])}
    program = agents.modes("question -> answer", free, max_turns=9).compile()
    run, _ = talk(program, turn(("to_b", {})), turn(("to_a", {})), turn(("to_b", {})), submit(answer="x"))
    assert [commit.node for commit in run.commits if commit.node in ("a", "b")] == ["a", "b", "a", "b"]
    assert run.state["answer"] == "x"
    bound = {
        "a": agents.Mode("A.", to=["b"], route=lambda language: "b" if language == "French" else None),
        "b": agents.Mode("B.", tools=[learn], to=["c"]),
        "c": agents.Mode("C.", to=["a"], route=lambda language: None, guard=lambda language: language == "Dutch"),
    }
    script = [LOOK, turn(("to_a", {})), turn(("to_c", {})), turn(("learn", {})), turn(("to_c", {})), submit(answer="x")]
    run, _ = talk(agents.modes("question -> answer", bound, schema=Tongue).compile(), *script)
    assert [commit.node for commit in run.commits if commit.node in ("a", "b", "c")] == ["a", "b", "b", "b", "b", "c"]
    refused = [m["name"] for m in done(run).state["messages"] if m["role"] == "tool" and m["error"]]
    assert refused == ["tide", "to_a", "to_c"], "not a tool of this mode, not a mode that may follow, a guard"


def learn() -> Command[Any]:
    """Learns Dutch."""
    return Command(update={"language": "Dutch"}, result="done")


def test_rewind_and_rerun_of_an_agent_and_search() -> None:
    """S002-37: into the middle of a turn; what wrote a value; a tree search, which is a graph like any other."""
    program = agents.tool_loop("question -> answer", [tide]).compile(store=":memory:")
    thread = program.thread("t")
    talk(program, LOOK, submit(answer="9:40"), thread=thread)
    at = next(commit.version for commit in thread.history() if commit.node == "react")
    with dspy.context(adapter=NATIVE), ScriptedLM([submit(answer="later")]):
        run = thread.copy(to="side", at=at).resume()
    assert run.state["answer"] == "later"
    assert thread.state["answer"] == "9:40"
    assert thread.blame("answer").node == "settle"
    assert [type(event).__name__ for event in run.events[:1]] == ["RunStarted"]
    move = dspy.Predict("path -> next_path")
    tree = search.mcts(
        move,
        lambda path: path.count("b") / 3,
        branch=2,
        depth=3,
        max_trials=14,
        writes={"next_path": "path"},
        done=lambda path: len(path) == 3,
    )
    tried = Counter[str]()

    def step(prompt: Prompt) -> Any:
        path = prompt.inputs.get("path", "").strip()
        tried[path] += 1
        return {"next_path": path + ("a" if tried[path] % 2 else "b")}

    with ScriptedLM(step):
        found = tree.compile().run({"path": ""})
    assert found.state["path"] == "bbb"
    assert sum(tried.values()) <= 14


def test_artifacts_and_memory_are_fields_that_last() -> None:
    """S002-37: a run on the thread begins with what earlier ones have kept, and prompts name it."""
    signature = dspy.Signature("question -> answer").with_instructions("You speak {language}.")
    program = agents.tool_loop(signature, [learn], schema=Tongue).compile(store=":memory:")
    thread = program.thread("t")
    talk(program, turn(("learn", {})), submit(answer="ja"), thread=thread)
    _, lm = talk(program, submit(answer="ja"), thread=thread)
    assert "You speak Dutch." in shown(lm, 0)
