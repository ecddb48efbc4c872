"""The commands: each is one method of `Archive`, of the thread that it returns, or of `Thread`.

`programs` imports DSPy, and `store_access` the stores: both are imported in the functions, since `dspyer --help` must
start at once. Options that many commands have are a group: a parameter of type `CommonOptions`, `BudgetOptions`,
`RunOptions` or `PageOptions`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from dspyer import display
from dspyer.cli.arguments import (
    BudgetOptions,
    CommonOptions,
    UsageError,
    commit_argument,
    login,
    parse_answers,
    parse_object,
    parse_time,
    version_of,
)
from dspyer.cli.summaries import (
    print_answers,
    print_blame,
    print_calls,
    print_changes,
    print_commit,
    print_commits,
    print_deleted,
    print_execution,
    print_messages,
    print_names,
    print_run,
    print_runs,
    print_values,
    print_waiting,
)
from dspyer.cli.terminal import flush, note, shell_word, visible, write, write_json, write_text
from dspyer.errors import StoreError

if TYPE_CHECKING:
    from dspyer import Thread

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="Name of the thread.", show_default=False)]
RunOption = Annotated[str | None, typer.Option("--run", metavar="ID", help="A run of the thread, not its last one.")]
ProgramOption = Annotated[
    str,
    typer.Option(
        "--program",
        envvar="DSPYER_PROGRAM",
        metavar="MODULE:NAME",
        help="The program, a graph, or a function that returns one; the current folder is importable.",
        show_default=False,
    ),
]
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
    datetime | None,
    typer.Option("--until", metavar="TIME", parser=parse_time, help="Only runs that started before."),
]
TakeOverOption = Annotated[
    bool, typer.Option("--take-over", help="Replace the run that owns the thread; it commits nothing more.")
]


# --- look at stored runs


class RunOptions(NamedTuple):
    """The options of the commands about many runs: which ones."""

    status: Annotated[
        Literal["running", "completed", "failed", "interrupted", "stopped", "crashed"] | None,
        typer.Option("--status", help="Only runs with this status."),
    ] = None
    graph: Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only runs of this graph.")] = None
    thread: Annotated[str | None, typer.Option("--thread", metavar="NAME", help="Only runs of this thread.")] = None
    since: SinceOption = None
    until: UntilOption = None
    contains: Annotated[
        str | None,
        typer.Option("--contains", metavar="TEXT", help="Only runs with this text in a name, value, prompt, failure."),
    ] = None
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only runs that came to this node.")] = None
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Only runs that called this language model.")
    ] = None
    min_cost: Annotated[
        float | None, typer.Option("--min-cost", metavar="USD", help="Only runs that cost so much or more.")
    ] = None
    min_seconds: Annotated[
        float | None, typer.Option("--min-seconds", metavar="N", help="Only runs that took so long or longer.")
    ] = None


class PageOptions(NamedTuple):
    """The options of the lists: which part."""

    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="The next page: what the page before has named.")
    ] = None
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Most runs to list.")] = 100


def runs(filters: RunOptions, part: PageOptions, common: CommonOptions) -> None:
    """List runs, the newest first."""
    _list("runs", {**filters._asdict(), **part._asdict()}, common)


def threads(filters: RunOptions, part: PageOptions, common: CommonOptions) -> None:
    """List threads by their last run, the newest first."""
    _list("threads", {**filters._asdict(), **part._asdict()}, common)


def due(
    common: CommonOptions,
    graph: Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only runs of this graph.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Most threads to list.")] = None,
) -> None:
    """List threads that can go on by themselves: a question has expired, or their process has crashed."""
    with common.archive() as archive:
        names = archive.due(graph=graph, limit=limit)
        common.show_all([{"thread": name} for name in names], print_names, "no thread is due")


def questions(common: CommonOptions) -> None:
    """List the questions that wait for an answer, the longest first."""
    with common.archive() as archive:
        common.show_all([one.to_dict() for one in archive.questions()], print_waiting, "no question is open")


def overview(
    common: CommonOptions,
    graph: Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only runs of this graph.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> None:
    """Sum up runs: how many have failed and why, how long they took, tokens and cost."""
    with common.archive() as archive:
        found = archive.overview(since=since, until=until, graph=graph)
        common.show(found.to_dict(), lambda _: write_text(str(found)))


def examples(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node, or the path to it: lead/check.")],
    filters: RunOptions,
    common: CommonOptions,
) -> None:
    """Print what a node has read and written in stored runs as JSON lines, a data set."""
    with common.archive() as archive:
        found = archive._examples(name, filters._asdict())
    for one in found.items:
        write_json(one.to_dict())
    if found.left_out or not found.items:
        note(f"{len(found.items):,} examples; {found.left_out:,} left out, of which a value is hidden or not stored")


def _list(what: str, filters: dict[str, Any], common: CommonOptions) -> None:
    with common.archive() as archive:
        page = getattr(archive, what)(**filters)  # the options have the names of its parameters
        common.show_all([info.to_dict() for info in page], print_runs, f"no {what}")
        if page.next is not None:
            note(f"there are more: --after {shell_word(page.next)}")


def show(
    thread: ThreadArgument,
    common: CommonOptions,
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
) -> None:
    """Show the last run of a thread, its state and the LM calls of what failed, or one commit."""
    from dspyer.cli.store_access import facts_of, failed_calls, json_of, shown_state, step_of

    with common.archive() as archive:
        t = archive.thread(thread)
        if commit is not None:
            found, is_commit = step_of(t, version_of(commit), run)
            common.show(found, lambda found: (print_commit if is_commit else print_execution)(found, prompts))
            return
        info, items, answers, messages = facts_of(t, run)
        if common.as_json:
            info |= {"items": [one.to_dict() for one in items], "answers": answers, "messages": messages}
            write_json({**info, "state": json_of(shown_state(t, run)), "lm_calls": failed_calls(t, run)})
        else:
            print_run(info, list(map(str, items)))  # before the state, which may not be readable
            print_answers(answers)
            print_messages(messages)
            print_calls("LM calls of what failed", failed_calls(t, run), prompts)
            print_values("state", json_of(shown_state(t, run)))


def log(
    thread: ThreadArgument,
    common: CommonOptions,
    run: RunOption = None,
    inside: Annotated[
        str | None, typer.Option("--inside", metavar="COMMIT", help="The commits inside of this one, a graph.")
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first", metavar="VERSION", min=0, help="Begin with this version, not the newest.")
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Most commits to list.")] = 50,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first; otherwise the newest.")] = False,
) -> None:
    """List the commits of a thread, the newest first."""
    from dspyer.cli.store_access import commits_of

    with common.archive() as archive:
        found, more, problem = commits_of(archive.thread(thread), run, inside, first, count, newest=not oldest)
        common.show_all(found, print_commits, "no commits")
        if more is not None:
            note(f"there are more: --first {more}")
        # At the end: what can be read was printed, and the exit code tells that something cannot.
        if problem is not None:
            raise StoreError(problem)


def diff(
    thread: ThreadArgument,
    first: Annotated[str, commit_argument("Version or id of a commit.")],
    second: Annotated[str, commit_argument("Version or id of another.")],
    common: CommonOptions,
) -> None:
    """Show what differs between the states after two commits."""
    from dspyer.cli.store_access import json_of, patch_dict, shown_state

    with common.archive() as archive:
        t, before, after = archive.thread(thread), version_of(first), version_of(second)
        old, new = shown_state(t, at=before), shown_state(t, at=after)
        if common.as_json:
            write_json({"first": before, "second": after, "diff": patch_dict(old.diff(new))})
        else:
            print_changes(json_of(old), json_of(new))


def blame(
    thread: ThreadArgument,
    common: CommonOptions,
    path: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Paths such as order.id; by default each field.", show_default=False),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="COMMIT", help="Who wrote last up to this version or id.")
    ] = None,
) -> None:
    """Show which commit has last written a field, or a path of the state."""
    with common.archive() as archive:
        t, version = archive.thread(thread), None if at is None else version_of(at)
        paths = [*path] if path else [(field,) for field in (t.state() if version is None else t.at(version))]
        found = [(one if isinstance(one, str) else one[0], t._records.shown(t.blame(one, version))) for one in paths]
        common.show_all([{"path": one, **commit.to_dict()} for one, commit in found], print_blame, "the state is empty")


def stats(thread: ThreadArgument, common: CommonOptions, run: RunOption = None) -> None:
    """Show how reliable the nodes of a thread were, and what they cost."""
    with common.archive() as archive:
        found = archive.thread(thread).stats(run)
        common.show(found.to_dict(), lambda _: write_text(str(found)))


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="A thread, for its last run, or a run: t-42.1.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another.")],
    common: CommonOptions,
) -> None:
    """Show two runs side by side: figures, and the steps that differ."""
    from dspyer.cli.store_access import record_named

    with common.archive() as archive:
        found = record_named(archive, first).compare(record_named(archive, second))
        common.show({"a": found.a.id, "b": found.b.id, **found.to_dict()}, lambda _: write_text(str(found)))


def graph(
    thread: ThreadArgument,
    common: CommonOptions,
    run: RunOption = None,
    form: Annotated[Literal["text", "mermaid", "svg"], typer.Option("--format", help="How to print it.")] = "text",
) -> None:
    """Print the graph of a run as it was stored."""
    with common.archive() as archive:
        found = archive.thread(thread).graph(run)
        printed = {"text": found.explain, "mermaid": found.to_mermaid, "svg": found.to_svg}
        common.show({"name": found.name, **display.drawing_of(found).to_dict()}, lambda _: write_text(printed[form]()))


def inspect(
    common: CommonOptions,
    address: Annotated[
        str | None, typer.Argument(metavar="STORE", help="The store, instead of --store.", show_default=False)
    ] = None,
    program: Annotated[
        list[str],
        typer.Option("--program", metavar="MODULE:NAME", help="Act with this program, or several; else it only reads."),
    ] = [],  # noqa: B006 - typer makes a new one
    host: Annotated[
        str, typer.Option("--host", help="Address to bind to; not loopback: others reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 for a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
) -> None:
    """Show stored runs in a web page, until Ctrl-C. The first line is its address."""
    from dspyer.inspector import inspect as serve

    def say(page: str) -> None:
        common.show({"address": page}, lambda _: write(page))
        flush()  # a pipe may read it

    common = common if address is None else common._replace(store=address)
    loaded = []
    if program:
        from dspyer.cli.programs import program_on

        loaded = [program_on(one, common) for one in program]
    with common.archive(next(iter(loaded), None)) as archive, suppress(KeyboardInterrupt):
        serve(archive, loaded, host=host, port=port, browser=not no_browser, say=say)


# --- run a program


class ThreadRunOptions(NamedTuple):
    """The options of a run on a thread, with the names that `Thread.run` has for them."""

    if_open: Annotated[
        Literal["refuse", "amend", "abandon"],
        typer.Option("--if-open", help="What to do with an open run: refuse the inputs, add them to it, or leave it."),
    ] = "refuse"
    take_over: TakeOverOption = False
    on_conflict: Annotated[
        Literal["raise", "wait"], typer.Option("--on-conflict", help="What to do while another run owns the thread.")
    ] = "raise"
    lock_timeout: Annotated[
        float, typer.Option("--lock-timeout", metavar="SECONDS", help="Most seconds to wait for the thread.")
    ] = 60.0
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="ID", help="The id of the request: given again, it resumes or shows the run it began."
        ),
    ] = None


def run(
    program: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The program; the current folder is importable.")
    ],
    spending: BudgetOptions,
    on_thread: ThreadRunOptions,
    common: CommonOptions,
    inputs: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="JSON object of inputs: a file, - for stdin, or the text itself."),
    ] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="NAME", help="Run on this thread; otherwise nothing is stored.")
    ] = None,
) -> str:
    """Run a program, on a thread or without a store."""
    given = parse_object("--input", inputs)  # refused before the import below, which takes a second

    from dspyer.cli.programs import budget_of, load_program, play, program_on

    budget = budget_of(spending)
    if thread is None:
        wrong = [name for name, one in on_thread._asdict().items() if one != on_thread._field_defaults[name]]
        if wrong:
            raise UsageError(f"--{wrong[0].replace('_', '-')} is about a thread: give --thread")
        loaded = load_program(program)
        return play(lambda: loaded.run(given, budget=budget), common, loaded)
    loaded = program_on(program, common, create=True)
    t = loaded.thread(thread)
    return play(lambda: t.run(given, budget=budget, **on_thread._asdict()), common, loaded, t)


def resume(
    thread: ThreadArgument,
    program: ProgramOption,
    spending: BudgetOptions,
    common: CommonOptions,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer", metavar="KEY=VALUE", help="Answer to a question, by its key or id: JSON, else a text."
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Who answers; by default the name of your login.")
    ] = None,
    comment: Annotated[
        str | None, typer.Option("--comment", metavar="TEXT", help="What is said with the answers; no model sees it.")
    ] = None,
    take_over: TakeOverOption = False,
    max_resumes: Annotated[
        int, typer.Option("--max-resumes", metavar="N", min=0, help="How often a run may be resumed without progress.")
    ] = 10,
    allow_changed_graph: Annotated[
        bool, typer.Option("--allow-changed-graph", help="Continue although the graph has changed, if the log fits it.")
    ] = False,
) -> str:
    """Continue the last run of a thread: after a failure, a stop, a crash or a question."""
    from dspyer.cli.programs import budget_of, play, thread_of

    budget = budget_of(spending)
    loaded, t = thread_of(program, thread, common)
    # The types of the answers decide what their texts mean: `--answer code=007` is a text where one is asked for.
    asked = t.questions if answer else ()
    types = {name: (one.answer or {}).get("type") for one in asked for name in (one.key, one.id)}
    answers = parse_answers(answer or (), types) or None
    again = lambda: t.resume(  # noqa: E731
        answers,
        # Who types the command is who answers: without a name it could not be told from the answer of a program.
        by=login() if by is None else by,
        comment=comment,
        budget=budget,
        take_over=take_over,
        max_resumes=max_resumes,
        allow_changed_graph=allow_changed_graph,
    )
    return play(again, common, loaded, t)


def rerun(
    thread: ThreadArgument,
    commit: Annotated[str, commit_argument("Version or id of a commit.")],
    program: ProgramOption,
    spending: BudgetOptions,
    common: CommonOptions,
    take_over: TakeOverOption = False,
) -> str:
    """Go back to a commit and repeat what came after it, as a new run."""
    from dspyer.cli.programs import budget_of, play, thread_of

    budget = budget_of(spending)
    loaded, t = thread_of(program, thread, common)
    again = lambda: t.rerun(version_of(commit), budget=budget, take_over=take_over)  # noqa: E731
    return play(again, common, loaded, t)


def stop(thread: ThreadArgument, program: ProgramOption, common: CommonOptions) -> None:
    """Stop the run that works on a thread, in whatever process it is."""
    from dspyer.cli.programs import thread_of

    _, t = thread_of(program, thread, common)
    t.stop()
    _print_thread(t, f"stopped the run of {thread}", common)


# --- change threads


def copy(
    thread: ThreadArgument,
    to: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new thread.", show_default=False)],
    program: ProgramOption,
    common: CommonOptions,
    at: Annotated[
        str | None, typer.Option("--at", metavar="COMMIT", help="Continue from this version or id, not from the end.")
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            "--patch", metavar="FILE", help="JSON object of changes: a file, - for stdin, or the text itself."
        ),
    ] = None,
) -> None:
    """Make another thread that continues from here, or from an earlier commit."""
    from dspyer.cli.programs import parse_patch, thread_of

    change = None if patch is None else parse_patch("--patch", patch)
    _, t = thread_of(program, thread, common)
    copied = t.copy(to, at=None if at is None else version_of(at), patch=change)
    _print_thread(copied, f"copied {thread} to {to}", common)


def prune(
    thread: ThreadArgument,
    before: Annotated[str, commit_argument("Version or id; its run is the first that stays.")],
    program: ProgramOption,
    common: CommonOptions,
    take_over: TakeOverOption = False,
) -> None:
    """Delete the runs of a thread before the one that a commit belongs to, and what abandoned runs left."""
    from dspyer.cli.programs import thread_of

    _, t = thread_of(program, thread, common)
    report = t.prune(version_of(before), take_over=take_over)
    record = {**report._asdict(), "kept": {name: list(runs) for name, runs in report.kept.items()}}
    common.show(record, print_deleted)


def export(
    thread: ThreadArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of JSON lines.", show_default=False)],
    common: CommonOptions,
) -> None:
    """Write a thread to a file, with everything that it holds. Handle the file like the store."""
    from dspyer.cli.store_access import export_thread

    digest = export_thread(common, thread, file)
    text = f"wrote {visible(thread)} to {visible(str(file))}, digest {digest}"
    common.show({"thread": thread, "file": str(file), "digest": digest}, lambda _: write(text))


def load(
    thread: ThreadArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What export has written.", exists=True, dir_okay=False)],
    common: CommonOptions,
) -> None:
    """Make a thread from an exported file. The store is created if there is none."""
    from dspyer.cli.store_access import load_thread

    load_thread(common, thread, file)
    text = f"loaded {visible(thread)} from {visible(str(file))}"
    common.show({"thread": thread, "file": str(file)}, lambda _: write(text))


def _print_thread(t: Thread, text: str, common: CommonOptions) -> None:
    shown = visible(f"{text}; its status is {t.status}")
    common.show({"thread": t.name, "status": t.status}, lambda _: write(shown))
