"""`from_langgraph`: what LangGraph's graph gives, the converted program gives."""

import asyncio
import copy
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypedDict

import dspy
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import tool
from langgraph import errors, types
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store, get_stream_writer
from langgraph.func import task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel, Field

import dspyer
from dspyer import Breakpoints
from dspyer.errors import GraphError, InputError, LimitError
from dspyer.events import Emitted
from dspyer.migrate import explain_langgraph, from_langgraph
from dspyer.testing import ScriptedLM
from tests.rows import each


class Log(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


def note(name: str) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        return {"log": [f"{name}{state.get('n', '')}"]}

    return node


def forked() -> Any:
    graph = StateGraph(Log)
    for name in ("z", "m", "a", "end"):
        graph.add_node(name, note(name))
    graph.add_edge(START, "z").add_edge(START, "m").add_edge(START, "a")
    return graph.add_edge(["z", "m", "a"], "end")


def looped() -> Any:
    graph = StateGraph(Log).add_node("up", lambda state: {"n": state["n"] + 1, "log": ["up"]})
    for name in ("left", "right"):
        graph.add_node(name, note(name))
    graph.add_edge(START, "up")
    return graph.add_conditional_edges("up", lambda state: "up" if state["n"] < 3 else ["right", "left"])


def mapped() -> Any:
    graph = StateGraph(Log).add_node("plan", lambda state: {"n": 2}).add_node("a b", note("ab")).add_edge(START, "plan")
    return graph.add_conditional_edges("plan", lambda state: {"go": "on"}["go"], {"on": "a b", "off": END})


def commanded() -> Any:
    def go(state: Any) -> Command[Literal["b"]]:
        return Command(update={"log": ["go"]}, goto="b")

    graph = StateGraph(Log).add_node("go", go)
    for name in ("b", "by_edge", "by_router"):
        graph.add_node(name, note(name))
    graph.add_edge(START, "go").add_edge("go", "by_edge")
    return graph.add_conditional_edges("go", lambda state: ["by_router"] if state["log"] else [], ["by_router"])


def sent() -> Any:
    """The graph that a `Send` starts gets its value in place of the state, and node `one` too."""
    seen = StateGraph(Log).add_node("see", lambda state: {"log": [sorted(state.items())]}).add_edge(START, "see")
    graph = StateGraph(Log).add_node("one", lambda value: {"log": [value]}).add_node("many", seen.compile())
    sends = [Send("one", 7), Send("many", {"other": 1}), Send("many", {"log": ["x"]}), Send("one", "y")]
    return graph.add_conditional_edges(START, lambda state: sends, ["one", "many"])


def left_by_a_called_graph() -> Any:
    """A graph that a node calls, and leaves by a Command to the parent."""

    def leave(state: Any) -> Any:
        return Command(graph=Command.PARENT, update={"log": ["left"]}, goto="b")

    inner = StateGraph(Log).add_node("leave", leave).add_edge(START, "leave").compile()
    graph = StateGraph(Log).add_node("call", lambda state: {**inner.invoke(state)}).add_node("b", note("b"))
    return graph.add_edge(START, "call")


def restricted() -> Any:
    """A graph that is a node gets the keys of the node's input schema, and gives those of its own output schema."""

    class N(TypedDict):
        n: int

    class Secret(TypedDict):
        secret: str

    inner = StateGraph(Log, output_schema=N)
    inner.add_node("see", lambda state: {"n": len(state["log"]), "log": ["lost"]}).add_edge(START, "see")
    graph = StateGraph(Log).add_node("sub", inner.compile(), input_schema=N).add_node("first", note("first"))
    graph.add_edge(START, "first").add_edge("first", "sub")
    return graph.add_node("use", note("use"), input_schema=Secret).add_edge("sub", "use")


def conversation() -> Any:
    """Graphs share their messages; a graph gives those that it was sent, too."""
    inner = StateGraph(MessagesState).add_node("reply", lambda state: {"messages": [AIMessage("two", id="2")]})
    graph = StateGraph(MessagesState).add_node("talk", inner.add_edge(START, "reply").compile())
    graph.add_edge(START, "talk")
    sends = [Send("talk", {"messages": [HumanMessage("three", id="3")]})]
    return graph.add_conditional_edges("talk", lambda state: [] if len(state["messages"]) > 2 else sends, ["talk"])


def managed() -> Any:
    class Managed(Log, total=False):
        left: RemainingSteps
        last: IsLastStep

    def see(state: Any) -> Any:
        return {"log": [type(state["left"]).__name__, state["last"]]}

    graph = StateGraph(Managed).add_node("see", see)
    return graph.add_edge(START, "see").add_conditional_edges("see", lambda state: END if state["left"] else "see")


@each("make", [forked, looped, mapped, commanded, sent, restricted, managed, left_by_a_called_graph])
def test_a_converted_graph_gives_what_langgraph_gives(make: Callable[[], Any]) -> None:
    graph = make()
    inputs = {"messages": [HumanMessage("one", id="1")]} if make is conversation else {"n": 0}
    expected = graph.compile().invoke(inputs)
    program = from_langgraph(graph).compile()
    assert program.run(inputs).state.to_dict() == expected
    assert copy.deepcopy(program).run(inputs).state.to_dict() == expected


def returned_value() -> Any:
    """A node that returns what a `Send` gives it: where it goes cannot be read from its code."""
    graph = StateGraph(Log).add_node("do", lambda value: value).add_node("b", note("b"))
    send = Send("do", Command(update={"log": ["sent"]}, goto=Send("b", {"n": 5})))
    return graph.add_conditional_edges(START, lambda state: [send], ["do"])


def test_targets_that_no_code_names_are_named_in_an_option() -> None:
    graph = returned_value()
    run = from_langgraph(graph).compile().run({})
    assert str(run.error) == (
        "node 'do' goes to 'b', which its code does not name: name all targets in from_langgraph(goto={'do': [...]})"
    )
    assert from_langgraph(graph, goto={"do": ["b"]}).compile().run({}).state["log"] == ["sent", "b5"]
    assert graph.compile().invoke({})["log"] == ["sent", "b5"]


def test_targets_of_a_router_whose_source_cannot_be_read_are_named_in_an_option() -> None:
    route = eval("lambda state: names['on'] if 'c' else 'c'", {"names": {"on": "b"}})  # a function without a file
    graph = StateGraph(Log).add_node("a", note("a")).add_node("b", note("b")).add_node("c", note("c"))
    graph.add_edge(START, "a").add_conditional_edges("a", route)
    run = from_langgraph(graph).compile().run({})
    assert str(run.error) == (
        "the router of 'a' goes to 'b', which its code does not name: name all targets in "
        "from_langgraph(routes={'a': [...]})"
    )
    assert from_langgraph(graph, routes={"a": ["b"]}).compile().run({}).state["log"] == ["a", "b"]


NAMES = {"on": "b"}
LAST = "b"


class Nodes(StrEnum):
    LAST = "b"


def by_variable(state: Log) -> Any:
    target: Any = "c"
    if state["n"] >= 0:
        target = LAST
    return target


def by_list(state: Log) -> Any:
    targets = []
    targets.append("b" if state["n"] >= 0 else "c")
    return targets


def by_state(state: Log) -> Any:
    return "c" if state["n"] < 0 else "abc"[state["n"] + 1]


def by_unpacking(state: Log) -> Any:
    target = "c"
    target, _ = ["b", "c"] if state["n"] >= 0 else ["c", "c"]
    return target


def by_loop(state: Log) -> Any:
    for name in ["c", "".join(["b"])]:
        if name != "c":
            return name
    return "c"


READ = "the router '{}' of 'a' may go to {}: read from its code"
COMPUTED = "the router '{}' of 'a' may go to any node: its code computes where it goes; routes= names them"


@each(
    ("route", "says"),
    [
        (lambda state: NAMES["on"] if state["n"] >= 0 else "c", COMPUTED.format("condition")),
        (lambda state: {True: "b", False: "c"}[state["n"] >= 0], COMPUTED.format("condition")),
        (lambda state: LAST, READ.format("condition", "b")),
        (lambda state: Nodes.LAST, COMPUTED.format("condition")),
        (lambda state: [Send(LAST, state)] if state["n"] >= 0 else "c", READ.format("condition", "b, c")),
        (by_variable, READ.format("by_variable", "b, c")),
        (by_list, READ.format("by_list", "b, c")),
        (by_state, COMPUTED.format("by_state")),
        (by_unpacking, COMPUTED.format("by_unpacking")),
        (by_loop, COMPUTED.format("by_loop")),
        (lambda state: ["c", LAST.lower()][1], COMPUTED.format("condition")),
    ],
)
def test_where_a_router_goes_is_read_from_its_source(route: Any, says: str) -> None:
    graph = StateGraph(Log).add_node("a", note("a")).add_node("b", note("b")).add_node("c", note("c"))
    graph.add_edge(START, "a").add_conditional_edges("a", route)
    assert says in explain_langgraph(graph).notes
    run = from_langgraph(graph).compile().run({"n": 0})
    assert run.error is None
    assert run.state.to_dict() == graph.compile().invoke({"n": 0})


def handoff(to: str) -> Any:
    """A node as a factory makes it: the name that it goes to is in its closure."""
    return lambda state: Command(update={"log": [f"c to {to}"]}, goto=to if state["n"] >= 0 else "c")


def test_where_a_command_goes_is_read_from_its_source() -> None:
    graph = StateGraph(Log).add_node("a", handoff("b")).add_node("b", note("b")).add_node("c", note("c"))
    graph.add_node("d", lambda state: Command(update={"log": ["d"]})).add_edge("b", "d").add_edge(START, "a")
    notes = explain_langgraph(graph).notes
    assert "node 'a' may go to b, c: read from its code" in notes
    assert not any("'d' may go" in each for each in notes)
    run = from_langgraph(graph).compile().run({"n": 0})
    assert run.state["log"] == graph.compile().invoke({"n": 0})["log"] == ["c to b", "b0", "d"]


@pytest.mark.parametrize("word", ["before", "after"])
def test_a_run_stops_where_langgraph_stops_it(word: str) -> None:
    graph = StateGraph(Log).add_node("plan", note("plan")).add_node("pay", note("pay"))
    graph.add_edge(START, "plan").add_edge("plan", "pay").add_edge("pay", END)
    name = "pay" if word == "before" else "plan"
    stops: Any = {f"interrupt_{word}": [name]}
    compiled = graph.compile(checkpointer=InMemorySaver(), **stops)
    assert any(f"Breakpoints({word}=['{name}'])" in note for note in explain_langgraph(compiled).notes)
    converted = from_langgraph(compiled)
    thread = converted.compile(store=":memory:").thread("one")
    run = thread.run({"n": 1})
    assert (run.status, run.state["log"]) == ("interrupted", ["plan1"])
    assert thread.resume().state["log"] == ["plan1", "pay1"]
    assert converted.compile(layers=[Breakpoints()]).run({"n": 1}).state["log"] == ["plan1", "pay1"]
    assert converted.compile().run({"n": 1}).status == "interrupted"


def test_the_code_of_a_node_with_fallbacks_is_not_asked_for_what_it_wraps() -> None:
    tools = ToolNode([lookup]).with_fallbacks([RunnableLambda(lambda state: {"messages": []})], exception_key="error")
    graph = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools")
    assert explain_langgraph(graph).problems == ()
    asked = AIMessage("", tool_calls=[{"name": "lookup", "args": {"place": "Hook"}, "id": "1"}])
    assert from_langgraph(graph).compile()(messages=[asked]).messages[-1].content == "Hook: low tide"


@tool
def lookup(place: str) -> str:
    """Say when the tide is low."""
    return f"{place}: low tide"


def test_an_error_about_an_annotation_names_the_option_that_checks_none() -> None:
    class Found(TypedDict):
        documents: list[str]

    graph = StateGraph(Found).add_node("retrieve", lambda state: {"documents": [Document("a")]})
    graph.add_edge(START, "retrieve")
    says = "mend the annotation of LangGraph's state, or convert with from_langgraph(validate=False), which checks none"
    assert says in str(from_langgraph(graph).compile().run({}).error)
    assert from_langgraph(graph, validate=False).compile().run({}).state["documents"] == [Document("a")]


def test_a_function_in_the_place_of_a_node_returns_a_command_of_dspyer() -> None:
    graph = StateGraph(Log).add_node("a", handoff("b")).add_node("b", note("b")).add_edge(START, "a")
    program = from_langgraph(graph, nodes={"a": lambda n: Command(goto="b")}, goto={"a": ["b"]}).compile()
    error = str(program.run({"n": 1}).error)
    assert error.endswith("or Command(update=..., goto=...) of dspyer: this one is of langgraph.types")


def test_a_router_of_dspyer_returns_a_send_of_dspyer() -> None:
    graph = dspyer.Graph().add_node("a", lambda n: None).add_edge("a", dspyer.END)
    graph.add_conditional_edges(dspyer.START, lambda n: [Send("a", {"n": n})], ["a"])
    error = str(graph.compile().run({"n": 1}).error)
    assert error.endswith("This Send is of langgraph.types: import the one of dspyer")


def test_a_manual_change_may_be_none() -> None:
    graph = StateGraph(Log).add_node("a", note("a")).add_node("b", note("b")).add_edge(START, "a").add_edge("a", "b")
    thread = from_langgraph(graph.compile(interrupt_before=["a"])).compile(store=":memory:").thread("one")
    thread.run({"n": 1})
    thread.update(None, as_node="a")
    assert thread.resume().state.to_dict() == {"n": 1, "log": ["b1"]}


def test_a_step_timeout_is_not_left_out_silently() -> None:
    graph = forked().compile()
    graph.step_timeout = 5
    note = "step_timeout is left out: give nodes a timeout, or a run a budget of seconds"
    assert note in explain_langgraph(graph).notes


def raises_what_is_computed(state: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):  # it is deprecated
        raise vars(errors)["Node" + "Interrupt"]("Well?")


@each(
    ("node", "router", "text"),
    [
        (lambda state: "hello", None, "node 'a': it returned 'hello', of type str: return a dict of what changed"),
        (lambda state: {"m": 1}, None, "node 'a' returned 'm', which is no field of the state ('n', 'log'): add it"),
        (lambda state: Command(goto="c"), None, "node 'a' goes to 'c', and there is no such node"),
        (lambda state: Command(goto=None), None, "a node returned Command(goto=None): name a node"),
        (lambda state: {}, lambda state: None, "the router of 'a' goes to None, of type NoneType: give a name or"),
        (lambda state: {}, lambda state: Send("c", {}), "the router of 'a' goes to 'c', and there is no such node"),
        (lambda state: {}, lambda state: Send("b", {}, timeout=3), "the router of 'a' gives its Send to 'b' a timeout"),
        (lambda state: {}, lambda state: vars(types)["interrupt"]("b?"), "the router of 'a' calls interrupt(): ask"),
        (raises_what_is_computed, None, "node 'a' raises NodeInterrupt: call interrupt(value)"),
    ],
)
def test_what_is_wrong_at_run_time_is_said(node: Any, router: Any, text: str) -> None:
    graph = StateGraph(Log).add_node("a", node).add_node("b", note("b")).add_edge(START, "a")
    graph.add_conditional_edges("a", router or (lambda state: "b"))
    assert str(from_langgraph(graph).compile().run({}).error).startswith(text)


# --- questions


def asking(calls: list[str] | None = None) -> Any:
    class Age(BaseModel):
        years: int = Field(ge=0)

    def ask(state: Any) -> Any:
        (calls if calls is not None else []).append("ask")
        name = interrupt("Who?")
        age = interrupt({"how old": name}, response_schema=Age)
        return {"log": [f"{name} {age.years}"]}

    graph = StateGraph(Log).add_node("ask", ask).add_node("end", note("end")).add_edge(START, "ask")
    return graph.add_edge("ask", "end")


def test_interrupts_are_questions_whose_answers_follow_their_order() -> None:
    calls: list[str] = []
    thread = from_langgraph(asking(calls)).compile(store=":memory:").thread("t")
    (question,) = thread.run({}).questions
    assert (question.key, question.text, question.answer) == ("ask-0", "Who?", {})
    (question,) = thread.resume({"ask-0": "Ada"}).questions
    assert (question.key, question.text) == ("ask-1", '{"how old": "Ada"}')
    assert question.answer is not None
    assert question.answer["properties"]["years"]["type"] == "integer"
    with pytest.raises(InputError, match=r"question 'ask-1' .* does not fit its response_schema"):
        thread.resume({"ask-1": {"years": -1}}).raise_error()
    with pytest.raises(InputError, match=r"'old'.* to question 'ask-1'"):
        thread.resume({"ask-1": {"years": "old"}})
    assert thread.resume({"ask-1": {"years": 36}}).state.to_dict() == {"log": ["Ada 36", "end"]}
    assert len(calls) == 4  # one for the first run, and one for each resume, as in LangGraph


class Asked(TypedDict):
    answers: dict[str, str]


@pytest.mark.parametrize("mode", ["threads", "tasks"])
def test_an_answer_belongs_to_its_question_where_a_node_asks_from_threads_or_tasks(mode: str) -> None:
    orders = ["ab", "ba", "ba"]  # in which the threads of an attempt ask: an answer by number would go to the other

    def in_threads(state: Asked) -> Asked:
        with ContextThreadPoolExecutor() as executor:
            asked = {}
            for text in orders.pop(0):
                asked[text] = executor.submit(interrupt, text)
                asked[text].exception()  # the next thread asks when this one has asked
        return {"answers": {text: asked[text].result() for text in sorted(asked)}}

    async def in_tasks(state: Asked) -> Asked:
        async def ask(text: str) -> str:
            return str(interrupt(text))

        texts = orders.pop(0)
        found = await asyncio.gather(*map(ask, texts), return_exceptions=True)
        done = dict(sorted(zip(texts, found, strict=True)))
        for one in done.values():
            if isinstance(one, BaseException):
                raise one
        return {"answers": {text: str(answer) for text, answer in done.items()}}

    node: Any = in_threads if mode == "threads" else in_tasks
    graph = StateGraph(Asked).add_node("ask", node).add_edge(START, "ask")
    thread = from_langgraph(graph).compile(store=":memory:").thread("t")

    def started(*call: Any) -> Any:
        return asyncio.run(thread.aresume(*call) if call[0] else thread.arun({}))

    (question,) = started({}).questions
    assert (question.key, question.text) == ("ask-0", "a")
    (question,) = started({"ask-0": "yes to a"}).questions
    assert (question.key, question.text) == ("ask-1", "b")
    run = started({"ask-1": "yes to b"})
    assert run.state.to_dict() == {"answers": {"a": "yes to a", "b": "yes to b"}}


def test_an_answer_that_does_not_fit_opens_its_question_again_though_another_thread_has_asked_since() -> None:
    class Yes(BaseModel):
        ok: bool

    def ask(state: Log) -> dict[str, Any]:
        with ContextThreadPoolExecutor() as executor:
            asked = []
            for text in ("a", "b"):
                asked.append(executor.submit(interrupt, text, response_schema=Yes))
                asked[-1].exception()
        return {"log": [future.result().ok for future in asked]}

    graph = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask")
    thread = from_langgraph(graph, validate=False).compile(store=":memory:").thread("t")
    thread.run({})
    for key in ("ask-0", "ask-1"):
        with pytest.raises(InputError, match=f"question '{key}' .* The question is open"):
            thread.resume({key: {"ok": "perhaps"}}).raise_error()
        run = thread.resume({key: {"ok": True}})
    assert list(run.state["log"]) == [True, True]


def test_a_question_whose_text_has_changed_takes_the_answer_of_its_number() -> None:
    drafts = iter(["draft 1", "draft 2", "draft 3"])

    def ask(state: Log) -> dict[str, Any]:
        return {"log": [interrupt(next(drafts)), interrupt("sure?")]}

    graph = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask")
    thread = from_langgraph(graph).compile(store=":memory:").thread("t")
    assert [question.text for question in thread.run({}).questions] == ["draft 1"]
    assert [question.text for question in thread.resume({"ask-0": "good"}).questions] == ["sure?"]
    assert list(thread.resume({"ask-1": "yes"}).state["log"]) == ["good", "yes"]


def test_a_graph_that_interrupts_may_be_a_node_or_called_by_a_function() -> None:
    inner = asking().compile()
    outer = StateGraph(Log).add_node("call", lambda state: inner.invoke({})).add_edge(START, "call")
    program = from_langgraph(outer).compile(answers={"call-0": "Ada", "call-1": {"years": 36}})
    assert program.run({}).state.to_dict() == {"log": ["Ada 36", "end"]}
    outer = StateGraph(Log).add_node("sub", inner).add_edge(START, "sub")
    program = from_langgraph(outer).compile(answers={"ask-0": "Ada", "ask-1": {"years": 36}})
    assert program.run({}).state.to_dict() == {"log": ["Ada 36", "end"]}


# --- what nodes get beside the state


@dataclass
class User:
    name: str


def aside(state: Any, runtime: Runtime[User], config: RunnableConfig) -> Any:
    given = config["configurable"]
    get_stream_writer()("half done")
    return {"log": [runtime.context.name, given.get("thread_id"), given["k"], type(get_store()).__name__]}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nodes_get_context_store_config_and_writer_from_the_conversion_or_from_the_run(asynchronous: bool) -> None:
    async def only_async(state: Any) -> Any:
        return {"log": ["async"]}

    graph = StateGraph(Log, context_schema=User).add_node("aside", aside).add_edge(START, "aside")
    graph.add_node("later", only_async).add_edge("aside", "later")
    converted = from_langgraph(graph, context=User("Ada"), configurable={"k": 1}, asynchronous=asynchronous)
    program = converted.compile(store=":memory:")
    with program.stream({}) as events:
        assert [event.value for event in events if isinstance(event, Emitted)] == ["half done"]
        assert events.run.state["log"] == ["Ada", None, 1, "NoneType", "async"]
    own = {User: User("Bob"), BaseStore: InMemoryStore(), RunnableConfig: {"configurable": {"k": 2}}}
    run = program.thread("t").run({}, resources=own)
    assert run.state["log"] == ["Bob", "t", 2, "InMemoryStore", "async"]


class Limits(BaseModel):
    tries: int


@pytest.mark.parametrize(
    ("schema", "given", "wrong", "problem"),
    [
        (User, {"name": "Ada"}, {"age": 3}, "User.__init__() got an unexpected keyword argument 'age'"),
        (Limits, {"tries": "3"}, {"tries": "my-secret"}, "valid integer"),
    ],
)
def test_a_context_that_is_a_dict_becomes_an_object_of_its_class(
    schema: Any, given: Any, wrong: Any, problem: str
) -> None:
    def see(state: Any, runtime: Runtime[Any]) -> Any:
        return {"log": [runtime.context]}

    inner = StateGraph(Log).add_node("see", see).add_edge(START, "see").compile()
    graph = StateGraph(Log, context_schema=schema).add_node("see", see).add_node("inner", inner)
    graph.add_edge(START, "see").add_edge("see", "inner")
    made = schema(**given)
    assert from_langgraph(graph, context=given).compile().run({}).state["log"] == [made, made]
    with pytest.raises(GraphError, match="the context makes no") as refused:
        from_langgraph(graph, context=wrong)
    assert problem in str(refused.value)
    assert "my-secret" not in str(refused.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_task_is_called_once_though_its_node_runs_again(asynchronous: bool) -> None:
    calls: list[int] = []

    @task
    def pay(amount: int) -> str:
        calls.append(amount)
        return f"paid {amount}"

    @task
    async def ship(amount: int) -> str:
        calls.append(amount)
        return f"shipped {amount}"

    def buy(state: Any) -> Any:
        return {"log": [pay(state["n"]).result(), interrupt("Well?")]}

    async def buy_and_ship(state: Any) -> Any:
        done = [await pay(state["n"]), *await asyncio.gather(ship(1), ship(2))]
        return {"log": [*done, interrupt("Well?")]}

    graph = StateGraph(Log).add_node("buy", buy_and_ship if asynchronous else buy).add_edge(START, "buy")
    thread = from_langgraph(graph).compile(store=":memory:").thread("t")
    thread.run({"n": 5})
    shipped = ["shipped 1", "shipped 2"] if asynchronous else []
    assert thread.resume({"buy-0": "yes"}).state["log"] == ["paid 5", *shipped, "yes"]
    assert calls == ([5, 1, 2] if asynchronous else [5])
    answered = from_langgraph(graph).compile(answers={"buy-0": "at once"}).run({"n": 6})
    assert answered.state["log"] == ["paid 6", *shipped, "at once"]
    assert calls == ([5, 1, 2, 6, 1, 2] if asynchronous else [5, 6])


# --- nodes that are replaced


def test_a_replaced_node_is_tuned_and_a_module_does_not_replace_a_command() -> None:
    graph = StateGraph(Log).add_node("up", lambda state: {"n": 1}).add_node("end", note("end"))
    graph.add_edge(START, "up").add_edge("up", "end")
    program = from_langgraph(graph, nodes={"up": dspy.Predict("log: list[str] -> n: int")}).compile()
    assert [name for name, _ in program.named_predictors()] == ["up"]
    with ScriptedLM([{"n": 8}]):
        assert program.run({"log": ["?"]}).state.to_dict() == {"n": 8, "log": ["?", "end8"]}
    with pytest.raises(GraphError, match=r"node 'go' goes to 'b' by a Command, and what replaces it has no goto"):
        from_langgraph(commanded(), nodes={"go": dspy.Predict("log: list[str] -> n: int")})


def test_the_given_graph_stays_as_it_was() -> None:
    graph = looped()
    from_langgraph(graph)
    assert not graph.compiled
    assert [target for source, target in graph.edges if source == START] == ["up"]


def test_what_a_compiled_graph_brings() -> None:
    """Breakpoints hold, and the step limit of a graph inside; that of the graph itself is an option of `compile`."""

    def see(state: Any, config: RunnableConfig) -> Any:
        return {"log": [config["configurable"]["k"]]}

    inner = StateGraph(Log).add_node("one", note("one")).add_node("two", note("two")).add_edge(START, "one")
    inner.add_edge("one", "two")
    graph = StateGraph(Log).add_node("see", see).add_edge(START, "see").add_edge("see", "sub")
    graph.add_node("sub", inner.compile(interrupt_before=["two"]))
    bound = graph.compile(interrupt_after=["see"]).with_config(recursion_limit=9, configurable={"k": "v"})
    thread = from_langgraph(bound).compile(store=":memory:").thread("t")
    assert thread.run({}).state["log"] == ["v"]
    assert [question.key for question in thread.questions] == ["after"]
    assert thread.resume().status == "interrupted"
    assert [question.key for question in thread.questions] == ["before"]
    assert thread.resume().state["log"] == ["v", "one", "two"]
    notes = "\n".join(explain_langgraph(bound).notes)
    assert "by Breakpoints(after=['see'])" in notes
    assert "write compile(max_steps=9)" in notes
    short = StateGraph(Log).add_node("sub", inner.compile().with_config(recursion_limit=1)).add_edge(START, "sub")
    assert isinstance(from_langgraph(short).compile().run({}).error, LimitError)


def test_what_the_caller_gives_takes_the_place_of_what_the_graph_was_compiled_with() -> None:
    seen: list[Any] = []

    def look(state: Log, config: RunnableConfig) -> None:
        seen.append((config["configurable"]["user"], get_store()))

    def keep(state: Log, config: RunnableConfig) -> None:
        seen.append(config["configurable"]["desk"])

    graph = StateGraph(Log).add_node(look).add_node(keep).add_edge(START, "look").add_edge("look", "keep")
    bound = graph.compile(store=InMemoryStore()).with_config(configurable={"user": "ada", "desk": "billing"})
    given = InMemoryStore()
    from_langgraph(bound, store=given, configurable={"user": "eve"}).compile().run({"n": 1})
    assert seen == [("eve", given), "billing"]


def test_a_converted_graph_has_the_name_of_the_graph() -> None:
    assert from_langgraph(forked().compile(name="Desk")).compile().graph.name == "Desk"


def test_a_merge_policy_of_one_field_leaves_conflicts_of_others_errors() -> None:
    class Pair(TypedDict, total=False):
        one: str
        two: str

    def graph(**more: str) -> Any:
        built = StateGraph(Pair).add_node("a", lambda state: {"one": "a", **more}).add_edge(START, "a")
        return built.add_node("b", lambda state: {"one": "b", **dict.fromkeys(more, "b")}).add_edge(START, "b")

    merge = {"one": "last_write_wins"}
    assert from_langgraph(graph(), merge=merge).compile().run({}).state["one"] == "b"
    assert "two" in str(from_langgraph(graph(two="a"), merge=merge).compile().run({}).error)


def test_a_node_that_may_go_anywhere_goes_to_no_error_handler() -> None:
    def away(state: Log) -> Any:
        return Command(goto="b".lower())

    def handle(state: Log) -> Any:
        return {"log": ["handled"]}

    graph = StateGraph(Log).add_node("a", away, error_handler=handle).add_node("c", note("c")).add_edge(START, "a")
    (row,) = [line for line in str(explain_langgraph(graph)).splitlines() if line.startswith("  a ")]
    assert row.split()[-2:] == ["a,", "c"]
