"""The key under which the result of a node is kept: what the node is, and what one call of it reads.

What the node is (`plan_cache`) is computed once, when the graph is compiled: names, version, and the code of the
function with what it holds and what it names in its file. What a call reads (`key_of`) are the arguments of the
function, in the JSON form of `values.json`, which tells apart all types that a state does: 1 and True, "a" and b"a",
arrays of equal bytes and two dtypes.

The order of a dict counts, since a function may iterate over it; the order of a set does not.
"""

from __future__ import annotations

import builtins
import json
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache
from hashlib import blake2b
from re import Pattern
from textwrap import dedent
from tokenize import TokenError
from typing import Any, NamedTuple, get_args, get_origin

from dspyer.dspy_module.source import source_of
from dspyer.errors import StateError, list_names, with_article
from dspyer.nodes.callables import own_call, plain_function
from dspyer.nodes.function import FunctionNode
from dspyer.nodes.hidden_modules import names_of, used_objects
from dspyer.nodes.node import Call, Node
from dspyer.nodes.options import NodeOptions
from dspyer.patch import DELETE
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.types import class_name


class CachePlan(NamedTuple):
    """How the results of a node are kept.

    Attributes:
        node: its name.
        identity: a hash of all parts of the key that are the same for each call.
        ttl: how old a result may be, in seconds; None for any age.
    """

    node: str
    identity: str
    ttl: float | None


def key_of(plan: CachePlan, node: Node, call: Call) -> str:
    """The key of a call.

    Raises what making the arguments raises, and `StateError` if one of them has no JSON form.
    """
    assert isinstance(node, FunctionNode)
    # Attempt 0 is none: what the key reads of a view does not count as read by the node.
    arguments = node.binding.bind(call.of_attempt(call.context.delegate.next(0)))
    return digest([plan.identity, {name: encoding.encode(freeze(value)) for name, value in arguments.items()}])


def plan_cache(graph: str, node: Node, options: NodeOptions) -> tuple[CachePlan | None, list[str]]:
    """The plan of a node with `cache=`, or why its results cannot be kept, each with its fix."""
    policy, who = options.cache, options.who
    assert policy is not None
    if not isinstance(node, FunctionNode) or options.modules:
        kind = "is a graph: cache nodes of it that are functions" if node.look.inner else _CALLS_PREDICTORS
        return None, [f"{who}: cache is for functions without predictors, and this node {kind}"]
    problems = [f"{who}: cache: it {reason}" for reason in _excluded(node)]
    found = Identity()
    described = found.of_callable(node.fn)
    if found.unknown and not policy.version:
        unknown = "; ".join(dict.fromkeys(found.unknown))
        problems.append(
            f"{who}: cache: the key cannot tell one object from another for {unknown}: say which it is, "
            "cache=Cache(version=...), and change that when it changes, or read it from a field"
        )
    if problems:
        return None, problems
    binding = node.binding
    plan = [
        [(field.name, field.copy, field.form) for field in binding.fields],
        None if node.writes is None else sorted(node.writes.items()),
    ]
    return CachePlan(node.name, digest([_FORM, graph, node.name, policy.version, plan, described]), policy.ttl), []


_FORM = 1  # of keys and entries: another number leaves all earlier entries behind
_CALLS_PREDICTORS = "calls modules: DSPy caches the responses of their LM calls, dspy.LM(..., cache=True)"


def _excluded(node: FunctionNode) -> Iterator[str]:
    """What the signature shows of a function whose result is more than a patch, or depends on more than its key."""
    binding = node.binding
    if binding.contexts:
        yield (
            f"takes {list_names(binding.contexts)}, by which it may ask, post and have effects: a result from the "
            "cache would leave them out. Take the fields that it reads as parameters, views in reads={...}"
        )
    if node.whole_state:
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


def digest(described: Any) -> str:
    """The hash of a description that is plain JSON."""
    text = json.dumps(described, ensure_ascii=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=32).hexdigest()


