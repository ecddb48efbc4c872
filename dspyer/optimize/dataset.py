"""`dataset`: examples with gold from stored runs, and from corrections of them."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from typing import Any

import dspy

from dspyer import Archive
from dspyer.archive.run_info import RunInfo
from dspyer.display import count_of
from dspyer.errors import ThreadError, brief, list_names, suggestion, with_article
from dspyer.extend import thaw
from dspyer.record import Record

logger = logging.getLogger("dspyer")

CORRECTED = "corrected"


def dataset(
    archive: Archive,
    gold: Mapping[str, str],
    *,
    graph: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    corrected: bool = False,
) -> list[dspy.Example]:
    """Examples from stored runs: what they got, and what their fields held before the next run of the thread.

    A correction of a run, by `thread.update(patch, as_node=node)`, is gold: it counts in the place of what the node has
    written. What was made from the wrong value stays as it was, unless the thread was resumed. `example.corrected`
    names the fields that were corrected.

    Args:
        archive: the archive.
        gold: the field of the state for each column.
        graph: only runs of the graph of this name.
        since: only runs that were started then or later; a time without a time zone is local time.
        until: only runs that were started before. Corrections count whenever they were made.
        corrected: only runs of which a field of `gold` was corrected.

    Returns:
        An example for each completed run, the oldest first, with `with_inputs` of what the run got, without what it has
        carried over from an earlier one. A run is left out if a field has no value, if the program redacts an input or
        a field of it, or if it cannot be read, also since its class is not known in this process; a warning in the log
        says how many were.

    Raises:
        TypeError: if `archive` is none.
        ValueError: if a graph lacks a field, or a column has the name of an input.

    Example:
        >>> from dspyer import END, START, Archive, Graph
        >>> from dspyer.stores import Memory
        >>> store = Memory()
        >>> graph = Graph().add_node("sort", lambda text: {"label": "north"},
        ...     writes=["label"])
        >>> thread = graph.add_path(START, "sort", END).compile(store=store).thread(
        ...     "t-1")
        >>> _ = thread.run({"text": "A dry day"}), thread.update({"label": "south"},
        ...     as_node="sort")
        >>> [dict(one) for one in dataset(Archive(store), {"gold_label": "label"},
        ...     corrected=True)]
        [{'text': 'A dry day', 'gold_label': 'south', 'corrected': ['label']}]
    """
    given: object = archive
    if not isinstance(given, Archive):
        kind = with_article(type(given).__name__)
        raise TypeError(f"dataset takes an Archive, and got {brief(given)}, {kind}: write dspyer.Archive(store)")
    listed = _listed(archive, graph=graph, since=since, until=until, status="completed")
    wanted = {info.run_id: info.thread for info in listed}
    found, left_out = list[tuple[float, dspy.Example]](), 0
    for name in dict.fromkeys(wanted.values()):
        infos = _listed(archive, thread=name, since=since)  # corrections are runs, too, and may have come later
        for records in _with_edits(archive, name, infos, wanted):
            _check(records[0], gold)
            example = _example(records, gold)
            left_out += example is None
            if example is not None and (example[CORRECTED] or not corrected):
                found.append((records[0].started, example))
    if left_out:
        logger.warning(
            "optimize.dataset: %s left out, which have no value of %s that may be used: it was not written, is "
            "redacted as an input may be, is damaged, or is of a class that is not known here",
            "1 run is" if left_out == 1 else f"{count_of(left_out, 'run')} are",
            list_names(gold.values()),
        )
    return [example for _, example in sorted(found, key=lambda one: one[0])]


def _listed(archive: Archive, **chosen: Any) -> Iterator[RunInfo]:
    """Runs of an archive, the newest first, in pages."""
    page = archive.runs(**chosen, limit=1000)
    yield from page
    while page.next is not None:
        page = archive.runs(**chosen, after=page.next, limit=1000)
        yield from page


def _with_edits(
    archive: Archive, name: str, infos: Iterable[RunInfo], wanted: Container[str]
) -> Iterator[list[Record]]:
    """The wanted runs of a thread, the oldest first, each with the edits that came before the next one."""
    found: list[Record] = []
    with suppress(ThreadError):  # the thread was deleted meanwhile
        thread = archive.thread(name)
        for _, same in groupby(reversed([*infos]), lambda one: one.started):
            # In one millisecond, the order of lists is any; the labels of a thread count its runs.
            for record in sorted([thread.record(one.run_id) for one in same], key=lambda one: (len(one.id), one.id)):
                if not any(step.kind == "edit" for step in record.steps[:1]):
                    if found:
                        yield found
                    found = [record] if record.run_id in wanted else []
                elif found:
                    found.append(record)
    if found:
        yield found


def _example(records: Sequence[Record], gold: Mapping[str, str]) -> dspy.Example | None:
    """The example of a run with its edits; None if a value is missing, or must not be used."""
    run, last = records[0], records[-1]
    settled = [step.id for step in last.steps if step.parent is None and step.commit is not None and not step.branch]
    if not settled or any(step.status == "unreadable" for record in records for step in record.steps):
        return None
    held = last.fields(settled[-1])
    begin = run.steps[0].wrote.items()  # `by`: an earlier run of the thread has given it
    inputs = {name: one.value for name, one in begin if name in run.graph.inputs and one.by is None}
    values = {field: held[field].value for field in gold.values() if field in held}
    used = [*inputs.items(), *values.items()]
    if not values.keys() >= {*gold.values()} or not all(run.may_use(field, value) for field, value in used):
        return None
    edits = {step.id for record in records for step in record.steps if step.kind == "edit"}
    changed = [field for field in dict.fromkeys(gold.values()) if held[field].by in edits]
    columns = {column: thaw(values[field]) for column, field in gold.items()}
    example = dspy.Example(**{name: thaw(value) for name, value in inputs.items()}, **columns, corrected=changed)
    return example.with_inputs(*inputs)


def _check(run: Record, gold: Mapping[str, str]) -> None:
    """Refuses fields that the graph of a run lacks, and columns that are inputs of it."""
    known = [shape.name for shape in run.graph.fields]
    for column, field in gold.items():
        if known and field not in known:
            raise ValueError(
                f"dataset: graph {run.graph.name!r} has no field {field!r}.{suggestion(field, known)} Its fields are "
                f"{list_names(known)}"
            )
        if column in (*run.graph.inputs, CORRECTED):
            what = f"an input of graph {run.graph.name!r}" if column != CORRECTED else "what the examples add"
            raise ValueError(f"dataset: the column {column!r} is {what}: give it another name, as 'gold_{column}'")
