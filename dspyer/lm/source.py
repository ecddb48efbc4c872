"""The class of a compiled graph, whose source text is the user's graph and not the code that runs it.

MIPROv2, SIMBA and Refine show `inspect.getsource` of a program's class to a language model. `graph_text` writes the
graph as a class, and `source_class` makes a class with that text as its source.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import re
import sys
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import dspy
from pydantic import BaseModel

from dspyer.hints import signature_of

ModuleType = TypeVar("ModuleType", bound=dspy.Module)

_TEXT = "__dspyer_text__"  # the attribute of a class that holds its source text

_classes: weakref.WeakValueDictionary[tuple[type, str, str], type] = weakref.WeakValueDictionary()
_classes_lock = threading.Lock()


# --- a class with a given source text


class SourceText:
    """The text of a program's class, which is written when it is first asked for: most programs are never asked.

    Pickled it is the text and its key, by which the process that made it finds its class again.
    """

    __slots__ = ("_text", "_write", "key")

    def __init__(self, write: Callable[[], str] | None, key: str = "", text: str = "") -> None:
        self._write = write
        self._text = text
        self.key = key or uuid4().hex

    def __str__(self) -> str:
        write = self._write
        if write is not None:
            self._text = write()
            self._write = None  # only now: another thread may ask meanwhile
        return self._text

    def get_source(self, _module: str) -> str:
        """The text, as of a module loader: `linecache` asks for it whenever its cache was cleared."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceText, (None, self.key, str(self))


def source_class(name: str, base: type[ModuleType], text: str | SourceText) -> type[ModuleType]:
    """Makes a subclass of `base` for which `inspect.getsource` gives `text`, which is the text of a class of that name.

    All programs with the same name and text share one class for as long as one of them lives. They are pickled with
    `reduce_program`.

    Example:
        >>> import inspect
        >>> Chain = source_class("Chain", dspy.Module,
        ...     "class Chain(dspy.Module):\\n    'a -> b'\\n")
        >>> print(inspect.getsource(Chain))
        class Chain(dspy.Module):
            'a -> b'
        <BLANKLINE>
    """
    name, text = class_name(name), SourceText(None, text, text) if isinstance(text, str) else text
    key = base, name, text.key
    with _classes_lock:
        known = _classes.get(key)
        if known is not None:
            return known
        module = _text_module(base, name, text)
        namespace = {"__module__": module.__name__, "__qualname__": name, "__doc__": base.__doc__, "__firstlineno__": 1}
        metaclass: Any = type(base)
        new: type[ModuleType] = metaclass(name, (base,), {**namespace, _TEXT: text})
        _classes[key] = new
        sys.modules[module.__name__] = module  # where `inspect.getsource` looks for the module of a class
        weakref.finalize(new, _remove_module, module).atexit = False
        return new


def reduce_program(program: dspy.Module) -> tuple[Any, ...]:
    """The `__reduce__` of a program of a `source_class`: the class is made again from base, name and text."""
    kind = type(program)
    return _new_instance, (kind.__bases__[0], kind.__name__, kind.__dict__[_TEXT]), program.__getstate__()


def class_name(name: str) -> str:
    """The name of a graph as a class name: other characters become underscores."""
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"Graph_{plain}".rstrip("_")


def _new_instance(base: type[dspy.Module], name: str, text: SourceText) -> dspy.Module:
    kind: Any = source_class(name, base, text)
    return kind.__new__(kind)


def _text_module(base: type, name: str, text: SourceText) -> types.ModuleType:
    identity = f"{base.__module__}.{base.__qualname__}\n{text.key}"
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    module = types.ModuleType(f"dspyer.compiled.{name}_{digest}")
    module.__file__ = f"dspyer-compiled/{name}_{digest}.py"  # inspect needs a name; there is no such file
    module.__loader__ = text  # type: ignore[assignment]  # only `get_source` of a loader is called
    return module


def _remove_module(module: types.ModuleType) -> None:
    if sys.modules.get(module.__name__) is module:  # not that of a later class with the same text
        del sys.modules[module.__name__]
        linecache.cache.pop(str(module.__file__), None)  # each program has a file name of its own


# --- a graph as text


Show: TypeAlias = Callable[[object], str]
"""Shows a function or module as it stands in a call; its source is added to those of the text."""


def graph_text(
    name: str, schema: type[BaseModel] | None, calls: Callable[[Show], Iterable[str]], options: str = ""
) -> str:
    """Writes a graph as the class that a user would write for it, the same text in every process.

    The text is for language models to read and is never run: the calls that build the graph, then the schema and the
    source of the functions.

    Args:
        name: name of the graph.
        schema: model of the state.
        calls: the lines that build the graph, in the order of declaration.
        options: what else the graph is made of, as its text.
    """
    sources: dict[str, None] = {}  # an ordered set
    if schema is not None:
        sources[_source_of(schema) or _schema_text(schema)] = None
    given = [schema.__name__] if schema is not None else []
    lines = [f"graph = Graph({', '.join([*given, options] if options else given)})"]
    lines += calls(functools.partial(_value_text, sources=sources))
    body = [f'"""{_EXPLANATION}\n"""', "def __init__(self):\n" + textwrap.indent("\n".join(lines), "    "), *sources]
    return f"class {class_name(name)}(dspy.Module):\n" + textwrap.indent("\n\n".join(body), "    ") + "\n"


def modules_text(name: str, modules: Mapping[str, dspy.Module]) -> str:
    """Writes the modules that are bound to a function as the class that holds them."""
    lines = [f"self.{local} = {_module_text(module)}" for local, module in modules.items()]
    body = "def __init__(self):\n" + textwrap.indent("\n".join(lines), "    ")
    return f"class {class_name(name)}(dspy.Module):\n" + textwrap.indent(body, "    ") + "\n"


