"""A node of LangGraph as a function of dspyer: its code is called as LangGraph calls it, and its result translated."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph import errors as langgraph_errors
from langgraph import types as langgraph_types
from langgraph.constants import END as LANGGRAPH_END
from langgraph.errors import GraphInterrupt, NodeError, NodeInterrupt
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.store.base import BaseStore
from langgraph.types import RetryPolicy
from pydantic import ValidationError, WithJsonSchema
from tenacity import wait_exponential, wait_random

from dspyer import END, Command, Context, ImmutableState, Retry, Send
from dspyer.errors import (
    AnswerError,
    ChangedGraphError,
    GraphError,
    NodeOutputError,
    NodeTimeoutError,
    RouteError,
    always_raised,
    brief,
    error_text,
    is_transient,
    list_names,
)
from dspyer.events import NodeFailed
from dspyer.extend import Schema, TwoWays, arun_script, run_script, thaw
from dspyer.graph.spec import attribute_problems, check_name
from dspyer.layers.attempts import accepts
from dspyer.log.execution_records import RecordKey
from dspyer.migrate.channels import StateFields, is_several
from dspyer.migrate.internals import (
    AllowedTypes,
    ParentCommand,
    Questions,
    engine_configurable,
    managed_value,
    node_configurable,
    own_configurable,
    refused_answer,
    text_of,
)
from dspyer.migrate.nested_graphs import CHECKPOINTS, Checkpoints, GivenAnswers
from dspyer.migrate.unsupported import ASKS, LEAVES_BY_COMMAND, OF_TASKS, RAISES, Findings, task_policies
from dspyer.nodes.binding import find_resource, value_of_run
from dspyer.nodes.node import SENT, Goto
from dspyer.schema.fields import refusal_text

# The names to which LangGraph's code goes, as targets of dspyer.


Kind: TypeAlias = Literal["code", "graph", "replaced"]


class NamedTargets(NamedTuple):
    """The targets that are known before a run.

    Attributes:
        names: the nodes, by their names in LangGraph.
        option: the option of `from_langgraph` that names them, with the node: `goto={'x': [...]}`.
    """

    names: frozenset[str]
    option: str


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of dspyer for the names that LangGraph's code goes to.

    Attributes:
        names: the name of each node in dspyer, by its name in LangGraph; those that no run reaches are left out.
        all: the names of all nodes in LangGraph.
        kinds: what became of each node: its own code, a converted graph, or what replaces it.
    """

    names: Mapping[str, str]
    all: frozenset[str]
    kinds: Mapping[str, Kind]

    def stops(self, breakpoints: Any) -> list[str]:
        """The nodes at which LangGraph's breakpoints stop a run: names, or `"*"` for all."""
        found = self.names if breakpoints == "*" else breakpoints
        return [self.names[name] for name in found if name in self.names]

    def ordered(self, found: Sequence[object], who: str, known: NamedTargets, state: ImmutableState) -> list[Goto]:
        """The targets of what code of LangGraph went to: nodes by name, each once, then each `Send`; without `END`.

        LangGraph folds updates in this order, and an edge and a `goto` to one node start it once. `state` is that of
        the code.
        """
        # LangGraph folds by name. The order of a set differs between processes, and a rerun must give the same.
        nodes = sorted({name for name in found if isinstance(name, str) and name != LANGGRAPH_END})
        sends = [send for send in found if not isinstance(send, str)]
        return [
            *[self._named(name, who, known) for name in nodes],
            *[self._send(send, who, known, state) for send in sends],
        ]

    def _named(self, name: str, who: str, known: NamedTargets) -> str:
        if name not in self.all:
            raise RouteError(f"{who} goes to {name!r}, and there is no such node: the nodes are {list_names(self.all)}")
        if name not in known.names:
            raise RouteError(
                f"{who} goes to {name!r}, which its code does not name: name all targets in "
                f"from_langgraph({known.option})"
            )
        return self.names[name]

    def _send(self, send: Any, who: str, known: NamedTargets, state: ImmutableState) -> Send:
        if not isinstance(send, langgraph_types.Send):
            raise RouteError(f"{who} goes to {brief(send)}, of type {type(send).__name__}: give a name or a Send")
        if getattr(send, "timeout", None) is not None:
            raise RouteError(f"{who} gives its Send to {send.node!r} a timeout: give that node one, add_node(timeout=)")
        name, kind = self._named(send.node, who, known), self.kinds[send.node]
        if kind == "code":
            return Send(name, {SENT: send.arg})
        if not isinstance(send.arg, Mapping) and not hasattr(send.arg, "__dict__"):
            raise RouteError(
                f"{who} sends {brief(send.arg)} to {send.node!r}, which takes fields: give a dict of them, or an "
                "object of its schema"
            )
        values = dict(send.arg if isinstance(send.arg, Mapping) else vars(send.arg))
        if kind == "graph" and CHECKPOINTS in state:  # which takes no part in what is sent
            values[CHECKPOINTS] = state.raw(CHECKPOINTS)
        return Send(name, {SENT: values} if kind == "graph" else values)


