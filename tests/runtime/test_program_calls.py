"""`ctx.call`: a program that a node calls is a part of the run: commits, questions, events, errors, traces, limits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Budget, CompiledGraph, Context, Graph, Run, reducers
from dspyer.errors import AttemptError, BudgetError, ChangedGraphError, Interrupted, NodeOutputError
from dspyer.testing import ScriptedLM, call_node, no_pauses
from tests.log.failing import FailingMemory
from tests.rows import each
from tests.timeouts import TimeIsOver

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class Calls:
    """The node calls that a test has seen, in order."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def take(self) -> list[str]:
        made, self.made = self.made, []
        return made


def inner_graph(calls: Calls, **options: Any) -> Graph:
    """`look_up`, then a question, then `write`."""

    def look_up(topic: str) -> dict[str, Any]:
        calls.made.append(f"look_up {topic}")
        return {"found": f"about {topic}"}

    def write(found: str, use: bool) -> dict[str, Any]:
        calls.made.append(f"write {found}")
        return {"text": found if use else "nothing"}

    graph = Graph(inputs=["topic"], name="Research", **options).add_node("look_up", look_up, writes=["found"])
    graph.add_interrupt("use", question="Use {found}?", answer=bool, into="use").add_node("write", write)
    return graph.add_path(START, "look_up", "use", "write", END)


def quick_graph() -> Graph:
    """One node, without a question."""
    graph = Graph(inputs=["text"], name="Quick").add_node("shout", lambda text: {"loud": text.upper()}, writes=["loud"])
    return graph.add_path(START, "shout", END)


def one_node(function: Callable[..., Any], *, into: str = "result", compiled: Any = None, **options: Any) -> Any:
    graph = Graph(name="Outer", inputs=options.pop("inputs", ["topics"]))
    graph.add_node("work", function, writes=[into], **options)
    return graph.add_path(START, "work", END).compile(**(compiled or {}))


def run_of(target: Any, mode: str, *args: Any, **options: Any) -> Run:
    """A run of a program or thread in one of the modes."""
    run: Run = target.run(*args, **options) if mode == "sync" else asyncio.run(target.arun(*args, **options))
    return run


def resumed(thread: Any, mode: str, *args: Any) -> Run:
    run: Run = thread.resume(*args) if mode == "sync" else asyncio.run(thread.aresume(*args))
    return run


# --- a part of the run


@MODES
def test_the_commits_events_and_steps_of_a_call_belong_to_the_run(mode: str) -> None:
    inner = Graph(inputs=["topic"], name="Inner").add_node("answer", dspy.Predict("topic -> text"))
    inner.add_path(START, "answer", END)

    def work(topics: list[str], ask: Any, ctx: Context) -> dict[str, Any]:
        return {"result": [ctx.call(ask, {"topic": topic}, key=topic).text for topic in topics]}

    program = one_node(work, modules={"ask": inner}, compiled={"store": ":memory:"})
    with ScriptedLM([{"text": "one"}, {"text": "two"}]):
        run = run_of(program.thread("t"), mode, {"topics": ["a", "b"]})
    assert run.state["result"] == ["one", "two"]
    assert [commit.node for commit in run.commits] == ["START", "work"]
    assert [step[0] for step in run.trace] == [program.work.ask.answer] * 2
    assert [step.execution for step in run.trace_steps] == ["trunk:1"] * 2
    scopes = Counter(event.scope for event in run.events)
    assert {*scopes} == {(), ("trunk:1[a]",), ("trunk:1[b]",)}
    outer = program.thread("t").history()[1].id
    inside = program.thread("t").history(inside=f"{outer}[b]")
    assert [commit.node for commit in inside] == ["START", "answer"]
    assert len(program.thread("t").history(inside=outer)) == len(program.thread("t").history(inside=1)) == 4
    assert run.stats().nodes["work"].lm_calls == 2


@MODES
def test_a_question_inside_is_a_question_of_the_run_and_nothing_is_called_twice(mode: str) -> None:
    calls = Calls()

    def work(topics: list[str], research: Any, ctx: Context) -> dict[str, Any]:
        calls.made.append("work")
        return {"result": ctx.call(research, {"topic": topics[0]}).text}

    program = one_node(work, modules={"research": inner_graph(calls)}, compiled={"store": ":memory:"})
    thread = program.thread("t")
    run = run_of(thread, mode, {"topics": ["bees"]})
    assert (run.status, [question.text for question in run.questions]) == ("interrupted", ["Use about bees?"])
    assert run.questions[0].execution == "trunk:1[research]/trunk:2"
    assert calls.take() == ["work", "look_up bees"]
    assert resumed(thread, mode, {"use": True}).state["result"] == "about bees"
    assert calls.take() == ["work", "write about bees"]


