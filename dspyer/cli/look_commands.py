"""Commands that read one thread: each is one method of what `Archive.thread(name)` returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspyer.cli.arguments import JsonOption, KeyFileOption, RunOption, StoreOption, ThreadArgument, version_of
from dspyer.cli.summaries import (
    print_blame,
    print_calls,
    print_changes,
    print_commit,
    print_commits,
    print_execution,
    print_run,
    print_values,
)
from dspyer.cli.terminal import note, visible, write, write_json
from dspyer.errors import StoreError

if TYPE_CHECKING:
    from dspyer.archive.archived_thread import ArchivedThread


class GraphForm(StrEnum):
    """How `graph` prints a graph."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


@contextmanager
def _thread(name: str, store: str | None, key_file: str | None) -> Iterator[ArchivedThread]:
    from dspyer.cli.store_access import open_archive

    with open_archive(store, key_file) as archive:
        yield archive.thread(name)


def show(
    thread: ThreadArgument,
    commit: Annotated[
        str | None,
        typer.Argument(
            metavar="COMMIT",
            help="Version or id: show this commit, not the run; or the id of an execution that failed or asks.",
            show_default=False,
        ),
    ] = None,
    run: RunOption = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Also the messages and responses of LM calls, if they were recorded.")
    ] = False,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last run of a thread, its state and the LM calls of what failed, or one commit."""
    from dspyer.cli.store_access import failed_calls, state_of_run

    with _thread(thread, store, key_file) as t:
        if commit is not None:
            _show_step(t, commit, run, prompts, as_json)
            return
        info = t.info(run).to_dict()
        if as_json:
            write_json({**info, "state": state_of_run(t, run), "lm_calls": failed_calls(t, run)})
        else:
            print_run(info)  # before the state, which may not be readable
            print_calls("LM calls of what failed", failed_calls(t, run), prompts)
            print_values("state", state_of_run(t, run))


def _show_step(t: ArchivedThread, name: str, run: str | None, prompts: bool, as_json: bool) -> None:
    from dspyer.cli.store_access import step_of

    found, is_commit = step_of(t, version_of(name), run)
    if as_json:
        write_json(found)
    else:
        (print_commit if is_commit else print_execution)(found, prompts)


def log(
    thread: ThreadArgument,
    run: RunOption = None,
    inside: Annotated[
        str | None,
        typer.Option("--inside", metavar="COMMIT", help="The commits inside of this one, a graph."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first", metavar="VERSION", min=0, help="Begin with this version, not the newest.")
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Most commits to list.")] = 50,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first; otherwise the newest.")] = False,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the commits of a thread, the newest first."""
    from dspyer.cli.store_access import commits_of, is_unreadable

    with _thread(thread, store, key_file) as t:
        found, more = commits_of(t, run, inside, first, count, newest=not oldest)
        if as_json:
            for commit in found:
                write_json(commit)
        elif found:
            print_commits(found)
        else:
            note("no commits")
        if more is not None:
            note(f"there are more: --first {more}")
        unreadable = next((commit["patch"] for commit in found if is_unreadable(commit)), None)
        if unreadable is not None:
            raise StoreError(unreadable["value"])


def diff(
    thread: ThreadArgument,
    first: Annotated[str, typer.Argument(metavar="COMMIT", help="Version or id of a commit.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="COMMIT", help="Version or id of another.", show_default=False)],
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between the states after two commits."""
    from dspyer.cli.store_access import patch_dict, state_at

    with _thread(thread, store, key_file) as t:
        before, after = version_of(first), version_of(second)
        if as_json:
            write_json({"first": before, "second": after, "diff": patch_dict(t.diff(before, after))})
        else:
            print_changes(state_at(t, before), state_at(t, after))


def blame(
    thread: ThreadArgument,
    path: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Paths such as order.id; by default each field.", show_default=False),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="COMMIT", help="Who wrote last up to this version or id.")
    ] = None,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which commit has last written a field, or a path of the state."""
    from dspyer.cli.store_access import writers

    with _thread(thread, store, key_file) as t:
        found = writers(t, path or None, None if at is None else version_of(at))
        if as_json:
            for record in found:
                write_json(record)
        elif found:
            print_blame(found)
        else:
            note("the state is empty")


def stats(
    thread: ThreadArgument,
    run: RunOption = None,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how reliable the nodes of a thread were, and what they cost."""
    with _thread(thread, store, key_file) as t:
        found = t.stats(run)
        if as_json:
            write_json(found.to_dict())
        else:
            _write_text(str(found))


def graph(
    thread: ThreadArgument,
    run: RunOption = None,
    form: Annotated[GraphForm, typer.Option("--format", help="How to print it.")] = GraphForm.TEXT,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the graph of a run as it was stored."""
    with _thread(thread, store, key_file) as t:
        found: Any = t.graph(run)
        if found is None:
            raise LookupError(f"the run of thread {t.name!r} has stored no graph")
        if as_json:
            write_json({"name": found.name, **found.drawing().to_dict()})
        else:
            printed = {GraphForm.TEXT: found.explain, GraphForm.MERMAID: found.to_mermaid, GraphForm.SVG: found.to_svg}
            _write_text(printed[form]())


def _write_text(text: str) -> None:
    for line in text.splitlines():
        write(visible(line))