def usable_name(name: str, taken: Iterable[str]) -> str:
    """The name of a node that a graph of dspyer accepts: the same one where possible."""
    # The name becomes an attribute of the program.
    found = re.sub(r"\W", "_", name).lstrip("_") or "node"
    found = found if not found[0].isdigit() else f"node_{found}"
    while True:
        with suppress(GraphError):
            check_name(found, list(taken))
            if not attribute_problems([found]):  # a module may replace its code
                return found
        found += "_node"


# Calls of functions with LangGraph's `@task`: effects of the node that makes them, which are made once.


class TaskCalls:
    """Calls by LangGraph for each call of a task. A node that runs again gets the recorded results, in their order.

    A task of a sync node runs when it is called, and not in the background. `name` is that of the node, or of its error
    handler.
    """

    def __init__(self, ctx: Context, name: str) -> None:
        self.ctx, self.name = ctx, name
        self._numbers = itertools.count()
        self._results: dict[str, Any] = {}  # in this attempt, whose effects have a key each

    def begin(self) -> None:
        """Count anew: the code of the node runs from its start."""
        self._numbers = itertools.count()

    def __call__(
        self, function: Callable[..., Any], given: tuple[Sequence[Any], Mapping[str, Any]], **options: Any
    ) -> Future[Any] | asyncio.Future[Any]:
        name = getattr(function, "__name__", "task")
        policies = task_policies(options)
        if policies:
            raise GraphError(f"node {self.name!r} calls the task {name!r}, which has a {policies[0]}: {OF_TASKS}")
        # By their order in the node, as LangGraph counts them: a task has no other name.
        key = f"{self.name}.{name}-{next(self._numbers)}"
        args, kwargs = given

        def call() -> Any:
            return function(*args, **kwargs)

        async def async_call() -> Any:
            return await function(*args, **kwargs)

        def result() -> Any:
            self._results[key] = found = self.ctx.once(key, call)
            return found

        async def async_result() -> Any:
            self._results[key] = found = await self.ctx.once(key, async_call)
            return found

        if key in self._results:
            return _done(lambda: self._results[key])
        if not inspect.iscoroutinefunction(function):
            return _done(result)
        # Started at once: LangGraph runs tasks while their caller goes on.
        started: asyncio.Future[Any] = asyncio.ensure_future(async_result())
        return started


def _done(call: Callable[[], Any]) -> Future[Any] | asyncio.Future[Any]:
    """A future with the result of a call: one that can be awaited, if the caller is async code."""
    future: Future[Any] | asyncio.Future[Any]
    try:
        future = asyncio.get_running_loop().create_future()
    except RuntimeError:
        future = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - the caller gets it from the future
        future.set_exception(error)
    return future


