"""The key under which the result of a node is kept: what the node is, and what one call of it reads.

What the node is (`plan_cache`) is computed once, when the graph is compiled: names, version, and the source text of the
function, of the functions and classes of its file that it names, and the constants. What a call reads (`key_of`) are
the arguments of the function. Both constants and arguments count in the JSON form of `values.json`, which tells apart
all types that a state does: 1 and True, "a" and b"a", arrays of equal bytes and two dtypes.

The order of a dict counts, since a function may iterate over it; the order of a set does not.
"""

from __future__ import annotations

import builtins
import json
import logging
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain
from textwrap import dedent
from tokenize import TokenError
from typing import Any, Final, NamedTuple, get_args, get_origin

from dspyer.dspy_module.source import source_of
from dspyer.errors import StateError, list_names, with_article
from dspyer.nodes.callables import plain_function
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
        folder: the folder of the results; None for one in DSPy's cache folder.
    """

    node: str
    identity: str
    ttl: float | None
    folder: str | None


def key_of(plan: CachePlan, node: Node, call: Call) -> str:
    """The key of a call.

    Raises what making the arguments raises, and `StateError` if one of them has no JSON form.
    """
    assert isinstance(node, FunctionNode)
    # Attempt 0 is none: what the key reads of a view does not count as read by the node.
    arguments = node.binding.bind(call.of_attempt(call.context.delegate.next(0)))
    return _digest([plan.identity, {name: encoding.encode(freeze(value)) for name, value in arguments.items()}])


def plan_cache(graph: str, node: Node, options: NodeOptions) -> tuple[CachePlan | None, list[str]]:
    """The plan of a node with `cache=`, or why its results cannot be kept, each with its fix."""
    policy, who = options.cache, options.who
    assert policy is not None
    if not isinstance(node, FunctionNode) or options.modules:
        kind = "is a graph: cache nodes of it that are functions" if node.look.inner else _CALLS_PREDICTORS
        return None, [f"{who}: cache is for functions without predictors, and this node {kind}"]
    problems = [f"{who}: cache: it {reason}" for reason in _excluded(node)]
    identity = _Identity(node.fn)
    if identity.unknown and not policy.version:
        unknown = "; ".join(dict.fromkeys(identity.unknown))
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
    described = _digest([_FORM, graph, node.name, policy.version, plan, identity.parts])
    folder = None if policy.folder is None else str(policy.folder)
    return CachePlan(node.name, described, policy.ttl, folder), []


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


class _Identity:
    """What a function is: its text, and what it names in its file and holds.

    What other files define counts by its name.

    Attributes:
        parts: the description as JSON: the names of the parts, and what each of them is.
        unknown: what has no description: it may be different where the description is equal.
    """

    def __init__(self, fn: Any) -> None:
        self.parts: list[Any] = []
        self.unknown: list[str] = []
        home = plain_function(fn)
        self._home = getattr(home, "__module__", None) or type(home).__module__
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other one gets its id
        self._add("the function", fn)

    def _add(self, name: str, value: Any) -> None:
        kind = type(value)
        with suppress(StateError, RuntimeError):  # `RuntimeError`: changed by another thread meanwhile
            self.parts.append([name, encoding.encode(freeze(value))])
            return self._add_type(name, kind)
        if id(value) in self._seen:
            self.parts.append([name, self._seen[id(value)][0]])
            return None
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, types.FunctionType):
            return self._add_function(name, value)
        if isinstance(value, type):
            return self._add_class(name, value)
        self._add_type(name, kind)
        if (parts := _parts_of(value)) is None:
            self.unknown.append(f"{name!r} ({with_article(kind.__name__)})")
        for index, part in enumerate(parts or ()):
            self._add(f"{name}[{index}]", part)
        return None

    def _add_type(self, name: str, kind: type) -> None:
        if kind.__module__ == self._home:  # its methods may be called
            self._add(f"the class of {name}", kind)
        else:
            self.parts.append([name, class_name(kind)])

    def _add_function(self, name: str, fn: types.FunctionType) -> None:
        code = fn.__code__
        used = {one: part for one, part in used_objects(fn).items() if "." not in one}
        self.parts.append([name, fn.__module__, fn.__qualname__])
        if fn.__globals__.get("__name__") == self._home:
            self._add_text(name, code)
            later = {*names_of(code)[0], *code.co_freevars}.difference(used, vars(builtins))
            self.unknown += [f"{one!r} (not defined yet)" for one in sorted(later)]
            parameters = reversed(code.co_varnames[: code.co_argcount])
            used |= dict(zip(parameters, reversed(fn.__defaults__ or ()), strict=False)) | (fn.__kwdefaults__ or {})
        else:
            used = {one: part for one, part in used.items() if one in code.co_freevars}
        for one, part in sorted(used.items()):
            self._add(one, part)

    def _add_class(self, name: str, cls: type) -> None:
        self.parts.append([name, class_name(cls)])
        if cls.__module__ == self._home and (text := self._add_text(name, cls)):
            known = vars(sys.modules[self._home]) if self._home in sys.modules else {}
            with suppress(SyntaxError):  # a text that is a part of a statement
                for one in names_of(compile(text, "<class>", "exec", dont_inherit=True))[0]:
                    if one in known:
                        self._add(one, known[one])

    def _add_text(self, name: str, source: Any) -> str:
        try:
            text = dedent(source_of(source))
        except (OSError, TypeError, SyntaxError, TokenError):
            self.unknown.append(f"{name!r} (without source text)")
            return ""
        self.parts.append([name, text])
        return text


_CACHED: Final = type(lru_cache(abs))
_WITHOUT_STATE: Final = (logging.Logger, type(threading.Lock()), type(threading.RLock()), type(...), type(DELETE))


def _parts_of(value: Any) -> list[Any] | None:
    """What a value that is no constant is made of; None for an object, which cannot be told from others."""
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
