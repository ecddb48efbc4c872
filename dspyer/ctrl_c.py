"""Ctrl-C and forks: neither cuts off a write, nor leaves a lock taken.

Python raises `KeyboardInterrupt` in the main thread between any two instructions: between a commit of the store and the
bookkeeping of it, or between taking a lock and the block that releases it. So while the library works in the main
thread, `held_back` takes the signal, and raises `KeyboardInterrupt` once at its end. Meanwhile it is raised only in
code that the library calls, and where it waits; and of a run only when Ctrl-C is pressed again: the first time stops
the run.

Nothing is taken from a handler that is not Python's own: of the caller, of `asyncio.run`, of a block around this one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any, Self, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], object]

_signal: Any = vars(signal)["_signal"]  # the functions of `signal` look for enums of handlers: ten times as slow

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that are held back where they raise `KeyboardInterrupt`: SIGTERM does so under the command line."""

_raising: set[CodeType] = set()
_active: list[held_back] = []
"""The outermost block, while it has the signals."""


def may_raise(function: F) -> F:
    """Marks a function of the library in which Ctrl-C may be raised: it waits.

    It does so by a call of the interpreter, such as `SimpleQueue.get`: one of Python's own functions that wait holds a
    lock before and after.
    """
    _raising.add(function.__code__)
    return function


class held_back:  # noqa: N801 - used as a function: `with held_back()`
    """A block in which the library works. Elsewhere than in the main thread, and within another block, it does nothing.

    `stop` is called, from the signal handler, when Ctrl-C is pressed for the first time: it must take no lock. Without
    it, the first time is like the second one.
    """

    __slots__ = ("_pressed", "_stop")

    def __init__(self, stop: Callable[[], object] | None = None) -> None:
        self._stop, self._pressed = stop, 0

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            # Without a block, `_note` is Python's own: the code of a node had replaced it, and gave it back later.
            own = (signal.default_int_handler,) if _active else (signal.default_int_handler, _note)
            taken = [number for number in SIGNALS if _signal.getsignal(number) in own]
            if taken:
                _active[:] = [self]  # first, since Ctrl-C may be raised here: the next block replaces it
            for number in taken:
                _signal.signal(number, _note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self.release() and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt

    def release(self) -> bool:
        """Gives the signals back, if this block has them; returns whether one has arrived."""
        if self not in _active:
            return False
        _active.clear()
        for number in SIGNALS:
            if _signal.getsignal(number) is _note:  # else the code of a node has set a handler of its own
                _signal.signal(number, signal.default_int_handler)
        return self._pressed > 0


def _note(number: int, frame: FrameType | None) -> None:
    if not _active:
        signal.default_int_handler(number, frame)
    block = _active[0]
    block._pressed += 1
    if block._pressed == 1 and block._stop is not None:
        block._stop()  # meanwhile it may be pressed again
    if block._pressed > (block._stop is not None) and _is_raised_in(frame):
        raise KeyboardInterrupt


def _is_raised_in(frame: FrameType | None) -> bool:
    """Whether code of others works, as a node, a store or an LM, or a function that `may_raise` has marked."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name == "dspyer":
            return frame.f_code in _raising
        if name not in sys.stdlib_module_names and not name.startswith("namedtuple_"):
            return True
        frame = frame.f_back  # of Python's own functions, the caller decides
    return False


def gives_up() -> bool:
    """Whether Ctrl-C was pressed again: then what waits in the main thread gives up."""
    for one in _active:
        if one._pressed > (one._stop is not None):
            return threading.current_thread() is threading.main_thread()
    return False


# --- forks

_hooks: tuple[list[Hook], list[Hook], list[Hook]] = ([], [], [])
_forking = threading.local()


def at_fork(in_child: Hook, before: Hook | None = None, in_parent: Hook | None = None) -> None:
    """Calls functions when this process is forked, without signals between the first and the last of them."""
    for hooks, hook in zip(_hooks, (before, in_parent, in_child), strict=True):
        hooks.extend([hook] if hook else ())


def _before_fork() -> None:
    # The mask holds in the child, which has one thread. In the parent another thread may get the signal, for which
    # Python calls the handler in the main thread.
    # The block is one that the first signal does not end: what the hooks of others raise is dropped.
    _forking.block, _forking.mask = held_back(int).__enter__(), signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for hook in _hooks[0]:
        hook()


def _after_fork(hooks: list[Hook]) -> None:
    try:
        for hook in hooks:
            hook()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        if _forking.block.release():
            # What is raised here would be dropped. A real signal ends also what this thread waits for by then.
            start_new_thread(signal.pthread_kill, (threading.get_ident(), signal.SIGINT))


def _after_fork_in_child() -> None:
    _after_fork(_hooks[2])
    for block in _active[:]:  # of a run of the parent, in a node of which it was forked
        block.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    in_parent = partial(_after_fork, _hooks[1])
    os.register_at_fork(before=_before_fork, after_in_parent=in_parent, after_in_child=_after_fork_in_child)
