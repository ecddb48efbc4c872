"""What the suite may cost, measured while it runs: CPU time of each item, number of items, width of products.

`tests/conftest.py` registers this plugin. It prints the dearest items, and fails a run whose tests break a rule:

- An item above 0.3 CPU seconds is marked `@pytest.mark.slow("reason")`; at most 120 are. An item above 1 second that is
  not marked runs a second time at once, since the first one may have paid for an import or for a server that many use.
  The second is longer on a machine on which `work` takes longer than `FAST`, by as much.
- `parametrize` and fixtures with `params` multiply at most two axes, at most 24 items (`make test-deep` runs more).
- A whole run has at most 8,000 items.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.children import server_pid

SLOW_ITEMS = 120
ITEMS = 8_000
PRODUCT = 24
AXES = 2
LIMIT = 1.0  # CPU seconds of an item that is not marked
FAST = 0.0062  # CPU seconds that `work` takes on the machine for which LIMIT is set
SHOWN = 20

deep = bool(os.environ.get("DSPYER_DEEP"))  # `make test-deep`: full products, 500 examples of each law


class Cost(NamedTuple):
    """What an item has used."""

    cpu: float
    nodeid: str


def cpu_time() -> float:
    """CPU seconds of this process, of its children that have ended, and of those that its fork server has started."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    pid = server_pid()
    stat = Path(f"/proc/{pid}/stat")
    if pid is not None and stat.exists():  # on Linux; elsewhere these children are not counted
        fields = stat.read_text().rpartition(")")[2].split()
        total += sum(int(ticks) for ticks in fields[13:15]) / os.sysconf("SC_CLK_TCK")
    return total


def work() -> float:
    """The CPU seconds of some plain Python."""
    began = time.thread_time()
    table: dict[int, tuple[object, ...]] = {}
    for number in range(100_000):
        table[number % 1_000] = (number, table.get(number - 1))[:1]
    return time.thread_time() - began


class Budget:
    """Measures the items, and adds up what the workers have found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.limit = LIMIT * max(1.0, min(work() for _ in range(5)) / FAST)
        self.costs: list[Cost] = []
        self.problems: list[str] = []

    # --- in the process that runs the items

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts what was collected. Each worker collects all; the first one tells."""
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0" or deep:
            return
        self.problems += product_problems(session.items)
        self.problems += slow_problems(session.items)
        if len(session.items) > ITEMS:
            self.problems.append(f"{len(session.items):,} items were collected, more than {ITEMS:,}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Measures an item with its fixtures, and a second time if it is dear and not marked."""
        began = cpu_time()
        result = yield
        cost = cpu_time() - began
        if cost > self.limit and not deep and item.get_closest_marker("slow") is None:
            again: Any = item
            again._initrequest()  # as plugins that run failed tests again do: fixtures are made anew
            began = cpu_time()
            runtestprotocol(item, nextitem=nextitem, log=False)
            if (second := cpu_time() - began) > self.limit:
                self.problems.append(
                    f"{item.nodeid} took {cost:.1f} and then {second:.1f} CPU s, more than {self.limit:.1f}:"
                    f' make it cheaper than {0.3 * self.limit / LIMIT:.1f} s, or mark it slow("reason")'
                )
        self.costs.append(Cost(cost, item.nodeid))
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker hands over what it has found; a run that breaks a rule fails."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["costs"] = [tuple(cost) for cost in self.costs]
            output["problems"] = self.problems
        elif self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    # --- in the process that reports

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Called by xdist for each worker that has ended."""
        output = getattr(node, "workeroutput", {})
        self.costs += [Cost(*cost) for cost in output.get("costs", ())]
        self.problems += output.get("problems", ())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the dearest items, and what breaks a rule."""
        if len(self.costs) > SHOWN:
            total = sum(cost.cpu for cost in self.costs)
            terminalreporter.section(f"the {SHOWN} dearest of {len(self.costs):,} items, {total:.0f} CPU s in all")
            for cost in sorted(self.costs, reverse=True)[:SHOWN]:
                terminalreporter.write_line(f"{cost.cpu:6.2f} s  {cost.nodeid}")
        if self.problems:
            terminalreporter.section("rules of the suite that are broken", red=True)
            for problem in self.problems:
                terminalreporter.write_line(problem)


def product_problems(items: list[pytest.Item]) -> list[str]:
    """The tests that multiply too much."""
    rows: dict[str, list[dict[str, Any]]] = {}
    axes: dict[str, int] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        row: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
        given = [mark.kwargs.get("argnames", (*mark.args, "")[0]) for mark in item.iter_markers("parametrize")]
        named = {part for one in given for part in (re.findall(r"\w+", one) if isinstance(one, str) else one)}
        axes[name] = len(given) + len(row.keys() - named)  # the others are fixtures with `params`
        rows.setdefault(name, []).append(row)
    return [
        f"{name} multiplies {axes[name]} axes to {len(found)} items: at most {AXES} axes and {PRODUCT} items"
        for name, found in rows.items()
        if axes[name] > AXES or (len(found) > PRODUCT and (axes[name] > 1 or is_product(found)))
    ]


def is_product(rows: list[dict[str, Any]]) -> bool:
    """Whether rows that were given as one axis are all combinations of several."""
    values = [len({repr(row[name]) for row in rows}) for name in rows[0]]
    return sum(count > 1 for count in values) > 1 and math.prod(values) == len(rows)


def slow_problems(items: list[pytest.Item]) -> list[str]:
    """What is wrong with the marks `slow`."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("slow")) is not None]
    names = {item.nodeid.partition("[")[0] for item, mark in marked if not (mark.args and str(mark.args[0]).strip())}
    problems = [f'{name} is marked slow without a reason: slow("reason")' for name in sorted(names)]
    if len(marked) > SLOW_ITEMS:
        problems.append(f"{len(marked)} items are marked slow, more than {SLOW_ITEMS}")
    return problems
