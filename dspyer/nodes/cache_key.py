"""The key under which the result of a node is kept: what the node is, and what one call of it reads.

What the node is (`plan_cache`) is computed once, when the graph is compiled: names, version, and the code of the
function with what it holds. The code is compared as bytecode, so that a changed constant counts and a moved line does
not. What a call reads (`key_of`) are the arguments of the function, in the JSON form of `values.json`, which
tells apart all types that a state does: 1 and True, "a" and b"a", arrays of equal bytes and two dtypes.

The order of a dict counts, since a function may iterate over it; the order of a set does not.
"""

from __future__ import annotations

import dis
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from inspect import getattr_static
from re import Pattern
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any, get_args

from pydantic import BaseModel

from dspyer.errors import StateError, list_names, with_article
from dspyer.nodes.callables import own_call
from dspyer.nodes.function import FunctionNode
from dspyer.nodes.node import Call, Node
from dspyer.nodes.node_policy import CachePlan
from dspyer.nodes.options import NodeOptions
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
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
    """Describes functions as JSON: code, defaults, closures, bound arguments, attributes, and what they use nearby.

    `unknown` names what has no description: it may be different where the description is equal.

    Args:
        objects: classes of objects that count although they are no data, in global variables too.
        describe: describes one of them; None if it cannot.
    """

    def __init__(self, objects: tuple[type, ...] = (), describe: Callable[[Any], Any] | None = None) -> None:
        self.unknown: list[str] = []
        self._objects = objects
        self._describe = describe
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other one gets its id

    def of_callable(self, fn: Any) -> list[Any]:
        """Describe a callable; one that was described before by its number."""
        if id(fn) in self._seen:
            return ["again", self._seen[id(fn)][0]]
        self._seen[id(fn)] = len(self._seen), fn
        if isinstance(fn, partial):
            bound = {**{str(index): value for index, value in enumerate(fn.args)}, **fn.keywords}
            return ["partial", self.of_callable(fn.func), self._values(bound, "bound by functools.partial")]
        if isinstance(fn, MethodType):
            return ["method", self.of_callable(fn.__func__), self._owner(fn.__self__)]
        if isinstance(fn, FunctionType):
            return self._function(fn)
        if isinstance(fn, type):
            return ["class", *self._owner(fn)]
        if isinstance(fn, BuiltinFunctionType):
            owner = None if isinstance(fn.__self__, ModuleType | None) else self._value(fn.__self__, repr(fn))
            return ["builtin", fn.__module__ or "", fn.__qualname__, owner]
        call = own_call(fn)
        code = self.of_callable(call) if isinstance(call, FunctionType) else None
        wrapped = getattr(fn, "__wrapped__", None)
        return ["object", code, None if wrapped is None else self.of_callable(wrapped), self._owner(fn)]

    def of_object(self, value: Any, what: str) -> list[Any]:
        """Describe an object of the classes that count."""
        assert self._describe is not None
        found = self._describe(value)
        if found is None:
            self.unknown.append(f"{what} ({with_article(type(value).__name__)})")
        return ["object", found]

    def _function(self, fn: FunctionType) -> list[Any]:
        code = fn.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = dict(zip(reversed(names), reversed(fn.__defaults__ or ()), strict=False))
        return [
            "function",
            f"{fn.__module__}:{fn.__qualname__}",
            _code(code),
            self._values({**defaults, **(fn.__kwdefaults__ or {})}, f"a default of {fn.__qualname__}", fn.__module__),
            self._values(_cells(fn), f"in the closure of {fn.__qualname__}", fn.__module__),
            self._near(fn.__module__, {name: fn.__globals__[name] for name in _globals(code) & fn.__globals__.keys()}),
        ]

    def _owner(self, owner: Any) -> list[Any]:
        """Describe the object of a method: its attributes, and what the classes of the same file define."""
        if isinstance(owner, type):
            cls, attributes = owner, {}
        else:
            cls, attributes = type(owner), _attributes(owner)
        return [
            class_name(cls),
            self._values(attributes, f"an attribute of {cls.__name__}", cls.__module__),
            self._near(cls.__module__, _members(cls)),
        ]

    def _near(self, module: str, named: Mapping[str, Any]) -> list[Any]:
        """Describe the functions, classes and constants of a module among some names.

        Functions and classes of other modules count by where they come from, and other objects by name alone, as
        `Cache` says.
        """
        found: list[Any] = []
        for name, value in sorted(named.items()):
            inner = getattr_static(value, "__wrapped__", None)  # of a function that `functools.lru_cache` surrounds
            near = value if isinstance(value, FunctionType | type) or inner is None else inner
            if isinstance(near, FunctionType) and near.__module__ == module:
                found.append([name, self.of_callable(near)])
            elif isinstance(near, partial) or (isinstance(near, type) and near.__module__ == module):
                known = len(self.unknown)
                found.append([name, self.of_callable(near)])
                del self.unknown[known:]  # an object behind a global variable
            elif isinstance(value, self._objects):
                found.append([name, self.of_object(value, repr(name))])
            elif isinstance(value, Enum):
                found.append([name, value.name, *self._near(module, {"class": type(value)})])
            elif type(value) in _CONSTANTS:
                with suppress(RuntimeError):  # changed by another thread meanwhile
                    found.append([name, self._constant(module, value)])
            elif (origin := _origin(near)) is not None:
                found.append([name, origin])
        return found

    def _constant(self, module: str, value: Any) -> Any:
        """Describe a constant; of a list or dict with functions or objects in it, what `_near` knows of its parts."""
        with suppress(StateError):
            return data_of(value)
        if id(value) in self._seen or isinstance(value, set | frozenset):
            return None
        self._seen[id(value)] = len(self._seen), value
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return self._near(module, {str(key): part for key, part in parts})

    def _values(self, named: Mapping[str, Any], where: str, module: str = "") -> list[Any]:
        return [[name, self._value(value, f"{name!r}, {where}", module)] for name, value in sorted(named.items())]

    def _value(self, value: Any, what: str, module: str = "") -> Any:
        """Describe a value that a function of a module holds."""
        if isinstance(value, ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type):
            return self.of_callable(value) if value.__module__ == module else ["class", class_name(value)]
        if isinstance(value, self._objects):
            return self.of_object(value, what)
        if isinstance(value, FunctionType | MethodType | partial | BuiltinFunctionType) or isinstance(
            own_call(value), FunctionType
        ):
            return self.of_callable(value)
        try:
            return ["value", data_of(value)]
        except StateError:
            self.unknown.append(f"{what} ({with_article(type(value).__name__)})")
            return ["unknown", class_name(type(value))]


