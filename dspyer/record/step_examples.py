"""Examples for optimizers from what nodes with one predictor have read and written in stored runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dspyer.errors import list_names, suggestion
from dspyer.ids import Address
from dspyer.patch import DELETE
from dspyer.record.drawn import DrawnGraph
from dspyer.record.making import RecordStep, value_of_update
from dspyer.record.turns import tool_calls
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw

if TYPE_CHECKING:
    import dspy

    from dspyer.record.record import Record

logger = logging.getLogger("dspyer")


class StepExample(NamedTuple):
    """The example that a step of a node has left.

    Attributes:
        inputs: the inputs of its predictor by name, frozen.
        outputs: the outputs likewise.
        run: the run, as `Record.id`.
        thread: its thread.
        step: the id of the step.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    run: str
    thread: str
    step: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: a line of a data set; `corrected` says that a person has changed the outputs since."""
        values = [{name: encoding.plain(encoding.encode(one)) for name, one in side.items()} for side in self[:2]]
        return {"inputs": values[0], "outputs": values[1], "run": self.run, "step": self.step, "corrected": False}


class StepExamples(NamedTuple):
    """The examples of a node, and how many are `left_out`: a value is redacted, of an unknown class, or not stored."""

    items: list[StepExample]
    left_out: int

    def as_dspy(self, node: str) -> list[dspy.Example]:
        """The examples as an optimizer takes them; a warning in the log says how many are left out."""
        import dspy

        if self.left_out:
            logger.warning(
                "examples of %r: %s left out, of which a value is redacted, of a class that is not known here, or not "
                "stored, as is what a graph inside of a node has begun with",
                node,
                "1 step is" if self.left_out == 1 else f"{self.left_out:,} steps are",
            )
        values = [[{name: thaw(value) for name, value in side.items()} for side in one[:2]] for one in self.items]
        return [dspy.Example(**inputs, **outputs).with_inputs(*inputs) for inputs, outputs in values]


def examples_of(records: Iterable[Record], node: str) -> StepExamples:
    """The examples of a node in some runs; a step that several of them share counts once.

    Args:
        records: the runs.
        node: the node; of a graph inside of a node with the path to it, as `"lead/check"`.

    Raises:
        LookupError: if there are runs, and none of their graphs has such a node with one predictor; it lists those
            that they have.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.testing import ScriptedLM
        >>> program = Graph().add_node("judge", dspy.Predict("text -> label")
        ...     ).add_path(START, "judge", END).compile()
        >>> with ScriptedLM([{"label": "spam"}]):
        ...     record = program.run({"text": "Win!"}).record()
        >>> found = examples_of([record, record], "judge")
        >>> [(one.inputs, one.outputs) for one in found.items], found.left_out
        ([({'text': 'Win!'}, {'label': 'spam'})], 0)
    """
    found: dict[str, StepExample | None] = {}
    known: dict[str, None] | None = None
    for record in records:
        graphs = {_path(path, name): graph for path, graph in record.graph.within() for name in graph.gives}
        known = (known or {}) | dict.fromkeys(graphs)
        if node in graphs:
            reader = _StepReader(record)
            found = {
                step.id: reader.example(step, graphs[node]) for step in reader.steps_of(node, graphs[node])
            } | found
    if known is not None and node not in known:
        raise LookupError(
            f"no node {node!r} with one predictor whose inputs are fields: of others there are no examples."
            f"{suggestion(node, known)} Nodes that have some: {list_names(known) or 'none'}"
        )
    items = [one for one in found.values() if one is not None]
    return StepExamples(items, len(found) - len(items))


class _StepReader:
    """Reads from the steps of a run what their nodes have read."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.calls = tool_calls(record.steps)
        self.graphs = dict(record.graph.within())
        self.is_whole = all(step.status != "unreadable" for step in record.steps)
        # By step, the path of the graph in which it is, and its node; those of a map are those of its items, too.
        self._places: dict[str, tuple[str, str]] = {}

    def steps_of(self, node: str, graph: DrawnGraph) -> Iterator[RecordStep]:
        """The done steps of a node, and those of its items if it is a map."""
        for step in self.record.steps:
            keys = Address.parse(step.id).keys
            if step.parent is None:
                place = "", step.node
            elif step.kind in ("item", "trial"):
                place = self._places[step.parent]
            elif keys:  # a program that a node has called under a key
                place = self._places[step.parent][0], keys[-1]
            else:
                place = _path(*self._places[step.parent]), step.node
            self._places[step.id] = place
            is_meant = _path(*place) == node and (step.kind == "item" or place[1] not in graph.maps)
            if is_meant and step.status == "done" and step.kind != "edit":
                yield step

    def example(self, step: RecordStep, graph: DrawnGraph) -> StepExample | None:
        """The example of a step; None if a value is missing, or may not be used."""
        _, node = self._places[step.id]
        reads, gives, read = graph.reads[node], graph.gives[node], self._read(step) if self.is_whole else None
        # Unset inputs may be left out; of a graph inside of a node, what it has begun with may not be known.
        if read is None or (step.parent is not None and not (read.keys() >= {*reads.values()})):
            return None
        if step.parent is not None and self._may_be_sent(step, graph):
            return None
        inputs = {name: read[field] for name, field in reads.items() if field in read}
        outputs = {name: self._output(step, graph, field, len(gives) == 1, read) for name, field in gives.items()}
        used = [
            *((reads[name], one) for name, one in inputs.items()),
            *((gives[name], one) for name, one in outputs.items()),
        ]
        if DELETE in outputs.values() or not all(self.record.may_use(field, value) for field, value in used):
            return None
        return StepExample(inputs, outputs, self.record.id, self.record.thread, step.id)

    def _may_be_sent(self, step: RecordStep, graph: DrawnGraph) -> bool:
        """Return whether a router may have sent inputs to a step of a graph inside of a node, which are not stored."""
        before = [self.record.step(one) for one in step.after if self.record.has(one)]
        ways = {edge[:2] for edge in graph.edges if edge.conditional}
        return any(len(one.to) > 1 and (one.node, step.node) in ways for one in before)

    def _output(self, step: RecordStep, graph: DrawnGraph, field: str, is_only: bool, read: Mapping[str, Any]) -> Any:
        """An output by its field; `DELETE` for none."""
        if step.kind == "item":
            result = step.wrote["result"].value
            return result if is_only else result.raw(field, DELETE)
        if step.commit is not None and any(shape.name == field and shape.reducer for shape in graph.fields):
            return value_of_update(step.commit.patch.get(field, DELETE))
        if field in step.wrote:
            return step.wrote[field].value
        # A check that finds nothing where nothing was found before writes nothing.
        return read.get(field, freeze([]) if step.kind == "check" else DELETE)

    def _read(self, step: RecordStep) -> dict[str, Any]:
        """The fields of the state that a step has read, as far as they are known."""
        if step.kind in ("item", "trial") and step.parent is not None:
            around = self.record.step(step.parent)
            found, mapped = self._read(around), self._graph(around).maps.get(around.node)
            if mapped is not None and mapped.over in found:
                found[mapped.item] = found[mapped.over].raw_items()[int(Address.parse(step.id).keys[-1])]
            return found
        found = self._given(step.parent)
        folded = {shape.name for shape in self._graph(step).fields if shape.reducer} if step.parent else ()
        before = self.record.fields(step.after[0]) if step.after else {}
        found |= {name: one.value for name, one in before.items() if name not in folded}
        return found | dict(step.sent)

    def _given(self, id: str | None) -> dict[str, Any]:  # noqa: A002 - the name of the attribute
        """The inputs of the graph that ran inside of a step."""
        if id is None:
            return {}
        step = self.record.step(id)
        read, reads = self._read(step), self._graph(step).reads.get(self._places[id][1], {})
        found = {name: read[field] for name, field in reads.items() if field in read}
        call = self.calls.get(id)
        return found if call is None else found | {name: freeze(value) for name, value in call.args.items()}

    def _graph(self, step: RecordStep) -> DrawnGraph:
        """The graph of which a step is a visit of a node; of an item that of its map."""
        return self.graphs.get(self._places[step.id][0]) or DrawnGraph("")


def _path(graph: str, node: str) -> str:
    return f"{graph}/{node}" if graph else node
