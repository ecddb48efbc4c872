"""A tool as a node: its arguments, hidden parameters, results and errors (rules 9 to 12 and 15 of agents)."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import (
    END,
    Breakpoints,
    Command,
    Context,
    Entry,
    Failure,
    Graph,
    Retry,
    agents,
    from_chat,
    reducers,
    view,
)
from dspyer.errors import (
    BudgetError,
    GraphError,
    InputError,
    NodeOutputError,
    RouteError,
    StoreError,
)
from dspyer.events import Emitted
from dspyer.testing import ScriptedLM, call_node, no_pauses, stub
from tests.agents.kit import SUBMIT, agent, modes, results, run_one, run_turn, start, turn
from tests.rows import each, in_turn


class Client:
    """A resource."""

    def __init__(self, name: str = "own") -> None:
        self.name = name


class Place(BaseModel):
    city: str
    people: int = 0


@dataclass
class Area:
    size: int


class Fields(BaseModel):
    plan: list[str] = []
    notes: Annotated[list[str], reducers.append] = []
    mood: str = "calm"


def look_up(word: str, times: int = 1) -> str:
    """Looks up a word."""
    return word * times


async def alook_up(word: str) -> str:
    """Looks up a word."""
    await asyncio.sleep(0)
    return word


class Lookup:
    """Looks up a word."""

    def __call__(self, word: str) -> str:
        return word.upper()

    def method(self, word: str) -> str:
        """Looks up a word."""
        return word.lower()


class Scorer(dspy.Module):
    """Scores a text."""

    def forward(self, text: str, scale: int = 1) -> dspy.Prediction:
        return dspy.Prediction(score=len(text) * scale)


FORMS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "function": (look_up, {"word": "a", "times": 2}, "aa"),
    "async function": (alook_up, {"word": "a"}, "a"),
    "callable object": (agents.tool(Lookup(), name="find"), {"word": "a"}, "A"),
    "method": (Lookup().method, {"word": "A"}, "a"),
    "partial": (agents.tool(partial(look_up, times=3), name="thrice"), {"word": "a"}, "aaa"),
    "dspy.Tool": (dspy.Tool(look_up, name="lookup", desc="Looks up."), {"word": "a"}, "a"),
    "async dspy.Tool": (dspy.Tool(alook_up), {"word": "a"}, "a"),
    "lambda that awaits": (
        agents.tool(lambda word, times=1: alook_up(word), name="later", desc="."),
        {"word": "a"},
        "a",
    ),
    "module": (agents.tool(Scorer(), name="rate"), {"text": "abc"}, 3),
}


@modes
@each("form", FORMS)
def test_each_form_of_a_tool_is_called(form: str, mode: str) -> None:
    """Async tools work from sync programs, and sync tools from async ones."""
    given, args, value = FORMS[form]
    program = agent(given)
    name = next(name for name, node in program.graph.nodes.items() if node.kind == "tool")
    assert results(run_turn(program, (name, args), mode=mode)) == [(name, value, False)]


def test_name_description_and_arguments_are_those_of_dspy() -> None:
    """So the requests of the loop stay those of `dspy.ReActV2`."""

    def rich(
        a: int, b: list[Place], c: Area, d: str | None = None, e: Annotated[date, "day"] = date(2020, 1, 2)
    ) -> str:
        """Has many arguments."""
        return ""

    for fn in (look_up, alook_up, rich, Lookup(), Lookup().method):
        ours, theirs = agents.tool(fn).tool, dspy.Tool(fn)
        assert (ours.name, ours.desc, ours.args) == (theirs.name, theirs.desc, theirs.args)
        assert ours.format_as_litellm_function_call() == theirs.format_as_litellm_function_call()


def test_hidden_parameters_are_bound_behind_the_validation() -> None:
    """`ctx`, resources and the fields of `reads=` are not shown to the model, and it cannot give them."""
    seen: list[Any] = []

    def search(word: str, place: Place, client: Client, mood: str, past: list[Entry], ctx: Context) -> str:
        """Searches."""
        seen.append((word, place, client.name, mood, [entry.value for entry in past], ctx.node))
        ctx.emit("half done")
        return "found"

    tool = agents.tool(search, reads={"mood": "mood", "past": view("notes").last(1)})
    assert list(tool.tool.args or {}) == ["word", "place"]
    program = agent(tool, schema=Fields)
    place = {"word": "a", "place": {"city": "Rome"}}
    with ScriptedLM([turn(("search", place), ("search", {**place, "mood": "cross"})), SUBMIT]):
        stream = program.stream({"question": "Why?"}, resources=[Client("shared")])
        emitted = [event.value for event in stream if isinstance(event, Emitted)]
    assert seen == [("a", Place(city="Rome"), "shared", "calm", [], "search")]
    assert results(stream.run)[1][2]
    assert emitted == ["half done"]
    with pytest.raises(InputError, match=r"tool 'search' needs a resource of type Client"):
        program.run({"question": "?"})


def test_a_tool_reads_no_field_that_it_does_not_name() -> None:
    def peek(mood: str, ctx: Context) -> str:
        """Its argument has the name of a field."""
        with pytest.raises(InputError, match="not among its reads"):
            ctx.view(view("notes"))
        return mood

    assert results(run_turn(agent(peek, schema=Fields), ("peek", {"mood": "of the model"}))) == [
        ("peek", "of the model", False)
    ]


WRONG_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({}, "the argument 'word' is missing. The arguments are 'word', 'times'"),
    "unknown": ({"word": "a", "wrd": "b"}, "there is no argument 'wrd'. The arguments are 'word', 'times'"),
    "wrong type": ({"word": "a", "times": "many"}, "Arg times is invalid: 'many' is not of type 'integer'"),
    "null": ({"word": None}, "Arg word is invalid: None is not of type 'string'"),
}


@each(("case", "mode"), in_turn(WRONG_ARGUMENTS))
def test_wrong_arguments_are_told_at_once(case: str, mode: str) -> None:
    """No retry helps a model that gave wrong arguments; the function is not called."""
    args, text = WRONG_ARGUMENTS[case]
    calls: list[str] = []

    def guarded(word: str, times: int = 1) -> str:
        """Looks up."""
        calls.append(word)
        return word

    with no_pauses() as pauses:
        run = run_turn(agent(agents.tool(guarded, retry=Retry(3, on=Exception))), ("guarded", args), mode=mode)
    line = f"step: guarded; error: ValueError: {text}; action: correct what was given, and try again"
    assert results(run) == [("guarded", line, True)]
    assert (calls, pauses, run.failures) == ([], [], ())


class DownError(Exception):
    """Of a client."""


@modes
def test_an_error_becomes_the_result_after_the_retries(mode: str) -> None:
    """One line, the same sync and async; the failure is in the log and in the statistics."""
    attempts: list[int] = []

    def fetch(url: str, ctx: Context) -> str:
        """Fetches a page."""
        attempts.append(ctx.attempt)
        ctx.post("notes", f"attempt {ctx.attempt}")
        raise ConnectionError("no\nline")

    program = agent(agents.tool(fetch, retry=3), schema=Fields)
    with no_pauses() as pauses:
        run = run_turn(program, ("fetch", {"url": "x"}), mode=mode)
    line = "step: fetch; error: ConnectionError: no line; action: try again, or continue without it"
    assert results(run) == [("fetch", line, True)]
    assert (attempts, len(pauses), run.status) == ([1, 2, 3], 2, "completed")
    assert run.state["notes"] == []
    commit = next(commit for commit in run.commits if commit.node == "fetch")
    assert commit.failure is not None
    assert (commit.failure.type, commit.failure.attempt, len(commit.failed_attempts)) == ("ConnectionError", 3, 2)
    assert "fetch: 3 x ConnectionError" in str(run.stats())


@modes
def test_a_retry_that_succeeds_is_no_error(mode: str) -> None:
    def fetch(url: str, ctx: Context) -> str:
        """Fetches a page."""
        if ctx.attempt < 3:
            raise ConnectionError("no line")
        return url

    with no_pauses():
        run = run_turn(agent(agents.tool(fetch, retry=3)), ("fetch", {"url": "x"}), mode=mode)
    assert results(run) == [("fetch", "x", False)]


@modes
def test_a_tool_that_times_out(mode: str) -> None:
    """The model is told in how much time there was no result; of an effect, that it may have happened."""
    release = threading.Event()

    def slow(text: str) -> str:
        """Waits."""
        release.wait(20)
        return text

    tools = [agents.tool(slow, timeout=0.05), agents.tool(slow, name="pay", timeout=0.05, effect=True)]
    try:
        run = run_turn(agent(*tools), ("slow", {"text": "a"}), ("pay", {"text": "a"}), mode=mode)
    finally:
        release.set()
    start = "error: TimeoutError: no result within 0.05 s; action:"
    assert results(run) == [
        ("slow", f"step: slow; {start} try again, or continue without it", True),
        ("pay", f"step: pay; {start} it may have happened: find out before you try again", True),
    ]


PROPAGATE = {
    "declared": (DownError("bad card"), DownError),
    "store": (StoreError("disk full"), StoreError),
    "budget": (BudgetError("spent"), BudgetError),
    "in a group": (ExceptionGroup("tasks", [StoreError("disk full"), ValueError()]), ExceptionGroup),
    "base exception": (KeyboardInterrupt(), KeyboardInterrupt),
}


@each(("case", "mode"), in_turn(PROPAGATE))
def test_what_the_tool_raises_and_what_always_propagates_fails_the_node(case: str, mode: str) -> None:
    error, kind = PROPAGATE[case]

    def pay() -> str:
        """Pays."""
        raise error

    program = agent(agents.tool(pay, raises=(DownError, LookupError)))
    if kind is KeyboardInterrupt:
        with pytest.raises(kind):
            run_one(program, ("pay", {}), mode=mode)
    else:
        run = run_one(program, ("pay", {}), mode=mode)
        assert isinstance(run.error, kind)
        assert run.status == "failed"


def test_an_error_edge_takes_what_a_tool_raises() -> None:
    def pay() -> str:
        """Pays."""
        raise DownError("bad card")

    def apologize(problem: Any) -> dict[str, Any]:
        return {"answer": f"sorry: {problem[0].message}"}

    class WithProblem(BaseModel):
        problem: Annotated[list[Failure], reducers.append] = []

    graph = agents.tool_loop("question -> answer", [agents.tool(pay, raises=DownError)], schema=WithProblem)
    graph.add_node("apologize", apologize, writes=["answer"])
    graph.add_error_edge("pay", "apologize", on=DownError, into="problem").add_edge("apologize", END)
    with_error = run_one(graph.compile(), ("pay", {}))
    assert with_error.state["answer"] == "sorry: bad card"


VALUES: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "model": (Place(city="Rome"), {"city": "Rome", "people": 0}),
    "dataclass": (Area(3), {"size": 3}),
    "date": (date(2020, 1, 2), "2020-01-02"),
    "nested": ({"places": [Place(city="Rome")], 1: (1, 2)}, {"places": [{"city": "Rome", "people": 0}], "1": [1, 2]}),
    "set": ({3}, [3]),
    "bytes": (b"ab", "ab"),
    "object": (Client(), "<client>"),
    "object in a list": ([Client()], ["<client>"]),
    "prediction": (dspy.Prediction(a=1), "Prediction(\n    a=1\n)"),
}


@each("case", VALUES)
def test_every_value_can_be_stored(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DSPy shows it to a model: what has no JSON form is text."""
    monkeypatch.setattr(Client, "__str__", lambda self: "<client>")
    given, shown = VALUES[case]

    def find() -> Any:
        """Finds."""
        return given

    program = agent(find, agents.tool(find, name="once", effect=True), store=":memory:")

    with ScriptedLM([turn(("find", {}), ("once", {})), SUBMIT]):
        run = start(program.thread("t"))
    assert run.error is None
    assert results(run) == [("find", shown, False), ("once", shown, False)]
    assert all(isinstance(message["content"], str) for message in program.thread("t").state["messages"])