_CONSTANTS = (
    *(str, int, float, complex, bool, bytes, type(None), Decimal, date, datetime, time, timedelta, Pattern),
    *(tuple, list, dict, set, frozenset),
)


def data_of(value: Any) -> Any:
    """The JSON form of a value; `StateError` if it has none."""
    if isinstance(value, Pattern):
        return ["pattern", encoding.encode(value.pattern), value.flags]
    return encoding.encode(freeze(value))


def _origin(value: Any) -> str | None:
    """Where a function, a class or a module comes from; None for any other object."""
    if isinstance(value, ModuleType):
        return value.__name__
    known = FunctionType | BuiltinFunctionType | MethodType | MethodDescriptorType | type
    return f"{getattr(value, '__module__', '')}:{value.__qualname__}" if isinstance(value, known) else None


def _members(cls: type) -> dict[str, Any]:
    """What a class and its bases in the same file define: methods, constants, and the fields of a pydantic model."""
    found: dict[str, Any] = {f"base {number}": base for number, base in enumerate(cls.__bases__)}
    for base in reversed(cls.__mro__):
        if base.__module__ == cls.__module__:
            members = {name: _plain(member) for name, member in vars(base).items()}
            found |= {name: one for name, one in members.items() if callable(one) or not name.startswith("__")}
    fields = cls.model_fields if issubclass(cls, BaseModel) else {}
    for name, field in fields.items():
        rules = [field.annotation, *_parts_of(field.annotation), *field.metadata]
        functions = [getattr(one, "func", one) for one in rules]
        parts = [field.default, field.default_factory, *map(_text, rules), *functions]
        found |= {f"{name} {number}": part for number, part in enumerate(parts)}
    return found


def _parts_of(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        yield part
        yield from _parts_of(part)


def _text(value: Any) -> str:
    """The text of an annotation or of a rule of pydantic; its class, if another process would have another text."""
    text = repr(value)
    return class_name(type(value)) if " at 0x" in text else text


def _plain(member: Any) -> Any:
    """The function behind a class attribute: of a property, a static method or a class method."""
    if isinstance(member, cached_property):
        return member.func
    return getattr(member, "fget", None) or getattr(member, "__func__", member)


def _attributes(owner: Any) -> dict[str, Any]:
    slots = [name for base in type(owner).__mro__ for name in _names(vars(base).get("__slots__", ()))]
    found = {name: getattr(owner, name) for name in slots if name != "__dict__" and hasattr(owner, name)}
    return {**found, **getattr(owner, "__dict__", {})}


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _cells(fn: FunctionType) -> dict[str, Any]:
    """The variables of the enclosing function that a function uses; one that has no value yet is left out."""
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


@lru_cache(2048)
def _globals(code: CodeType) -> frozenset[str]:
    found = {
        instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in _LOADS_OF_GLOBALS
    }
    return frozenset(found).union(
        *[_globals(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    )


_LOADS_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")


@lru_cache(2048)
def _code(code: CodeType) -> list[Any]:
    """Describe bytecode, without the file and the lines that it came from."""
    return [
        code.co_name,
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars],
        [_constant(constant) for constant in code.co_consts],
    ]


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return ["code", _code(constant)]
    if isinstance(constant, tuple):
        return ["tuple", [_constant(part) for part in constant]]
    if isinstance(constant, frozenset):  # its order differs between processes
        return ["frozenset", sorted([_constant(part) for part in constant], key=json.dumps)]
    return [type(constant).__name__, repr(constant)]