def gathered(calls: Calls) -> Callable[..., Any]:
    async def work(topics: list[str], research: Any, ctx: Context) -> dict[str, Any]:
        calls.made.append("work")
        found = await asyncio.gather(*[ctx.acall(research, {"topic": topic}, key=topic) for topic in topics])
        return {"result": [one.text for one in found]}

    return work


def in_threads(calls: Calls) -> Callable[..., Any]:
    def work(topics: list[str], research: Any, ctx: Context) -> dict[str, Any]:
        calls.made.append("work")
        with ThreadPoolExecutor() as pool:
            found = [pool.submit(ctx.call, research, {"topic": topic}, key=topic) for topic in topics]
            return {"result": [one.result().text for one in found]}

    return work


def keeping_errors(calls: Calls) -> Callable[..., Any]:
    async def work(topics: list[str], research: Any, ctx: Context) -> dict[str, Any]:
        calls.made.append("work")
        coroutines = [ctx.acall(research, {"topic": topic}, key=topic) for topic in topics]
        found = await asyncio.gather(*coroutines, return_exceptions=True)
        return {"result": [one.text for one in found if isinstance(one, dspy.Prediction)]}

    return work


TOPICS = ["a", "b", "c", "d"]


@each(("make", "mode"), [(gathered, "async"), (in_threads, "sync"), (keeping_errors, "sync")])
def test_questions_of_calls_at_once_come_together_and_are_answered_in_parts(make: Any, mode: str) -> None:
    calls = Calls()
    program = one_node(make(calls), modules={"research": inner_graph(calls)}, compiled={"store": ":memory:"})
    thread = program.thread("t")
    run = run_of(thread, mode, {"topics": TOPICS})
    assert run.status == "interrupted"
    assert sorted(question.text for question in run.questions) == [f"Use about {topic}?" for topic in TOPICS]
    assert sorted(calls.take()) == [*[f"look_up {topic}" for topic in TOPICS], "work"]
    ids = {question.text[-2]: question.id for question in run.questions}
    run = resumed(thread, mode, {ids["b"]: True, ids["d"]: False})
    assert sorted(question.text for question in run.questions) == ["Use about a?", "Use about c?"]
    assert sorted(calls.take()) == ["work", "write about b", "write about d"]
    run = resumed(thread, mode, {ids["a"]: True, ids["c"]: True})
    assert run.state["result"] == ["about a", "about b", "about c", "nothing"]
    assert sorted(calls.take()) == ["work", "write about a", "write about c"]


@MODES
def test_a_task_group_that_asks_cancels_no_other_call(mode: str) -> None:
    """A group cancels its tasks when one raises: the question is raised when the other calls have ended."""
    calls = Calls()

    async def look_up(topic: str) -> dict[str, Any]:
        calls.made.append(f"look_up {topic}")
        await asyncio.sleep(0.05 if topic == "c" else 0)
        return {"found": f"about {topic}"}

    inner = Graph(inputs=["topic"], name="Research").add_node("look_up", look_up, writes=["found"])
    inner.add_interrupt("use", question="Use {found}?", answer=bool, into="use").add_path(START, "look_up", "use", END)

    async def work(topics: list[str], research: Any, ctx: Context) -> dict[str, Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.acall(research, {"topic": one}, key=one)) for one in topics]
        return {"result": [task.result().use for task in tasks]}

    thread = one_node(work, modules={"research": inner}, compiled={"store": ":memory:"}).thread("t")
    run = run_of(thread, mode, {"topics": TOPICS})
    assert sorted(question.text for question in run.questions) == [f"Use about {topic}?" for topic in TOPICS]
    run = resumed(thread, mode, {run.questions[0].id: True})
    assert len(run.questions) == 3
    run = resumed(thread, mode, {question.id: True for question in run.questions})
    assert run.state["result"] == [True] * 4
    assert sorted(calls.take()) == [f"look_up {topic}" for topic in TOPICS]


