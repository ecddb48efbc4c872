"""Every error that dspyer raises on purpose, grouped by who can fix it.

    DspyerError
    ├── GraphError (ValueError)            the graph, when it is built
    ├── InputError (ValueError)            the caller
    ├── StateError                         a value or a patch
    │   ├── UnsupportedValueError (TypeError)
    │   ├── PatchError (TypeError)
    │   ├── ImmutableError (TypeError)
    │   ├── UnsetFieldError (KeyError)
    │   └── LMCallError                    messages of LM calls, `record_lm_calls=`
    ├── NodeOutputError (ValueError)       a node
    ├── NodeTimeoutError (TimeoutError)    a node
    ├── MapError, SearchError              their items and trials
    ├── CheckError (ValueError)            what a model wrote
    ├── AgentError                         an agent, or its model
    ├── MergeConflictError (ValueError)    the graph: no policy
    ├── AttemptError (ValueError)          a node
    │   └── AttemptOverError
    ├── AnswerError, QuestionExpired       who answers
    ├── RouteError (ValueError)            a router
    ├── LimitError (RuntimeError)          a loop
    │   └── StepLimitError
    ├── RunStoppedError                    the caller
    │   └── BudgetError
    ├── Interrupted                        no fault: it waits for answers
    ├── StoreError                         the store
    ├── ThreadError                        the caller
    │   ├── ConcurrentRunError
    │   ├── OpenRunError
    │   └── ChangedGraphError
    ├── DSPyVersionError (ImportError)     the installation
    └── ScriptError (AssertionError)       a test

    ExecutorLost (BaseException)           the executor of a program

An exception that a node raises is never wrapped: it reaches the caller unchanged, with a note (PEP 678) that names
node, branch and attempt. `Interrupt` is not an error and not an `Exception`: `ctx.interrupt` raises it in a node to
ask a question, and every `except Exception` on the way out must let it pass.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from difflib import get_close_matches
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T")


REMOVED: dict[str, str] = {
    "Graph.__init__(limit=)": "Annotated[list[str], reducers.append, limit(kb=40)] for the fields that grow",
    "Graph.compile(interrupt_before=)": "compile(layers=[Breakpoints(before=['node'])])",
    "Graph.compile(interrupt_after=)": "compile(layers=[Breakpoints(after=['node'])])",
    "Graph.compile(max_calls=)": "compile(budget=Budget(node_calls=100)): the run stops, and resume() goes on",
    "Graph.compile(durability=)": "compile(store=stores.SQLite(path, flush=True)), or stores.Postgres(url, flush=True)",
    "Graph.compile(cache_dir=)": "add_node(cache=Cache(folder=...)), or dspy.configure_cache(disk_cache_dir=...)",
    "Graph.compile(migrate=)": "program.thread(name, migrate=...)",
    "Graph.compile(shares_threads_with=)": "program.thread(name, graphs=['other name'])",
    "Graph.compile(warn_at=)": "compile(layers=[Conversations(warn_at=3)])",
    "Graph.compile(max_demo_turns=)": "compile(layers=[Conversations(max_demo_turns=2)])",
    "Run.shown": "run.record().steps: their values, and their commits, are as they may be shown",
    "GEPA.__init__(reuse=)": "optimize.GEPA(metric, ...): runs are made again, and DSPy's cache has their LM calls",
    "GEPAStats.nodes": "gepa.stats.predictors, by the full names of the predictors",
    "Culprits.notes": "culprits(program, example, metric).texts, by who is responsible",
    "Commit.size": "commit.sizes, of the fields with a limit, or state.sizes()",
    **{f"{n}.counts": f"{n.lower()}.stats().nodes['name'].visits, .lm_calls" for n in ("Run", "Thread")},
    "Run.lanes": "run.report(), or the page of dspyer inspect",
    "Run.timeline": "run.report(), or the page of dspyer inspect",
    "Archive.runs(text=)": "archive.runs(contains=...), which finds names, values, prompts and failures",
    "ArchivedThread.commit": "record = thread.record(): record.step(id), record.state(id), record.fields(id)",
    "ArchivedThread.execution": "record = thread.record(): record.step(id), record.state(id), record.calls(id)",
    "ArchivedThread.posts": "thread.record(): each of its steps has its posts",
    "ArchivedThread.conflicts": "thread.record(): each of its joins has its conflicts",
    "ArchivedThread.timeline": "thread.report(), or the page of dspyer inspect",
    "optimize.FieldNote": "culprits(program, example, metric).texts, by who is responsible",
    "optimize.cache": "add_node(cache=True), for functions; DSPy's cache has the LM calls",
    **{f"Thread.{n}(abandon=)": f"thread.{n}(inputs, if_open='abandon')" for n in ("run", "arun", "stream", "astream")},
    "Live.__call__(show_reads=)": "program.stream(inputs, reads=True), whose events Read say who reads which fields",
    **{f"{n}.__init__(clock=)": "with dspyer.testing.clock() as time: leases go by it" for n in ("Memory", "SQLite")},
    "reducers.each": "reducers.conversations for messages by key, or a function (current, update) -> new",
    "errors.CallLimitError": "Budget(node_calls=...) stops a run with a BudgetError",
}
"""Names of the past, and what to write in their place: `"Class.method(option=)"`, `"Class.member"`, `"module.name"`."""


OF_LANGGRAPH: dict[str, str] = {
    "Graph.compile(checkpointer=)": "compile(store='runs.db')",
    "Graph.add_node(retry_policy=)": "add_node('node', retry=3)",
    "Graph.compile(recursion_limit=)": "compile(max_steps=...)",
    "Thread.invoke": "thread.run({...}), or thread.resume() for a run that has not ended",
    "Thread.get_state": "thread.state",
    "Thread.get_state_history": "thread.history()",
    "Thread.update_state": "thread.update({...}), or thread.copy(to=..., at=..., patch={...})",
}
"""Names that LangGraph has where dspyer has another one, in the same form."""


def removed(owner: str, name: str) -> str:
    """The text about a name that an object or module has no more, or has in LangGraph; "" for others."""
    known = f"{owner}.{name}"
    if known in OF_LANGGRAPH:
        return f"{known} is a name of LangGraph: write {OF_LANGGRAPH[known]}"
    return f"{known} was removed: write {REMOVED[known]}" if known in REMOVED else ""


def names_options(owner: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A decorator of a method of class `owner`: an option that it has not is a `TypeError` with the line to write.

    That line is the one for a removed option or for an option of LangGraph, the nearest option, or, of a method that
    takes `inputs`, the dict in which they are given.
    """

    def decorated(method: Callable[_P, _T]) -> Callable[_P, _T]:
        parameters = signature(method).parameters
        known = [one.name for one in parameters.values() if one.name != "self" and one.kind is not one.VAR_KEYWORD]
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        called = owner if method.__name__ == "__init__" else method.__name__

        def check(options: Iterable[str]) -> None:
            for name in [name for name in options if name not in parameters]:
                if said := removed(owner, f"{method.__name__}({name}=)"):
                    raise TypeError(said)
                if not takes_any:
                    by_name = f" Inputs are given as one dict: {called}({{{name!r}: ...}})" if "inputs" in known else ""
                    raise TypeError(f"{called}() has no option {name!r}.{suggestion(name, known) or by_name}")

        @wraps(method)
        def checked(*args: _P.args, **options: _P.kwargs) -> _T:
            check(options)
            return method(*args, **options)

        @wraps(method)
        async def awaited(*args: _P.args, **options: _P.kwargs) -> Any:
            check(options)
            return await cast("Callable[_P, Awaitable[Any]]", method)(*args, **options)

        return cast("Callable[_P, _T]", awaited) if iscoroutinefunction(method) else checked

    return decorated