# What LangGraph's code gets beside the state: the config, the runtime, and the values that LangGraph manages.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Arguments of all converted nodes beside the state: as given to `from_langgraph`, or as a run's resources.

    Attributes:
        context: `runtime.context`; a resource of the class `context_schema` takes its place.
        store: `runtime.store`; a resource of the class `BaseStore` takes its place.
        configurable: what is in `config["configurable"]`; a resource of the class `RunnableConfig` adds to it.
        context_schema: the class of contexts; None for none.
        managed: the managed values of the schema, by key.
    """

    context: object = None
    store: Any = None
    configurable: Mapping[str, Any] = field(default_factory=dict)
    context_schema: Any = None
    managed: Mapping[str, Any] = field(default_factory=dict)

    def config(
        self, label: str, ctx: Context, questions: Questions, tasks: TaskCalls, read: Callable[..., Any], **more: Any
    ) -> Any:
        """The `RunnableConfig` with which LangGraph calls the code of node `label`.

        `read` reads channels; `more` is what this code alone finds there.
        """
        given = _resource(ctx, RunnableConfig, {})
        # What the run was given comes last, so that it may name another thread or user.
        configurable = {**_thread_id(ctx), **self.configurable, **given.get("configurable", {})}
        runtime: Any = Runtime(
            context=_resource(ctx, self.context_schema, self.context),
            store=_resource(ctx, BaseStore, self.store),
            stream_writer=ctx.emit,
            execution_info=ExecutionInfo(
                checkpoint_id="",
                checkpoint_ns=ctx.execution,
                task_id=ctx.execution,
                run_id=ctx.run_id,
                node_attempt=ctx.attempt,
                thread_id=configurable.get("thread_id"),
            ),
        )
        private = node_configurable(ctx.execution, runtime, questions, tasks, read)
        return {
            **given,
            "tags": list(given.get("tags", ())),
            "metadata": {**given.get("metadata", {}), "langgraph_node": label},
            "callbacks": given.get("callbacks"),
            "configurable": {**configurable, **private, **more},
        }

    def managed_values(self, ctx: Context) -> dict[str, Any]:
        """The managed values in a step of a run."""
        if not self.managed:
            return {}
        left = value_of_run("run.remaining", ctx)
        return {key: managed_value(kind, left if isinstance(left, int) else 0) for key, kind in self.managed.items()}


def _resource(ctx: Context, kind: Any, default: Any) -> Any:
    """The resource of a class that the run was given."""
    resources = ctx.delegate.host.resources
    found, value = find_resource(kind, resources) if isinstance(kind, type) and resources else (False, None)
    return value if found else default


def _thread_id(ctx: Context) -> dict[str, str]:
    """The name of the thread on which the run is."""
    journal = ctx.delegate.host.records.journal
    return {"thread_id": journal.thread} if journal is not None and journal.thread else {}


# The conditional edges of a node of LangGraph as one router of dspyer.


class ConvertedBranch(NamedTuple):
    """One router of LangGraph.

    Attributes:
        path: its code.
        input_schema: what it gets.
        ends: the nodes by label; None if it returns names.
    """

    path: Any
    input_schema: Any
    ends: Mapping[Any, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRouter:
    """All routers that follow a node, and its edges: LangGraph follows all of them, in the order of node names.

    Attributes:
        label: the node that it follows, by its name in LangGraph.
        branches: its routers.
        static: the nodes to which its edges lead.
        fields: the fields of the graph.
        targets: the names of nodes.
        leads_to: the targets that its edges and routers name.
        surroundings: what the routers get beside the state.
    """

    label: str
    branches: tuple[ConvertedBranch, ...]
    static: tuple[str, ...]
    fields: StateFields
    targets: Targets
    leads_to: NamedTargets
    surroundings: Surroundings

    @property
    def who(self) -> str:
        """The name of it in errors."""
        return f"the router of {self.label!r}"

    def __call__(self, state: ImmutableState, ctx: Context) -> list[Goto]:
        found: list[str | Send] = self.targets.ordered(self.follow(state, ctx), self.who, self.leads_to, state)
        return found or [END]

    def follow(self, state: ImmutableState, ctx: Context) -> list[object]:
        """Targets of edges and routers, as LangGraph's code says it."""
        tasks = TaskCalls(ctx, f"{self.label} router")
        config = self.surroundings.config(self.label, ctx, Questions(()), tasks, self.fields.reader(state))
        managed = self.surroundings.managed_values(ctx)
        token = var_child_runnable_config.set(config)
        try:
            found = [
                target
                for branch in self.branches
                for target in self._route(branch, self.fields.seen(branch.input_schema, state, managed), config)
            ]
        except GraphInterrupt:
            raise GraphError(f"{self.who} {ASKS}") from None
        finally:
            var_child_runnable_config.reset(token)
        return [*found, *self.static]

    def _route(self, branch: ConvertedBranch, value: object, config: Any) -> Sequence[object]:
        result = branch.path.invoke(value, config)
        results = result if isinstance(result, (list, tuple)) else [result]
        return [self._target(one, branch) for one in results]

    def _target(self, result: Any, branch: ConvertedBranch) -> object:
        if not branch.ends or isinstance(result, langgraph_types.Send):
            return result
        if result not in branch.ends:
            raise RouteError(
                f"{self.who} returned {brief(result)}; its labels are {list_names(branch.ends)}: add it to the path map"
            )
        return branch.ends[result]