def test_a_time_limit_of_the_user_ends_the_wait_for_other_calls() -> None:
    """The question is asked all the same: the node may not commit without its answer."""
    calls, timed_out, limits = Calls(), asyncio.Event(), list[asyncio.Timeout]()

    async def look_up(topic: str) -> dict[str, Any]:
        if topic == "b":
            for _ in range(200):  # the other call asks its question meanwhile
                await asyncio.sleep(0)
            limits[0].reschedule(0)
            await timed_out.wait()
        await asyncio.sleep(0)  # the other call begins
        return {"found": topic}

    inner = Graph(inputs=["topic"]).add_node("look_up", look_up, writes=["found"])
    inner.add_interrupt("use", question="Use {found}?", into="use").add_path(START, "look_up", "use", END)

    async def work(research: Any, ctx: Context) -> dict[str, Any]:
        other = asyncio.create_task(ctx.acall(research, {"topic": "b"}, key="b"))
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await ctx.acall(research, {"topic": "a"}, key="a")
        except TimeoutError:
            calls.made.append("timeout")
            timed_out.set()
        await asyncio.wait([other])
        return {"result": "late"}

    run = one_node(work, modules={"research": inner}, inputs=[]).run({})
    assert sorted(question.text for question in run.questions) == ["Use a?", "Use b?"]
    assert calls.take() == ["timeout"]


# --- what it returns and raises


class Kept(BaseModel):
    text: str
    notes: Annotated[list[str], reducers.extend] = ["given"]
    size: int = 0


def kept_graph() -> Graph:
    graph = Graph(Kept, outputs=["notes", "size"])
    graph.add_node("count", lambda text, notes: {"size": len(text), "notes": [f"{len(notes)} so far"]})
    return graph.add_path(START, "count", END)


SAME: dict[str, tuple[Callable[[], Graph], dict[str, Any]]] = {
    "outputs": (quick_graph, {"text": "hey"}),
    "defaults of fields with a reducer": (kept_graph, {"text": "abc", "notes": ["mine"]}),
    "a missing input": (quick_graph, {}),
    "an unknown input": (quick_graph, {"text": "a", "other": 1}),
    "an invalid input": (kept_graph, {"text": ["no", "text"]}),
    "an error of a node": (quick_graph, {"text": 3}),
}


@MODES
@each(("make", "inputs"), SAME.values(), ids=SAME)
def test_a_call_returns_and_raises_what_the_program_does(make: Any, inputs: dict[str, Any], mode: str) -> None:
    found: list[Any] = []

    def result_of(call: Callable[[], Any]) -> Any:
        try:
            return call().toDict()
        except Exception as error:  # noqa: BLE001 - compared with the other one
            return type(error), str(error)

    def work(inner: Any, ctx: Context) -> None:
        found.append(result_of(lambda: ctx.call(inner, inputs)))

    async def awork(inner: Any, ctx: Context) -> None:
        try:
            found.append((await ctx.acall(inner, inputs)).toDict())
        except Exception as error:  # noqa: BLE001 - as above
            found.append((type(error), str(error)))

    graph = Graph().add_node("work", work if mode == "sync" else awork, modules={"inner": make()}, writes=[])
    run_of(graph.add_path(START, "work", END).compile(), mode, {}).raise_error()
    assert found == [result_of(lambda: make().compile()(**inputs))]


def test_the_inputs_are_frozen_when_the_call_begins() -> None:
    given: dict[str, Any] = {"text": ["a"]}

    def read(text: list[str]) -> dict[str, Any]:
        given["text"].append("b")
        return {"size": len(text)}

    inner = Graph(inputs=["text"]).add_node("read", read, writes=["size"]).add_path(START, "read", END)
    program = one_node(lambda inner, ctx: {"result": ctx.call(inner, given).size}, modules={"inner": inner}, inputs=[])
    assert program().result == 1


class Held:
    """An object in which the build does not look for modules."""

    __slots__ = ("program",)

    def __init__(self, program: CompiledGraph) -> None:
        self.program = program


