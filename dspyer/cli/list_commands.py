"""Commands that list stored runs: `Archive.runs` and `Archive.threads`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from dspyer.cli.arguments import JsonOption, KeyFileOption, StoreOption, parse_time
from dspyer.cli.summaries import print_runs
from dspyer.cli.terminal import note, shell_word, write_json


class Status(StrEnum):
    """The statuses that a stored run may have."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    CRASHED = "crashed"


StatusOption = Annotated[Status | None, typer.Option("--status", help="Only runs with this status.")]
GraphOption = Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only runs of this graph.")]
ThreadOption = Annotated[str | None, typer.Option("--thread", metavar="NAME", help="Only runs of this thread.")]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        metavar="TIME",
        parser=parse_time,
        help="Only runs that started then or later: 2h, 3d, yesterday, 2026-11-22T14:09.",
    ),
]
UntilOption = Annotated[
    datetime | None, typer.Option("--until", metavar="TIME", parser=parse_time, help="Only runs that started before.")
]
TextOption = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="Only runs with this text in thread or failure."),
]
AfterOption = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="The next page: what the page before has named.")
]
LimitOption = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Most runs to list.")]


def _listing(what: str, text: str) -> Callable[..., None]:
    """The command that lists with a method of `Archive`, and its help."""

    def command(
        status: StatusOption = None,
        graph: GraphOption = None,
        thread: ThreadOption = None,
        since: SinceOption = None,
        until: UntilOption = None,
        text: TextOption = None,
        after: AfterOption = None,
        limit: LimitOption = 100,
        store: StoreOption = None,
        key_file: KeyFileOption = None,
        as_json: JsonOption = False,
    ) -> None:
        from dspyer.cli.store_access import open_archive

        with open_archive(store, key_file) as archive:
            page = getattr(archive, what)(
                status=None if status is None else status.value,
                graph=graph,
                thread=thread,
                since=since,
                until=until,
                text=text,
                after=after,
                limit=limit,
            )
            infos = [info.to_dict() for info in page]
            if as_json:
                for info in infos:
                    write_json(info)
            elif infos:
                print_runs(infos)
            else:
                note(f"no {what}")
            if page.next is not None:
                note(f"there are more: --after {shell_word(page.next)}")

    command.__doc__ = text
    return command


runs = _listing("runs", "List runs, the newest first.")
threads = _listing("threads", "List threads by their last run, the newest first.")
