"""The conditional edges of a node of LangGraph as one router of dspyer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config
from langgraph import types as langgraph_types
from langgraph.errors import GraphInterrupt

from dspyer.errors import GraphError, RouteError, brief, list_names
from dspyer.migrate.channels import StateFields
from dspyer.migrate.internals import Questions
from dspyer.migrate.surroundings import Surroundings
from dspyer.migrate.targets import NamedTargets, Targets
from dspyer.migrate.task_calls import TaskCalls
from dspyer.nodes.context import Context
from dspyer.nodes.node import Goto, Send
from dspyer.scheduler.topology import END
from dspyer.state import ImmutableState


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
        """How errors name it."""
        return f"the router of {self.label!r}"

    def __call__(self, state: ImmutableState, ctx: Context) -> list[Goto]:
        found: list[str | Send] = self.targets.ordered(self.follow(state, ctx), self.who, self.leads_to)
        return found or [END]

    def follow(self, state: ImmutableState, ctx: Context) -> list[object]:
        """Where edges and routers lead, as LangGraph's code says it."""
        config = self.surroundings.config(self.label, ctx, Questions(()), TaskCalls(ctx, f"{self.label} router"))
        managed = self.surroundings.managed_values(ctx)
        token = var_child_runnable_config.set(config)
        try:
            found = [
                target
                for branch in self.branches
                for target in self._route(branch, self.fields.seen(branch.input_schema, state, managed), config)
            ]
        except GraphInterrupt:
            raise GraphError(f"{self.who} calls interrupt(): ask in a node, and route by the answer") from None
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