def called_wrongly() -> dict[str, tuple[Callable[..., Any], str]]:
    other = Held(quick_graph().compile())

    def twice(inner: Any, ctx: Context) -> None:
        ctx.call(inner, {"text": "a"})
        ctx.call(inner, {"text": "b"})

    def unbound(inner: Any, ctx: Context) -> None:
        ctx.call(other.program, {"text": "a"})

    return {
        "a key twice": (twice, r"used the key 'inner' of ctx.call twice: give each its own key"),
        "a program that is not bound": (
            unbound,
            r"calls the program 'Quick', which is not bound to it \(bound: 'inner'\)",
        ),
        "no program": (lambda inner, ctx: ctx.call(print, {}), r"is no program: call it, and give ctx.call what"),
        "no dict": (
            lambda inner, ctx: ctx.call(inner, "a"),
            r"ctx.call\(inner, ...\) takes the inputs as a dict, not 'a'",
        ),
        "an empty key": (lambda inner, ctx: ctx.call(inner, {}, key=""), r"ctx.call takes a key"),
    }


@pytest.mark.parametrize("case", called_wrongly())
def test_a_wrong_call_is_refused(case: str) -> None:
    function, text = called_wrongly()[case]
    program = one_node(function, modules={"inner": quick_graph()}, inputs=[])
    with pytest.raises(AttemptError, match=text):
        program()


def test_a_node_without_modules_is_told_to_bind_the_program() -> None:
    other = Held(quick_graph().compile())
    program = one_node(lambda ctx: ctx.call(other.program, {"text": "a"}), inputs=[])
    with pytest.raises(AttemptError, match=r"not bound to it \(bound: none\): write add_node\('work', ..., modules="):
        program()


@MODES
def test_other_inputs_than_those_of_an_earlier_attempt_are_refused(mode: str) -> None:
    calls, topics = Calls(), iter(["bees", "ants"])

    def work(research: Any, ctx: Context) -> dict[str, Any]:
        return {"result": ctx.call(research, {"topic": next(topics)}).text}

    program = one_node(work, modules={"research": inner_graph(calls)}, compiled={"store": ":memory:"}, inputs=[])
    thread = program.thread("t")
    run_of(thread, mode, {})
    run = resumed(thread, mode, {"use": True})
    assert isinstance(run.error, AttemptError)
    assert "the inputs of ctx.call (execution trunk:1[research]) differ" in str(run.error)
    assert calls.take() == ["look_up bees"]


@MODES
def test_a_program_that_is_called_directly_is_a_run_of_its_own(mode: str) -> None:
    def work(topics: list[str], research: Any) -> dict[str, Any]:
        return {"result": research(topic=topics[0]).text}

    graph = inner_graph(Calls())
    program = one_node(work, modules={"research": graph}, compiled={"store": ":memory:"})
    run = run_of(program.thread("t"), mode, {"topics": ["a"]})
    assert isinstance(run.error, Interrupted)
    assert "ctx.call(program, {...})" in str(run.error)
    assert "bind it to the node" in str(run.error)
    answered = one_node(work, modules={"research": graph.compile(answers={"use": True})})
    run = run_of(answered, mode, {"topics": ["a"]})
    assert run.state["result"] == "about a"
    assert not [event for event in run.events if event.scope]


def test_keys_may_hold_any_text() -> None:
    keys = ["a/b", "a[0]", "50 %", "a:1", "ü", "a%2Fb"]

    def work(inner: Any, ctx: Context) -> dict[str, Any]:
        return {"result": [ctx.call(inner, {"text": key}, key=key).loud for key in keys]}

    program = one_node(work, modules={"inner": quick_graph()}, compiled={"store": ":memory:"}, inputs=[])
    thread = program.thread("t")
    run = thread.run({})
    assert run.state["result"] == [key.upper() for key in keys]
    assert len(thread.history(inside=1)) == 2 * len(keys)
    assert len({event.scope for event in run.events}) == 1 + len(keys)
    assert all(len(event.scope) < 2 and "/" not in "".join(event.scope) for event in run.events)


# --- attempts