@modes
def test_a_command_updates_fields_and_says_what_the_model_is_shown(mode: str) -> None:
    def report(steps: list[str]) -> Command[str]:
        """Reports the plan."""
        return Command(update={"plan": steps}, result=f"{len(steps)} steps noted")

    def quiet() -> Command[str]:
        """Notes."""
        return Command(update={"notes": "a note"})

    run = run_turn(agent(report, quiet, schema=Fields), ("report", {"steps": ["a", "b"]}), ("quiet", {}), mode=mode)
    assert results(run) == [("report", "2 steps noted", False), ("quiet", None, False)]
    assert (run.state["plan"], run.state["notes"]) == (["a", "b"], ["a note"])
    assert run.blame("plan").node == "report"
    named = [message["name"] for message in run.state["messages"] if message["role"] == "tool"]
    assert named == ["report", "quiet", "submit"]  # an update that another call may contest counts at the end of a turn


class Steps(BaseModel):
    steps: list[str]
    mood: str = "sure"
    note: str = "no update: the field has a reducer"


@modes
def test_a_model_updates_fields_as_its_dump_does(mode: str) -> None:
    def report(steps: list[str]) -> Any:
        """Reports the plan."""
        return Command(update=Steps(steps=steps))

    writes = {"steps": "plan", "mood": "mood", "note": "notes"}
    program = agent(agents.tool(report, writes=writes), schema=Fields)
    run = run_turn(program, ("report", {"steps": ["a", "b"]}), mode=mode)
    assert (run.state["plan"], run.state["mood"], run.state["notes"]) == (["a", "b"], "sure", [])


