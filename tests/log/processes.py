"""Real processes, forked from this one: everything is imported already."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """Starts a process that does something and ends; gives its number.

    Args:
        work: what it does. Anything that it raises ends it with status 1.
    """
    parent = os.getpid()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process has a thread that renews leases
            pid = os.fork()
    except KeyboardInterrupt:  # in the child, before it does anything
        if os.getpid() == parent:
            raise
        pid = 0
    if pid:
        return pid
    try:
        work()
    except BaseException:  # noqa: BLE001 - the child must not continue as the test
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def end_of(pid: int) -> int:
    """Waits for a process; gives its status, or the signal that ended it as a negative number."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
