"""Programs with an executor: a call as a task, the worker that makes it, and the bytes that both send each other.

The names here are all that the core uses of it.
"""

from __future__ import annotations

from dspyer.executors.call import ExecutorCall, check_executor, check_sent, lost, refused

__all__ = ["ExecutorCall", "check_executor", "check_sent", "lost", "refused"]
