"""A clock for tests of retries: pauses are recorded and not waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dspyer.clock import fake_clock


@contextmanager
def no_pauses() -> Iterator[list[float]]:
    """A block in which the pauses between attempts do not wait: those of retries, and of `dspyer.lms.reliable`.

    It holds for the whole process. What a node itself waits for is not changed.

    Returns:
        The pauses that were asked for in the block, in seconds, in order.

    Example:
        >>> from tenacity import wait_fixed
        >>> from dspyer import END, START, Graph, Retry
        >>> calls = iter([ConnectionError("no line"), {"text": "hello"}])
        >>> def fetch():
        ...     found = next(calls)
        ...     if isinstance(found, Exception):
        ...         raise found
        ...     return found
        >>> graph = Graph().add_node("fetch", fetch, writes=["text"], retry=Retry(3, wait=wait_fixed(20)))
        >>> with no_pauses() as pauses:
        ...     run = graph.add_path(START, "fetch", END).compile().run({})
        >>> run.status, pauses
        ('completed', [20.0])
    """
    with fake_clock() as clock:
        yield clock.pauses
