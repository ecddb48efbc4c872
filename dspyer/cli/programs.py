"""The program and the thread that a command names, and how a run is made. This module imports DSPy."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspyer import Budget, CompiledGraph, Graph, Run, Thread, progress
from dspyer.archive.run_info import RunInfo
from dspyer.cli.arguments import BudgetOptions, CommonOptions, UsageError, parse_object
from dspyer.cli.store_access import NO_STORE, open_to_write
from dspyer.cli.summaries import print_result
from dspyer.cli.terminal import note
from dspyer.errors import StateError, StoreError, ThreadError, annotate, error_text, suggestion
from dspyer.extend import freeze
from dspyer.patch import decode_update
from dspyer.stores import Store
from dspyer.values.json import encode

FORM = "a program is named as module:name, for example app:program"


def program_on(name: str, common: CommonOptions, create: bool = False) -> CompiledGraph:
    """The program at `module:name`, on the store of a command, or else on the store that it was compiled with."""
    store = None if common.store is None else open_to_write(common, create)
    program = load_program(name, store)
    if program._store is None:
        raise UsageError(NO_STORE)
    return program


def load_program(name: str, store: Store | None = None) -> CompiledGraph:
    """The program at `module:name`, with `store` if one is given.

    The name is that of a compiled graph, of a graph, which is compiled, or of a function without arguments that returns
    one of them. The current folder is importable.
    """
    found = _found(name)
    if not isinstance(found, CompiledGraph | Graph) and callable(found) and not isinstance(found, type):
        try:
            with stdout_apart():
                found = found()
        except (Exception, SystemExit) as error:
            raise _failed(name, error) from error
        if isinstance(found, Coroutine):
            found.close()
            raise UsageError(f"{name!r} is an async function: name a function that returns the program without await")
    if isinstance(found, Graph):
        return found.compile(store=store)
    if isinstance(found, CompiledGraph):
        return found if store is None else found._with(_store=store)
    raise UsageError(
        f"{name!r} is {type(found).__name__}: name a compiled graph, a Graph, or a function that returns one of them"
    )


def _found(name: str) -> Any:
    module_name, _, path = name.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        meant = f"{module_name.removesuffix('.py').replace('/', '.').lstrip('.')}:{path or 'program'}"
        raise UsageError(f"{name!r} is a file: {FORM}. Did you mean {meant!r}?")
    if not module_name or not path:
        raise UsageError(f"{name!r} names no program: {FORM}")
    here = str(Path.cwd())  # a command that was installed has its own folder there instead
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with stdout_apart():
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise UsageError(f"there is no module {error.name!r} in {here} or among the installed ones: {FORM}") from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error
    for part in path.split("."):
        if not hasattr(found, part):
            near = suggestion(part, [other for other in vars(found) if not other.startswith("_")])
            raise UsageError(f"module {module_name!r} has no {path!r}.{near}")
        found = getattr(found, part)
    return found


def _failed(name: str, error: BaseException) -> UsageError:
    problem = UsageError(f"{name!r} cannot be loaded: {type(error).__name__}: {error_text(error)}")
    annotate(problem, "DSPYER_TRACEBACK=1 shows where")
    return problem


@contextmanager
def stdout_apart() -> Iterator[None]:
    """A block in which what the program prints goes to stderr: stdout is for the result.

    What processes print that the program starts, and what is written to the descriptor, goes there too.
    """
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        with suppress(OSError, ValueError, AttributeError):  # a stream that is closed, or no file
            out, err = sys.__stdout__.fileno(), sys.__stderr__.fileno()  # type: ignore[union-attr] # suppressed
            sys.__stdout__.flush()  # type: ignore[union-attr]
            own = os.dup(out)
            stack.callback(os.close, own)
            os.dup2(err, out)
            stack.callback(os.dup2, own, out)
        yield


def thread_of(program: str, name: str, common: CommonOptions) -> tuple[CompiledGraph, Thread]:
    """The program at `module:name`, and a thread of it that has begun."""
    loaded = program_on(program, common)
    t = loaded.thread(name)
    if t.status == "new":
        raise ThreadError(f"there is no thread {name!r} in {t._store.address}")
    return loaded, t


def parse_patch(option: str, text: str) -> dict[str, Any]:
    """A patch from a JSON object, with the markers that `log --json` shows: `{"$type": "delete"}` and others."""

    def read(value: Any) -> Any:
        if type(value) is dict and "$type" not in value:
            return {name: read(part) for name, part in value.items()}
        return decode_update(value)

    try:
        return {name: read(part) for name, part in parse_object(option, text).items()}
    except StateError as error:
        raise UsageError(f"{option}: {error}") from error


def budget_of(spending: BudgetOptions) -> Budget | None:
    """The budget with these limits; None without any."""
    return None if spending == BudgetOptions() else Budget(**spending._asdict())


def play(start: Callable[[], Run], common: CommonOptions, program: CompiledGraph, thread: Thread | None = None) -> str:
    """Make a run, with its progress on a terminal, and show it with its outputs; return how it ended.

    stdout is for the result, so what nodes print goes to stderr. SIGTERM stops the run as Ctrl-C does, and so does
    `sys.exit()`.
    """
    # Schedulers and containers end a process by SIGTERM: its run stops like at Ctrl-C, and a resume continues it.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    run: Run | None = None
    began = datetime.now(UTC)
    try:
        with stdout_apart(), progress():
            run = start()
    except KeyboardInterrupt:
        note("dspyer: the run was stopped by a signal")
    except SystemExit as error:
        note(f"dspyer: the run was stopped by the program, which raised SystemExit({error.code!r})")
    finally:
        signal.signal(signal.SIGTERM, before)
    if run is not None and run.status == "failed" and not run.failures:  # no node has failed
        assert run.error is not None
        if isinstance(run.error, StoreError):
            raise run.error
        note(f"dspyer: this process has lost the run: {error_text(run.error)}")
    # As this process has seen it: in the store another one may have taken the run over by now.
    status = "stopped" if run is None else run.status
    if thread is not None and thread.status != "new":  # a signal may have ended it before it began
        with common.archive(program) as archive:
            info = archive.thread(thread.name).info(None if run is None else run.run_id).to_dict()
    else:
        ended, record = datetime.now(UTC), None if run is None else run.record()
        shown = RunInfo("", "", program.graph.name, status, 0, began, ended, {}, None)
        if record is not None:
            steps = sum(step.parent is None and step.commit is not None for step in record.steps)
            asked = [step.asked.question for step in record.steps if step.asked and step.asked.answer is None]
            failure = next((one.model_copy(update={"traceback": ""}) for one in record.failures), None)
            spent = record.usage, record.cost, tuple(asked), failure
            shown = RunInfo("", record.run_id, record.graph.name, status, steps, began, ended, *spent)
        info = {**shown.to_dict(), "thread": None}
    completed = run is not None and run.status == "completed"
    found = {name: freeze(value) for name, value in run.prediction.items()} if run and completed else {}
    if run is not None and run._redactor is not None and not common.unredacted:
        found = {name: run._redactor.field(name, value) for name, value in found.items()}
    outputs = {name: encode(value) for name, value in found.items()} if completed else None
    common.show({**info, "outputs": outputs}, print_result)
    return status
