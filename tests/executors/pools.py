"""Executors for tests: one in this process that sends bytes, one that breaks, and the real ones."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from threading import Event, Lock
from typing import Any


class BytesExecutor(Executor):
    """Threads of this process that get what a process would: a pickled task.

    It refuses what no other process could be given, and counts what is sent.
    """

    def __init__(self, threads: int = 2) -> None:
        self.sent: list[int] = []
        self.returned: list[int] = []
        self.futures: list[Future[Any]] = []
        self._threads = ThreadPoolExecutor(threads)

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Pickles the task as `ProcessPoolExecutor` does, which knows nothing of cloudpickle."""
        task = pickle.dumps((function, args, kwargs))
        assert all(type(one) is bytes for one in args)
        assert not kwargs
        self.sent.append(len(task))
        future = self._threads.submit(self._work, task)
        self.futures.append(future)
        return future

    def _work(self, task: bytes) -> Any:
        function, args, kwargs = pickle.loads(task)
        result = pickle.dumps(function(*args, **kwargs))
        self.returned.append(len(result))
        return pickle.loads(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


class BreakingExecutor(BytesExecutor):
    """Loses its workers at one task: its future fails, those that are not done too, and later submits are refused.

    Args:
        at: the number of the task, from 0.
        submit: whether `submit` raises at this task, as it does once a pool has noticed.
        error: what a lost task raises; None to cancel it.
    """

    def __init__(
        self,
        at: int,
        submit: bool = False,
        error: Callable[[], BaseException] | None = lambda: BrokenProcessPool("a worker was killed"),
    ) -> None:
        super().__init__()
        self.at = at
        self.error = error
        self.early = submit
        self.count = 0
        self._lock = Lock()

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future of the task, or of a broken pool."""
        with self._lock:
            number, self.count = self.count, self.count + 1
        if number < self.at:
            return super().submit(function, *args, **kwargs)
        error = None if self.error is None else self.error()
        if error is not None and (self.early or number > self.at):
            raise error
        future: Future[Any] = Future()
        if error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(error)
        return future


class HeldExecutor(BytesExecutor):
    """Starts no task before the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted = Event()
        self.go_on = Event()

    def _work(self, task: bytes) -> Any:
        self.submitted.set()
        assert self.go_on.wait(30)
        return super()._work(task)


@contextmanager
def forked(workers: int = 1) -> Iterator[Executor]:
    """A process pool of the standard library. `fork_server` has imported DSPy for its workers."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("forkserver")) as pool:
        yield pool


@contextmanager
def loky_pool(workers: int = 1) -> Iterator[Executor]:
    """A pool of loky."""
    loky: Any = import_module("loky")
    pool = loky.ProcessPoolExecutor(max_workers=workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, kill_workers=True)


@contextmanager
def dask_pool(workers: int = 1) -> Iterator[Executor]:
    """The executor of a cluster of Dask in processes of their own, which replaces killed workers."""
    dask: Any = import_module("distributed")
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    forks = import_module("dask").config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    with forks, dask.LocalCluster(processes=True, **options) as cluster, dask.Client(cluster) as client:
        yield client.get_executor(retries=3)


POOLS = {"processes": forked, "loky": loky_pool, "Dask": dask_pool}