# The error of a node that has an error handler, kept for the case that the handler runs again without the node.
#
# It does after a question of the handler, and after a crash. The error is kept as plain data: its class cannot be
# rebuilt by the name in a store, unless it is one of Python's own.


_PLAIN = (str, int, float, bool, type(None))


_OF_HANDLER = "__dspyer_of_handler__"

T = TypeVar("T")


def is_of_handler(error: BaseException) -> bool:
    """Return whether a handler has raised this error."""
    return bool(vars(error).get(_OF_HANDLER))


def key_of(node: str) -> str:
    """The key of the effect under which the error of a node is kept."""
    return f"{node}.error"


def noted(error: Exception) -> dict[str, Any]:
    """An error as plain data."""
    text = error_text(error)
    plain = all(type(each) in _PLAIN for each in error.args)
    return {"type": type(error).__name__, "text": text, "args": list(error.args) if plain else [text]}


async def _awaitable(fn: Callable[[], T]) -> T:
    return fn()


def earlier_error(node: str, label: str, ctx: Context) -> NodeError | None:
    """The error that the handler of a node got before; None if the node has not failed."""
    attempt = ctx.delegate
    found = thaw(attempt.host.records.effects.get(RecordKey(attempt.local_id, key_of(node))))
    return None if found is None else NodeError(label, _rebuilt(**found))


def _rebuilt(type: str, text: str, args: list[Any]) -> Exception:  # noqa: A002 - the key in the store
    # Any other class would have to be imported by a name that came from a store.
    kind = getattr(builtins, type, None)
    if isinstance(kind, builtins.type) and issubclass(kind, Exception):
        try:
            return kind(*args)
        except TypeError:  # its parts were no plain data
            pass
    return Exception(f"{type}: {text}")


