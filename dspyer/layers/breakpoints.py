"""`Breakpoints`: the layer that stops runs before and after nodes, to ask whether to go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from dspyer.errors import Interrupt, brief, list_names, suggestion
from dspyer.events import Question
from dspyer.layers.layer import Layer, Place
from dspyer.log.execution_records import RecordKey
from dspyer.nodes.node import Call, Node


@dataclass(frozen=True, slots=True)
class Breakpoints(Layer):
    """Stops each run before or after nodes, until it is resumed: `compile(layers=[Breakpoints(before=["purge"])])`.

    The run ends with status `interrupted`; `thread.resume()` continues it. The questions have the keys `"before"` and
    `"after"`.

    Args:
        before: the nodes before which a run stops, each time.
        after: those after which it stops.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("purge", lambda path: {"gone": path}).add_path(
        ...     START, "purge", END)
        >>> thread = graph.compile(store=":memory:",
        ...     layers=[Breakpoints(before=["purge"])]).thread("clean")
        >>> (thread.run({"path": "old"}).questions[0].text,
        ...     thread.resume().state["gone"])
        ("'purge' comes next; continue?", 'old')
    """

    place: ClassVar[Place] = "outside"  # a node that waits for an answer has not begun: nothing is counted of it

    _: KW_ONLY
    before: Collection[str] = ()
    after: Collection[str] = ()

    def __post_init__(self) -> None:
        # A frozen set, since the object is hashable and `surrounds` is asked for every node of every run.
        for option, given in (("before", self.before), ("after", self.after)):
            names: object = (given,) if isinstance(given, str) else given
            if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
                raise TypeError(f'Breakpoints({option}={brief(given)}): give the names of nodes, {option}=["purge"]')
            object.__setattr__(self, option, frozenset(names))

    @property
    def note(self) -> str:
        """Nothing: `explain()` names the nodes in lines of its own."""
        return ""

    @property
    def stops_after(self) -> Collection[str]:
        """The nodes after which a run stops."""
        return self.after

    def surrounds(self, node: Node) -> bool:
        """Says of a node that it stops there, before or after."""
        return node.name in (*self.before, *self.after)

    def problems(self, names: Iterable[str]) -> Iterator[str]:
        """The problems that it has in a graph whose nodes have these names."""
        known = list(names)
        for option, given in (("before", self.before), ("after", self.after)):
            for name in sorted(given):
                if name not in known:
                    yield (
                        f"Breakpoints({option}=) names {name!r}, which is no node.{suggestion(name, known)} "
                        f"Nodes: {list_names(known)}"
                    )

    def admit(self, call: Call) -> None:
        """Asks once whether to go on."""
        if call.node not in self.before:
            return
        attempt = call.context.delegate
        host, node, execution = attempt.host, attempt.node, attempt.local_id
        text = f"{node!r} comes next; continue?"
        # The question belongs to the execution, not to an attempt: its answer holds for all attempts, also after a
        # resume.
        if not host.records.ask(
            Question("before", text, None, node, attempt.branch, execution, host.ids.label), host.answer
        ):
            raise Interrupt([host.records.questions[RecordKey(execution, "before")]])