def shows_removed(cls: type[_T]) -> type[_T]:
    """A decorator of a class whose removed members are an `AttributeError` with the new line."""
    found: Any = getattr(cls, "__getattr__", None)

    def missing(self: Any, name: str) -> Any:
        if said := removed(cls.__name__, name):
            raise AttributeError(said)
        if found is not None:
            return found(self, name)
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")

    cls.__getattr__ = missing  # type: ignore[attr-defined]
    return cls


def missing_in(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: a removed name is an `AttributeError` with the new line."""

    def missing(name: str) -> Any:
        raise AttributeError(removed(module.rpartition(".")[2], name) or f"module {module!r} has no attribute {name!r}")

    return missing


__getattr__ = missing_in(__name__)


class DspyerError(Exception):
    """Base of every error that dspyer raises on purpose."""


class GraphError(DspyerError, ValueError):
    """The graph cannot be compiled.

    Each problem of its text says what to change in the graph; nothing has run.

    Attributes:
        problems: all problems that were found, each with its fix.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        # Two checks may find the same: each problem is said once.
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(dict.fromkeys(problems))
        lines = "\n".join(f"  {i}. {problem}" for i, problem in enumerate(self.problems, 1))
        several = f"the graph has {len(self.problems)} problems:\n{lines}"
        super().__init__(self.problems[0] if len(self.problems) == 1 else several)


class InputError(DspyerError, ValueError):
    """An input of a run is missing, unknown or invalid.

    Correct the input that the text names, and call again; nothing was stored.
    """


class StateError(DspyerError):
    """A state refuses a value or a patch."""


class UnsupportedValueError(StateError, TypeError):
    """A state cannot protect the value from later changes.

    Return plain data or a pydantic model, or register the type: `dspyer.register_value_type`.
    """


class PatchError(StateError, TypeError):
    """The patch is not a mapping, or is nested too deep.

    Return a dict of field names and values, or None, from the node.
    """


class ImmutableError(StateError, TypeError):
    """A state, or a value read from one, cannot be changed in place.

    Return the changed value in a patch, or copy it first: `list(value)`, `dict(value)`.
    """


class UnsetFieldError(StateError, KeyError):
    """The field has no value yet: no input and no node has written it.

    Give the field a default in the schema, pass it as an input, or read it with `state.get(name)`.
    """

    def __str__(self) -> str:  # KeyError would show the repr of the text
        return str(self.args[0]) if self.args else ""


class LMCallError(StateError):
    """The messages of an LM call are not there, or the function of `record_lm_calls=` has failed.

    To ask again, record prompts with `record_lm_calls="full"`, or give messages. If the function has raised, or has
    returned what cannot be written, correct it; the run can then be resumed. The text is stored as that of a failure,
    so it has nothing of the text of the cause, which may be that of a prompt.

    Attributes:
        call: the `LMCall`, without messages and response.
        cause: what the function has raised; None if the messages are not there.
    """

    def __init__(self, call: Any, cause: Exception | None = None) -> None:
        super().__init__(
            f"the messages of the LM call of node {call.node!r} (execution {call.execution}) were not recorded: "
            'compile(record_lm_calls="full") records those of later runs; or pass messages=[...]'
            if cause is None
            else f"the function given as record_lm_calls= failed with {type(cause).__name__} for an LM call of node "
            f"{call.node!r} (execution {call.execution}); the exception is the __cause__ of this one. Of the call, "
            "usage alone is stored, and the run has failed: mend the function, then thread.resume() continues"
        )
        self.call = call
        self.cause = cause

    def __reduce__(self) -> tuple[type[LMCallError], tuple[object, ...]]:
        return type(self), (self.call, self.cause)


class NodeOutputError(DspyerError, ValueError):
    """The output of a node cannot be committed.

    Correct what the node returns, or declare the field in the schema or in `writes=`.

    Attributes:
        of_module: whether a module gave the output: a language model may give another one when it is asked again.
    """

    of_module = False


class NodeTimeoutError(DspyerError, TimeoutError):
    """An attempt of a node took longer than its `timeout`.

    Raise the `timeout`, add `retry=`, or give the client that the node calls a shorter timeout.

    Attributes:
        left_running: whether the attempt still runs in its thread: a sync function cannot be ended.
    """

    left_running = False


class MapError(DspyerError):
    """Too many items of a map failed.

    Read `failures` for the causes. `failures=` and `min_success=` of the map say how many may fail.

    Attributes:
        failures: a `dspyer.Failure` for each item that failed, in item order.
    """

    def __init__(self, text: str, failures: Iterable[Any] = ()) -> None:
        super().__init__(text)
        self.failures = tuple(failures)


class SearchError(DspyerError):
    """Every trial of a search failed. The first error is its cause, in the process in which that was raised.

    Read `failures` for the causes: often one wrong node or key.

    Attributes:
        failures: a `dspyer.Failure` for each trial, in the order of the trials.
    """

    def __init__(self, text: str, failures: Iterable[Any] = ()) -> None:
        super().__init__(text)
        self.failures = tuple(failures)


class CheckError(DspyerError, ValueError):
    """A check still finds problems after the last correction.

    Read `problems`. More corrections, a better fix, or an error edge go into `add_check`.

    Attributes:
        problems: the problems, one text each.
    """

    def __init__(self, text: str, problems: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems)


class AgentError(DspyerError):
    """An agent gave no final output. The cause is what its last response raised, if it raised anything.

    Read `reason`: raise `max_turns`, shorten tool results, or correct what the model was told.

    Attributes:
        reason: why no ordinary turn followed: `"max_turns"`, `"parse_error"`, `"empty_tool_calls"` or
            `"context_window_exceeded"`.
        turns: the turns that the run had taken.
    """

    def __init__(self, text: str, reason: str = "", turns: int = 0) -> None:
        super().__init__(text)
        self.reason = reason
        self.turns = turns


class MergeConflictError(DspyerError, ValueError):
    """Two sides of a merge changed one path, and its policy is `"raise"`.

    Let one side write the path, give the field a reducer, or choose a policy for the path.

    Attributes:
        path: the path of the conflict, a tuple of keys.
        writers: the authors of the two values, the left one first.
    """

    def __init__(self, text: str, path: tuple[object, ...] = (), writers: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.path = path
        self.writers = writers


class AttemptError(DspyerError, ValueError):
    """A node used a key of `ctx.once` or `ctx.interrupt` twice, or differently than in an earlier attempt.

    Give each question and each effect of a node a key of its own, and ask the same in each attempt.
    """


class AttemptOverError(AttemptError):
    """An attempt used its `ctx` after it had timed out, or while the next one works: nothing of it counts any more.

    Let the node end when it is told that its attempt is over; its result is ignored.
    """


class AnswerError(InputError, AttemptError):
    """The node that asks refuses the answer: no retry or error edge takes this, and the question is open again.

    Answer again: the text says what was wrong with the answer.
    """


class QuestionExpired(AnswerError):  # noqa: N818 - as `Interrupted`: named after what has happened to the question
    """A question has expired without a default, or its answer comes too late. An error edge may take it, no retry.

    Give the question a `default=`, or take the error by an error edge.
    """


class RouteError(DspyerError, ValueError):
    """A router or a `goto` named something that is not a target of its node.

    Return one of the targets that the text names, or declare the target.
    """


class ExecutorLost(BaseException):  # it says what happened to the executor, not what a run did wrong
    """The executor of a program, or one that a node uses, has lost a call. The cause is what it has raised.

    A worker was killed, the pool was shut down, or something could not be sent. It is no `Exception`, since
    `dspy.Evaluate` and optimizers count every `Exception` as a failure of the program, and go on to a wrong score.
    """


class LimitError(DspyerError, RuntimeError):
    """A run exceeded a limit.

    Look for a loop that does not end; if the work is as long as that, raise the limit.

    Attributes:
        calls: number of calls by node.
    """

    def __init__(self, text: str, calls: Mapping[str, int] | None = None) -> None:
        super().__init__(text)
        self.calls: dict[str, int] = dict(calls or {})


class StepLimitError(LimitError):
    """The longest chain of commits passed `max_steps`.

    Look for a loop that does not end, or raise `max_steps`; `thread.resume()` continues the run.
    """


class ScriptError(DspyerError, AssertionError):
    """A `dspyer.testing.ScriptedLM` got a call that is not in its script, or fewer calls than the script has.

    Compare the prompt in the text with the script of the test.
    """


class RunStoppedError(DspyerError):
    """A run was stopped before its end: by a budget, `thread.stop()`, a closed stream, a cancelled task or Ctrl-C.

    Its commits are kept. On a thread, `thread.resume()` continues the run.

    Attributes:
        reason: what stopped it.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason

    def told(self, graph: str, fix: str) -> RunStoppedError:
        """Return the error for a run of `graph`; `fix` says what to do next."""
        text, found = str(self), copy(self)
        said = f"{text}. The run of graph {graph!r} was stopped" if text else f"the run of graph {graph!r} was stopped"
        found.args = (f"{said}. {fix}" if text else f"{said}: {self.reason}. {fix}",)
        return found


class BudgetError(RunStoppedError):
    """A run reached a limit of its `Budget`.

    `thread.resume(budget=...)` continues the run with a new budget.

    Attributes:
        reason: the limit and what was spent, as text.
        spent: what was spent, by the name of the limit.
        limit: the limits, by name.
    """

    def __init__(
        self,
        text: str,
        reason: str = "",
        spent: Mapping[str, float] | None = None,
        limit: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(text, reason)
        self.spent = dict(spent or {})
        self.limit = dict(limit or {})


class Interrupt(BaseException):
    """Raised by `ctx.interrupt` in a node whose question has no answer yet. A node must let it pass.

    Attributes:
        questions: the questions, as `dspyer.events.Question`.
    """

    def __init__(self, questions: Sequence[Any]) -> None:
        super().__init__(", ".join(question.id for question in questions))
        self.questions = tuple(questions)


class Interrupted(DspyerError):  # noqa: N818 - named after the status "interrupted": waiting for an answer is not a fault
    """The run waits for answers to its questions and has no result yet.

    `thread.resume(answers)` gives the answers and continues the run.

    Attributes:
        questions: the questions without an answer, as `dspyer.events.Question`.
    """

    def __init__(self, text: str, questions: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.questions = tuple(questions)

    @classmethod
    def of(
        cls,
        questions: Sequence[Any],
        graph: str,
        stored: bool,
        direct: bool = False,
        elsewhere: bool = False,
    ) -> Interrupted:
        """Return the error for a run of `graph`.

        `stored` says whether it is on a thread and can be resumed, `direct` whether the code of a node has called it,
        `elsewhere` whether a worker has made it for a node.
        """
        asked = "; ".join(f"{one.key!r} of node {one.node!r}: {brief(one.text)}" for one in questions)
        fix = (
            "give the answers with thread.resume(answers={...})"
            if stored
            else "run it on a thread, program.thread('a name'), whose resume(answers={...}) takes the answers; under "
            "an optimizer, Evaluate or in a test supply them with compile(answers={...}) or run(answers={...})"
        )
        if direct and not stored:
            fix = (
                "the code of a node has called the program, which is then a run of its own and cannot wait: bind it to "
                "the node, add_node(..., modules={'program': program}), and call it with ctx.call(program, {...}), "
                "which asks the question in the run of the node. Or supply the answers with compile(answers={...})"
            )
        if elsewhere:
            fix = (
                "it is a node with an executor, and nothing can be asked from a worker: give the node the program "
                "without its executor, or supply the answers with compile(answers={...}) of that program"
            )
        count = f"{len(questions)} answer{'s' if len(questions) > 1 else ''}"
        return cls(f"graph {graph!r} waits for {count}: {asked}. What to do: {fix}", questions)


class StoreError(DspyerError):
    """A store failed, or holds data that cannot be read. The cause is the exception of the store.

    The text says whether the disk, the server or a row is at fault. What was committed before is kept.
    """


class ThreadError(DspyerError):
    """The operation is not valid in the thread's current state.

    The text names the method that is valid now.
    """


class ConcurrentRunError(ThreadError):
    """Another run owns the thread, has taken over its ownership, or has crashed and waits for the delivery of its key.

    Wait for the other run, or try again later; nothing was written.
    """


class OpenRunError(ThreadError):
    """The last run of the thread failed, crashed or waits for answers. Resume or abandon it first.

    Attributes:
        questions: the questions that it waits for, as `dspyer.events.Question`; empty if it does not wait.
    """

    def __init__(self, text: str, questions: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.questions = tuple(questions)


class DSPyVersionError(DspyerError, ImportError):
    """The installed version of DSPy lacks something that dspyer needs: the text names it and both versions.

    Install a version of DSPy that the text names.
    """


class ChangedGraphError(ThreadError):
    """The thread has an unfinished run, or values, of an earlier version of the graph that does not fit this one.

    Deploy the former graph to finish the run, or pass `resume(allow_changed_graph=True)` or `thread(migrate=)`.

    Attributes:
        changes: the differences, one sentence each.
    """

    def __init__(self, text: str, changes: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.changes = tuple(changes)


# --- what a customer may read of an error


class PublicError(NamedTuple):
    """A text for a customer about an error: no name of a node, thread or host is in it, and no value.

    Attributes:
        code: `"waiting"` for an answer, `"busy"`, `"conflict"`, `"invalid"`, `"unknown"`, `"limit"` or `"failed"`.
        status: the status of the HTTP response.
        message: one or two sentences.
    """

    code: str
    status: int
    message: str


_PUBLIC: dict[str, tuple[int, str]] = {
    "waiting": (409, "An earlier request waits for an answer. Answer it first."),
    "busy": (409, "Another request is being worked on. Try again when it has ended."),
    "conflict": (409, "The request was stopped, or does not fit what has happened since."),
    "invalid": (422, "What was given is missing, unknown or not valid."),
    "unknown": (404, "There is nothing of this name."),
    "limit": (429, "The request has reached a limit."),
    "failed": (500, "The request has failed. The log of the server says why."),
}


def public(error: BaseException) -> PublicError:
    """Return what a customer may read of an error. Its text stays for the log.

    An error that a node has raised is `"failed"`, whatever its class: the customer cannot mend it. The same goes for
    a budget that lacks the price of a model. Limits of a run and answers that do not fit are told in any case.

    Args:
        error: what a call of `dspyer` has raised, or `run.error`.

    Returns:
        Its code, the status of an HTTP response, and a message.

    Example:
        >>> (public(InputError("unknown input 'qestion'")).code,
        ...     public(ValueError("card 4242 was refused")).message)
        ('invalid', 'The request has failed. The log of the server says why.')
    """
    code = _public_code(error)
    return PublicError(code, *_PUBLIC[code])


def _public_code(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        codes = {_public_code(one) for one in error.exceptions}
        return codes.pop() if len(codes) == 1 else "failed"
    if isinstance(error, AnswerError) and not isinstance(error, QuestionExpired):
        return "invalid"
    if isinstance(error, (LimitError, BudgetError)):
        return "limit"
    if any(note.startswith(_NOT_OF_INPUTS) for note in getattr(error, "__notes__", ())):
        return "failed"
    if isinstance(error, Interrupted) or (isinstance(error, OpenRunError) and error.questions):
        return "waiting"
    if isinstance(error, (ConcurrentRunError, ThreadError, RunStoppedError, QuestionExpired)):
        return "busy" if isinstance(error, ConcurrentRunError) else "conflict"
    if isinstance(error, InputError):
        return "invalid"
    return "unknown" if isinstance(error, LookupError) and not isinstance(error, DspyerError) else "failed"


_IN_NODE = "in node "
"""How the note begins that a run adds to what a node has raised."""
_NOT_OF_INPUTS = _IN_NODE, "in the budget "
"""With that of what a budget cannot measure."""

# --- which errors are retried

_ALWAYS_RAISED = (GraphError, RouteError, LimitError, RunStoppedError, StoreError, ThreadError, AttemptError)


_REFUSED = ("cannot schedule new futures after", "cannot submit after")
"""Begin the texts of the `RuntimeError` that executors raise after their shutdown: it has no class of its own."""


def lost_work() -> tuple[type[BaseException], ...]:
    """Return the errors of executors that lost a task. Without an import: the code that raised one has imported it."""
    futures: Any = sys.modules.get("concurrent.futures")
    return () if futures is None else (futures.BrokenExecutor, futures.CancelledError)


def always_raised(error: BaseException) -> bool:
    """Return whether an exception, or a part of a group, passes every retry and error edge: no attempt can mend it.

    Example:
        >>> (always_raised(StoreError("the disk is full")),
        ...     always_raised(TimeoutError()))
        (True, False)
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(always_raised, error.exceptions))
    return is_always_raised(type(error)) or is_lost_work(error)


def is_lost_work(error: BaseException) -> bool:
    """Return whether an executor has lost what a node gave it: it is broken or shut down, or has cancelled the task.

    It says nothing about the node or its inputs, so it must not count as a failure of them.
    """
    refused = isinstance(error, RuntimeError) and error_text(error).startswith(_REFUSED)
    return refused or isinstance(error, lost_work())


def is_always_raised(kind: type[BaseException]) -> bool:
    """Return whether every exception of a class is one that `always_raised` names."""
    # After a question that has expired no code is wrong, and another node may go on.
    always = issubclass(kind, (*_ALWAYS_RAISED, *lost_work())) and not issubclass(kind, QuestionExpired)
    return always or not (issubclass(kind, Exception) or issubclass(ExceptionGroup, kind))


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt of the step may succeed: the default of `Retry(on=)`.

    It accepts connection errors and timeouts; the errors of a language model that DSPy calls retryable, unless the
    `dspy.LM` has retried the request itself (`num_retries`); a stream that broke off; and a response that cannot be
    used: it does not parse, or the state refuses it. A timed-out sync node is not accepted, since its first attempt
    still runs. Of an `ExceptionGroup` it accepts all parts, or nothing.

    Args:
        error: what the step raised.

    Returns:
        True if it is worth another attempt.

    Example:
        >>> is_transient(TimeoutError("no answer")), is_transient(ValueError("odd"))
        (True, False)
    """
    if always_raised(error):
        return False
    if isinstance(error, ExceptionGroup):
        return all(map(is_transient, error.exceptions))
    if isinstance(error, NodeOutputError):
        return error.of_module
    # Two attempts of a node at once would do its effects twice.
    if isinstance(error, NodeTimeoutError):
        return not error.left_running
    dspy_errors: Any = sys.modules.get("dspy")  # without an import: what raised one has imported it
    if dspy_errors is not None:
        if isinstance(error, dspy_errors.AdapterParseError):
            return True  # no LM retries it
        if isinstance(error, dspy_errors.LMStreamAssemblyError):
            return not retries_of_lm(error)  # `dspy.LM` never retries it; `lms.reliable` does before the first token
        # Retries of both would multiply: three of the LM and three of the node are nine requests.
        if isinstance(error, dspy_errors.LMError):
            return bool(dspy_errors.is_retryable_lm_error(error)) and not retries_of_lm(error)
    return isinstance(error, (ConnectionError, TimeoutError))


def needs_new_response(error: BaseException) -> bool:
    """Return whether the same requests to language models would fail again, since caches serve the same responses.

    After a transport error (of a language model, a connection, a timeout) they are repeated as they were: what has
    succeeded is not paid twice.

    Example:
        >>> (needs_new_response(ValueError("the summary is too long")),
        ...     needs_new_response(TimeoutError()))
        (True, False)
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(needs_new_response, error.exceptions))
    dspy_errors: Any = sys.modules.get("dspy")
    return not isinstance(error, OSError if dspy_errors is None else (OSError, dspy_errors.LMError))