class Identity:
    """Describes functions as JSON: their code, what they hold, and the functions, classes and constants that they name.

    Functions and classes of other files count by their names. `unknown` names what has no description: it may be
    different where the description is equal.

    Args:
        objects: classes of objects that count although they are no data.
        describe: describes one of them; it returns None if it cannot.
    """

    def __init__(self, objects: tuple[type, ...] = (), describe: Callable[[Any], Any] = repr) -> None:
        self.unknown: list[str] = []
        self._objects = objects
        self._describe = describe
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other one gets its id
        self._home: str | None = None

    def of_callable(self, fn: Any) -> Any:
        """Describe a callable; one that was described before by its number."""
        home = plain_function(fn)
        self._home = getattr(home, "__module__", None) or type(home).__module__
        return self._of(fn, "the function")

    def _of(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return [kind.__name__, repr(value)]
        if id(value) in self._seen and kind not in (tuple, frozenset):  # of which the compiler may share equal ones
            return ["again", self._seen[id(value)][0]]
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, self._objects):
            if (described := self._describe(value)) is None:
                self._refuse(name, with_article(kind.__name__))
            return [class_name(kind), described]
        if isinstance(value, types.FunctionType):
            return [value.__module__, value.__qualname__, *self._of_function(value)]
        if isinstance(value, type):
            return ["class", class_name(value), self._of_class(value, name)]
        if (parts := _parts_of(value)) is not None:
            return [class_name(kind), self._parts(parts, name)]
        with suppress(StateError, RuntimeError):  # `RuntimeError`: changed by another thread meanwhile
            return [self._of(kind, name), encoding.encode(freeze(value))]
        if not isinstance(value, _WITHOUT_STATE) and kind is not object:
            self._refuse(name, with_article(kind.__name__))
        return [class_name(kind)]

    def _parts(self, parts: list[tuple[str, Any]], owner: str = "") -> list[Any]:
        return [[name, self._of(part, name or owner)] for name, part in parts]

    def _of_function(self, fn: types.FunctionType) -> list[Any]:
        """The code of a function of this file, with what it names and holds; of another one, only its closure."""
        named = {name: one for name, one in used_objects(fn).items() if "." not in name}
        if fn.__globals__.get("__name__") != self._home:
            return [self._parts([(name, named[name]) for name in fn.__code__.co_freevars if name in named])]
        missing = {*names_of(fn.__code__)[0], *fn.__code__.co_freevars}.difference(named, vars(builtins))
        for name in sorted(missing):
            self._refuse(name, "not defined yet")
        names = reversed(fn.__code__.co_varnames[: fn.__code__.co_argcount])
        defaults = zip(names, reversed(fn.__defaults__ or ()), strict=False)
        held = {**named, **(fn.__kwdefaults__ or {}), **vars(fn)}
        return [_code(fn.__code__), self._parts([*defaults, *sorted(held.items())])]

    def _of_class(self, cls: type, name: str) -> Any:
        """The text of a class of this file, what it and its methods name, and its attributes as they are now."""
        if cls.__module__ != self._home:
            return None
        (text,) = _code(cls)
        if text is None:
            self._refuse(name, "a class without source text")
            return None
        known = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
        names = names_of(compile(text, "<class>", "exec", dont_inherit=True))[0]
        own = [(one, part) for one, part in sorted(vars(cls).items()) if type(part) in (*_ATOMS, *_CONTAINERS)]
        data = [(one, part) for one, part in own if not one.startswith("__")]
        return [text, self._parts([*((one, known[one]) for one in names if one in known), *data])]

    def _refuse(self, name: str, why: str) -> None:
        self.unknown.append(f"{name!r} ({why})")


_ATOMS = frozenset({str, int, float, complex, bool, bytes, types.NoneType})
_CONTAINERS = (dict, list, tuple, set, frozenset)
_WITHOUT_STATE = (logging.Logger, type(threading.Lock()), type(threading.RLock()), type(DELETE))


def _parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a container or a callable object is made of; None for what counts as a whole."""
    kind = type(value)
    if kind in (set, frozenset):
        return [("", item) for item in sorted(value, key=_rank)]
    if kind in (list, tuple):
        return [("", item) for item in value]
    if kind in (dict, types.MappingProxyType):
        return [(str(key), part) for key, value_of in value.items() for part in (key, value_of)]
    if isinstance(value, Pattern):
        return [("", value.pattern), ("", value.flags)]
    if isinstance(value, types.MethodDescriptorType):
        return [("", value.__objclass__), ("", value.__name__)]
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        owner = [value.__self__] if isinstance(value.__self__, type | types.ModuleType) else _state(value.__self__)
        return [("", getattr(value, "__func__", value.__name__)), *[("", one) for one in owner or [value.__self__]]]
    if kind.__module__ == "typing" or isinstance(value, types.GenericAlias | types.UnionType):
        arguments = get_args(value)
        return [("", str(get_origin(value)) if arguments else repr(value)), *[("", one) for one in arguments]]
    held = isinstance(value, _CONTAINERS) or is_dataclass(value) or isinstance(own_call(value), types.FunctionType)
    if held or kind.__module__ in ("collections", "functools", "operator", "types"):
        state = _state(value)
        return None if state is None else [("", one) for one in state]
    return None


def _state(value: Any) -> list[Any] | None:
    """What pickle would make an object of; None for one that it cannot."""
    try:
        found = value.__reduce_ex__(4)
    except TypeError:
        return None
    if isinstance(found, str):  # a function of `functools.lru_cache`
        return [value.__wrapped__] if hasattr(value, "__wrapped__") else None
    return [list(part) if isinstance(part, Iterator) else part for part in found]


def _rank(item: Any) -> str:
    """The place of an item of a set: the same in every process, as `repr` and hashes of texts are not."""
    with suppress(StateError):
        return json.dumps(encoding.encode(freeze(item)))
    return f"{getattr(item, '__module__', '')}.{getattr(item, '__qualname__', '')}"


@lru_cache(2048)
def _code(source: Any) -> list[Any]:
    """The source text of a function or class, and what it was compiled to.

    The text is that of the file now, which may be a later one than the code that runs; it is the same for two lambdas
    of one line, and code without a file has none.
    """
    text = None
    with suppress(OSError, TypeError, SyntaxError, TokenError):
        text = dedent(source_of(source))
    if isinstance(source, type):
        return [text]
    constants = [
        _code(one)
        if isinstance(one, types.CodeType)
        else sorted(map(repr, one))
        if type(one) is frozenset
        else repr(one)
        for one in source.co_consts
    ]
    names = source.co_names, source.co_varnames, source.co_freevars
    return [text, source.co_code.hex(), source.co_exceptiontable.hex(), names, constants]