OUTSIDE: dict[str, tuple[Any, str]] = {
    "no field of the schema": (Command(update={"answer": "x"}), "'answer', which it does not write"),
    "not in its writes": (Command(update={"plan": []}), "'plan', which it does not write: its writes are 'mood'"),
    "refused by the schema": (Command(update={"mood": 3}), "valid string"),
    "no patch": (Command(update=["plan"]), "of type list"),
    "its own messages": (Command(update={"messages": []}), "'messages', which it does not write"),
}


@each("case", OUTSIDE)
def test_an_update_outside_the_writes_fails_the_node(case: str) -> None:
    """The author of the tool mends it, and not the model."""
    command, text = OUTSIDE[case]

    def report() -> Any:
        """Reports."""
        return command

    tool = agents.tool(report) if case == "no field of the schema" else agents.tool(report, writes=["mood"])
    run = run_one(agent(tool, schema=Fields), ("report", {}))
    assert isinstance(run.error, NodeOutputError)
    assert text in str(run.error)


def test_writes_map_names() -> None:
    def report() -> Any:
        """Reports."""
        return Command(update={"steps": ["a"]}, result="ok")

    run = run_turn(agent(agents.tool(report, writes={"steps": "plan"}), schema=Fields), ("report", {}))
    assert run.state["plan"] == ["a"]


