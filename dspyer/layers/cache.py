"""`NodeCache`: the layer that keeps the results of a node on disk, around all its attempts.

An execution computes its key from what it reads. If another execution of this process has the same key, it follows that
one. Else it leads: it looks the key up, and without an entry it calls the node and stores what that returned. The entry
holds what the node returned, not the patch that was committed: that one is the net change of one state. So an entry is
validated and folded each time, as if the node had just returned it.

The leader commits what it has read back from its entry: a value that JSON changes is the same in the first run and in
all later ones. Whatever cannot be kept is committed as it is, and a warning says why it is not kept.

The key is what the node is (`node_cache`, computed when the graph is compiled) and what one call of it reads. What it
is are names, version, and the source text of the function, of the functions and classes of its file that it names, and
the constants. Constants and arguments count in the JSON form of `values.json`, which tells apart all types that a state
does: 1 and True, "a" and b"a", arrays of equal bytes and two dtypes. The order of a dict counts, since a function may
iterate over it; the order of a set does not.

The parts: `PatchCache`, one folder on disk; `Flight`, one key that an execution is looking up or making; the key; the
steps of the script that leads or follows a flight; `NodeCache`, the layer. Across processes there is no flight: two of
them may make one key.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from textwrap import dedent
from threading import Lock
from tokenize import TokenError
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import dspy

from dspyer import clock
from dspyer.clock import current_limit
from dspyer.errors import StateError, list_names, with_article
from dspyer.layers.layer import Inner, Layer, Place, replies
from dspyer.lm.not_public import CACHE_FOLDER, default_cache_dir
from dspyer.lm.source import source_of
from dspyer.lm.tracing import step_count
from dspyer.nodes.callables import defaults_of, names_of, plain_function, used_objects
from dspyer.nodes.function import FunctionNode
from dspyer.nodes.node import Call, Node, Output, Reply
from dspyer.nodes.options import Cache, NodeOptions
from dspyer.nodes.steps import Script, TwoWays, arun_script, blocked_loops, run_script
from dspyer.patch import DELETE, decode_update, encode_update
from dspyer.schema.schema import Schema
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze, held_classes
from dspyer.values.frozen import thaw
from dspyer.values.json import decoder
from dspyer.waiting import at_fork, loop_of_worker, task_signal

logger = logging.getLogger("dspyer")

SIZE_LIMIT = 2**30
"""Bytes of one folder, above which the oldest entries are removed."""

_LOCKED_FOR = 10.0  # seconds to wait for another process that writes; a reader does not wait
_DIGEST_SIZE = 16


# --- entries on disk


def encode_reply(reply: Reply) -> bytes:
    """The JSON of what a node returned, with the time; raises `StateError` for a value that has none."""
    updates = [[name, encode_update(update)] for name, update in reply.updates.items()]
    return json.dumps({"updates": updates, "whole": reply.whole, "made": clock.wall()}, allow_nan=False).encode()


def decode_reply(data: bytes, decode: Callable[[Any], Any]) -> Reply:
    """The reply of a JSON; `decode` reads its values. Raises `StateError` for a class that is unknown here."""
    found = json.loads(data)
    # Plain copies, as the function returned them: pydantic accepts no frozen model in a plain dict.
    plain = {name: decode_update(update, lambda value: thaw(decode(value))) for name, update in found["updates"]}
    return Reply(plain, None, found["whole"])


class PatchCache:
    """The entries in one folder, a `diskcache.Cache`. It is opened when it is first used, and again after an error.

    It holds bytes and never unpickles. Each entry begins with a hash of its key and content: what is damaged is no
    entry. An error of the disk never reaches a run: it is a miss, and logged.
    """

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
        if not isinstance(data, bytes) or data[:_DIGEST_SIZE] != _digest_of_entry(key, data[_DIGEST_SIZE:]):
            logger.warning("node cache in %s: the entry %s is damaged; the node is called", self.folder, key)
            return None
        entry = data[_DIGEST_SIZE:]
        if ttl is not None and not 0 <= clock.wall() - json.loads(entry)["made"] < ttl:
            return None
        return entry

    def write(self, key: str, entry: bytes, ttl: float | None) -> None:
        """Store an entry."""
        try:
            self._open().set(key, _digest_of_entry(key, entry) + entry, expire=ttl)
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


def _digest_of_entry(key: str, entry: bytes) -> bytes:
    return blake2b(entry, key=bytes.fromhex(key), digest_size=_DIGEST_SIZE).digest()


# --- single flight

_Place: TypeAlias = tuple[str, str, float | None]  # folder, key, ttl: an entry may be too old for another program
ANY_LOOP: Final = object()


class Flight(Future[None]):
    """One key that an execution of this process, the leader, is looking up or making; it is done when that ends.

    Without an `entry` each follower then makes its own call: one after the other, they would wait for each other's
    timeouts. A leader that was cancelled cancels the flight, and one of its followers leads.

    Attributes:
        loop: the event loop that the leader needs, `ANY_LOOP` if it is not known, None for none.
        entry: what the leader has found or made; None if that cannot be kept, or if the leader failed.
    """

    def __init__(self, place: _Place) -> None:
        super().__init__()
        self.loop: object = ANY_LOOP
        self.entry: bytes | None = None
        self._place = place

    def end(self, has_outcome: bool) -> None:
        """End, unless it has ended: a leader that was abandoned may still come to its end in a thread left running."""
        with _lock:
            if _flights.get(self._place) is not self:
                return
            del _flights[self._place]
        # Without the lock: this wakes the followers, and one of them may lead the next flight of the key.
        if has_outcome:
            self.set_result(None)
        else:
            self.cancel()


def on_disk(work: Callable[[], T]) -> Future[T]:
    """Read or write in one of a few threads that stay: diskcache opens a connection in each thread that it is used in,
    and leaves closing it to the cyclic garbage collector.
    """
    global _threads  # noqa: PLW0603 - started when they are needed, and again in a forked process
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(4, "dspyer_cache")
        try:
            return _threads.submit(work)
        except RuntimeError:  # the interpreter shuts down
            done: Future[T] = Future()
    done.set_result(work())
    return done


T = TypeVar("T")
_threads: ThreadPoolExecutor | None = None
_lock = Lock()
_flights: dict[_Place, Flight] = {}


@cache
def cache_in(folder: str) -> PatchCache:
    """Return the cache of a folder, the same for all programs of this process."""
    return PatchCache(folder)


def _after_fork() -> None:
    """Forget what threads of the parent process were doing: they do not exist here."""
    global _lock, _threads
    _lock, _threads = Lock(), None
    _flights.clear()
    cache_in.cache_clear()


at_fork(_after_fork)


# --- the key


def node_cache(graph: str, node: Node, options: NodeOptions, problems: list[str]) -> NodeCache | None:
    """The layer of a node with `cache=`; why its results cannot be kept is added to `problems`, each with its fix."""
    policy, who = options.cache, options.who
    assert policy is not None
    if not isinstance(node, FunctionNode) or options.modules:
        kind = "is a graph: cache nodes of it that are functions" if node.runs_graph else _CALLS_PREDICTORS
        problems.append(f"{who}: cache is for functions without predictors, and this node {kind}")
        return None
    problems += [f"{who}: cache: it {reason}" for reason in _excluded(node)]
    parts, unknown = _identity(node.fn)
    if unknown and not policy.version:
        named = "; ".join(dict.fromkeys(unknown))
        problems.append(
            f"{who}: cache: the key cannot tell one object from another for {named}: say which it is, "
            "cache=Cache(version=...), and change that when it changes, or read it from a field"
        )
    fields = [(field.name, field.copy, field.form) for field in node.binding.fields]
    writes = None if node.writes is None else sorted(node.writes.items())
    described = _digest([_FORM, graph, node.name, policy.version, [fields, writes], parts])
    return NodeCache(node, described, policy)


_FORM = 1  # of keys and entries: another number leaves all earlier entries behind
_CALLS_PREDICTORS = "calls modules: DSPy caches the responses of their LM calls, dspy.LM(..., cache=True)"


def _excluded(node: FunctionNode) -> Iterator[str]:
    """Reasons why the result of a function is more than a patch, or depends on more than its key."""
    binding = node.binding
    if binding.contexts:
        yield (
            f"takes {list_names(binding.contexts)}, by which it may ask, post and have effects: a result from the "
            "cache would leave them out. Take the fields that it reads as parameters, views in reads={...}"
        )
    if binding.whole_state:
        yield "reads the state as a whole, most of which changes nothing in its result: name the fields as parameters"
    if binding.resources:
        names = list_names([resource.name for resource in binding.resources])
        yield (
            f"takes the resource {names}, which differs from run to run: bind it, functools.partial(fn, client=...), "
            "with cache=Cache(version=...)"
        )
    if node.goto:
        yield "returns a Command, and only a patch is kept: route by add_conditional_edges"


# --- the identity of a function


def _digest(described: Any) -> str:
    """The hash of a description that is plain JSON."""
    text = json.dumps(described, ensure_ascii=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=32).hexdigest()


def _identity(fn: Any) -> tuple[list[Any], list[str]]:
    """The identity of a function as JSON: its text, and what it names in its file and holds; and what has none.

    What other files define counts by its name. What has no description may be different where the description is equal.
    """
    parts: list[Any] = []
    unknown: list[str] = []
    seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other one gets its id
    plain = plain_function(fn)
    home = getattr(plain, "__module__", None) or type(plain).__module__
    # A list and no recursion: functions and containers may refer to each other in circles, and to any depth.
    work: list[tuple[str, Any]] = [("the function", fn)]
    for name, value in work:  # grows meanwhile
        if not (defined := isinstance(value, types.FunctionType | type)):
            work.append((f"the class of {name}", type(value)))  # its methods may be called
            with suppress(StateError, RuntimeError):  # `RuntimeError`: changed by another thread meanwhile
                parts.append([name, encoding.encode(freeze(value))])
                continue
        is_known = id(value) in seen
        parts.append([name, seen.setdefault(id(value), (len(seen), value))[0]])
        if is_known:
            continue
        if defined:
            text, used = _text_and_names(name, value, home, unknown)
            parts.append([value.__module__, value.__qualname__, text])
            work += sorted(used.items())  # by name: the order in which code uses them is a part of its text
        elif (held := _parts_of(value)) is None:
            unknown.append(f"{name!r} ({with_article(type(value).__name__)})")
        else:
            work += [(f"{name}[{index}]", part) for index, part in enumerate(held)]
    return parts, unknown


def _text_and_names(name: str, value: Any, home: str, unknown: list[str]) -> tuple[str, dict[str, Any]]:
    """The text of a function or class of a file, and what it names; of another file, what its closure holds alone."""
    code = value.__code__ if isinstance(value, types.FunctionType) else None
    used = {} if code is None else {one: part for one, part in used_objects(value).items() if "." not in one}
    if (value.__module__ if code is None else value.__globals__.get("__name__")) != home:
        return "", {one: part for one, part in used.items() if code and one in code.co_freevars}
    text = ""
    try:
        text = dedent(source_of(code or value))
    except (OSError, TypeError, SyntaxError, TokenError):
        unknown.append(f"{name!r} (without source text)")
    if code is None:
        known = vars(sys.modules[home]) if home in sys.modules else {}
        with suppress(SyntaxError):  # a text that is a part of a statement
            loaded = names_of(compile(text, "<class>", "exec", dont_inherit=True))[0]
            used = {one: known[one] for one in loaded if one in known}
    else:
        later = {*names_of(code)[0], *code.co_freevars}.difference(used, vars(builtins))
        unknown += [f"{one!r} (not defined yet)" for one in sorted(later)]
        used |= defaults_of(value)
    return text, used


_CACHED: Final = type(lru_cache(abs))
_WITHOUT_STATE: Final = (logging.Logger, type(threading.Lock()), type(threading.RLock()), type(...), type(DELETE))


def _parts_of(value: Any) -> list[Any] | None:
    """The parts of a value that is no constant; None for an object, which cannot be told from others."""
    kind = type(value)
    if kind in (list, tuple):
        return list(value)
    if kind is dict:
        return [*chain.from_iterable(value.items())]
    if kind is partial:
        return [value.func, *value.args, value.keywords]
    if kind is types.MethodType:
        return [value.__func__, value.__self__]
    if kind is _CACHED:
        return [value.__wrapped__]
    if issubclass(kind, types.ModuleType):
        return [value.__name__]
    if kind in (types.BuiltinFunctionType, types.MethodDescriptorType):
        return [value.__qualname__, getattr(value, "__self__", None)]
    if kind.__module__ == "typing" or kind in (types.GenericAlias, types.UnionType):
        arguments = get_args(value)
        return [str(get_origin(value)), *arguments] if arguments else [repr(value)]
    return [] if kind is object or issubclass(kind, _WITHOUT_STATE) else None


# --- the steps of a script: work on the folder, lead a flight, follow one


_LED: Final = "dspyer_led"  # a setting, since DSPy carries these to its threads


def _led() -> tuple[Flight, ...]:
    """The flights that executions around the caller lead."""
    found: tuple[Flight, ...] = dspy.settings.get(_LED) or ()
    return found


def disk_step(work: Callable[[], Any]) -> TwoWays:
    """The step that does something with the entries of a `PatchCache`: one of its methods with its arguments."""
    return TwoWays(lambda: on_disk(work).result(), lambda: asyncio.wrap_future(on_disk(work)))


class Lead(NamedTuple):
    """Runs the script of a leader as one step, which knows what it leads."""

    flight: Flight
    script: Script[Any]

    def call(self, call: Call) -> Any:
        del call
        # In a worker thread of AnyIO, async functions run on the loop that the thread belongs to.
        with self._leading(ANY_LOOP if loop_of_worker() else None):
            return run_script(self.script)

    async def acall(self, call: Call) -> Any:
        del call
        with self._leading(asyncio.get_running_loop()):
            return await arun_script(self.script)

    @contextmanager
    def _leading(self, loop: object) -> Iterator[None]:
        with ExitStack() as stack:
            # If an attempt around the execution times out, it may be left running for good: nothing waits for it then.
            limit = current_limit.get()
            while limit is not None:
                stack.enter_context(limit.signal.on_stop(lambda _reason: self.flight.end(False)))
                limit = limit.around
            stack.enter_context(dspy.context(**{_LED: (*_led(), self.flight)}))
            self.flight.loop = loop
            yield


class Follow(NamedTuple):
    """Waits for the leader; returns whether it has an outcome. If the run is stopped, the execution is left open."""

    flight: Flight

    def call(self, call: Call) -> bool:
        if self._would_deadlock():
            return True
        ended = threading.Event()
        with call.runner.session.stop_signal.on_stop(lambda _reason: ended.set()):
            self.flight.add_done_callback(lambda _flight: ended.set())
            ended.wait()
        return self._has_outcome()

    async def acall(self, call: Call) -> bool:
        if self._would_deadlock():
            return True
        ended, end = task_signal()
        with call.runner.session.stop_signal.on_stop(end):
            self.flight.add_done_callback(lambda _flight: end())
            await ended
        return self._has_outcome()

    def _would_deadlock(self) -> bool:
        """Finds that the leader waits for this execution.

        It is around it, if what is called calls its own program again. Or it needs an event loop that a sync call
        around this execution blocks, as in a notebook.
        """
        if any(flight is self.flight for flight in _led()):
            return True
        blocked = blocked_loops()
        return bool(blocked) and (self.flight.loop is ANY_LOOP or self.flight.loop in blocked)

    def _has_outcome(self) -> bool:
        if not self.flight.done():
            raise asyncio.CancelledError
        return not self.flight.cancelled()


class NodeCache(Layer):
    """The cache of one node: the layer of `add_node(cache=)`."""

    __slots__ = ("_identity", "_node", "_policy")
    place: ClassVar[Place] = "cache"

    def __init__(self, node: FunctionNode, identity: str, policy: Cache) -> None:
        self._node = node
        self._identity = identity  # a hash of all parts of the key that are the same for each call
        self._policy = policy

    @property
    def note(self) -> str:
        """The words of `explain()` for it."""
        return "cached" if self._policy.ttl is None else f"cached for {self._policy.ttl:g} s"

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output that the cache holds, else that of `inner`, which the cache keeps."""
        try:
            key = self._key(call)
        except Exception as error:  # noqa: BLE001 - if what the node reads is wrong, its call raises the same
            self._warn(call, "what it reads gives no key, so nothing is kept", error)
            return (yield from inner(call))
        folder = self._policy.folder
        cache = cache_in(default_folder() if folder is None else str(folder))
        place = cache.folder, key, self._policy.ttl
        while True:
            with _lock:
                flight = _flights.get(place)
                if leads := flight is None:
                    flight = _flights[place] = Flight(place)
            if leads:
                try:
                    found: Output = yield Lead(flight, self._led(flight, cache, key, call, inner)), call
                except BaseException as error:  # also if the script is closed before its step, or its task is cancelled
                    flight.end(isinstance(error, Exception))
                    raise
                flight.end(True)
                return found
            has_outcome: bool = yield Follow(flight), call
            if has_outcome:
                output = None if flight.entry is None else self._used(flight.entry, call)
                return output or (yield from inner(call))

    def _led(self, flight: Flight, cache: PatchCache, key: str, call: Call, inner: Inner) -> Script[Output]:
        """Looks the key up; without an entry that can be used, calls the node and stores what it returned."""
        ttl = self._policy.ttl
        entry: bytes | None = yield disk_step(partial(cache.read, key, ttl)), call
        found = None if entry is None else self._used(entry, call)
        if found is not None:
            flight.entry = entry
            return found
        kept: list[bytes] = []  # the entry of what the last attempt returned, if that can be kept

        def read_back(reply: Reply) -> Reply:
            """Encodes what the node returned; returns it as it reads from its entry."""
            kept.clear()
            try:
                entry = encode_reply(reply)
                found = decode_reply(entry, _decoder(call.runner.session.graph.topology.schema))
            except Exception as error:  # noqa: BLE001 - the result is good, it only has no JSON form that can be read
                self._warn(call, "what it returned cannot be kept", error)
                return reply
            kept.append(entry)
            return found

        steps = step_count()
        output: Output = yield from inner(replies(call, read_back))
        if kept and step_count() > steps:
            self._warn(
                call,
                "it called a predictor, which a result from the cache would leave out of the trace: it is not kept",
            )
        elif kept:
            flight.entry = kept[0]
            yield disk_step(partial(cache.write, key, kept[0], ttl)), call
        return output

    def _used(self, entry: bytes, call: Call) -> Output | None:
        """The output that an entry gives; None if it cannot be read, or the schema refuses it: then the node is called.

        The entry may be of another version of a class or of the schema.
        """
        try:
            output: Output = call.reply(decode_reply(entry, _decoder(call.runner.session.graph.topology.schema)))
        except Exception as error:  # noqa: BLE001 - whatever is in the file, it fails no run
            self._warn(call, "an entry cannot be used, so it is called", error)
            return None
        return output._replace(cached=True)

    def _key(self, call: Call) -> str:
        """The key of a call.

        Raises what making the arguments raises, and `StateError` if one of them has no JSON form.
        """
        # Attempt 0 is none: what the key reads of a view does not count as read by the node.
        arguments = self._node.binding.bind(call.of_attempt(call.context.delegate.next(0)))
        return _digest([self._identity, {name: encoding.encode(freeze(value)) for name, value in arguments.items()}])

    def _warn(self, call: Call, text: str, error: Exception | None = None) -> None:
        """Logs why the cache does not help: once per node and reason as a warning, then for debugging."""
        known = (self._identity, text) in _warned
        _warned.add((self._identity, text))
        shown = error if error is None else call.runner.session.layers.shown(error)
        reason = text if shown is None else f"{text}: {type(shown).__name__}: {shown}"
        logger.log(logging.DEBUG if known else logging.WARNING, "cache of node %r: %s", self._node.name, reason)
        if error is not None:
            error.__traceback__ = None  # its frames refer to the run, which would wait for the cyclic garbage collector


_warned: set[tuple[str, str]] = set()


@lru_cache(maxsize=128)
def _decoder(schema: Schema) -> Callable[[Any], Any]:
    """Reads the values of cache entries: the classes that the schema names are searched for once."""
    return decoder(() if schema.model is None else held_classes(schema.model))


def default_folder() -> str:
    """The folder of node results in DSPy's cache folder: that of `dspy.configure_cache`, else of `DSPY_CACHEDIR`."""
    built = vars(dspy).get("cache")  # not `dspy.cache`, which would open DSPy's own files
    return str(Path(getattr(built, CACHE_FOLDER, None) or default_cache_dir(), "dspyer"))
