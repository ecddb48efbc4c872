"""`Cache`: for how long, for which version of what it does, and where the results of a node are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

from dspyer.errors import with_article
from dspyer.values.scalars import is_number


@dataclass(frozen=True, slots=True)
class Cache:
    """Keeps the results of a node on disk: a later execution that reads the same gets the same patch, without a call.

    It declares the node pure: equal reads give an equal patch. `add_node(cache=True)` means `Cache()`.

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
        ...     graph = Graph().add_node("search", search, writes=["hits"], cache=cache)
        ...     program = graph.add_path(START, "search", END).compile()
        ...     runs = [program.run({"query": "tides"}) for _ in range(2)]
        searching
        >>> [(run.state["hits"][0], run.commits[-1].cached) for run in runs]
        [('TIDES', False), ('TIDES', True)]
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