def test_a_tool_posts_to_its_writes_alone() -> None:
    def work(ctx: Context) -> str:
        """Works."""
        ctx.post("notes", "working")
        return "done"

    assert run_turn(agent(work, schema=Fields), ("work", {})).state["notes"] == ["working"]
    run = run_one(agent(agents.tool(work, writes=["mood"]), schema=Fields), ("work", {}))
    assert isinstance(run.error, NodeOutputError)


@each("goto", [["a", "b"], 3])
def test_a_handoff_names_one_mode(goto: Any) -> None:
    def go() -> Any:
        """Goes."""
        return Command(goto=goto)

    assert isinstance(run_one(agent(go), ("go", {})).error, RouteError)


def test_results_stand_in_the_order_of_the_calls_whichever_finishes_first() -> None:
    second = threading.Event()

    def slow() -> str:
        """Waits for the other."""
        assert second.wait(20)
        return "slow"

    def quick() -> str:
        """Is first."""
        second.set()
        return "quick"

    run = run_turn(agent(slow, quick), ("slow", {}), ("quick", {}))
    assert results(run) == [("slow", "slow", False), ("quick", "quick", False)]
    named = [message["name"] for message in run.state["messages"] if message["role"] == "tool"]
    assert named == ["slow", "quick", "submit"]


def test_what_a_graph_offers_works_for_tools() -> None:
    """Visits, interrupts before a tool, blame, pictures, fingerprints and stubs need no further rules."""

    def mail(to: str, mood: str) -> str:
        """Sends a mail."""
        return f"sent to {to}"

    graph = agents.tool_loop("question -> answer", [agents.tool(mail, reads=["mood"])], schema=Fields)
    program = graph.compile(store=":memory:", layers=[Breakpoints(before=["mail"])])

    thread = program.thread("t")
    with ScriptedLM([turn(("mail", {"to": "Ada"}), ("mail", {"to": "Bob"})), SUBMIT]):
        assert [question.node for question in start(thread).questions] == ["mail", "mail"]
        run = thread.resume({question.id: None for question in thread.questions})
    assert results(run) == [("mail", "sent to Ada", False), ("mail", "sent to Bob", False)]
    assert run.stats().nodes["mail"].visits == 2
    assert 'mail_>"mail"]' in program.graph.to_mermaid()
    assert "mail: tool" in program.graph.to_svg()


