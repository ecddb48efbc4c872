"""`cache`: a block in which no module of a graph is called again for what it was called for before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from contextvars import ContextVar
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from dspyer.display.tables import table_lines
from dspyer.errors import brief
from dspyer.runtime.module_cache import ModuleResults
from dspyer.runtime.optimizer_layers import asking_for

logger = logging.getLogger("dspyer")


class SparedCalls:
    """How many calls an `optimize.cache` block made and spared, by node. `print` shows a table, at any time."""

    def __init__(self, results: ModuleResults) -> None:
        self._results = results

    @property
    def folder(self) -> str:
        """The absolute path of the folder."""
        return self._results.folder

    def to_dict(self) -> dict[str, dict[str, int]]:
        """The counts by node, as plain JSON.

        Returns:
            For each node, router and condenser: `calls` that were made, `spared` calls, and how often predictors were
            called for the former (`lm_calls`) and would have been for the latter (`lm_spared`). If nodes of several
            graphs have one name, each is `"graph/node"`.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder, cache(folder) as spared:
            ...     spared.to_dict()
            {}
        """
        with self._results.lock:
            found = dict(sorted(self._results.counts.items()))  # branches of a fork are counted in any order
        names = [node for _, node in found]
        return {
            node if names.count(node) == 1 else f"{graph}/{node}": {
                "calls": counts.made,
                "spared": counts.spared,
                "lm_calls": counts.lm_made,
                "lm_spared": counts.lm_spared,
            }
            for (graph, node), counts in found.items()
        }

    def __str__(self) -> str:
        rows = self.to_dict()
        if not rows:
            return "no node was called"
        total = {name: sum(row[name] for row in rows.values()) for name in next(iter(rows.values()))}
        shown = {**rows, "total": total} if len(rows) > 1 else rows
        head = ["node", "calls made", "spared", "LM calls made", "spared"]
        return "\n".join(table_lines([head, *([name, *map(str, row.values())] for name, row in shown.items())]))

    def __repr__(self) -> str:
        return f"<SparedCalls in {self.folder}>"


def cache(path: str | PathLike[str]) -> AbstractContextManager[SparedCalls]:
    """A block in which no module of a graph is called again for what it was called for before.

    It is for any optimizer, for `dspy.Evaluate` and for plain calls, in all threads that DSPy starts. A result is found
    by all that it depends on: the code of the module, the parameters of its predictors (instructions, demonstrations,
    signature, LM and settings), its inputs, the adapter, and rollout ids. So a changed candidate calls the nodes that
    changed, and those that read something else because of it. Results are on disk before the next node starts: an
    optimization that was killed and is started again with the same arguments gets them from there.

    The folder also keeps the responses of the reflection LM of `optimize.GEPA`, and what field metrics said. Other LM
    calls outside of nodes, such as the prompts of `dspy.MIPROv2` and `dspy.SIMBA` or the reflections of `dspy.GEPA`,
    are found again by DSPy's request cache alone: leave it on, on disk, for an optimization that may be killed.

    A result from the folder has the same patch, route and steps of the DSPy trace as a call; the commit is `cached`,
    and its LM usage is 0. Not kept are errors, results of modules whose LM does not cache, and what has no JSON form; a
    warning says so once for each node. A module is taken to be a function of its inputs and the responses of its LMs:
    of a `dspy.ReAct` whose result is there, no tool is called. A node with `add_node(..., cache=False)` is called each
    time. Within another block, the inner one counts. Threads that you start yourself are not in the block: enter it
    there.

    Args:
        path: the folder. It is made if it is not there; several processes may use it.

    Returns:
        The block: `with cache(path) as spared`, where `spared` has the counts of calls that were made and spared, to
        print. It may be entered again, and begins to count anew.

    Raises:
        StoreError: if the folder cannot be used, or holds something else or another format. A disk that fails later
            raises nothing: modules are called, and a warning says why.
        TypeError: if `path` is no path.

    Example:
        >>> import tempfile
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.testing import ScriptedLM
        >>> graph = Graph().add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
        >>> program, lm = graph.compile(), ScriptedLM([{"answer": "4"}], cache=True)
        >>> with tempfile.TemporaryDirectory() as folder, dspy.context(lm=lm):
        ...     with cache(folder) as spared:
        ...         runs = [program.run({"question": "2 + 2?"}) for _ in range(3)]
        >>> [(run.state["answer"], run.commits[-1].cached) for run in runs]
        [('4', False), ('4', True), ('4', True)]
        >>> print(spared)
        node    calls made  spared  LM calls made  spared
        answer           1       2              1       2
    """
    given: Any = path
    if not isinstance(given, str | PathLike) or not str(given):
        raise TypeError(f"optimize.cache takes the path of a folder, and got {brief(given)}")
    return _Block(Path(path))


_entered: ContextVar[tuple[AbstractContextManager[Any], ...]] = ContextVar("dspyer_cache_blocks", default=())
"""What the blocks around the running code have asked for, the innermost last."""


class _Block(ContextDecorator):
    """A block of `cache`. May be entered several times, also from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used = False

    def __call__(self, function: Callable[..., Any]) -> Any:
        self._used = True
        return super().__call__(function)

    def __enter__(self) -> SparedCalls:
        self._used = True
        results = ModuleResults(str(self._path.expanduser().absolute()))
        with ExitStack() as stack:
            stack.enter_context(results.cache.kept_open())
            results.cache.require_format()
            stack.enter_context(asking_for(results=results))
            layers = stack.pop_all()
        _entered.set((*_entered.get(), layers))
        return SparedCalls(results)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        *others, layers = _entered.get()
        _entered.set(tuple(others))
        layers.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if not self._used:
            logger.warning(
                "optimize.cache(%r) was never entered, so it has kept nothing: write `with optimize.cache(...):`",
                str(self._path),
            )
