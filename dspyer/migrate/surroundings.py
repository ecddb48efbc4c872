"""What LangGraph's code gets beside the state: the config, the runtime, and the values that LangGraph manages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import NodeError
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.store.base import BaseStore

from dspyer.migrate.internals import Questions, managed_value, node_configurable
from dspyer.migrate.task_calls import TaskCalls
from dspyer.nodes.binding import find_resource, value_of_run
from dspyer.nodes.context import Context


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all nodes of a converted graph get beside the state: as given to `from_langgraph`, or as a run's resources.

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
        self, label: str, ctx: Context, questions: Questions, tasks: TaskCalls, failed: NodeError | None = None
    ) -> Any:
        """The `RunnableConfig` with which LangGraph calls the code of node `label`; `failed` is for error handlers."""
        given = _resource(ctx, RunnableConfig, {})
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
        private = node_configurable(ctx.execution, runtime, questions, tasks, failed)
        return {
            **given,
            "tags": list(given.get("tags", ())),
            "metadata": {**given.get("metadata", {}), "langgraph_node": label},
            "callbacks": given.get("callbacks"),
            "configurable": {**configurable, **private},
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