STUBS: dict[str, tuple[Any, Any]] = {
    "function of some arguments": (lambda to: f"stub for {to}", "stub for Ada"),
    "function of a field": (lambda to, mood: f"{to} is {mood}", "Ada is calm"),
    "function of any arguments": (lambda **args: sorted(args), ["text", "to"]),
    "function without arguments": (lambda: "nothing", "nothing"),
    "a result": ({"id": 3}, {"id": 3}),
    "a text": ("sent", "sent"),
    "a number": (3, 3),
}


@each(("case", "mode"), in_turn(STUBS))
def test_a_stub_stands_for_the_function(case: str, mode: str) -> None:
    def mail(to: str, text: str, mood: str) -> str:
        """Sends a mail."""
        raise AssertionError("not in a test")

    fake, value = STUBS[case]
    program = stub(agent(agents.tool(mail, reads=["mood"]), schema=Fields), mail=fake)
    run = run_turn(program, ("mail", {"to": "Ada", "text": "x"}), ("mail", {"to": 3}), mode=mode)
    assert results(run)[0] == ("mail", value, False)
    assert "argument 'text' is missing" in results(run)[1][1]


def test_a_stub_with_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(GraphError, match="'tex'"):
        stub(agent(look_up), look_up=lambda word, tex: word)


def test_a_module_is_tuned_under_the_name_of_its_tool() -> None:
    """Its outputs are the result; those of `writes=` go to fields as well, whole; `reads=` gives inputs."""

    class Inputs(BaseModel):
        style: str = "short"
        best: str = ""

    module = dspy.ChainOfThought("text, style -> summary")
    tool = agents.tool(module, name="summarize", reads=["style"], writes={"summary": "best"})
    assert tool.tool.desc == "Given the fields `text`, `style`, produce the fields `summary`."
    program = agent(tool, schema=Inputs)
    assert [name for name, _ in program.named_predictors()] == ["react", "summarize.predict"]
    script = [turn(("summarize", {"text": "long"})), {"reasoning": "r", "summary": "a tide"}, SUBMIT]
    with ScriptedLM(script) as lm:
        run = start(program)
    assert results(run) == [("summarize", "a tide", False)]
    assert run.state["best"] == "a tide"
    assert lm.calls[1].prompt.inputs == {"text": "long", "style": "short"}
    assert [predictor for predictor, _, _ in run.trace][1] is program.summarize.predict


def test_a_tool_that_uses_a_module_behind_the_back_of_the_graph_is_refused() -> None:
    hidden = dspy.Predict("a -> b")

    def ask(a: str) -> str:
        """Asks."""
        return str(hidden(a=a).b)

    with pytest.raises(GraphError, match=r"uses the dspy.Module 'hidden'.*agents.tool"):
        agent(ask)


def generator() -> Any:
    """Yields."""
    yield 1


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a text": ("look_up", {}, "a tool is a function, a dspy.Tool, a module or a program, and this is 'look_up'"),
    "a class": (Place, {}, "this is the class Place"),
    "a tool of a tool": (agents.tool(look_up), {}, "is a tool already"),
    "a lambda": (lambda a: a, {}, "'<lambda>' is no name for a node"),
    "a module without a name": (dspy.Predict("a -> b"), {}, r"tool\(module, name='...'\)"),
    "a generator": (generator, {}, "is a generator"),
    "*args": (lambda *a: a, {"name": "x"}, r"takes \*a: a model gives arguments by name"),
    "a reserved name": (look_up, {"name": "START"}, "'START' cannot name a node"),
    "a dashed name": (dspy.Tool(look_up, name="get-word"), {}, r"'get-word' is no name.*tool\(..., name='...'\)"),
    "approve": (look_up, {"approve": "yes"}, "approve='yes': give True, or a function"),
    "effect": (look_up, {"effect": 1}, "effect=1: give True or False"),
    "render": (look_up, {"render": "short"}, "render='short': give a function of a call"),
    "check": (look_up, {"check": "react"}, "check='react': give a function of `tool`, `args`, `result` and fields"),
    "raises": (look_up, {"raises": (ValueError("x"),)}, "raises holds ValueError"),
    "raises a base exception": (look_up, {"raises": KeyboardInterrupt}, "give classes of exceptions"),
    "retry": (look_up, {"retry": 0}, "tool 'look_up': Retry"),
    "timeout": (look_up, {"timeout": -1}, "tool 'look_up': timeout=-1: give a finite number"),
    "reads": (look_up, {"reads": "mood"}, r"tool 'look_up': reads='mood' is one name"),
}


