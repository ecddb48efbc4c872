"""Commands that run a program, or change a thread of it: each is one method of `Thread`.

`programs` imports DSPy and is therefore imported in the functions: `dspyer --help` must start at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dspyer.cli.arguments import (
    CostOption,
    JsonOption,
    KeyFileOption,
    ProgramOption,
    RequestsOption,
    SecondsOption,
    StoreOption,
    TakeOverOption,
    ThreadArgument,
    TokensOption,
    UsageError,
    parse_answers,
    parse_object,
    version_of,
)
from dspyer.cli.summaries import print_deleted, print_result
from dspyer.cli.terminal import visible, write, write_json

if TYPE_CHECKING:
    from dspyer.threads.thread import Thread


class OnBusy(StrEnum):
    """What `run` does while another run owns the thread."""

    RAISE = "raise"
    WAIT = "wait"


CommitArgument = Annotated[str, typer.Argument(metavar="COMMIT", help="Version or id of a commit.", show_default=False)]


def run(
    program: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The program; the current folder is importable.")
    ],
    inputs: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="JSON object of inputs: a file, - for stdin, or the text itself."),
    ] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="NAME", help="Run on this thread; otherwise nothing is stored.")
    ] = None,
    store: StoreOption = None,
    cost: CostOption = None,
    tokens: TokensOption = None,
    requests: RequestsOption = None,
    seconds: SecondsOption = None,
    abandon: Annotated[bool, typer.Option("--abandon", help="Leave an open run of the thread as it is.")] = False,
    take_over: TakeOverOption = False,
    on_conflict: Annotated[
        OnBusy, typer.Option("--on-conflict", help="What to do while another run owns the thread.")
    ] = OnBusy.RAISE,
    lock_timeout: Annotated[
        float, typer.Option("--lock-timeout", metavar="SECONDS", help="Most seconds to wait for the thread.")
    ] = 60.0,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="ID", help="The id of the request: given again, it resumes or shows the run it began."
        ),
    ] = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> str:
    """Run a program, on a thread or without a store."""
    given = parse_object("--input", inputs)  # refused before the import below, which takes a second

    from dspyer.cli.programs import budget_of, load_program, play, program_on

    budget = budget_of(cost, tokens, requests, seconds)
    if thread is None:
        conflict = on_conflict != OnBusy.RAISE
        options = {"--abandon": abandon, "--take-over": take_over, "--on-conflict": conflict, "--key": key is not None}
        for name, is_given in options.items():
            if is_given:
                raise UsageError(f"{name} is about a thread: give --thread")
        loaded = load_program(program)
        return print_result(play(lambda: loaded.run(given, budget=budget), loaded), as_json)
    loaded = program_on(program, store, key_file, create=True)
    t = loaded.thread(thread)
    played = play(
        lambda: t.run(
            given,
            key=key,
            budget=budget,
            abandon=abandon,
            take_over=take_over,
            on_conflict="wait" if on_conflict is OnBusy.WAIT else "raise",
            lock_timeout=lock_timeout,
        ),
        loaded,
        t,
    )
    return print_result(played, as_json)


def resume(
    thread: ThreadArgument,
    program: ProgramOption,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer", metavar="KEY=VALUE", help="Answer to a question, by its key or id: JSON, else a text."
        ),
    ] = None,
    store: StoreOption = None,
    cost: CostOption = None,
    tokens: TokensOption = None,
    requests: RequestsOption = None,
    seconds: SecondsOption = None,
    take_over: TakeOverOption = False,
    max_resumes: Annotated[
        int, typer.Option("--max-resumes", metavar="N", min=0, help="How often a run may be resumed without progress.")
    ] = 10,
    allow_changed_graph: Annotated[
        bool, typer.Option("--allow-changed-graph", help="Continue although the graph has changed, if the log fits it.")
    ] = False,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> str:
    """Continue the last run of a thread: after a failure, a stop, a crash or a question."""
    from dspyer.cli.programs import budget_of, existing_thread, play, program_on

    budget = budget_of(cost, tokens, requests, seconds)
    loaded = program_on(program, store, key_file)
    t = existing_thread(loaded, thread)
    asked = t.questions if answer else ()
    types = {name: (one.answer or {}).get("type") for one in asked for name in (one.key, one.id)}
    answers = parse_answers(answer or (), types)
    played = play(
        lambda: t.resume(
            answers or None,
            budget=budget,
            take_over=take_over,
            max_resumes=max_resumes,
            allow_changed_graph=allow_changed_graph,
        ),
        loaded,
        t,
    )
    return print_result(played, as_json)


def rerun(
    thread: ThreadArgument,
    commit: CommitArgument,
    program: ProgramOption,
    store: StoreOption = None,
    cost: CostOption = None,
    tokens: TokensOption = None,
    requests: RequestsOption = None,
    seconds: SecondsOption = None,
    take_over: TakeOverOption = False,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> str:
    """Go back to a commit and repeat what came after it, as a new run."""
    from dspyer.cli.programs import budget_of, existing_thread, play, program_on

    budget = budget_of(cost, tokens, requests, seconds)
    loaded = program_on(program, store, key_file)
    t = existing_thread(loaded, thread)
    again = lambda: t.rerun(version_of(commit), budget=budget, take_over=take_over)  # noqa: E731
    return print_result(play(again, loaded, t), as_json)


def stop(
    thread: ThreadArgument,
    program: ProgramOption,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the run that works on a thread, in whatever process it is."""
    from dspyer.cli.programs import existing_thread, program_on

    t = existing_thread(program_on(program, store, key_file), thread)
    t.stop()
    _print_thread(t, f"stopped the run of {thread}", as_json)


def copy(
    thread: ThreadArgument,
    to: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new thread.", show_default=False)],
    program: ProgramOption,
    at: Annotated[
        str | None, typer.Option("--at", metavar="COMMIT", help="Continue from this version or id, not from the end.")
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            "--patch", metavar="FILE", help="JSON object of changes: a file, - for stdin, or the text itself."
        ),
    ] = None,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make another thread that continues from here, or from an earlier commit."""
    from dspyer.cli.programs import existing_thread, parse_patch, program_on

    change = None if patch is None else parse_patch("--patch", patch)
    t = existing_thread(program_on(program, store, key_file), thread)
    copied = t.copy(to, at=None if at is None else version_of(at), patch=change)
    _print_thread(copied, f"copied {thread} to {to}", as_json)


def prune(
    thread: ThreadArgument,
    before: Annotated[
        str,
        typer.Argument(metavar="COMMIT", help="Version or id; its run is the first that stays.", show_default=False),
    ],
    program: ProgramOption,
    take_over: TakeOverOption = False,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the runs of a thread before the one that a commit belongs to, and what abandoned runs left."""
    from dspyer.cli.programs import existing_thread, program_on

    t = existing_thread(program_on(program, store, key_file), thread)
    print_deleted(t.prune(version_of(before), take_over=take_over), as_json)


def _print_thread(t: Thread, text: str, as_json: bool) -> None:
    if as_json:
        write_json({"thread": t.name, "status": t.status})
    else:
        write(visible(f"{text}; its status is {t.status}"))
