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
from abc import ABC
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import is_dataclass, replace
from functools import lru_cache, partial, reduce
from hashlib import blake2b
from inspect import getattr_static
from re import Pattern
from textwrap import dedent
from tokenize import TokenError
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dspyer.dspy_module.source import source_of
from dspyer.errors import StateError, list_names, with_article
from dspyer.nodes.callables import own_call, plain_function
from dspyer.nodes.function import FunctionNode
from dspyer.nodes.hidden_modules import names_of, used_objects
from dspyer.nodes.node import Call, Node
from dspyer.nodes.node_policy import CachePlan
from dspyer.nodes.options import NodeOptions
from dspyer.patch import DELETE
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.named_classes import classes_in
from dspyer.values.types import class_name


def key_of(plan: CachePlan, node: Node, call: Call) -> str:
    """The key of a call.

    Raises what making the arguments raises, and `StateError` if one of them has no JSON form.
    """
    assert isinstance(node, FunctionNode)
    # Attempt 0 is none: what the key reads of a view does not count as read by the node.
    quiet = replace(call.context, delegate=call.context.delegate.next(0))
    arguments = node.binding.bind(call._replace(context=quiet))
    return digest([plan.identity, {name: encoding.encode(freeze(value)) for name, value in arguments.items()}])


def plan_cache(graph: str, node: Node, options: NodeOptions) -> tuple[CachePlan | None, list[str]]:
    """The plan of a node with `cache=`, or why its results cannot be kept, each with its fix."""
    policy, who = options.cache, options.who
    assert policy is not None
    if not isinstance(node, FunctionNode) or options.modules:
        kind = "is a graph: cache nodes of it that are functions" if node.is_subgraph else _CALLS_PREDICTORS
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

    `unknown` names what has no description: it may be different where the description is equal.

    Args:
        objects: classes of objects that count although they are no data.
        describe: describes one of them; it returns None if it cannot.
    """

    def __init__(self, objects: tuple[type, ...] = (), describe: Callable[[Any], Any] = repr) -> None:
        self.unknown: list[str] = []
        self._objects = objects
        self._describe = describe
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other one gets its id
        self._home = ""  # the module of the function, whose parts another module may hold

    def of_callable(self, fn: Any) -> Any:
        """Describe a callable; one that was described before by its number."""
        home = plain_function(fn)
        self._home = getattr(home, "__module__", None) or type(home).__module__
        return self._of(fn, "the function", self._home)

    def _of(self, value: Any, name: str, module: str) -> Any:
        """Describe a value that code of a module holds or names."""
        kind = type(value)
        if kind in _ATOMS:
            return [kind.__name__, repr(value)]
        if id(value) in self._seen and kind not in (tuple, frozenset):  # of which the compiler may share equal ones
            return ["again", self._seen[id(value)][0]]
        self._seen[id(value)] = len(self._seen), value
        if (place := _elsewhere(value, (module, self._home))) is not None:
            return ["from", *place]
        described = self._describe(value) if isinstance(value, self._objects) else None
        if not isinstance(value, self._objects) and (parts := _parts(value, module)) is not None:
            home = value.__module__ if isinstance(value, types.FunctionType) else module
            code = _code(getattr(value, "__code__", value)) if isinstance(value, types.FunctionType | type) else ()
            if isinstance(value, types.FunctionType):
                named = {*names_of(value.__code__)[0], *value.__code__.co_freevars}
                missing = sorted(named.difference(used_objects(value), vars(builtins)))
                self.unknown += [f"{part!r} (not defined yet)" for part in missing]
            if code and code[0] is None and isinstance(value, type) and issubclass(value, BaseModel):
                self.unknown.append(f"{name!r} (a model without source text, where the rules of its fields are)")
            described = [
                [self._of(key, "", module), self._of(part, key if key and isinstance(key, str) else name, home)]
                for key, part in parts
            ]
            return [class_name(kind), _own_name(value), code, described]
        if described is None and not isinstance(value, _WITHOUT_STATE) and kind is not object:
            with suppress(StateError, RuntimeError):  # `RuntimeError`: changed by another thread meanwhile
                return [self._of(kind, "", module), encoding.encode(freeze(value))]
            self.unknown.append(f"{name!r} ({with_article(kind.__name__)})")
        return [class_name(kind), described]


_ATOMS = frozenset({str, int, float, complex, bool, bytes, types.NoneType})
_OF_ATTRIBUTES = (BaseModel, FieldInfo, types.SimpleNamespace)
_PARTLESS = (type(...), type(PydanticUndefined), type(vars(ABC)["_abc_impl"]))
_WITHOUT_STATE = (logging.Logger, type(threading.Lock()), type(threading.RLock()), type(DELETE), *_PARTLESS)


def _own_name(value: Any) -> str:
    """The name of a function or class; "" for an object, which is not asked: a client may have any attribute."""
    return "" if getattr_static(value, "__qualname__", None) is None else value.__qualname__


def _elsewhere(value: Any, modules: tuple[str, str]) -> tuple[str, str] | None:
    """The module and the name of what comes from another file; None for what is followed.

    What its module does not have under its name is a part of another one: behind a decorator, in a closure.
    """
    if isinstance(value, types.ModuleType):
        return value.__name__, ""
    name = _own_name(value)
    home = (name and getattr(value, "__module__", None)) or ""
    known = bool(name) and type(value).__module__ not in ("types", "typing")  # `list[int]` has the name of `list`
    if isinstance(value, types.BuiltinMethodType) or (known and home and not isinstance(value, type)):
        known = reduce(lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(home)) is value
    return (home, name) if known and home not in modules else None


def _parts(value: Any, module: str) -> list[tuple[Any, Any]] | None:
    """What a function, class or container is made of; None for what counts as a whole."""
    kind = type(value)
    if isinstance(value, partial):
        return [("", value.func), *enumerate(value.args), *value.keywords.items()]
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        owner = value.__self__
        whole = isinstance(owner, type | types.ModuleType) or type(owner).__module__ in ("builtins", "collections")
        return [("", getattr(value, "__func__", None)), *([("", owner)] if whole else _attributes(owner))]
    if isinstance(value, types.FunctionType):
        used = {name: part for name, part in used_objects(value).items() if "." not in name} | vars(value)
        return [*enumerate(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items(), *sorted(used.items())]
    if isinstance(value, type):
        return [*enumerate(value.__bases__), *_members(value)]
    if kind.__module__ in ("types", "typing"):
        arguments = get_args(value)
        return [("", get_origin(value)), *enumerate(arguments)] if arguments else [(repr(value), None)]
    if is_dataclass(value) or isinstance(value, _OF_ATTRIBUTES) or isinstance(own_call(value), types.FunctionType):
        return _attributes(value)
    if callable(value) and hasattr(value, "__wrapped__"):  # of `functools.lru_cache`
        return [("", value.__wrapped__)]
    if kind.__module__ == "operator":  # `itemgetter`, which hashes frozen models, and its kind
        return [("", value.__reduce__())]
    if isinstance(value, Pattern):
        return [(value.pattern, value.flags)]
    if kind.__module__ in ("builtins", "collections", module):  # others may hold more than their items
        if isinstance(value, Mapping):
            return [*_attributes(value), *list(value.items())]
        if isinstance(value, list | tuple | deque | AbstractSet):
            items = sorted(value, key=_rank) if isinstance(value, AbstractSet) else list(value)
            return [*_attributes(value), ("", getattr(value, "maxlen", None)), *[("", item) for item in items]]
    return None


def _attributes(owner: Any) -> list[tuple[Any, Any]]:
    """The class and the attributes of an object."""
    kind = type(owner)
    slots = {
        name for base in kind.__mro__ for name, one in vars(base).items() if isinstance(one, types.MemberDescriptorType)
    }
    attributes = {name: getattr(owner, name) for name in slots if hasattr(owner, name)} | getattr(owner, "__dict__", {})
    return [("", kind), *sorted(attributes.items())]


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """What a class names in its text and for its fields, its functions, for what they name, and its other attributes.

    Defaults, annotations and decorators run when the class is made: its functions do not name them.
    """
    yield from (("", named) for named in classes_in([cls]) if named is not cls)
    known = getattr(sys.modules.get(cls.__module__), "__dict__", {})
    with suppress(SyntaxError):  # a part of a statement
        names = names_of(compile(_code(cls)[0] or "", "<class>", "exec", dont_inherit=True))[0]
        yield from ((name, known[name]) for name in names if name in known and known[name] is not cls)
    for name, member in sorted(vars(cls).items()):
        for one in (member, *[getattr(member, part, None) for part in ("__func__", "fget", "func", "__wrapped__")]):
            if isinstance(one, types.FunctionType):
                if one.__code__.co_filename != "<string>" or _code(cls)[0] is None:  # else `dataclass` made it
                    yield name, one
            elif one is member and not name.startswith("__") and not hasattr(type(one), "__get__"):
                yield name, one


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
