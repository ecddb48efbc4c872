"""A node of LangGraph as a function of dspyer: its code is called as LangGraph calls it, and its result translated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, cast

from langchain_core.runnables.config import var_child_runnable_config
from langgraph import types as langgraph_types
from langgraph.constants import END
from langgraph.errors import GraphInterrupt, NodeError, NodeInterrupt, NodeTimeoutError
from pydantic import ValidationError, WithJsonSchema

from dspyer.errors import AnswerError, GraphError, NodeOutputError, RouteError, always_raised, list_names
from dspyer.events import NodeFailed
from dspyer.layers.retry import Retry
from dspyer.log.execution_records import RecordKey
from dspyer.migrate.channels import StateFields, is_several
from dspyer.migrate.converted_router import ConvertedRouter
from dspyer.migrate.internals import ParentCommand, Questions, refused_answer, text_of
from dspyer.migrate.noted_errors import earlier_error, handling, key_of, noted
from dspyer.migrate.surroundings import Surroundings
from dspyer.migrate.targets import NamedTargets, Targets
from dspyer.migrate.task_calls import TaskCalls
from dspyer.migrate.unsupported import LEAVES_BY_COMMAND
from dspyer.nodes.context import Context
from dspyer.nodes.node import SENT, Command
from dspyer.scheduler import topology
from dspyer.schema.fields import refusal_text
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.frozen import thaw


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

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, state: ImmutableState, ctx: Context) -> object:
        if self.handler is None:
            return self._called(state, ctx)
        failed = self._failed_before(state, ctx)
        if failed is None:
            try:
                return self._called(state, ctx)
            except Exception as error:
                if not self._is_last(error, ctx):
                    raise
                failed = self._handed_over(error, ctx)
                ctx.once(key_of(self.name), partial(noted, error))
        with handling():
            return self.handler._called(state, ctx, failed)

    def _failed_before(self, state: ImmutableState, ctx: Context) -> NodeError | None:
        """How the node has failed for good, before a question of its handler or a crash: it is not called again."""
        failed = earlier_error(self.name, self.label, ctx)
        if failed is not None:
            NodeCall(self, state, ctx)  # its questions count as asked
        return failed

    def _handed_over(self, error: Exception, ctx: Context) -> NodeError:
        """What the handler gets of an error. The stream tells it, as it does where an error edge leads on."""
        attempt = ctx.delegate
        attempt.host.publish(NodeFailed(attempt.node, attempt.branch, attempt.execution, error))
        return NodeError(self.label, error)

    def _called(self, state: ImmutableState, ctx: Context, failed: NodeError | None = None) -> object:
        call = NodeCall(self, state, ctx, failed)
        while not call.returned:
            with call.attempt() as (value, config):
                call.take(self.runnable.invoke(value, config))
        return call.reply()

    def _is_last(self, error: Exception, ctx: Context) -> bool:
        """Whether no attempt follows one that raised this error. Errors that no step can mend are not handled."""
        return not always_raised(error) and (self.retry is None or self.retry.pause(ctx.attempt, error) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConvertedNode(ConvertedNode):
    """A node of LangGraph that is called with `ainvoke`."""

    async def __call__(self, state: ImmutableState, ctx: Context) -> object:
        if self.handler is None:
            return await self._acalled(state, ctx)
        failed = self._failed_before(state, ctx)
        if failed is None:
            try:
                return await self._acalled(state, ctx)
            except Exception as error:
                if not self._is_last(error, ctx):
                    raise
                failed = self._handed_over(error, ctx)
                await ctx.once(key_of(self.name), partial(_async_noted, error))
        with handling():
            return await cast(AsyncConvertedNode, self.handler)._acalled(state, ctx, failed)

    async def _acalled(self, state: ImmutableState, ctx: Context, failed: NodeError | None = None) -> object:
        call = NodeCall(self, state, ctx, failed)
        while not call.returned:
            with call.attempt() as (value, config):
                call.take(await self._in_time(self.runnable.ainvoke(value, config)))
        return call.reply()

    async def _in_time(self, result: Awaitable[Any]) -> Any:
        """Await a result for as long as an attempt may take."""
        if self.timeout is None:
            return await result
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await result
        except TimeoutError:
            if not limit.expired():
                raise
            raise NodeTimeoutError(self.label, self.timeout, kind="run", run_timeout=self.timeout) from None


async def _async_noted(error: Exception) -> dict[str, Any]:
    return noted(error)


class NodeCall:
    """One call of a node: each new `interrupt()` ends the code, which begins again when the answer is there.

    `failed` is what an error handler gets, of the node in whose place it runs.

    Attributes:
        returned: whether the node has returned.
        result: what it returned.
    """

    def __init__(
        self, node: ConvertedNode, state: ImmutableState, ctx: Context, failed: NodeError | None = None
    ) -> None:
        self.node, self.state, self.ctx, self.failed = node, state, ctx, failed
        self.who = f"node {node.name!r}"
        self.returned = False
        self.result: object = None
        self.answers: list[object] = []
        self.texts: list[str] = []  # of the questions
        self.tasks = TaskCalls(ctx, node.name)
        while (earlier := ctx.delegate.earlier_question(self._key)) is not None:
            self._answer(earlier.text, answer_type(earlier.answer))

    # --- the call

    @contextmanager
    def attempt(self) -> Iterator[tuple[object, Any]]:
        """What the code is called with, in the context in which LangGraph calls it."""
        questions = Questions(self.answers, self.texts)
        self.tasks.begin()
        config = self.node.surroundings.config(self.node.label, self.ctx, questions, self.tasks, self.failed)
        token = var_child_runnable_config.set(config)
        asked: Any = None
        try:
            yield self._input(), config
        except NodeInterrupt:
            raise GraphError(
                f"{self.who} raises NodeInterrupt: call interrupt(value), which returns the answer"
            ) from None
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
        if asked is not None:
            self._ask(asked, questions)

    def take(self, result: object) -> None:
        """Keep what the code returned."""
        self.returned, self.result = True, result

    def _input(self) -> object:
        if SENT in self.state:
            return thaw(self.state.raw(SENT))
        managed = self.node.surroundings.managed_values(self.ctx)
        return self.node.fields.seen(self.node.input_schema, self.state, managed)

    def _ask(self, interrupts: Sequence[Any], questions: Questions) -> None:
        if questions.asked <= len(self.answers):
            raise GraphError(f"{self.who} calls a graph that interrupts: add that graph as a node and convert again")
        (asked,) = interrupts
        self._answer(text_of(asked.value), answer_type(asked.response_schema))

    def _answer(self, text: str, answer: Any) -> None:
        """Keep the answer to the next question; the run waits if there is none."""
        self.answers.append(self.ctx.interrupt(self._key, text, answer))
        self.texts.append(text)

    def _refuse_answer(self, error: ValidationError) -> None:
        """Open a question again whose answer does not fit the `response_schema` of `interrupt()`."""
        number = refused_answer(error)
        if number is None:
            return
        key, attempt = f"{self.node.name}-{number}", self.ctx.delegate
        attempt.host.records.retract_answer(RecordKey(attempt.local_id, key))
        raise AnswerError(
            f"the answer to question {key!r} of {self.who} does not fit its response_schema: "
            f"{refusal_text(error, 'answer')}. The question is open"
        )

    @property
    def _key(self) -> str:
        """The key of the next question."""
        return f"{self.node.name}-{len(self.answers)}"

    # --- its result

    def reply(self) -> object:
        """What the code returned, as a node of dspyer returns it."""
        parts = parts_of(self.result)
        for part in parts:
            if isinstance(part, langgraph_types.Command) and part.graph is not None:
                raise GraphError(f"{self.who} returns Command(graph={part.graph!r}): {LEAVES_BY_COMMAND}")
        patch = self._patch()
        goto = [target for part in parts for target in goto_of(part) if target != END]
        if self.failed is not None:  # the edges of the node that failed are not followed
            return Command(patch, self.node.targets.ordered(goto, self.who, self.node.leads_to) or [topology.END])
        if not goto:
            return patch
        routed = self.node.router.follow(self._after(patch), self.ctx) if self.node.router else self.node.static
        targets = [*goto, *routed]
        return Command(patch, self.node.targets.ordered(targets, self.who, self.node.leads_to))

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
        return patch

    def _after(self, patch: Mapping[str, Any]) -> ImmutableState:
        """The state that the routers see: a `Command` takes their place in dspyer, and not in LangGraph."""
        schema = Schema.of(self.node.fields.model)
        state = ImmutableState({name: self.state.raw(name) for name in self.state if name != SENT})
        return schema.commit(state, patch, node=self.node.name, commit_id=self.ctx.execution)[1]


def parts_of(result: object) -> Sequence[object]:
    """What a node returned, one by one."""
    return result if is_several(result) else (result,)


def goto_of(part: object) -> Sequence[object]:
    """Where one result of a node goes."""
    if isinstance(part, langgraph_types.Send):
        return (part,)
    if not isinstance(part, langgraph_types.Command):
        return ()
    if part.goto is None:
        raise RouteError("a node returned Command(goto=None): name a node, or leave goto out")
    return (part.goto,) if isinstance(part.goto, (str, langgraph_types.Send)) else tuple(part.goto)


def answer_type(schema: object) -> Any:
    """The type of the answer to a question: any value, shown with the `response_schema` of `interrupt()`."""
    return Annotated[Any, WithJsonSchema(dict(schema))] if isinstance(schema, Mapping) and schema else Any
