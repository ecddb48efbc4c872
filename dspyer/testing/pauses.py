"""The clock of tests: it stands, or lets no pause wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dspyer.clock import FakeClock, fake_clock


@contextmanager
def clock() -> Iterator[FakeClock]:
    """A block in which time stands still, but for `advance`: what waits for a time waits for the test.

    These are the pauses between attempts and before requests to an LM, the timeouts of nodes and of `ctx.live`, the
    seconds of budgets, the leases of threads in memory or SQLite and their renewal, `lock_timeout`, and the time that a
    cached reply is kept. PostgreSQL compares leases by the clock of its server. The block holds for the whole process;
    what a node itself waits for, and the duration of events, are not changed. With `no_pauses`, in it or around it, no
    pause waits.

    Returns:
        The clock, which any thread may move.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from threading import Event
        >>> from dspyer import END, START, Graph
        >>> answered = Event()
        >>> graph = Graph().add_node("ask", lambda: answered.wait(60) and {}, writes=[], timeout=30)
        >>> program = graph.add_path(START, "ask", END).compile()
        >>> with clock() as time, ThreadPoolExecutor() as pool:
        ...     run = pool.submit(program.run, {})
        ...     left = time.wait_for("timeout")  # until the node has begun
        ...     time.advance(31)
        ...     error = run.result().error
        >>> left, type(error).__name__
        ([30.0], 'NodeTimeoutError')
        >>> answered.set()  # a sync function is left running
    """
    with fake_clock(skips_pauses=False) as found:
        yield found


@contextmanager
def no_pauses() -> Iterator[list[float]]:
    """A block in which the pauses between attempts do not wait: those of retries, and of `dspyer.lms.reliable`.

    It holds for the whole process. What a node itself waits for is not changed; a timeout or a budget counts a pause as
    time that has passed.

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
    with fake_clock(stands=False) as found:
        yield found.pauses
