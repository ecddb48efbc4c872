"""The record of a `Run`: from the store where its rows are, or of what the process knows of a run without a store."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from dspyer.errors import StoreError
from dspyer.events import Asked, Committed, Posted
from dspyer.ids import full_id, outermost_execution, prefix_at
from dspyer.log.history import scoped_logs
from dspyer.log.reader import read_run
from dspyer.patch import seal
from dspyer.record.items import Items, items_of
from dspyer.record.making import RunEnding, RunSteps, StepQuestion
from dspyer.record.record import Record
from dspyer.record.stored import record_at
from dspyer.record.turns import Turn, turns_in
from dspyer.record_codec import changed
from dspyer.redaction import Redactor
from dspyer.scheduler.topology import START
from dspyer.values.freezing import freeze


def record_of_run(run: Any) -> Record:
    """The record of a run."""
    if run._source is not None:
        # A thread that was deleted, or a store that was closed, takes nothing from what this process knows.
        with suppress(StoreError):
            reader, thread, at = run._source
            return record_at(reader, thread, at, lambda: run._redactor)
    steps, ending = _steps_of(run, run._redactor)
    thread, graph = "" if run._source is None else run._source[1], run._graph
    began = run._ended - run.duration
    return Record.of(steps, ending, run.run_id, thread, began, graph.hidden, graph.recorded)


def items_of_run(run: Any, node: str) -> Items:
    """The items of a map of a run, with the values as they are. The process knows those of earlier ones as well."""
    return items_of(*_steps_of(run, None), node)


def _steps_of(run: Any, redactor: Redactor | None) -> tuple[RunSteps, RunEnding]:
    """The facts of a run as this process knows them."""
    prefixes, depth, graph = run._prefixes, run._depth, run._graph
    steps = RunSteps(prefixes[1][:-1], graph.drawn, redactor=redactor, keeps_texts=graph.recorded == "function")
    labels = {entry.commit.id: prefix_at(index, *prefixes)[:-1] for index, entry in enumerate(run._log)}
    for entry in run._entries:
        steps.commit(entry, labels[entry.commit.id])
    versions = [entry.commit.version for entry in run._entries if entry.commit.version is not None]
    steps.settle(len(versions), versions[0] if versions else 0)
    for event in run.events:
        scope = event.scope[depth:]
        if isinstance(event, Committed) and scope:
            # No row has the inputs of a graph inside of a node: they follow from the state around it.
            commit = changed(event.commit, patch=seal({})) if event.commit.node == START else event.commit
            local = full_id(*scope, commit.id)
            steps.of(local).inside[local] = commit
        elif isinstance(event, Posted):
            local = full_id(*scope, event.execution)
            steps.of(local).posts.append(replace(event, execution=local))
    for call in run.lm_calls:
        steps.of(call.execution).calls.append(call)
    items, questions = ({}, {}) if run._kept is None or depth else run._kept
    for execution, value in items.items():
        if outermost_execution(execution) not in steps.places:  # else the commit has it
            steps.of(execution).items[execution] = freeze(value)
    asked_at = {event.question.id: event.at for event in run.events if isinstance(event, Asked)}
    answers = {one.question.id: replace(one, value=freeze(one.value)) for one in run.answers if questions}
    for one in questions.values():
        steps.ask(StepQuestion(one, asked_at.get(one.id), answers.get(one.id)))
    failed = [attempt for failed in run._failures for attempt in failed.all_attempts]
    return steps, RunEnding(run.status, run._ended, run.usage, run.failures, failed)


def turns_of_run(run: Any) -> tuple[Turn, ...]:
    """The turns of a run: from its commits, and those of graphs inside of nodes that were kept beside them."""
    inner = dict(run._inner_turns)
    if run._replayed and run._source is not None:
        reader, thread, at = run._source
        row = reader.store.thread(thread)
        # What an earlier process has finished inside of nodes is in the store alone.
        rows = read_run(reader.store, at, None if row is None else row.root)
        inner |= {scope: [one.commit for one in log] for scope, log in scoped_logs(reader, rows, bool).items()}
    own = [entry.commit for entry in run._log]
    return turns_in({run._scope: own, **inner}, run._graph.name, run.answers, run._scope)