@pytest.mark.parametrize(("mode", "stored"), [("sync", True), ("async", False), ("async", True)])
def test_a_later_attempt_gets_the_results_of_finished_nodes(stored: bool, mode: str) -> None:
    calls, fails = Calls(), iter([True, False])

    def first(text: str) -> dict[str, Any]:
        calls.made.append("first")
        return {"half": text * 2}

    def second(half: str) -> dict[str, Any]:
        calls.made.append("second")
        if next(fails):
            raise ConnectionError("no line")
        return {"whole": half * 2}

    inner = Graph(inputs=["text"], outputs=["whole"]).add_node("first", first, writes=["half"])
    inner.add_node("second", second, writes=["whole"]).add_path(START, "first", "second", END)

    def work(inner: Any, ctx: Context) -> dict[str, Any]:
        calls.made.append(f"work {ctx.attempt}")
        return {"result": ctx.call(inner, {"text": "a"}).whole}

    options = {"store": ":memory:"} if stored else {}
    program = one_node(work, modules={"inner": inner}, compiled=options, inputs=[], retry=3)
    with no_pauses():
        run = run_of(program.thread("t") if stored else program, mode, {})
    assert run.state["result"] == "aaaa"
    assert calls.take() == ["work 1", "first", "second", "work 2", "second"]


@MODES
def test_steps_are_in_the_order_of_the_calls_whichever_is_faster(mode: str) -> None:
    begun = [threading.Event() for _ in range(3)]
    inner = Graph(inputs=["n"], name="Inner").add_node("ask", dspy.Predict("n: int -> text"))

    async def wait(n: int) -> dict[str, Any]:
        while n < 2 and not begun[n + 1].is_set():  # noqa: ASYNC110 - as fast in sync runs
            await asyncio.sleep(0)
        begun[n].set()
        return {}

    inner.add_node("wait", wait, writes=[]).add_path(START, "wait", "ask", END)

    async def work(ask: Any, ctx: Context) -> dict[str, Any]:
        found = await asyncio.gather(*[ctx.acall(ask, {"n": n}, key=f"n{n}") for n in range(3)])
        return {"result": [one.text for one in found]}

    program = one_node(work, modules={"ask": inner}, inputs=[])
    with ScriptedLM(lambda prompt: {"text": f"<{prompt.inputs['n']}>"}) as lm:
        run = run_of(program, mode, {})
    assert [step[1]["n"] for step in run.trace] == [0, 1, 2]
    assert run.state["result"] == ["<0>", "<1>", "<2>"]
    assert len(lm.calls) == 3


@MODES
def test_threads_without_the_context_of_the_node_are_traced(mode: str) -> None:
    inner = Graph(inputs=["topic"], name="Inner").add_node("ask", dspy.Predict("topic -> text"))
    calls = Calls()
    program = one_node(in_threads(calls), modules={"research": inner.add_path(START, "ask", END)})
    with ScriptedLM(lambda prompt: {"text": str(prompt.inputs["topic"])}):
        run = run_of(program, mode, {"topics": TOPICS})
    assert run.state["result"] == TOPICS
    assert sorted(step[1]["topic"] for step in run.trace) == TOPICS
    assert {id(step[0]) for step in run.trace} == {id(program.work.research.ask)}


@MODES
def test_when_a_call_fails_the_others_are_stopped_and_have_ended_before_the_node_does(mode: str) -> None:
    calls, running = Calls(), threading.Event()

    async def long(text: str) -> None:
        calls.made.append(f"long {text}")
        if text == "bad":
            while not running.is_set():  # noqa: ASYNC110 - in one loop or in two
                await asyncio.sleep(0)
            raise ValueError("bad")
        running.set()
        try:
            await asyncio.Event().wait()  # until it is cancelled
        finally:
            calls.made.append("long ended")

    inner = Graph(inputs=["text"]).add_node("long", long, writes=[])
    inner.add_node("never", lambda: calls.made.append("never"), writes=[]).add_path(START, "long", "never", END)

    async def work(inner: Any, ctx: Context) -> dict[str, Any]:
        both = [ctx.acall(inner, {"text": text}, key=text) for text in ("good", "bad")]
        try:
            await asyncio.gather(*both)
        finally:
            calls.made.append("work ended")
        return {}

    program = one_node(work, modules={"inner": inner}, inputs=[])
    run = run_of(program, mode, {})
    assert isinstance(run.error, ValueError)
    assert calls.take() == ["long good", "long bad", "work ended", "long ended"]


@MODES
def test_a_node_that_times_out_stops_the_programs_that_it_called(mode: str, time_is_over: TimeIsOver) -> None:
    calls = Calls()

    async def waits() -> None:
        time_is_over()
        try:
            await asyncio.Event().wait()
        finally:
            calls.made.append("ended")

    inner = Graph(inputs=[]).add_node("waits", waits, writes=[]).add_node("never", lambda: calls.made.append("never"))
    inner.add_path(START, "waits", "never", END)

    async def work(inner: Any, ctx: Context) -> dict[str, Any]:
        await ctx.acall(inner, {})
        return {"result": "late"}

    program = one_node(work, modules={"inner": inner}, inputs=[], timeout=0.05)
    run = run_of(program, mode, {})
    assert type(run.error).__name__ == "NodeTimeoutError"
    assert calls.take() == ["ended"]


