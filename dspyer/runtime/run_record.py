"""The record of a `Run`: from the store where its rows are, or of what the process knows of a run without a store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dspyer.errors import StoreError
from dspyer.events import Asked, Commit, Committed, Posted
from dspyer.graph.spec import drawing_facts
from dspyer.ids import full_id, prefix_at
from dspyer.patch import seal
from dspyer.record.drawn import DrawnGraph
from dspyer.record.making import Material, StepAnswer, StepQuestion, make_steps
from dspyer.record.record import Record
from dspyer.record.stored import record_at
from dspyer.record_codec import changed
from dspyer.scheduler.topology import START


def record_of_run(run: Any) -> Record:
    """The record of a run."""
    if run._source is not None:
        # A thread that was deleted, or a store that was closed, takes nothing from what this process knows.
        with suppress(StoreError):
            reader, thread, at = run._source
            return record_at(reader, thread, at, lambda: run._redactor)
    prefixes = run._prefixes
    log = {entry.commit.id: prefix_at(index, *prefixes)[:-1] for index, entry in enumerate(run._log)}
    labels = {entry.commit.id: log[entry.commit.id] for entry in run._entries}
    label, depth = prefixes[1][:-1], run._depth
    inside: dict[str, Commit] = {}
    posts: list[Posted] = []
    for event in run.events:
        scope = event.scope[depth:]
        if isinstance(event, Committed) and scope:
            # No row has the inputs of a graph inside of a node: they follow from the state around it.
            is_start = event.commit.node == START
            inside[full_id(*scope, event.commit.id)] = (
                changed(event.commit, patch=seal({})) if is_start else event.commit
            )
        elif isinstance(event, Posted):
            posts.append(replace(event, execution=full_id(*scope, event.execution)))
    graph, items = run._graph, {} if run._kept is None else run._kept[0]
    material = Material(
        status=run.status,
        label=label,
        log=run._entries,
        labels=labels,
        inside=inside,
        items={} if depth else items,
        calls=run.lm_calls,
        questions=_questions_of(run),
        posts=posts,
        failures=run.failures,
        failed=[attempt for failed in run._failures for attempt in failed.all_attempts],
        graph=DrawnGraph.of(drawing_facts(graph)),
        redactor=run._redactor,
        keeps_texts=graph.recorded == "function",
    )
    hidden = graph.hidden
    return Record(
        label or run.run_id,
        run.run_id,
        "" if run._source is None else run._source[1],
        material.graph,
        run.status,
        run._ended - run.duration,
        run._ended,
        run.usage,
        make_steps(material),
        tuple([one.model_copy(update={"execution": full_id(label, one.execution)}) for one in run.failures]),
        hidden=tuple(hidden) if isinstance(hidden, list) else hidden,
        lm_calls=graph.recorded,
        _log=run._entries,
    )


def _questions_of(run: Any) -> Sequence[StepQuestion]:
    if run._kept is None or run._depth:
        return ()
    _, questions, answers = run._kept
    times = {event.question.id: event.at for event in run.events if isinstance(event, Asked)}
    return [
        StepQuestion(question, times.get(question.id), StepAnswer(answers[key]) if key in answers else None)
        for key, question in questions.items()
    ]
