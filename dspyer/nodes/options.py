"""The options of a node: what `Graph.add_node`, `add_map` and `add_interrupt` were given, in one form.

`Graph` makes one `NodeOptions` per node; the functions that build nodes, condensers and the text of the graph read it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import dspy

from dspyer.errors import brief, with_article
from dspyer.layers.attempts import Retry
from dspyer.layers.layer import Layer
from dspyer.nodes.field_access import FieldNames, NamesSpec, ReadsSpec, name_map, view_problems
from dspyer.nodes.node import NOTHING, Built, MapOptions, Node
from dspyer.schema.schema import Schema
from dspyer.templates import RUN, ComputedInput, Fill, RunValue
from dspyer.values.scalars import flag_problems, is_number
from dspyer.views import View

# --- `Cache`: for how long, for which version of what it does, and where the results of a node are kept


@dataclass(frozen=True, slots=True)
class Cache:
    """Keeps the results of a node on disk: a later execution that reads the same gets the same patch, without a call.

    It declares the node pure: equal reads give an equal patch. `add_node(cache=True)` means `Cache()`.

    The key is made of the names of the graph and of the node, the fields that it writes, `version`, the source text of
    the function with its defaults, closure and what it names in its own file (functions by their text, constants by
    their value, as they are when the graph is compiled), and of what the call reads, with types. Of functions and
    modules from elsewhere it has the names alone. So it does not know other files, the network, the clock or random
    numbers: change `version` with them. An object that the function holds, and code without source text, need a
    `version`. A function that counts its calls in a global variable has another key at each `compile`.

    Modules, graphs, and functions with modules, `ctx`, the whole state or a resource are refused when the graph is
    compiled, as is a `Command` with targets. A result without a JSON form is committed and not kept, and a warning says
    why; failures are never kept. A hit is validated, folded, checked and routed like a result; retries are inside of
    the cache. Equal calls at the same time wait for one in this process, as long as it takes: give a node that could
    hang a `timeout`. Two processes may both make it. A damaged or full folder costs calls and a warning. A folder holds
    1 GiB; then the oldest entries go. Entries are not encrypted.

    Args:
        ttl: how old a result may be, in seconds; None for any age.
        version: a text that is a part of the key: a new one leaves all earlier results behind. It names what the key
            cannot know: the data behind a search index, the model of a service, an object that the function holds.
        folder: the folder of the results, which is made when something is stored; None for one in DSPy's cache folder.

    Raises:
        ValueError: if `ttl` is no number of seconds greater than 0, or `folder` is a file.
        TypeError: if `version` is no text, or `folder` no path.

    Example:
        >>> import tempfile
        >>> from dspyer import END, START, Graph
        >>> def search(query: str):
        ...     print("searching")
        ...     return {"hits": [query.upper()]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache = Cache(ttl=3600, version="index-7", folder=folder)
        ...     graph = Graph().add_node("search", search, writes=["hits"],
        ...         cache=cache)
        ...     program = graph.add_path(START, "search", END).compile()
        ...     runs = [program.run({"query": "rates"}) for _ in range(2)]
        searching
        >>> [(run.state["hits"][0], run.commits[-1].cached) for run in runs]
        [('RATES', False), ('RATES', True)]
    """

    ttl: float | None = None
    version: str = ""
    folder: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        ttl: Any = self.ttl
        if ttl is not None and (not is_number(ttl) or not math.isfinite(ttl) or ttl <= 0):
            raise ValueError(f"Cache(ttl={ttl!r}): give seconds, more than 0, or None for results of any age")
        version: Any = self.version
        if not isinstance(version, str):
            raise TypeError(f"Cache(version=) takes a text, and got {with_article(type(version).__name__)}")
        folder: Any = self.folder
        if folder is not None:
            if not isinstance(folder, str | PathLike):
                raise TypeError(f"Cache(folder={folder!r}): give the path of a folder")
            path = Path(folder).expanduser().absolute()
            if path.exists() and not path.is_dir():
                raise ValueError(f"Cache(folder={str(folder)!r}) is a file: give the path of a folder")
            object.__setattr__(self, "folder", str(path))

    @classmethod
    def of(cls, given: Self | bool | None) -> Self | None:
        """The policy that an option `cache=` means: True means `Cache()`, False and None mean none.

        Raises:
            TypeError: for anything else.

        Example:
            >>> Cache.of(True), Cache.of(False)
            (Cache(ttl=None, version='', folder=None), None)
        """
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, bool):
            return cls() if given else None
        raise TypeError(f"cache={given!r}: give True, a dspyer.Cache or False")


T = TypeVar("T")


class OfGraph(Enum):
    """The default of `retry=`: the policy that `compile(retry=)` gives to every node. None opts a node out of it."""

    RETRY = "of the graph"


class NodeOptions(NamedTuple):
    """The options of a node.

    Attributes:
        name: the node's name.
        schema: the fields of the state.
        node: the function, module, program or question.
        reads: the fields that it may read, by its own names; None if not given. The field of a view, and the text of a
            computed input, are among them.
        writes: the fields that it may write, by its own names; None if not given.
        modules: the modules bound to a function, by parameter.
        goto: declared targets of its `Command`s.
        overlay: names that hide fields: the item of a map, or what a check sends to a fix.
        views: the views through which it reads, by its own names.
        computed: the templates and run values that it reads, by its own names.
        map: the options of a map; None for any other node.
        frozen: whether optimizers leave its modules alone; None to follow DSPy.
        condense: by field, the module that shortens what it writes, as given.
        problems: what is wrong with the form of the options.
        retry: which failed attempts are followed by another one.
        timeout: the seconds of one attempt; None for no limit.
        cache: how its results are kept; None for a node that is called each time.
        layers: what else surrounds its calls.
        lm: the language model of its predictors that have none; None for the one of DSPy's settings.
        conversation: whether it takes part in the conversation of a graph whose nodes share one.
    """

    name: str
    schema: Schema
    node: object = None
    reads: FieldNames | None = None
    writes: FieldNames | None = None
    modules: Mapping[str, dspy.Module] = NOTHING
    goto: tuple[str, ...] = ()
    overlay: frozenset[str] = frozenset()
    views: Mapping[str, View] = NOTHING
    computed: Mapping[str, ComputedInput] = NOTHING
    map: MapOptions | None = None
    frozen: bool | None = None
    condense: Mapping[str, dspy.Module] | None = None
    problems: tuple[str, ...] = ()
    retry: Retry | OfGraph | None = OfGraph.RETRY
    timeout: float | None = None
    cache: Cache | None = None
    layers: tuple[Layer, ...] = ()
    lm: dspy.BaseLM | None = None
    conversation: bool = True

    @property
    def who(self) -> str:
        """The name of the node in problems and errors."""
        return f"node {self.name!r}"

    @property
    def not_fields(self) -> frozenset[str]:
        """The names that the right side of `reads` may name besides fields."""
        if not self.computed:
            return self.overlay
        return self.overlay | {repr(source) for source in self.computed.values()}

    @property
    def output_schema(self) -> Schema:
        """The schema of its writes: the outputs of a map's node become items and need not be fields."""
        return self.schema if self.map is None else Schema.of(None)


class KindOptions(ABC):
    """Options of a special kind of node, in place of a function or module: the base of the options of such kinds.

    Each kind says itself how its node is built, and how it is shown.
    """

    __slots__ = ()

    @abstractmethod
    def build(self, options: NodeOptions) -> Built:
        """The node, with what the program holds for it and what is wrong with it."""

    @abstractmethod
    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node; `show` writes a function, module or other value in it."""


def node_options(name: str, node: object, schema: Schema, **given: Any) -> NodeOptions:
    """The options of a node, from the arguments of `Graph.add_node` and its siblings."""
    # What users give is not trusted to have the declared type: each mistake is one more problem, and not a traceback.
    raw: Any = NodeOptions(name, schema, node, **given)
    who, twice = raw.who, []
    reads, writes, modules, goto = raw.reads, raw.writes, raw.modules, raw.goto
    # A kind of the user's own says itself what it reads: said twice, the two could differ.
    if isinstance(node, Node):
        if reads is not None or writes is not None or modules or goto:
            kind = type(node).__name__
            twice = [
                f"{who}: what it reads, writes, calls and goes to are facts of the {kind}: give them to {kind}(...)"
            ]
        reads, writes, modules, goto = node.reads, node.writes, node.modules, node.goto
    names, views, computed = _split_reads(reads)
    read, problems = name_map(names, "reads", who)
    problems += twice
    problems += [problem for own, view in views.items() for problem in view_problems(view, own, schema, who)]
    if modules is not None and not isinstance(modules, Mapping):
        problems.append(f"{who}: modules takes a dict from parameters to modules, {{'predict': dspy.Predict(...)}}")
        modules = None
    written, more = name_map(writes, "writes", who)
    problems += more
    retry = raw.retry if isinstance(raw.retry, OfGraph) else _given(Retry.from_option, raw.retry, who, problems)
    timeout = _given(_timeout, raw.timeout, who, problems)
    flags = {"conversation": raw.conversation} | ({} if raw.frozen is None else {"frozen": raw.frozen})
    problems += [f"{who}: {problem}" for problem in flag_problems(**flags)]
    made: NodeOptions = raw._replace(
        reads=read,
        writes=written,
        modules=dict(modules or {}),
        goto=(goto,) if isinstance(goto, str) else tuple(goto),
        overlay=frozenset() if raw.map is None else frozenset([raw.map.item]),
        views=views,
        computed=computed,
        retry=retry,
        timeout=timeout,
        cache=_given(Cache.of, raw.cache, who, problems),
        lm=_given(_language_model, raw.lm, who, problems),
    )
    return made._replace(problems=tuple(problems))  # those of the last options too


def _given(made: Callable[[Any], T], option: Any, who: str, problems: list[str]) -> T | None:
    """The meaning of an option; problems of a wrong one are added to the problems."""
    try:
        return made(option)
    except (TypeError, ValueError) as error:
        problems.append(f"{who}: {error}")
        return None


def _timeout(seconds: Any) -> float | None:
    """The seconds of one attempt."""
    if seconds is not None and not is_number(seconds):
        raise TypeError(f"timeout={seconds!r} is no number of seconds: give one, or None for no limit")
    if seconds is not None and (not math.isfinite(seconds) or seconds <= 0):
        raise ValueError(f"timeout={seconds!r}: give a finite number of seconds greater than 0, or None")
    return None if seconds is None else float(seconds)


def _language_model(lm: Any) -> dspy.BaseLM | None:
    if lm is not None and not isinstance(lm, dspy.BaseLM):
        raise TypeError(f"lm={brief(lm)} is no language model: give one, lm=dspy.LM('openai/gpt-4o-mini')")
    return lm


def _split_reads(reads: ReadsSpec | None) -> tuple[NamesSpec | None, dict[str, View], dict[str, ComputedInput]]:
    """`reads` as names alone, and its views and computed inputs by the node's own names.

    A view gives way to the name of its field, a computed input to its text, which is no field.
    """
    if not isinstance(reads, Mapping):
        return reads, {}, {}
    names: dict[str, str] = {}
    views: dict[str, View] = {}
    computed: dict[str, ComputedInput] = {}
    for own, right in reads.items():
        if isinstance(right, View):
            views[own] = right
            names[own] = right.field
        elif isinstance(right, Fill) or (isinstance(right, str) and right.startswith(RUN)):
            computed[own] = right if isinstance(right, Fill) else RunValue(right)
            names[own] = repr(computed[own])
        else:
            names[own] = right
    return names, views, computed
