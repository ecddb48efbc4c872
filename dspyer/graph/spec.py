"""A graph as it was compiled: its topology, its nodes and the ways out of each. `program.graph` is one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dspyer.display.graph_picture import GraphPicture
from dspyer.display.graph_svg import draw_svg
from dspyer.display.redaction import Redact, Redaction, hiding
from dspyer.errors import InputError, RouteError, list_names, suggestion
from dspyer.graph.text import draw_mermaid
from dspyer.nodes.condense import Condensers
from dspyer.nodes.node import Node, Send
from dspyer.nodes.router import Router
from dspyer.persistence.execution_records import AnswerSource, no_answer
from dspyer.persistence.journal import Durability
from dspyer.scheduler.run_values import is_counted
from dspyer.scheduler.topology import END, START, Topology
from dspyer.schema.limits import kilobytes

Exit = str | Router
"""A way out of a node: the target of an edge, or a router."""

Migrate = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Makes of the values that an earlier graph has left, as plain values, those with which this graph goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class GraphSpec:
    """The frozen graph of a program: `program.graph`.

    Attributes:
        topology: names, edges and rules.
        nodes: the nodes by name, in the order of declaration.
        exits: the ways out of each node and of `START`, in the order in which they were declared.
        inputs: the fields that a run may be given.
        required: the fields that a run must be given.
        outputs: the fields that a program returns; None for every field that is no input.
        frozen: names of the nodes whose modules optimizers are kept away from.
        thawed: names of the nodes whose modules are open to optimizers, even if one has compiled them before.
        closed: whether inputs that are not known are refused.
        max_concurrency: most nodes of one run that work at the same time.
        keep: the fields that last over the runs of a thread; None for all.
        interrupt_before: the nodes before which a run stops.
        interrupt_after: the nodes after which it stops.
        answer: answers questions as they are asked.
        migrate: makes of the values that an earlier graph has left those of this one.
        condensers: by node and field, the modules that shorten what is written.
        durability: when a run on a thread is written.
        redaction: what is hidden of the values that leave a run.
        warn_at: how many steps before its limit a run warns in its conversations; None for never.
        max_demo_turns: how many turns of a history a demo shows; None for all.
        also: what a run may be given besides its inputs: what no node needs to be given.
        takes: for each node, the names that a `Send` may bring, for it or its routers; None for any.
        named: whether the graph was given a name.
        shares_threads_with: names of other graphs whose threads this one may go on with.
        needs_resources: whether a node or router has a parameter for a resource.
        counts: whether one reads how often nodes call.
    """

    topology: Topology
    nodes: Mapping[str, Node]
    exits: Mapping[str, tuple[Exit, ...]]
    inputs: tuple[str, ...]
    required: frozenset[str]
    outputs: tuple[str, ...] | None
    frozen: frozenset[str] = frozenset()
    thawed: frozenset[str] = frozenset()
    closed: bool = True
    max_concurrency: int = 32
    keep: frozenset[str] | None = None
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    answer: AnswerSource = no_answer
    migrate: Migrate | None = None
    condensers: Condensers = field(default_factory=dict)
    redaction: Redaction | None = None
    durability: Durability = "sync"
    warn_at: int | None = None
    max_demo_turns: int | None = None
    also: frozenset[str] = frozenset()
    takes: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    named: bool = False
    shares_threads_with: frozenset[str] = frozenset()
    needs_resources: bool = field(init=False)
    counts: bool = field(init=False)

    def __post_init__(self) -> None:
        condensers = [part for parts in self.condensers.values() for part in parts.values()]
        parts: tuple[Node | Router, ...] = (*self.nodes.values(), *condensers, *self.routers())
        object.__setattr__(self, "needs_resources", any(part.resources for part in parts))
        object.__setattr__(self, "counts", any(is_counted(name) for part in parts for name in part.templates.names))

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.topology.name

    def hiding(self, redact: Redact) -> GraphSpec:
        """The same graph; what it says about values shows what may be shown.

        Args:
            redact: patterns of paths, or a function of a path and a plain value; None to hide nothing.

        Raises:
            ValueError: for a malformed pattern.
        """
        redaction = Redaction.of(redact)
        if redaction is None:
            return self
        old = self.topology
        joins = {node: hiding(policies, redaction) for node, policies in old.join_policies.items()}
        schema = old.schema.with_show_value(redaction.brief)
        topology = replace(old, schema=schema, policies=hiding(old.policies, redaction), join_policies=joins)
        return replace(self, topology=topology, redaction=redaction)

    @property
    def writes(self) -> tuple[str, ...] | None:
        """The fields that the nodes may write; None if a node does not say."""
        fields: dict[str, None] = {}
        for node in self.nodes.values():
            if node.writes is None:
                return None
            fields.update(dict.fromkeys(node.writes.values()))
        for router in self.routers():
            fields.update(dict.fromkeys(router.writes.values()))
        return tuple(fields)

    def routers(self) -> list[Router]:
        """All routers, in the order of declaration."""
        return [way for ways in self.exits.values() for way in ways if not isinstance(way, str)]

    def check_inputs(self, inputs: Collection[str], kept: Collection[str] = ()) -> None:
        """Check the names of a run's inputs.

        Args:
            inputs: the names that are given.
            kept: the fields that have a value already, from earlier runs.

        Raises:
            InputError: if one is unknown or missing; a missing one is named with its readers.
        """
        known = self.inputs
        allowed = {*known, *self.also}
        extra = [name for name in inputs if name not in allowed] if self.closed else ()
        problems = []
        if extra:
            hints = "".join(suggestion(name, dict.fromkeys((*known, *sorted(self.also)))) for name in extra[:3])
            problems.append(
                f"graph {self.name!r} has no input {list_names(extra)}.{hints} Its inputs are {list_names(known)}; "
                "name others with Graph(inputs=[...])"
            )
        missing = [name for name in known if name in self.required and name not in inputs and name not in kept]
        if missing:
            listed = ", ".join(self._wanted(name, extra) for name in missing[:6])
            listed += f", ... ({len(missing)} in all)" if len(missing) > 6 else ""
            problems.append(f"missing inputs: {listed} (given: {list_names(inputs)})")
        if problems:
            raise InputError(". ".join(problems))

    def check_send(self, sender: str, send: Send) -> None:
        """Check what a `Send` brings.

        Args:
            sender: the node from which it goes.
            send: the `Send`.

        Raises:
            RouteError: if the node that it starts does not read one of the values.
        """
        taken = self.takes.get(send.node)
        if taken is None or all(map(taken.__contains__, send.overlay)):
            return
        (key, *_) = [key for key in send.overlay if key not in taken]
        field = (self.nodes[send.node].reads or {}).get(key)
        hint = suggestion(key, taken) if field is None else f" What it calls {key!r} is the field {field!r}: send that."
        if field == key:  # read by ctx.view alone
            hint = (
                f" It is among its reads, but the function does not take it: add a parameter {key!r}, or leave it out."
            )
        raise RouteError(
            f"the Send from node {sender!r} to node {send.node!r} brings {key!r}, which the latter does not read: it "
            f"reads {list_names(sorted(taken)) if taken else 'nothing'}.{hint or ' Leave it out, or read it there.'}"
        )

    def _wanted(self, field: str, extra: Collection[str]) -> str:
        """A missing input, for the error: which nodes read it, and whether its reader may have meant the whole state.

        The latter only where something was given that no node reads, and that is no misspelling of the field.
        """
        readers = [name for name, node in self.nodes.items() if field in (node.reads or {}).values()]
        if not readers:
            return repr(field)
        alone = self.nodes[readers[0]].kind == "function" and len(self.nodes[readers[0]].reads or {}) == 1
        other = self.topology.schema.accepts_any_key and extra and not any(suggestion(name, [field]) for name in extra)
        hint = "; for the state as a whole name the parameter `state`" if alone and other else ""
        return f"{field!r}, read by {list_names(readers)}{hint}"

    def explain(self) -> str:
        """The graph in words: what each node reads and writes, where it goes, where rounds begin, what cannot be
        checked.

        Returns:
            A text of one line per fact.
        """
        lines = [f"graph {self.name}: {len(self.nodes)} nodes"]
        lines.append(
            f"  inputs: {', '.join(f if f in self.required else f'{f} (optional)' for f in self.inputs) or 'none'}"
        )
        lines.append(
            f"  outputs: {'every field that is no input' if self.outputs is None else ', '.join(self.outputs)}"
        )
        if self.topology.schema.state_limit is not None:
            lines.append(f"  limit: the state holds at most {kilobytes(self.topology.schema.state_limit.max_bytes)}")
        for name in (START, *self.nodes):
            node = self.nodes.get(name)
            facts = [] if node is None else [f"reads {_fields(node.reads)}", f"writes {_fields(node.writes)}"]
            facts.append("-> " + ", ".join(self._way(name, target) for target in self.topology.targets(name)))
            lines.append(f"  {name}: {'; '.join(facts)}")
        lines.extend(
            f"  loop of {', '.join(loop.nodes)}: a round begins at {', '.join(loop.heads)}"
            for loop in self.topology.rounds.loops
        )
        for word, names in (("before", self.interrupt_before), ("after", self.interrupt_after)):
            if names:
                lines.append(f"  stops {word} {', '.join(name for name in self.nodes if name in names)}")
        lines.extend(
            f"  several writers: {written} is written by {', '.join(writers)}; the last one's value stays"
            + (", in parallel the merge policy decides" if self._has_policy(written) else "")
            for written, writers in self._shared_fields().items()
        )
        unknown = [name for name, node in self.nodes.items() if node.writes is None]
        if unknown:
            lines.append(
                f"  not checked: what {', '.join(unknown)} write is not declared, so parallel writers and unset reads "
                "are found when they happen; declare it with writes=[...]"
            )
        return "\n".join(lines)

    def _shared_fields(self) -> dict[str, list[str]]:
        """The fields in which the value of one node takes the place of another one's, with their writers."""
        schema = self.topology.schema
        folded = {name for name, found in schema.fields.items() if found.reducer is not None or found.patches_by_key}
        writers: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            for written in (node.writes or {}).values():
                writers.setdefault(written, []).append(name)
        return {written: names for written, names in writers.items() if len(names) > 1 and written not in folded}

    def _has_policy(self, field: str) -> bool:
        """Whether a merge policy was chosen for a field: only then may nodes that run in parallel both write it."""
        topology = self.topology
        return any(policies.covers(field) for policies in (topology.policies, *topology.join_policies.values()))

    def to_mermaid(self) -> str:
        """The graph as Mermaid text: routes are labelled, edges that go back are dashed.

        Returns:
            A `flowchart`.
        """
        return draw_mermaid(self._picture())

    def to_svg(self) -> str:
        """The graph as a picture.

        Returns:
            An SVG document that needs nothing from outside.
        """
        return draw_svg(self._picture())

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self.nodes)}>"

    def _labels(self, name: str) -> dict[str, str]:
        """What leads from a node to each target, if a router decides by labels."""
        labels: dict[str, list[str]] = {}
        for way in self.exits.get(name, ()):
            if not isinstance(way, str):
                for target, text in way.labels.items():
                    labels.setdefault(target, []).append(text)
        return {target: ", ".join(texts) for target, texts in labels.items()}

    def _way(self, name: str, target: str) -> str:
        label = self._labels(name).get(target)
        facts = [repr(label)] if label else []
        facts += ["next round"] if self.topology.rounds.goes_back(name, target) else []
        return f"{target} ({', '.join(facts)})" if facts else target

    def _picture(self) -> GraphPicture:
        labels = {(name, target): text for name in self.exits for target, text in self._labels(name).items()}
        kinds = {name: node.kind for name, node in self.nodes.items()}
        return GraphPicture(self.topology, labels, kinds)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphSpec:
        return self


def _fields(names: Mapping[str, str] | None) -> str:
    if names is None:
        return "?"
    return ", ".join(field if own == field else f"{field} (as {own})" for own, field in names.items()) or "nothing"


__all__ = ["END", "START", "Exit", "GraphSpec", "Migrate"]
