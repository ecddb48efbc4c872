"""Every error that dspyer raises on purpose, by who can mend it.

    DspyerError
    ├── GraphError (ValueError)             the graph: found when it is built, all problems at once
    ├── InputError (ValueError)             the caller: a missing, extra or invalid input of a run
    ├── StateError                          a value or a patch
    │   ├── UnsupportedValueError (TypeError)   a value that a state cannot protect
    │   ├── PatchError (TypeError)              a patch that is no mapping, or nested too deep
    │   ├── ImmutableError (TypeError)          an attempt to change a state in place
    │   └── UnsetFieldError (KeyError)          a field that nothing has written yet
    ├── NodeOutputError (ValueError)        a node: wrong type, unknown key, write without permission
    ├── MergeConflictError (ValueError)     a merge: two sides changed one path, policy "raise"
    ├── AttemptError (ValueError)           a node: a key of `ctx.once` or `ctx.interrupt` used twice, or an attempt
    │                                       that asks otherwise than the one before
    ├── RouteError (ValueError)             a router or `goto`: an unknown target, or none
    ├── LimitError (RuntimeError)           a run went on for too long
    │   ├── StepLimitError                      the longest chain of commits passed `max_steps`
    │   └── CallLimitError                      the node calls passed `max_calls`
    ├── RunStoppedError                     the caller: a closed stream, a cancelled task, Ctrl-C before the run's end
    ├── Interrupted                         nobody: the run waits for answers to its questions
    ├── StoreError                          a store that fails, or what it holds
    ├── ThreadError                         a thread: what was asked of it does not fit to what it has come to
    │   ├── ConcurrentRunError                  another run owns the thread
    │   ├── OpenRunError                        its last run was not finished
    │   └── ChangedGraphError                   its last run was made by a graph that was another one
    └── ScriptError (AssertionError)        a test: an LM call off the script, or an answer that was not used

An exception that a node raises itself is never wrapped: it reaches the caller as it is, with a note (PEP 678) that
names node, branch and attempt. `Interrupt` is no error and no `Exception`: a node asks with it, and it must pass every
`except Exception` on its way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Protocol


class AskedQuestion(Protocol):
    """What `dspyer.events.Question` looks like from here: events lie above errors, so this module cannot name it."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def answer(self) -> Mapping[str, Any] | None: ...
    @property
    def node(self) -> str: ...
    @property
    def branch(self) -> tuple[int, ...]: ...
    @property
    def execution(self) -> str: ...
    @property
    def run(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


class DspyerError(Exception):
    """Base of every error that dspyer raises on purpose."""


class GraphError(DspyerError, ValueError):
    """A graph that cannot be compiled.

    Attributes:
        problems: every problem that was found, each with its fix.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            lines = "\n".join(f"  {i}. {problem}" for i, problem in enumerate(self.problems, 1))
            text = f"the graph has {len(self.problems)} problems:\n{lines}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type[GraphError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class InputError(DspyerError, ValueError):
    """An input of a run that is missing, unknown or invalid."""


class StateError(DspyerError):
    """A value or a patch that a state refuses."""


class UnsupportedValueError(StateError, TypeError):
    """A value that a state cannot protect from later changes."""


class PatchError(StateError, TypeError):
    """A patch that is no mapping, or that is nested too deep."""


class ImmutableError(StateError, TypeError):
    """An attempt to change a state, or a value read from one, in place."""


class UnsetFieldError(StateError, KeyError):
    """A field was read that nothing has written yet."""

    def __str__(self) -> str:  # KeyError would show the repr of the text
        return str(self.args[0]) if self.args else ""


class NodeOutputError(DspyerError, ValueError):
    """What a node returned cannot be committed."""


class MergeConflictError(DspyerError, ValueError):
    """Two sides of a merge changed one path, and the policy is to raise.

    Attributes:
        path: the path of the conflict, a tuple of keys.
        writers: the authors of the two values, left first.
    """

    def __init__(self, text: str, path: tuple[object, ...] = (), writers: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.path = path
        self.writers = writers

    def __reduce__(self) -> tuple[type[MergeConflictError], tuple[object, ...]]:
        return type(self), (str(self), self.path, self.writers)


class AttemptError(DspyerError, ValueError):
    """What a node asks or does once does not fit to the same attempt, or to an earlier one."""


class RouteError(DspyerError, ValueError):
    """A router or a `goto` that names no target of its node."""


class LimitError(DspyerError, RuntimeError):
    """A run that went on for too long.

    Attributes:
        calls: how often each node has run.
    """

    def __init__(self, text: str, calls: Mapping[str, int] | None = None) -> None:
        super().__init__(text)
        self.calls: dict[str, int] = dict(calls or {})

    def __reduce__(self) -> tuple[type[LimitError], tuple[object, ...]]:
        return type(self), (str(self), self.calls)


class StepLimitError(LimitError):
    """The longest chain of commits passed `max_steps`."""


class CallLimitError(LimitError):
    """The node calls of a run passed `max_calls`."""


class ScriptError(DspyerError, AssertionError):
    """A `dspyer.testing.ScriptedLM` was called off its script, or not called enough."""


class RunStoppedError(DspyerError):
    """A run was stopped before its end: its stream was closed or dropped, its task cancelled, or Ctrl-C was pressed.

    What it had committed is kept. On a thread, `t.resume()` continues the run.

    Attributes:
        reason: what stopped it.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason

    @classmethod
    def of(cls, reason: str, graph: str, fix: str) -> RunStoppedError:
        """The error for a run whose result is wanted and that was stopped.

        Args:
            reason: what stopped it.
            graph: the name of the graph.
            fix: what to do next.
        """
        return cls(f"the run of graph {graph!r} was stopped: {reason}. {fix}", reason)

    def __reduce__(self) -> tuple[type[RunStoppedError], tuple[str, str]]:
        return type(self), (str(self), self.reason)


class Interrupt(BaseException):
    """What `ctx.interrupt` raises in a node whose question has no answer yet. Let it pass.

    Attributes:
        questions: what is asked.
    """

    def __init__(self, questions: Sequence[AskedQuestion]) -> None:
        super().__init__(", ".join(question.id for question in questions))
        self.questions = tuple(questions)


class Interrupted(DspyerError):  # noqa: N818 - the name of a status, raised where a result was asked for
    """The run waits for answers to its questions, and has no result yet.

    Attributes:
        questions: the open ones.
    """

    def __init__(self, text: str, questions: Sequence[AskedQuestion] = ()) -> None:
        super().__init__(text)
        self.questions = tuple(questions)

    @classmethod
    def of(cls, questions: Sequence[AskedQuestion], graph: str, stored: bool) -> Interrupted:
        """The error for a run whose result is wanted and that waits for answers.

        Args:
            questions: the open ones.
            graph: the name of the graph.
            stored: whether the run is on a thread.
        """
        asked = "; ".join(f"{one.key!r} of node {one.node!r}: {brief(one.text)}" for one in questions)
        fix = (
            "give the answers with t.resume(answers={...})"
            if stored
            else "run it on a thread, program.thread('a name'), whose resume(answers={...}) takes the answers; under "
            "an optimizer, Evaluate or in a test supply them with compile(interrupts={...}) or run(interrupts={...})"
        )
        count = f"{len(questions)} answer{'s' if len(questions) > 1 else ''}"
        return cls(f"graph {graph!r} waits for {count}: {asked}. What to do: {fix}", questions)

    def __reduce__(self) -> tuple[type[Interrupted], tuple[str, tuple[AskedQuestion, ...]]]:
        return type(self), (str(self), self.questions)


class StoreError(DspyerError):
    """A store that failed, or that holds what cannot be read. The cause is the exception of the store."""


class ThreadError(DspyerError):
    """A thread of which something was asked that does not fit to what it has come to."""


class ConcurrentRunError(ThreadError):
    """Another run owns the thread, or has taken it over."""


class OpenRunError(ThreadError):
    """The last run of the thread failed, crashed or waits for answers: resume or abandon it first."""


class ChangedGraphError(ThreadError):
    """The thread has an open run, or values, of a graph that was another one.

    Attributes:
        changes: what is different, one sentence each.
    """

    def __init__(self, text: str, changes: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.changes = tuple(changes)

    def __reduce__(self) -> tuple[type[ChangedGraphError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.changes)


def with_article(name: str) -> str:
    """A name with the article that it is spoken with.

    Example:
        >>> with_article("ImmutableState"), with_article("list")
        ('an ImmutableState', 'a list')
    """
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def annotate(error: BaseException, note: str) -> None:
    """Adds a note to an exception, once. One that takes no notes (a frozen dataclass) is left as it is.

    Example:
        >>> error = ValueError("odd")
        >>> annotate(error, "in node 'count'")
        >>> annotate(error, "in node 'count'")
        >>> error.__notes__
        ["in node 'count'"]
    """
    if note not in getattr(error, "__notes__", ()):
        with suppress(AttributeError, TypeError):
            error.add_note(note)


def without_traceback(error: DspyerError) -> DspyerError:
    """The same error without traceback, cause and notes, to be kept by an object and raised again.

    A traceback refers to the object whose method raised: the two would wait for the cyclic garbage collector.
    """
    reduced: tuple[Any, ...] = error.__reduce__()  # type: ignore[assignment]  # classes are given as tuples
    found: DspyerError = reduced[0](*reduced[1])
    return found


def unwrap_stop_iteration(error: BaseException) -> BaseException:
    """What was raised, where Python has put a `RuntimeError` in the place of a `StopIteration` (PEP 479)."""
    cause = error.__cause__
    if isinstance(cause, StopIteration) and str(error).endswith("raised StopIteration"):
        return cause
    return error


def short_error(error: BaseException, *, step: str = "", action: str = "", limit: int = 200) -> str:
    """An exception in one line for a language model: step, error, action. No stack trace.

    Args:
        error: the exception.
        step: what was being done; by default the node, or the function, in which it was raised.
        action: what to do about it; by default what the kind of exception suggests.
        limit: most characters of its own text.

    Example:
        >>> short_error(TimeoutError("no answer after 5 s"), step="search the web")
        'step: search the web; error: TimeoutError: no answer after 5 s; action: try again, or go on without it'
    """
    text = " ".join(str(error).split())
    text = text if len(text) <= limit else f"{text[: limit - 3]}..."
    name = type(error).__name__
    parts = {
        "step": " ".join(step.split()) or _place_of(error),
        "error": f"{name}: {text}" if text else name,
        "action": " ".join(action.split()) or next(advice for kinds, advice in _ADVICE if isinstance(error, kinds)),
    }
    return "; ".join(f"{key}: {value}" for key, value in parts.items() if value)


_ADVICE: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((TimeoutError, ConnectionError), "try again, or go on without it"),
    ((PermissionError,), "do without it, or ask for permission"),
    ((LookupError, FileNotFoundError), "check the name, and what there is"),
    ((ValueError, TypeError), "correct what was given, and try again"),
    ((BaseException,), "try another way"),
)


def _place_of(error: BaseException) -> str:
    """Where an exception comes from: the node that its notes name, else the innermost function."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith("in node "):
            return str(note).removeprefix("in ").partition(" (")[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_name


def brief(value: object, limit: int = 60) -> str:
    """How a value is shown in errors: whole when it is small, else its keys and size.

    Example:
        >>> brief({"a": 1})
        "{'a': 1}"
        >>> brief(["x" * 40, "y" * 40])
        'list of 2 items'
    """
    name = type(value).__name__
    if isinstance(value, (str, bytes)):
        unit = "characters" if isinstance(value, str) else "bytes"
        return repr(value) if len(value) <= limit else f"{value[: limit // 2]!r}... ({len(value)} {unit})"
    if isinstance(value, (Mapping, Sequence, AbstractSet)):
        kind = {"FrozenDict": "dict", "FrozenList": "list"}.get(name, name)
        if len(value) <= 6:
            plain = dict(value) if kind == "dict" else list(value) if kind == "list" else value
            text = repr(plain)
            if len(text) <= limit:
                return text
        if isinstance(value, Mapping):
            keys = [repr(key) for key, _ in zip(value, range(6), strict=False)]
            return f"{kind} of {len(value)} keys: {', '.join(keys)}{', ...' if len(value) > 6 else ''}"
        return f"{kind} of {len(value)} items"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}... ({name})"


def list_names(found: Iterable[object], limit: int = 12) -> str:
    """Names for a message, in order: all where they are few, else the first ones and how many there are.

    Example:
        >>> shown_names(["question", "answer"])
        "'question', 'answer'"
        >>> shown_names(range(1000), limit=2)
        '0, 1, ... (1000 in all)'
    """
    texts = [repr(name) for name in found]
    if len(texts) <= limit:
        return ", ".join(texts) or "none"
    return f"{', '.join(texts[:limit])}, ... ({len(texts)} in all)"


def suggestion(name: object, known: Iterable[object]) -> str:
    """A sentence that offers near matches of an unknown name, empty if there is none.

    Example:
        >>> suggestion("qestion", ["question", "answer"])
        " Did you mean 'question'?"
    """
    texts = [str(other) for other in known]
    near = [text for text in texts if text.lower() == str(name).lower()] or get_close_matches(str(name), texts, n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