@each("case", REFUSED)
def test_a_wrong_tool_is_refused_at_once(case: str) -> None:
    given, options, text = REFUSED[case]
    with pytest.raises(GraphError, match=text):
        agents.tool(given, **options)


def test_an_error_of_a_graph_says_where_it_was_given() -> None:
    for given, check, place in ((look_up, Graph(), "look_up.check"), (Graph(), None, "tool")):
        with pytest.raises(GraphError, match="nothing starts") as refusal:
            agents.tool(given, check=check)
        assert refusal.value.__notes__ == [f"in the graph 'Graph' that was given for node {place!r}"]


def test_all_problems_of_a_tool_are_reported_together() -> None:
    with pytest.raises(GraphError) as refusal:
        agents.tool(look_up, approve="yes", effect="no", timeout="soon")  # type: ignore[arg-type]  # all are wrong
    assert len(refusal.value.problems) == 3


def needs(word: str, client: Client, when: Any = None) -> str:
    """Needs."""
    return word


BUILD: dict[str, tuple[Any, str]] = {
    "a field that does not exist": (agents.tool(look_up, reads=["wrd"]), "tool 'look_up': 'wrd' in reads is none"),
    "a field that is written but is none": (agents.tool(look_up, writes=["nots"]), "'nots' in writes is no field"),
    "its own messages": (agents.tool(look_up, writes=["messages"]), "which its node writes itself"),
    "an approval of unknown fields": (
        agents.tool(look_up, approve=lambda amount: True),
        "approve of tool 'look_up'.*'amount' is no field.*Its arguments are word, times",
    ),
    "an async approval": (agents.tool(look_up, approve=alook_up), "is an async function"),
    "an approval with ctx": (agents.tool(look_up, approve=lambda ctx: True), "gets values only"),
    "an approval under a reserved key": (agents.tool(look_up, name="before", approve=True), "Breakpoints"),
    "a check of unknown values": (agents.tool(look_up, check=lambda output: []), "'output' is no field.*'result'"),
    "a check without problems": (agents.tool(look_up, check=dspy.Predict("result -> ok: bool")), "problems: list"),
    "a check with unknown inputs": (
        agents.tool(look_up, check=dspy.Predict("output -> problems: list[str]")),
        "it reads 'output', and is given 'tool', 'args', 'result' and fields",
    ),
    "a module that writes what it does not give": (
        agents.tool(dspy.Predict("a -> b"), name="ask", writes={"c": "mood"}),
        "'c' in writes is none of its outputs",
    ),
}


@each("case", BUILD)
def test_what_does_not_fit_the_agent_is_refused_when_it_is_built(case: str) -> None:
    tool, text = BUILD[case]
    with pytest.raises(GraphError, match=f"(?s){text}"):
        agent(tool, schema=Fields)


def test_a_tool_without_a_description_is_a_warning() -> None:
    def bare(a: str) -> str:
        return a

    with pytest.warns(UserWarning, match="tool 'bare' has no description") as found:
        agents.tool_loop("question -> answer", [bare])
    assert found[0].filename == __file__


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match="'look_up'"):
        agent(look_up, agents.tool(alook_up, name="look_up"))


def test_a_tool_is_not_called_without_a_turn() -> None:
    with pytest.raises(InputError, match="'look_up' is a tool: a turn of a model calls it"):
        call_node(agent(look_up), "look_up", {"question": "?"})


class EvilError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("evil")


HOSTILE: dict[str, tuple[BaseException, str]] = {
    "a text that raises": (EvilError(), "EvilError: <EvilError.__str__ raised RuntimeError>"),
    "StopIteration": (StopIteration(3), "StopIteration: 3"),
    "StopAsyncIteration": (StopAsyncIteration(), "StopAsyncIteration"),
    "an address": (ValueError(f"no {object()}"), "ValueError: no <object object>"),
    "a group of one": (ExceptionGroup("tasks", [ValueError("inner")]), "ValueError: inner"),
    "half a surrogate pair": (ValueError("\ud800 x"), "ValueError: \ufffd x"),
}