@pytest.mark.parametrize("waits", [False, True], ids=["a sync node", "an async node"])
def test_a_cancelled_run_stops_the_programs_that_a_sync_function_calls(waits: bool) -> None:
    """The function runs in a thread and is finished, but nothing new starts, and async nodes are cancelled."""
    calls, began, stopped = Calls(), threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        assert stopped.wait(20)
        calls.made.append("first")

    async def first_async() -> None:
        began.set()
        await asyncio.Event().wait()

    inner = Graph(inputs=[]).add_node("first", first_async if waits else first, writes=[])
    inner.add_node("never", lambda: calls.made.append("never"), writes=[]).add_path(START, "first", "never", END)

    def work(inner: Any, ctx: Context) -> dict[str, Any]:
        try:
            ctx.call(inner, {}, key="one")
        except asyncio.CancelledError:
            calls.made.append("cancelled")
        ctx.call(inner, {}, key="two")
        return {"result": "never"}

    thread = one_node(work, modules={"inner": inner}, inputs=[], compiled={"store": ":memory:"}).thread("t")

    async def cancelled() -> None:
        task = asyncio.create_task(thread.arun({}))
        await asyncio.to_thread(began.wait)
        task.cancel()
        await asyncio.sleep(0)  # now the program is told to stop
        stopped.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    asyncio.run(cancelled())
    assert calls.take() == (["cancelled"] if waits else ["first", "cancelled"])
    assert thread.status == "stopped"


# --- elsewhere


def test_what_an_item_of_a_map_leaves_behind_calls_nothing() -> None:
    refused: list[str] = []

    async def work(topic: str, research: Any, ctx: Context) -> str:
        async def later() -> None:
            await left.wait()
            try:
                await ctx.acall(research, {"text": topic})
            except NodeOutputError as error:
                refused.append(str(error))

        tasks.append(asyncio.create_task(later()))
        return topic

    async def end() -> None:
        left.set()
        await asyncio.gather(*tasks)

    tasks: list[asyncio.Task[None]] = []
    left = asyncio.Event()
    graph = Graph().add_map(
        "work", work, over="topics", item="topic", into="found", modules={"research": quick_graph()}
    )
    program = graph.add_node("end", end, writes=[]).add_path(START, "work", "end", END).compile(store=":memory:")
    run = asyncio.run(program.thread("t").arun({"topics": ["a", "b"]}))
    assert run.state["found"] == ["a", "b"]
    assert not [event for event in run.events if event.scope]
    assert len(refused) == 2
    assert "calls a program after the node has returned" in refused[0]


@MODES
def test_the_items_of_a_map_call_programs(mode: str) -> None:
    def work(topic: str, inner: Any, ctx: Context) -> Any:
        return ctx.call(inner, {"text": topic}).loud

    graph = Graph().add_map("work", work, over="topics", item="topic", into="found", modules={"inner": quick_graph()})
    program = graph.add_path(START, "work", END).compile(store=":memory:")
    thread = program.thread("t")
    run = run_of(thread, mode, {"topics": ["a", "b"]})
    assert run.state["found"] == ["A", "B"]
    outer = thread.history()[1].id
    assert [commit.node for commit in thread.history(inside=f"{outer}[1][inner]")] == ["START", "shout"]
    assert len(thread.history(inside=f"{outer}[1]")) == 2
    assert len(thread.history(inside=outer)) == 4


def test_calls_in_calls() -> None:
    def again(text: str, quick: Any, ctx: Context) -> dict[str, Any]:
        return {"loud": ctx.call(quick, {"text": text}).loud + "!"}

    middle = Graph(inputs=["text"], name="Middle").add_node("again", again, modules={"quick": quick_graph()})
    middle.add_path(START, "again", END)
    program = one_node(
        lambda middle, ctx: {"result": ctx.call(middle, {"text": "hey"}, key="k").loud},
        modules={"middle": middle},
        inputs=[],
        compiled={"store": ":memory:"},
    )
    run = program.thread("t").run({})
    assert run.state["result"] == "HEY!"
    assert ("trunk:1[k]", "trunk:1[quick]") in {event.scope for event in run.events}


