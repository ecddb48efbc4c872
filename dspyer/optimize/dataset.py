"""`dataset`: examples with gold from stored runs, and from corrections of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dspy

from dspyer.errors import list_names, suggestion
from dspyer.extend import thaw

if TYPE_CHECKING:
    from dspyer import Archive
    from dspyer.record.record import Record

logger = logging.getLogger("dspyer")


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
    written. `example.corrected` names the fields that were corrected.

    Args:
        archive: the archive.
        gold: the field of the state for each column.
        graph: only runs of the graph of this name.
        since: only runs that were started then or later; a time without a time zone is local time.
        until: only runs that were started before.
        corrected: only runs of which a field of `gold` was corrected.

    Returns:
        An example for each completed run, the oldest first, with `with_inputs` of what the run got.

    Raises:
        ValueError: if a graph lacks a field. A run that has no value of one is left out; a warning in the log says how
            many were.

    Example:
        >>> from dspyer import END, START, Archive, Graph
        >>> from dspyer.stores import Memory
        >>> store = Memory()
        >>> graph = Graph().add_node("sort", lambda text: {"label": "north"}, writes=["label"])
        >>> thread = graph.add_path(START, "sort", END).compile(store=store).thread("t-1")
        >>> _ = thread.run({"text": "A dry day"}), thread.update({"label": "south"}, as_node="sort")
        >>> [dict(one) for one in dataset(Archive(store), {"gold_label": "label"}, corrected=True)]
        [{'text': 'A dry day', 'gold_label': 'south', 'corrected': ['label']}]
    """
    found: list[dspy.Example] = []
    lacking = 0
    for run, edits in _runs(archive, graph, since, until):
        _check_fields(run, gold)
        steps = [step for step in (*run.steps, *edits) if step.parent is None]  # the last one that wrote a field counts
        wrote = {field: (step.kind, one.value) for step in steps for field, one in step.wrote.items()}
        if not wrote.keys() >= {*gold.values()}:
            lacking += 1
            continue
        changed = [field for field in dict.fromkeys(gold.values()) if wrote[field][0] == "edit"]
        if corrected and not changed:
            continue
        begin = run.steps[0].wrote.items()  # `by`: an earlier run of the thread has given it
        given = {name: one.value for name, one in begin if name in run.graph.inputs and one.by is None}
        columns = {column: thaw(wrote[field][1]) for column, field in gold.items()}
        example = dspy.Example(**{name: thaw(value) for name, value in given.items()}, **columns, corrected=changed)
        found.append(example.with_inputs(*given))
    if lacking:
        names = list_names(gold.values())
        logger.warning("optimize.dataset: %d runs are left out, which have no value of %s", lacking, names)
    return found


def _runs(
    archive: Archive, graph: str | None, since: datetime | None, until: datetime | None
) -> Iterator[tuple[Record, list[Any]]]:
    """The completed runs, the oldest first, each with the edits before the next run of its thread."""
    infos: list[Any] = []
    after = None
    while True:
        page = archive.runs(graph=graph, since=since, until=until, after=after, limit=1000)
        infos += page
        after = page.next
        if after is None:
            break
    for info in reversed(infos):
        if info.status != "completed":
            continue
        record = archive.thread(info.thread).record(info.run_id)
        if record.steps[0].kind == "edit":
            continue
        edits: list[Any] = []
        later = archive.runs(thread=info.thread, since=info.started, limit=1000)
        for one in reversed([one for one in later if one.started > info.started]):
            after_it = archive.thread(one.thread).record(one.run_id)
            if after_it.steps[0].kind != "edit":
                break
            edits += after_it.steps
        yield record, edits


def _check_fields(run: Record, gold: Mapping[str, str]) -> None:
    """Refuses fields that the graph of a run lacks."""
    known = [shape.name for shape in run.graph.fields] or [name for step in run.steps for name in step.wrote]
    for field in gold.values():
        if run.graph.fields and field not in known:
            raise ValueError(
                f"dataset: graph {run.graph.name!r} has no field {field!r}.{suggestion(field, known)} Its fields are "
                f"{list_names(known)}"
            )