_EXPLANATION = (
    "A graph of nodes over one shared state. A node reads fields of the state and writes others.\n\n"
    "The targets of one edge run in parallel, each on the state as it was before them; branches that arrive at the\n"
    "same node join there, and it runs once on what they wrote together."
)


def _value_text(value: object, sources: dict[str, None]) -> str:
    """The text of a function or module in a call; its source is added to the sources."""
    if isinstance(value, dspy.Module):
        return _module_text(value)
    if isinstance(value, functools.partial):
        return f"partial({_value_text(value.func, sources)})"
    if isinstance(value, type):
        sources[_source_of(value) or f"class {value.__name__}: ..."] = None
        return value.__name__
    if not inspect.isroutine(value):
        sources[_source_of(type(value)) or f"class {type(value).__name__}: ..."] = None
        return f"{type(value).__name__}()"
    function = getattr(value, "__func__", value)
    name = str(getattr(function, "__name__", "function"))
    if name == "<lambda>":
        # The lambda alone, without the statement around it.
        return f"lambda {', '.join(signature_of(function).parameters)}: {_body_of(function)}"
    sources[_source_of(function) or f"def {name}{_parameters(function)}: ..."] = None
    return name


def _module_text(module: dspy.Module) -> str:
    kind = type(module).__name__
    signature = getattr(module, "signature", None) or getattr(getattr(module, "predict", None), "signature", None)
    if signature is None:
        return f"{kind}()"
    prefix = "dspy." if getattr(dspy, kind, None) is type(module) else ""
    sides = [
        ", ".join(_field_text(name, info.annotation) for name, info in fields.items() if name != "reasoning")
        for fields in (signature.input_fields, signature.output_fields)
    ]
    return f'{prefix}{kind}("{sides[0]} -> {sides[1]}")'


def _field_text(name: str, annotation: object) -> str:
    return name if annotation is str else f"{name}: {inspect.formatannotation(annotation)}".replace("typing.", "")


def _schema_text(schema: type[BaseModel]) -> str:
    fields = [_field_text(name, info.annotation) for name, info in schema.model_fields.items()]
    lines = [text if ":" in text else f"{text}: str" for text in fields] or ["pass"]
    return f"class {schema.__name__}(BaseModel):\n" + textwrap.indent("\n".join(lines), "    ")


def _parameters(function: Callable[..., object]) -> str:
    try:
        return f"({', '.join(signature_of(function).parameters)})"
    except (ValueError, TypeError):  # a built-in function without a signature
        return "(*args)"


# By the id of a class, or of the code of a function, while it lives: `inspect` may parse the whole file of a class.
# Equal code of two files may have different texts.
_found: dict[int, str] = {}


def _source_of(value: Any) -> str | None:
    unwrapped = inspect.unwrap(value)
    owner = unwrapped.__code__ if isinstance(unwrapped, types.FunctionType) else value
    try:
        text = _found.get(id(owner))
        if text is None:
            text = textwrap.dedent(source_of(value)).strip()
            _check_whole(text)
            weakref.finalize(owner, _found.pop, id(owner), None).atexit = False
            _found[id(owner)] = text
    except (OSError, TypeError, SyntaxError):  # typed into a prompt, built in, or a part of a statement
        return None
    return text


@functools.lru_cache(maxsize=256)
def _check_whole(text: str) -> None:
    """Raises `SyntaxError` for a part of a statement."""
    parsed(textwrap.indent(text, "    ").join(["class _:\n", "\n"]))


def _body_of(function: Any) -> str:
    """The expression of a lambda, by the places that its instructions come from; "..." without its source.

    Places tell one lambda from another in the same line. Those of a lambda include no parenthesis around its body.
    """
    places = [
        ((line, column), (end, end_column))
        for line, end, column, end_column in function.__code__.co_positions()
        # Some instructions stand for nothing in the text: what begins the function, and all of them if Python is told
        # to keep no columns.
        if None not in (line, end, column, end_column) and (line, column) != (end, end_column)
    ]
    try:
        (first, begin), (last, stop) = min(one for one, _ in places), max(one for _, one in places)
        lines = [line.encode() for line in linecache.getlines(function.__code__.co_filename, function.__globals__)]
        lines[last - 1] = lines[last - 1][:stop]  # columns count bytes; the end first, since both may be one line
        lines[first - 1] = lines[first - 1][begin:]
        return _on_one_line(b"".join(lines[first - 1 : last]).decode())
    except (ValueError, IndexError, SyntaxError):  # no places, no such file, or a file that has changed since
        return "..."


@functools.lru_cache(maxsize=256)
def _on_one_line(expression: str) -> str:
    return ast.unparse(parsed(f"({expression}\n)", mode="eval"))


# --- source text and syntax trees in programs of several threads

T = TypeVar("T")

_lock = threading.RLock()
_TRIES = 50


def source_of(value: Any) -> str:
    """`inspect.getsource`, under the lock of `_alone`. Raises `OSError` or `TypeError` if there is no source."""
    return _alone(lambda: inspect.getsource(value))


def parsed(text: str, mode: str = "exec") -> Any:
    """`ast.parse`, under the lock of `_alone`. Raises `SyntaxError`."""
    return _alone(lambda: ast.parse(text, mode=mode))


def _alone(parse: Callable[[], T]) -> T:
    """Parses while no other thread of this package does.

    Some versions of CPython count the depth of a syntax tree in one counter for all threads: two threads that parse at
    once get a `SystemError` or a `RecursionError`. The lock covers this package; other code of the process may parse at
    any time, so such an error is only raised if it comes at every try.
    """
    with _lock:
        for _ in range(_TRIES - 1):
            try:
                return parse()
            except (SystemError, RecursionError):
                continue
        return parse()