def test_a_node_is_called_alone() -> None:
    program: CompiledGraph = one_node(
        lambda inner, ctx: {"result": ctx.call(inner, {"topic": "a"}).text},
        modules={"inner": inner_graph(Calls())},
        inputs=[],
    )
    assert call_node(program, "work", {}, answers={"use": True}) == {"result": "about a"}
    with pytest.raises(Interrupted, match="Use about a"):
        call_node(program, "work", {})


# --- limits, fingerprints


def counted(calls: Calls, **compiled: Any) -> CompiledGraph:
    """`work` calls a program of two nodes three times: 7 node calls."""

    def step(text: str) -> dict[str, Any]:
        calls.made.append("step")
        return {"text": text + "!"}

    inner = Graph(inputs=["text"], name="Inner").add_node("one", step, writes=["text"])
    inner.add_node("two", step, writes=["text"]).add_path(START, "one", "two", END)

    def work(inner: Any, ctx: Context) -> dict[str, Any]:
        return {"result": [ctx.call(inner, {"text": "a"}, key=f"k{i}").text for i in range(3)]}

    program: CompiledGraph = one_node(work, modules={"inner": inner}, inputs=[], compiled=compiled)
    return program


@each(("most", "steps", "mode"), [(7, 6, "sync"), (6, 5, "async"), (1, 0, "sync")])
def test_node_calls_inside_count_towards_the_budget(most: int, steps: int, mode: str) -> None:
    calls = Calls()
    run = run_of(counted(calls, budget=Budget(node_calls=most)), mode, {})
    assert len(calls.take()) == steps
    if most == 7:
        assert run.status == "completed"
    else:
        assert isinstance(run.error, BudgetError)
        assert run.error.reason == f"node_calls: {most} of {most}"


def test_a_resume_goes_on_where_the_budget_of_node_calls_has_stopped() -> None:
    calls, store = Calls(), FailingMemory()
    thread = counted(calls, budget=Budget(node_calls=6), store=store).thread("t")
    assert thread.run({}).status == "stopped"
    assert len(calls.take()) == 5
    assert thread.resume().status == "completed", "each call of the program has the whole budget"
    assert calls.take() == ["step"]


def test_a_changed_program_is_a_changed_graph() -> None:
    store = FailingMemory()

    def program(*nodes: str) -> CompiledGraph:
        inner = inner_graph(Calls())
        for name in nodes:
            inner.add_node(name, lambda: None, writes=[]).add_path("write", name, END)
        work: Callable[..., Any] = lambda research, ctx: {"result": ctx.call(research, {"topic": "a"}).text}  # noqa: E731
        found: CompiledGraph = one_node(work, modules={"research": inner}, inputs=[], compiled={"store": store})
        return found

    program().thread("t").run({})
    with pytest.raises(ChangedGraphError, match="node 'work', in its graph 'research': node 'more' is new"):
        program("more").thread("t").resume({"use": True})
    assert program().thread("t").resume({"use": True}).state["result"] == "about a"


@MODES
def test_corrections_inside_a_call_are_repairs_of_the_run_and_of_the_thread(mode: str) -> None:
    inner = Graph(name="Inner").add_node("draft", dspy.Predict("topic -> text"))
    inner.add_check("short", lambda text: ["too long"] if len(text) > 3 else [], of="draft").add_path(
        START, "draft", END
    )

    def work(topics: list[str], write: Any, ctx: Context) -> dict[str, Any]:
        return {"result": [ctx.call(write, {"topic": topic}, key=topic).text for topic in topics]}

    program = one_node(work, modules={"write": inner}, compiled={"store": ":memory:"})
    thread = program.thread("t")
    with ScriptedLM([{"text": "four"}, {"text": "4"}, {"text": "ok"}]):
        run = run_of(thread, mode, {"topics": ["a", "b"]})
    assert run.state["result"] == ["4", "ok"]
    for repairs in (run.repairs(), thread.repairs()):
        assert [(dict(one.inputs()), one.text, one.problems) for one in repairs] == [
            ({"topic": "a"}, "4", [["too long"]])
        ]
    assert [step.status for step in run.trace_steps] == ["rejected", "used", "used"]
