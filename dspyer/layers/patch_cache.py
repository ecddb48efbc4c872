"""Patches of nodes on disk, and the executions of this process that are making one.

`PatchCache` is one folder, a `diskcache.Cache`. It holds bytes and never unpickles. Each entry begins with a hash of
its key and content: what is damaged is no entry. An error of the disk never reaches a run: it is a miss, and logged.

`Flight` is one key that an execution, the leader, is looking up or making. Executions that want the same key meanwhile
follow it: they wait for what it ends with. Across processes there is no flight: two of them may make one key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from dspyer import clock
from dspyer.ctrl_c import at_fork
from dspyer.patch import decode_update, encode_update

logger = logging.getLogger("dspyer")

SIZE_LIMIT = 2**30
"""Bytes of one folder, above which the oldest entries are removed."""

_LOCKED_FOR = 10.0  # seconds to wait for another process that writes; a reader does not wait
_DIGEST_SIZE = 16


class CachedPatch(NamedTuple):
    """What a node returned.

    Attributes:
        updates: by field of the state.
        whole: whether the values replace what is there, without a merge of dicts.
        made: when, as a Unix time.
    """

    updates: Mapping[str, Any]
    whole: bool
    made: float


def encode_patch(patch: CachedPatch) -> bytes:
    """Return the JSON of a patch; raise `StateError` for a value that has none."""
    updates = [[name, encode_update(update)] for name, update in patch.updates.items()]
    return json.dumps({"updates": updates, "whole": patch.whole, "made": patch.made}, allow_nan=False).encode()


def decode_patch(data: bytes, decode: Callable[[Any], Any]) -> CachedPatch:
    """Return the patch of a JSON; `decode` reads its values. Raise `StateError` for a class that is unknown here."""
    found = json.loads(data)
    updates = {name: decode_update(update, decode) for name, update in found["updates"]}
    return CachedPatch(updates, found["whole"], found["made"])


class PatchCache:
    """The entries in one folder. It is opened when it is first used, and again after an error."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = Lock()
        self._disk: Any = None
        self._warned = False

    def read(self, key: str, ttl: float | None) -> bytes | None:
        """Return an entry; None if there is none, or none that can be read, or none that is young enough."""
        try:
            data = self._open().get(key)
        except Exception as error:  # noqa: BLE001 - whatever the disk does: the node is called
            self._failed("read", error)
            return None
        if data is None:
            return None
        if not isinstance(data, bytes) or data[:_DIGEST_SIZE] != _digest(key, data[_DIGEST_SIZE:]):
            logger.warning("node cache in %s: the entry %s is damaged; the node is called", self.folder, key)
            return None
        entry = data[_DIGEST_SIZE:]
        if ttl is not None and not 0 <= clock.wall() - json.loads(entry)["made"] < ttl:
            return None
        return entry

    def write(self, key: str, entry: bytes, ttl: float | None) -> None:
        """Store an entry."""
        try:
            self._open().set(key, _digest(key, entry) + entry, expire=ttl)
        except Exception as error:  # noqa: BLE001 - as in `read`: the result is there, it is only not kept
            self._failed("written", error)

    def _open(self) -> Any:
        with self._lock:
            if self._disk is None:
                self._disk = open_disk(self.folder)
            return self._disk

    def _failed(self, what: str, error: Exception) -> None:
        with self._lock:
            self._disk = None  # opened again: the folder may have been removed, or the disk may have room again
            warned, self._warned = self._warned, True
        level = logging.DEBUG if warned else logging.WARNING
        text = "node cache in %s: it cannot be %s, so nodes are called that could be cached: %s: %s"
        logger.log(level, text, self.folder, what, type(error).__name__, error)


