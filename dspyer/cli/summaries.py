"""Forms in which the commands show runs, commits and differences to people, all from the form that `--json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dspyer.cli.arguments import Record
from dspyer.cli.terminal import (
    Cell,
    Column,
    Styled,
    shell_word,
    time_text,
    value_text,
    visible,
    write,
    write_fields,
    write_table,
    write_wrapped,
)
from dspyer.display import cost_text, count_of, duration_text
from dspyer.extend import path_text

STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    "crashed": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
    "running": "cyan",
}


def status_cell(status: str) -> Cell:
    """A status in its colour."""
    return Styled(status, STATUS_STYLES.get(status, ""))


# --- runs


def print_runs(infos: Sequence[Record]) -> None:
    """Runs as a table; below a run why it failed, or what it asks."""
    columns: list[Column] = [
        Column("STATUS", lambda run: status_cell(run["status"])),
        Column("THREAD", lambda run: run["thread"], least=8),
        Column("STARTED", lambda run: time_text(run["started"])),
        Column("TOOK", lambda run: duration_text(_took(run)), right=True),
        Column("STEPS", lambda run: f"{run['steps']:,}", right=True),
        Column("COST", lambda run: cost_text(run["cost"]), right=True),
        Column("GRAPH", lambda run: run["graph"], least=5),
    ]
    write_table(columns, infos, _remark)


def _took(info: Record) -> float | None:
    if info["started"] is None or info["ended"] is None:
        return None
    return (datetime.fromisoformat(info["ended"]) - datetime.fromisoformat(info["started"])).total_seconds()


def _remark(info: Record) -> str:
    if info["failure"]:
        return failure_text(info["failure"])
    return "; ".join(question_text(question) for question in info["questions"])


def print_waiting(waiting: Sequence[Record]) -> None:
    """Questions as a table, with the thread that waits for the answer."""
    columns: list[Column] = [
        Column("THREAD", lambda one: one["thread"], least=8),
        Column("SINCE", lambda one: time_text(one["since"])),
    ]
    write_table(columns, waiting, lambda one: question_text(one["question"]))


def print_names(threads: Sequence[Record]) -> None:
    """Print the name of each thread on a line of its own, for a loop of a shell."""
    for one in threads:
        write(visible(one["thread"]))


def print_run(info: Record, items: Sequence[str] = ()) -> None:
    """Print what is known of one run without its state, failures and questions in full."""
    took = duration_text(_took(info))
    fields: list[tuple[str, Cell]] = [
        ("thread", info["thread"] or "none: nothing was stored"),
        ("status", status_cell(info["status"])),
        ("run", f"{info['run_id'] or 'one'} of graph {info['graph']}"),
        ("started", f"{time_text(info['started'])}{f', took {took}' if took else ''}"),
        ("steps", f"{info['steps']:,}"),
    ]
    fields += [("items", text) for text in items]
    spent = _spent(info)
    write_fields([*fields, *([("cost", spent)] if spent else [])])
    if info["failure"]:
        write_wrapped(Styled(f"failure: {failure_text(info['failure'])}", "red"))
    for question in info["questions"]:
        write_wrapped(Styled(f"question {question_text(question)}", "yellow"))
    command = _next_command(info)
    if command:
        write(f"go on with: {visible(command)}")


def _next_command(info: Record) -> str:
    """The command that continues a run, for a shell; "" for none."""
    # It is to be pasted: a name that a shell would split is quoted, and one like an option comes after `--`.
    if not info["thread"] or info["status"] in ("completed", "running"):
        return ""
    keys = [question["key"] for question in info["questions"] if question["answer"] is not None]
    names = [question["id"] if keys.count(question["key"]) > 1 else question["key"] for question in info["questions"]]
    answers = "".join([f" --answer {shell_word(name)}=..." for name in names if keys])
    name = shell_word(info["thread"])
    return f"dspyer resume{answers} -- {name}" if name.startswith("-") else f"dspyer resume {name}{answers}"


def _spent(info: Record) -> str:
    tokens = sum(of_model.get("total_tokens") or 0 for of_model in info["usage"].values())
    if info["cost"] is None:
        return f"{tokens:,} tokens, cost not known" if tokens else ""
    return f"{cost_text(info['cost'])} USD, {tokens:,} tokens" if tokens or info["cost"] else ""


def failure_text(failure: Record) -> str:
    """A failure on one line."""
    name = failure["node"] if failure.get("index") is None else f"{failure['node']}[{failure['index']}]"
    kind = f"{failure['type']}: {failure['message']}" if failure["message"] else failure["type"]
    return f"{name} (execution {failure['execution']}, attempt {failure['attempt']}): {kind}"


def question_text(question: Record) -> str:
    """A question with its key and the type of its answer."""
    kind = question["answer"].get("type") if question["answer"] else None
    shown = f" ({kind})" if isinstance(kind, str) else ""
    at = f", expires {time_text(question['expires'])}" if question["expires"] is not None else ""
    return f"{question['key']!r}{shown} of node {question['node']}{at}: {question['text']}"


def answered_text(answer: Record) -> str:
    """An answer: the key of its question, who gave it (a long value may fill the line), and the comment."""
    by = f" by {answer['by']}" if answer["by"] else ""
    comment = f": {answer['comment']}" if answer["comment"] else ""
    return f"{answer['question']['key']!r} answered{by} with {value_text(answer['value'])}{comment}"


def print_answers(answers: Sequence[Record]) -> None:
    """Answers, each with its time, on lines of their own."""
    for one in answers:
        write_wrapped(f"answer {time_text(one['at'])} {answered_text(one)}")


def print_messages(messages: Sequence[Record]) -> None:
    """Messages to the thread, each with the turn that took it."""
    for one in messages:
        by = f" by {one['by']}" if one["by"] else ""
        taken = f"taken by {one['step']}" if one["step"] else "unread"
        write_wrapped(f"message {one['number']} {time_text(one['at'])}{by}, {taken}: {one['text']}")


def print_result(record: Record) -> None:
    """Print a run that a command has made, with its outputs if it is completed."""
    print_run(record)
    if record["outputs"] is not None:
        print_values("outputs", record["outputs"])


def print_values(title: str, values: Record) -> None:
    """Fields and their values below a title, one a line."""
    write(title)
    write_fields([(name, value_text(value)) for name, value in values.items()] or [("(none)", "")], indent=2)


# --- commits


def print_commits(commits: Sequence[Record]) -> None:
    """Commits as a table."""
    columns: list[Column] = [
        Column("VERSION", lambda commit: "" if commit["version"] is None else str(commit["version"]), right=True),
        Column("NODE", lambda commit: commit["node"], least=8),
        Column("BRANCH", lambda commit: ".".join(map(str, commit["branch"])), least=6),
        Column("STARTED", lambda commit: time_text(commit["started"])),
        Column("TOOK", lambda commit: duration_text(commit["duration"]), right=True),
        Column("WRITES", lambda commit: ", ".join(fields_written(commit["patch"])), least=6),
    ]
    write_table(columns, commits, _commit_remark)


def _commit_remark(commit: Record) -> str:
    texts = [f"id {commit['id']}" if commit["version"] is None else "", *map(answered_text, commit["answers"])]
    failed = commit["failed_attempts"]
    if commit["failure"]:
        texts.append(f"failed: {failure_text(commit['failure'])}")
    elif failed:
        texts.append(f"after {count_of(len(failed), 'failed attempt')}: {failure_text(failed[-1])}")
    return ", ".join(filter(None, texts))


def fields_written(patch: Any) -> list[str]:
    """The fields that the patch of a commit changes."""
    if not isinstance(patch, Mapping):
        return []
    if patch.get("$type") == "unreadable":
        return ["(unreadable)"]
    return [str(name) for name, _ in patch["value"]] if patch.get("$type") == "patch" else [str(name) for name in patch]


def print_commit(info: Record, prompts: bool = False) -> None:
    """One commit: what it is, what it changed, and the LM calls and conflicts of it."""
    commit = info["commit"]
    took = duration_text(commit["duration"])
    write_fields(
        [
            ("commit", commit["id"]),
            ("version", "none: its fork has not joined" if commit["version"] is None else str(commit["version"])),
            ("node", f"{commit['node']}, visit {commit['visit']}, attempt {commit['attempt']}"),
            ("branch", path_text(tuple(commit["branch"]))),
            ("started", f"{time_text(commit['started'])}{f', took {took}' if took else ''}"),
            ("after", ", ".join(commit["parents"]) or "nothing: it is the first"),
            ("next", ", ".join(commit["route"]) or "nothing"),
        ]
    )
    for failure in commit["failed_attempts"]:
        write_wrapped(Styled(f"failed attempt: {failure_text(failure)}", "red"))
    if commit["failure"]:
        write_wrapped(Styled(f"failure: {failure_text(commit['failure'])}", "red"))
    print_answers(info["answers"])
    for conflict in info["conflicts"]:
        write_wrapped(f"conflict at {'.'.join(map(str, conflict['path']))}: {conflict['policy']}")
    write("changes")
    print_changes(info["before"], info["after"], indent=2)
    print_calls("LM calls", info["lm_calls"], prompts)


def print_execution(info: Record, prompts: bool = False) -> None:
    """An execution that has left no commit: what it could read, and its LM calls."""
    after = ", ".join(info["parents"]) or "nothing: it is the first"
    write_fields([("execution", info["execution"]), ("node", info["node"]), ("after", after)])
    if info["sent"]:
        print_values("sent to it", info["sent"])
    print_values("state of its first branch" if len(info["parents"]) > 1 else "state it could read", info["state"])
    print_calls("LM calls", info["lm_calls"], prompts)


def print_blame(writers: Sequence[Record]) -> None:
    """Paths and the commits that have last written them, as a table."""
    columns: list[Column] = [
        Column("PATH", lambda found: found["path"], least=8),
        Column("NODE", lambda found: found["node"], least=8),
        Column("VERSION", lambda found: str(found["id" if found["version"] is None else "version"]), right=True),
        Column("STARTED", lambda found: time_text(found["started"])),
    ]
    write_table(columns, writers)


def print_calls(title: str, calls: Sequence[Record], prompts: bool) -> None:
    """LM calls as a table below a title, if there are any; with `prompts`, their texts below the table."""
    if not calls:
        return
    write(title)
    columns: list[Column] = [
        Column("PREDICTOR", lambda call: call["predictor"] or "", least=9),
        Column("MODEL", lambda call: call["response_model"] or call["model"] or "", least=8),
        Column("TOKENS", lambda call: f"{(call['prompt_tokens'] or 0) + (call['response_tokens'] or 0):,}", right=True),
        Column("COST", lambda call: cost_text(call["cost"]), right=True),
        Column("TOOK", lambda call: duration_text(call["seconds"]), right=True),
        Column("END", _end_of_call, least=6),
    ]
    write_table(columns, calls)
    if prompts:
        for number, call in enumerate(calls, 1):
            _print_texts(f"LM call {number}", call)


def _end_of_call(call: Record) -> str:
    return str(call["failed"] or ("cached" if call["cached"] else call["finish_reason"] or ""))


def _print_texts(title: str, call: Record) -> None:
    """The messages and the response of an LM call, each below its role."""
    if call["messages"] is None and call["response"] is None:
        write(f'{title}: no texts; compile(record_lm_calls="full") records them, and a redacting program hides them')
        return
    for role, content in _texts(call):
        write(f"{title}, {visible(role)}:")
        for line in (content if isinstance(content, str) else value_text(content)).splitlines():
            write_wrapped(line, indent=2 if line else 0)


def _texts(call: Record) -> Iterator[tuple[str, Any]]:
    """The texts of an LM call, each with its role; of a message that only calls tools, the calls."""
    for message in call["messages"] if isinstance(call["messages"], list) else [call["messages"]]:
        if isinstance(message, Mapping):
            rest = {name: part for name, part in message.items() if name not in ("role", "content") and part}
            yield str(message.get("role", "message")), message.get("content") or rest
        elif message:
            yield "prompt", message
    if call["response"]:
        yield "response", call["response"]


# --- differences


def print_changes(before: Record, after: Record, indent: int = 0) -> None:
    """Print what differs between two states, a line for each value that is gone and each that is new."""
    found = list(changes(before, after))
    space = " " * indent
    if not found:
        write(f"{space}nothing")
    for mark, path, value in found:
        style = "red" if mark == "-" else "green"
        write_wrapped(Styled(f"{mark} {path}: {value_text(value)}", style), indent, one_line=True)


def changes(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """The values that differ, with their paths, and `-` for what is gone, `+` for what is new.

    Of a list that has grown, only its new items.

    Example:
        >>> list(changes({"n": 1, "tags": ["a"]}, {"n": 2, "tags": ["a", "b"]}))
        [('-', 'n', 1), ('+', 'n', 2), ('+', 'tags[1]', 'b')]
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping) and "$type" not in before and "$type" not in after:
        for name in [*before, *[name for name in after if name not in before]]:
            inner = f"{path}.{name}" if path else str(name)
            if name not in after:
                yield "-", inner, before[name]
            elif name not in before:
                yield "+", inner, after[name]
            else:
                yield from changes(before[name], after[name], inner)
    elif before == after and type(before) is type(after):  # 1 and True are equal, and not the same
        return
    elif isinstance(before, list) and isinstance(after, list) and before and before == after[: len(before)]:
        # Most lists of a state grow: conversations, results. The whole of them would hide what is new.
        for index in range(len(before), len(after)):
            yield "+", f"{path}[{index}]", after[index]
    else:
        yield "-", path, before
        yield "+", path, after


# --- deletions


def print_deleted(report: Record) -> None:
    """Print what a deletion has deleted, and what it kept for other threads."""
    write(f"deleted {count_of(report['runs'], 'run')} and {count_of(report['rows'], 'row')}")
    for name, runs in report["kept"].items():
        write(f"kept {count_of(len(runs), 'run')} for thread {visible(name)}")
    if not report["erased"]:
        write("the deleted bytes are not overwritten yet")