_Script: TypeAlias = Generator[tuple[Any, Any], Any, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedNode:
    """A node of LangGraph that is called with `invoke`.

    Attributes:
        name: its name in dspyer.
        label: its name in LangGraph.
        runnable: the node's code.
        input_schema: what it gets.
        fields: the fields of the graph.
        static: the nodes to which its edges lead, by their names in LangGraph.
        router: its routers, which LangGraph follows after a `Command` too; None if it has none.
        targets: the names of nodes.
        leads_to: the targets that its code, edges and routers name.
        extra: what happens to a returned key that is no field.
        surroundings: what it gets beside the state.
        retry: which failed attempts are followed by another one; None for none.
        timeout: the seconds of one attempt of an async node with an error handler, which gets the timeout too.
        handler: the error handler, which runs in place of the node once no attempt follows; None for none.
        place: its name and those of the graphs around it, as in the namespaces of LangGraph's checkpoints.
        allowed: the classes that checkpoints of graphs inside of it may hold.
    """

    name: str
    label: str
    runnable: Any
    input_schema: Any
    fields: StateFields
    static: tuple[str, ...]
    router: ConvertedRouter | None
    targets: Targets
    leads_to: NamedTargets
    extra: Literal["error", "drop"] = "error"
    surroundings: Surroundings = field(default_factory=Surroundings)
    retry: Retry | None = None
    timeout: float | None = None
    handler: ConvertedNode | None = None
    place: str = ""
    allowed: AllowedTypes = frozenset()

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, state: ImmutableState, ctx: Context) -> object:
        return run_script(self._script(state, ctx))

    def _script(self, state: ImmutableState, ctx: Context) -> _Script:
        """Call the node; its error handler in its place once it has failed for good."""
        # The last failure of the node, before a question of its handler or a crash: it is not called again.
        failed = None if self.handler is None else earlier_error(self.name, self.label, ctx)
        if failed is None:
            try:
                return (yield from self._called(state, ctx))
            except Exception as error:
                if self.handler is None or not self._is_last(error, ctx):
                    raise
                # The stream tells it, as it does where an error edge leads on.
                attempt = ctx.delegate
                attempt.host.publish(NodeFailed(attempt.node, attempt.branch, attempt.execution, error))
                failed = NodeError(self.label, error)
                # Kept before the handler runs: after a crash in it, the node must not be called again.
                once, kept = partial(ctx.once, key_of(self.name)), partial(noted, error)
                yield TwoWays(partial(once, kept), partial(once, partial(_awaitable, kept))), None
        else:
            NodeCall(self, state, ctx)  # its questions count as asked
        assert self.handler is not None
        try:
            return (yield from self.handler._called(state, ctx, failed))
        except Exception as error:
            # The retry policy is that of the node, whose attempts are over. The mark is on the object: a wrapper would
            # be another class, which the code around may catch.
            error.__dict__[_OF_HANDLER] = True
            raise

    def _called(self, state: ImmutableState, ctx: Context, failed: NodeError | None = None) -> _Script:
        call = NodeCall(self, state, ctx, failed)
        while not call.returned:
            with call.attempt() as (value, config):
                made = partial(self.runnable.invoke, value, config), partial(self._awaited, value, config)
                call.take((yield TwoWays(*made), None))
        return call.reply()

    async def _awaited(self, value: object, config: Any) -> Any:
        """Call the code in async code, for as long as an attempt may take."""
        result, seconds = self.runnable.ainvoke(value, config), self.timeout
        if seconds is None:
            return await result
        try:
            async with asyncio.timeout(seconds) as limit:
                return await result
        except TimeoutError:
            if not limit.expired():
                raise
            raise langgraph_errors.NodeTimeoutError(self.label, seconds, kind="run", run_timeout=seconds) from None

    def _is_last(self, error: Exception, ctx: Context) -> bool:
        """Tell if no attempt follows one that raised this error. Errors that no step can mend are not handled."""
        return not always_raised(error) and (self.retry is None or self.retry.pause(ctx.attempt, error) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConvertedNode(ConvertedNode):
    """A node of LangGraph that is called with `ainvoke`."""

    async def __call__(self, state: ImmutableState, ctx: Context) -> object:
        return await arun_script(self._script(state, ctx))


class NodeCall:
    """One call of a node: each new `interrupt()` ends the code, which begins again when the answer is there.

    `failed` is what an error handler gets, of the node in whose place it runs.
    """

    def __init__(
        self, node: ConvertedNode, state: ImmutableState, ctx: Context, failed: NodeError | None = None
    ) -> None:
        self.node, self.state, self.ctx, self.failed = node, state, ctx, failed
        self.who = f"node {node.name!r}"
        self.returned = False
        self.result: object = None
        self.answers: list[object] = []  # to the code's own questions
        self.texts: list[str] = []  # of these
        self.asked: list[str | int] = []  # all questions: the ids of those of graphs, the numbers of its own
        self.tasks = TaskCalls(ctx, node.name)
        self.checkpoints = Checkpoints(node.allowed)
        self.checkpoints.load(state.get(CHECKPOINTS, {}))
        self.resumes = GivenAnswers()  # the answers to the last questions of graphs, by id
        # Questions that were asked before are asked again first, in their order, with the texts that they had.
        while True:
            if (kept := ctx.delegate.host.records.effects.get(self._kept_at)) is not None:
                self.checkpoints.load(thaw(kept["checkpoints"]))
                self._answer_all(thaw(kept["questions"]))
            elif (earlier := ctx.delegate.earlier_question(self._key)) is not None:
                self._answer_all([[len(self.answers), earlier.text, earlier.answer]])
            else:
                break

    # --- the call

    @contextmanager
    def attempt(self) -> Iterator[tuple[object, Any]]:
        """The arguments with which the code is called, in the context in which LangGraph calls it."""
        questions = Questions(self.answers, self.texts)
        self.tasks.begin()
        place = f"{self.node.place}:{self.ctx.delegate.local_id}"
        own = own_configurable(self.failed, self._from_edge if SENT in self.state else None)
        graphs = engine_configurable(place, self.checkpoints, bool(self.asked), self.resumes)
        read = self.node.fields.reader(self.state)
        config = self.node.surroundings.config(self.node.label, self.ctx, questions, self.tasks, read, **own, **graphs)
        token = var_child_runnable_config.set(config)
        asked: Any = None
        try:
            yield self._input(), config
        except NodeInterrupt:
            raise GraphError(f"{self.who} {RAISES}") from None
        except GraphInterrupt as error:
            asked = error.args[0]
        except ValidationError as error:
            self._refuse_answer(error)
            raise
        except ParentCommand as error:  # of a graph that the code has called: it is meant for this one
            command = error.args[0]
            self.take(langgraph_types.Command(update=command.update, goto=command.goto))
        finally:
            var_child_runnable_config.reset(token)
        for which in self.resumes.unread:
            raise ChangedGraphError(
                f"{self.who}: the graph that asked question {self._key_of(which)!r} has no such node any more, and its "
                "answer would be lost: resume the thread with the code that asked it"
            )
        if asked is not None:
            self._ask(asked, questions)

    def take(self, result: object) -> None:
        """Keep what the code returned."""
        self.returned, self.result = True, result

    def _input(self) -> object:
        # What a `Send` brings takes the place of the state, as in LangGraph.
        return thaw(self.state.raw(SENT)) if SENT in self.state else self._from_edge()

    def _from_edge(self) -> object:
        managed = self.node.surroundings.managed_values(self.ctx)
        return self.node.fields.seen(self.node.input_schema, self.state, managed)

    def _ask(self, interrupts: Sequence[Any], questions: Questions) -> None:
        own = questions.asked > len(self.answers)
        asked = [[len(self.answers) if own else one.id, text_of(one.value), one.response_schema] for one in interrupts]
        asked.sort(key=lambda one: str(one[1]))  # else by which thread of LangGraph was first
        # A breakpoint asks nothing: any answer goes on.
        asked = asked or [["", f"{self.node.label} has stopped at a breakpoint: go on?", None]]
        dumped = self.checkpoints.dump()
        if dumped != self.state.get(CHECKPOINTS, {}):  # with the question, so that a resume finds both or neither
            kept = {"checkpoints": dumped, "questions": asked}
            self.ctx.delegate.host.records.keep(self._kept_at, kept)
        self._answer_all(asked)

    def _answer_all(self, questions: Sequence[Any]) -> None:
        """Keep the answers to the next questions, which are asked one by one; the run waits where there is none."""
        self.resumes = GivenAnswers()  # an id stands for one question of its task, and later for the next one
        for which, text, schema in questions:
            answer = self.ctx.interrupt(self._key, text, answer_type(schema))
            self.asked.append(which)
            if isinstance(which, int):
                self.answers.append(answer)
                self.texts.append(text)
            elif which:
                self.resumes[which] = answer

    def _refuse_answer(self, error: ValidationError) -> None:
        """Open a question again whose answer does not fit the `response_schema` of `interrupt()`."""
        refused = next((one for one in refused_answer(error) or () if one in self.asked), None)
        if refused is None:
            return
        key, attempt = self._key_of(refused), self.ctx.delegate
        # Before the error: a resume must find the question open.
        attempt.host.records.retract_answer(RecordKey(attempt.local_id, key))
        raise AnswerError(
            f"the answer to question {key!r} of {self.who} does not fit its response_schema: "
            f"{refusal_text(error, 'answer')}. The question is open"
        )

    def _key_of(self, asked: str | int) -> str:
        return f"{self.node.name}-{self.asked.index(asked)}"

    @property
    def _key(self) -> str:
        """The key of the next question."""
        return f"{self.node.name}-{len(self.asked)}"

    @property
    def _kept_at(self) -> RecordKey:
        """The place of what is kept with the next question."""
        return RecordKey(self.ctx.delegate.local_id, f"{self._key}.checkpoints")

    # --- its result

    def reply(self) -> object:
        """The output of the code, as a node of dspyer returns it."""
        parts = parts_of(self.result)
        for part in parts:
            if isinstance(part, langgraph_types.Command) and part.graph is not None:
                raise GraphError(f"{self.who} returns Command(graph={part.graph!r}): {LEAVES_BY_COMMAND}")
        patch = self._patch()
        goto = [target for part in parts for target in goto_of(part) if target != LANGGRAPH_END]
        if self.failed is not None:  # the edges of the node that failed are not followed
            return Command(patch, self.node.targets.ordered(goto, self.who, self.node.leads_to, self.state) or [END])
        if not goto:
            return patch
        routed = self.node.router.follow(self._after(patch), self.ctx) if self.node.router else self.node.static
        targets = [*goto, *routed]
        return Command(patch, self.node.targets.ordered(targets, self.who, self.node.leads_to, self.state))

    def _patch(self) -> dict[str, Any]:
        fields = self.node.fields
        try:
            patch = fields.updates(self.result, extra=self.node.extra)
        except NodeOutputError as error:
            raise NodeOutputError(f"{self.who}: {error}") from None
        unknown = [key for key in patch if key not in fields.model.model_fields]
        if unknown:
            raise NodeOutputError(
                f"{self.who} returned {unknown[0]!r}, which is no field of the state "
                f"({list_names(fields.model.model_fields)}): add it to the state, or drop such keys as LangGraph does, "
                "from_langgraph(extra='drop')"
            )
        known = self.state.get(CHECKPOINTS, {})
        lasting = {ns: kept for ns, kept in self.checkpoints.dump(lasting=True).items() if known.get(ns) != kept}
        if lasting and CHECKPOINTS not in fields.model.model_fields:
            raise GraphError(
                f"{self.who} calls a graph with checkpointer=True, which its code does not name, so that nothing keeps "
                "what it remembers: make that graph outside of the function"
            )
        return patch | {CHECKPOINTS: lasting} if lasting else patch

    def _after(self, patch: Mapping[str, Any]) -> ImmutableState:
        """The state that the routers see: a `Command` takes their place in dspyer, and not in LangGraph."""
        schema = Schema.of(self.node.fields.model)
        # Without what a `Send` has brought, which routers of LangGraph do not see.
        state = ImmutableState({name: self.state.raw(name) for name in self.state if name != SENT})
        return schema.commit(state, patch, node=self.node.name, commit_id=self.ctx.execution)[1]


def parts_of(result: object) -> Sequence[object]:
    """The results that a node returned, one by one."""
    return result if is_several(result) else (result,)


def goto_of(part: object) -> Sequence[object]:
    """The targets of one result of a node."""
    if isinstance(part, langgraph_types.Send):
        return (part,)
    if not isinstance(part, langgraph_types.Command):
        return ()
    if part.goto is None:
        raise RouteError("a node returned Command(goto=None): name a node, or leave goto out")
    return (part.goto,) if isinstance(part.goto, (str, langgraph_types.Send)) else tuple(part.goto)


def answer_type(schema: object) -> Any:
    """The type of the answer to a question: any value, shown with the `response_schema` of `interrupt()`."""
    if not isinstance(schema, Mapping) or not schema:
        return Any
    return Annotated[Any, WithJsonSchema(_inlined(schema, schema.get("$defs", {}), ()))]


def _inlined(part: Any, definitions: Mapping[str, Any], around: tuple[str, ...]) -> Any:
    """A schema without references, which pydantic would look for among its own; what is in itself may be anything."""
    if isinstance(part, (list, tuple)):
        return [_inlined(each, definitions, around) for each in part]
    if not isinstance(part, Mapping):
        return part
    name = str(part.get("$ref")).removeprefix("#/$defs/")
    if name in definitions:
        return {} if name in around else _inlined(definitions[name], definitions, (*around, name))
    # A discriminator refers, too; and says no more than its parts.
    left_out = {"$defs", "discriminator"} if "oneOf" in part else {"$defs"}
    return {key: _inlined(each, definitions, around) for key, each in part.items() if key not in left_out}


# The policies of LangGraph's nodes as those of dspyer: retries and timeouts. What is left out is a note.


@dataclass(frozen=True, slots=True)
class ConvertedRetry(Retry):
    """The first of several policies that accepts an error decides how often and when its node is attempted again."""

    policies: tuple[Retry, ...] = ()

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """The seconds to wait before the next attempt; None if there is none."""
        policy = next((one for one in self.policies if accepts(one.on, error)), None)
        return None if policy is None else policy.pause(attempt, error)


def retry_of(given: RetryPolicy | Sequence[RetryPolicy] | None, *, replaced: bool = False) -> Retry | None:
    """The policy of a node; None for none.

    The default of LangGraph would repeat what the LM of a module has repeated, so a node that `nodes=` has `replaced`
    has the default of `Retry` in its place.
    """
    policies = (given,) if isinstance(given, RetryPolicy) else tuple(given or ())
    found = tuple([_one_policy(policy, replaced) for policy in policies])
    if len(found) < 2:
        return found[0] if found else None
    return ConvertedRetry(max(one.attempts for one in found), policies=found)


def _one_policy(policy: RetryPolicy, replaced: bool) -> Retry:
    wait: Any = wait_exponential(
        multiplier=policy.initial_interval, exp_base=policy.backoff_factor, max=policy.max_interval
    )
    longest = policy.max_interval
    if policy.jitter:
        # LangGraph adds up to a second, whatever the interval.
        wait, longest = wait + wait_random(0, 1), longest + 1
    on = is_transient if replaced and policy.retry_on is RetryPolicy().retry_on else _RetryOn(policy.retry_on)
    return Retry(max(policy.max_attempts, 1), on, wait, longest)


@dataclass(frozen=True, slots=True)
class _RetryOn:
    """The `retry_on` of a policy: a type, several of them, or a function."""

    accepted: Any

    def __call__(self, error: BaseException) -> bool:
        if is_of_handler(error):
            return False
        accepted = tuple(self.accepted) if isinstance(self.accepted, Sequence) else self.accepted
        return accepts(accepted, as_langgraph_raises(error))


def as_langgraph_raises(error: BaseException) -> BaseException:
    """The error that LangGraph raises in place of one of dspyer: its timeout is no `TimeoutError`."""
    if not isinstance(error, NodeTimeoutError):
        return error
    found: BaseException = langgraph_errors.NodeTimeoutError("", 0.0, kind="run", run_timeout=0.0)
    return found


def timeout_of(label: str, spec: Any, findings: Findings) -> float | None:
    """The seconds that an attempt of node `label` may take; None for no limit."""
    policy = spec.timeout
    if policy is None:
        return None
    if policy.idle_timeout is not None:
        findings.note(f"the idle_timeout of node {label!r} is left out: timeout= bounds a whole attempt")
    limit = policy.run_timeout
    return limit.total_seconds() if isinstance(limit, timedelta) else limit