def open_disk(folder: str) -> Any:
    """Open a folder as a `diskcache.Cache` that never unpickles. Raises what the disk raises."""
    from diskcache import Cache, Disk
    from diskcache.core import MODE_PICKLE

    class BytesDisk(Disk):
        """Reads no pickle: otherwise a process that can write to the folder could run code here."""

        def fetch(self, mode: int, filename: str, value: Any, read: bool) -> Any:
            if mode == MODE_PICKLE:
                return None  # no entry of ours
            return super().fetch(mode, filename, value, read)

    return Cache(folder, disk=BytesDisk, timeout=_LOCKED_FOR, size_limit=SIZE_LIMIT)


def _digest(key: str, entry: bytes) -> bytes:
    return blake2b(entry, key=bytes.fromhex(key), digest_size=_DIGEST_SIZE).digest()


# --- single flight

_Place: TypeAlias = tuple[str, str, float | None]  # folder, key, ttl: an entry may be too old for another program
ANY_LOOP: Final = object()


class Flight:
    """One key that an execution of this process is looking up or making.

    Attributes:
        loop: the event loop that the leader needs, `ANY_LOOP` if it is not known, None for none.
        ended: whether the leader has ended.
        entry: what it has found or made; None if that cannot be kept, or if the leader failed.
        has_outcome: whether it has ended with a result or an error. Without an entry each follower then makes its own
            call: one after the other, they would wait for each other's timeouts. A leader that was cancelled has no
            outcome, and one of its followers leads.
    """

    def __init__(self, place: _Place) -> None:
        self.loop: object = ANY_LOOP
        self.ended = False
        self.entry: bytes | None = None
        self.has_outcome = False
        self._place = place
        self._waiting: list[Callable[[], object]] = []

    @contextmanager
    def leading(self, loop: object) -> Iterator[None]:
        """The block in which the leader looks up and makes the entry."""
        self.loop = loop
        try:
            yield
        except Exception:
            self._end(True)
            raise
        except BaseException:
            self.abandon()
            raise
        else:
            self._end(True)

    def abandon(self) -> None:
        """End without an outcome, unless it has ended."""
        self._end(False)

    def _end(self, has_outcome: bool) -> None:
        with _lock:
            if self.ended:
                return
            self.has_outcome, self.ended = has_outcome, True
            waiting, self._waiting = self._waiting, []
            _flights.pop(self._place, None)
        for wake in waiting:
            wake()

    def on_end(self, wake: Callable[[], object]) -> None:
        """Call `wake` when the leader has ended, from its thread, or at once."""
        with _lock:
            if not self.ended:
                self._waiting.append(wake)
                return
        wake()


def on_disk(work: Callable[..., T], *args: Any) -> Future[T]:
    """Read or write in one of a few threads that stay: diskcache opens a connection in each thread that it is used in,
    and leaves closing it to the cyclic garbage collector.
    """
    global _threads  # noqa: PLW0603 - started when they are needed, and again in a forked process
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(4, "dspyer_cache")
        try:
            return _threads.submit(work, *args)
        except RuntimeError:  # the interpreter shuts down
            done: Future[T] = Future()
    done.set_result(work(*args))
    return done


T = TypeVar("T")
_threads: ThreadPoolExecutor | None = None
_lock = Lock()
_flights: dict[_Place, Flight] = {}
_caches: dict[str, PatchCache] = {}


def join_flight(cache: PatchCache, key: str, ttl: float | None) -> tuple[Flight, bool]:
    """Return the flight of a key, and whether the caller leads it: then it must enter `leading` or `abandon` it."""
    place = (cache.folder, key, ttl)
    with _lock:
        found = _flights.get(place)
        if found is not None:
            return found, False
        found = _flights[place] = Flight(place)
        return found, True


def cache_in(folder: str) -> PatchCache:
    """Return the cache of a folder, the same for all programs of this process."""
    with _lock:
        if folder not in _caches:
            _caches[folder] = PatchCache(folder)
        return _caches[folder]


def _after_fork() -> None:
    """Forget what threads of the parent process were doing: they do not exist here."""
    global _lock, _threads
    _lock, _threads = Lock(), None
    _flights.clear()
    _caches.clear()


at_fork(_after_fork)