_LM_RETRIES = "dspyer_lm_retries"


def mark_lm_retries(error: BaseException, retries: int) -> None:
    """Notes on the error of an LM call how often the LM was allowed to retry the request, for `is_transient`.

    An error that the LM does not retry (a stream that broke off after its first token) must not be marked.
    """
    with suppress(AttributeError):
        setattr(error, _LM_RETRIES, retries)


def retries_of_lm(error: BaseException) -> int:
    """Return the number of retries that the LM allowed for the request that failed; 0 if that is not known."""
    found: int = getattr(error, _LM_RETRIES, 0)
    return found


# --- an exception as one line for a language model


def short_error(error: BaseException, *, step: str = "", action: str = "", limit: int = 200) -> str:
    """Describe an exception to a language model in one line, without stack trace: step, error, action.

    The line is the same in every process: addresses of objects are left out. Of a group of one exception, it is that
    exception.

    Args:
        error: the exception.
        step: what was being done; by default the node, or else the function, in which it was raised.
        action: what to do about it; by default a suggestion for the class of the exception.
        limit: most characters of its own text.

    Returns:
        The line.

    Example:
        >>> short_error(TimeoutError("no answer after 5 s"), step="search the web")
        'step: search the web; error: TimeoutError: no answer after 5 s; action: try
        again, or continue without it'
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = _ADDRESS.sub("", error_text(error)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text, name = " ".join(text.split()), type(error).__name__
    text = text if len(text) <= limit else f"{text[: limit - 3]}..."
    parts = {
        "step": " ".join(step.split()) or _place_of(error),
        "error": f"{name}: {text}" if text else name,
        "action": " ".join(action.split()) or next(advice for kinds, advice in _ADVICE if isinstance(error, kinds)),
    }
    return "; ".join(f"{key}: {value}" for key, value in parts.items() if value)


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")  # of `<Client object at 0x7f24278b7d90>`

_ADVICE: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((TimeoutError, ConnectionError), "try again, or continue without it"),
    ((PermissionError,), "do without it, or ask for permission"),
    ((LookupError, FileNotFoundError), "check the name, and what there is"),
    ((ValueError, TypeError), "correct what was given, and try again"),
    ((BaseException,), "try another way"),
)


def _place_of(error: BaseException) -> str:
    """Return where an exception was raised: the node that its notes name, else the innermost function."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(_IN_NODE):
            return str(note).removeprefix("in ").partition(" (")[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_name


# --- parts of error texts


def error_text(error: BaseException) -> str:
    """Return the text of an exception, or a description of it if its `__str__` raises."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a class of the user; the run has failed already
        return f"<{type(error).__name__}.__str__ raised {type(problem).__name__}>"


def brief(value: object, limit: int = 60) -> str:
    """Return a value as errors show it: whole if it is small, else its keys and size.

    Example:
        >>> brief({"a": 1})
        "{'a': 1}"
        >>> brief(["x" * 40, "y" * 40])
        'list of 2 items'
        >>> brief(["x" * 80])
        'list of 1 item'
    """
    try:
        return _brief(value, limit)
    except Exception as problem:  # noqa: BLE001 - a class of the user; the text is needed for something else
        return f"<{type(value).__name__}.__repr__ raised {type(problem).__name__}>"


def _brief(value: object, limit: int) -> str:
    name = type(value).__name__
    if isinstance(value, (str, bytes)):
        unit = "characters" if isinstance(value, str) else "bytes"
        return repr(value) if len(value) <= limit else f"{value[: limit // 2]!r}... ({len(value)} {unit})"
    if isinstance(value, (Mapping, Sequence, AbstractSet)):
        kind = {"FrozenDict": "dict", "SealedPatch": "dict", "FrozenList": "list"}.get(name, name)
        if len(value) <= 6:
            plain = dict(value) if kind == "dict" else list(value) if kind == "list" else value
            text = repr(plain)
            if len(text) <= limit:
                return text
        size = f"{len(value)} {'key' if isinstance(value, Mapping) else 'item'}{'' if len(value) == 1 else 's'}"
        if isinstance(value, Mapping):
            keys = [repr(key) for key, _ in zip(value, range(6), strict=False)]
            return f"{kind} of {size}: {', '.join(keys)}{', ...' if len(value) > 6 else ''}"
        return f"{kind} of {size}"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}... ({name})"


def list_names(found: Iterable[object], limit: int = 12) -> str:
    """Return names as a list for a message: all if they are few, else the first ones and their number.

    Example:
        >>> list_names(["question", "answer"])
        "'question', 'answer'"
        >>> list_names(range(1000), limit=2)
        '0, 1, ... (1000 in all)'
    """
    texts = [repr(name) for name in found]
    if len(texts) <= limit:
        return ", ".join(texts) or "none"
    return f"{', '.join(texts[:limit])}, ... ({len(texts)} in all)"


def suggestion(name: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """Return a sentence that offers names of similar spelling, at least `cutoff` of 1; empty if there are none.

    Example:
        >>> suggestion("qestion", ["question", "answer"])
        " Did you mean 'question'?"
    """
    spelt, texts = str(name), [str(other) for other in known]
    near = [text for text in texts if text.lower() == spelt.lower()] or get_close_matches(spelt, texts, 3, cutoff)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def with_article(name: str) -> str:
    """Return a name with its indefinite article: an ImmutableState, a list."""
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


# --- exceptions in transit


def annotate(error: BaseException, note: str) -> None:
    """Add a note to an exception unless it has it already. One that takes no notes (a frozen dataclass) is unchanged.

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


class noting:  # noqa: N801 - used as a function: `with noting(...)`
    """A block whose exceptions get a note.

    Example:
        >>> with noting("in the rule"):
        ...     raise ValueError("odd")
        Traceback (most recent call last):
        ValueError: odd
        in the rule
    """

    __slots__ = ("_note",)

    def __init__(self, note: str) -> None:
        self._note = note

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            annotate(error, self._note)


def drop_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of an exception and of those that led to it, in place."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            BaseException.with_traceback(one, None)  # not an assignment: a frozen class would refuse it
            found += [one.__cause__, one.__context__]
            found += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def unwrap_stop_iteration(error: BaseException) -> BaseException:
    """Return the `StopIteration` that Python replaced by a `RuntimeError` (PEP 479), any other exception unchanged."""
    cause = error.__cause__
    if isinstance(cause, StopIteration) and str(error).endswith("raised StopIteration"):
        return cause
    return error