@each(("case", "mode"), in_turn(HOSTILE))
def test_any_exception_becomes_one_line(case: str, mode: str) -> None:
    """The same in every process, and such that a request can hold it."""
    error, text = HOSTILE[case]

    def bad() -> str:
        """Fails."""
        raise error

    run = run_turn(agent(bad), ("bad", {}), mode=mode)
    assert results(run)[0][1].startswith(f"step: bad; error: {text}; action: ")


HALF, MENDED = "cut \ud83d", "cut \ufffd"


@modes
def test_text_that_is_not_valid_unicode_is_repaired_where_it_enters_a_conversation(mode: str) -> None:
    """From inputs, an earlier chat, `update`, the model and the tool; two halves of one character become this one."""
    got: list[Any] = []

    def echo(text: str, more: dict[str, Any]) -> Any:
        """Echoes."""
        got.append([text, more])
        return {HALF: [HALF, "\ud83d\ude00"]}

    asked = {"id": "c", "type": "function", "function": {"name": "echo", "arguments": json.dumps({"text": HALF})}}
    chat: list[dict[str, Any]] = [
        {"role": "assistant", "content": HALF, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c", "name": "echo", "content": HALF},
    ]
    thread = agent(echo, store=":memory:").thread("t")
    call = "echo", {"text": HALF, "more": {"a": [HALF]}}
    with ScriptedLM([turn(call), turn(("submit", {"answer": HALF})), SUBMIT]):
        inputs = {"question": HALF, "messages": from_chat(chat)}
        run = thread.run(inputs) if mode == "sync" else asyncio.run(thread.arun(inputs))
        assert run.status == "completed", run.error
        thread.update({"messages": {"role": "user", "content": HALF}})
        again = start(thread, mode)
    assert got == [[MENDED, {"a": [MENDED]}]]
    assert run.state["answer"] == MENDED
    found = [message for message in run.state["messages"] if message["role"] == "tool"]
    assert found[0]["content"] == MENDED
    assert found[1]["value"] == {MENDED: [MENDED, "\U0001f600"]}
    assert "ud83d" not in ascii(again.state.to_dict()["messages"])
    assert again.status == "completed"


@modes
def test_arguments_are_validated_once(mode: str) -> None:
    """A list of models is JSON for the first validation, and would be refused by another one."""

    def visit(places: list[Place], area: Area) -> list[str]:
        """Visits."""
        return [place.city for place in places] + [str(area.size)]

    args = {"places": [{"city": "Rome"}, {"city": "Oslo", "people": 3}], "area": {"size": 4}}
    assert results(run_turn(agent(visit), ("visit", args), mode=mode)) == [("visit", ["Rome", "Oslo", "4"], False)]


def test_callbacks_of_dspy_see_the_call_without_hidden_parameters() -> None:
    seen: list[Any] = []

    class Watch(dspy.utils.callback.BaseCallback):  # type: ignore[misc, name-defined, unused-ignore]  # no stubs
        def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            seen.append((instance.name, inputs))

        def on_tool_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
            seen.append(outputs)

    def add(a: int, ctx: Context) -> int:
        """Adds."""
        return a + 1

    with dspy.context(callbacks=[Watch()]):
        run_turn(agent(add), ("add", {"a": 1}), ("add", {"b": 1}))
    assert seen[:2] == [("add", {"kwargs": {"a": 1}}), 2]
    assert [found[0] for found in seen if isinstance(found, tuple)] == ["add", "submit"]


@modes
def test_what_hides_the_conversation_hides_the_errors_of_tools(mode: str) -> None:
    def pay() -> str:
        """Pays."""
        raise ValueError("card no-4711")  # a time may have the digits alone

    program = agents.tool_loop("question -> answer", [pay]).compile(redact=["messages"])
    run = run_turn(program, ("pay", {}), mode=mode)
    shown = f"{run.report()} {run.stats()} {[event.to_dict() for event in run.events]} {run.record().to_dict()}"
    assert "no-4711" not in shown
