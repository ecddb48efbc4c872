"""Budgets: what a run may spend, and what it has spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from dspyer import clock
from dspyer.errors import BudgetError, InputError, with_article
from dspyer.values.frozen import FrozenDict
from dspyer.values.scalars import is_number, is_whole_number
from dspyer.waiting import StopSignal

_LIMITS = ("tokens", "cost", "requests", "seconds", "node_calls")
_COUNTS = ("tokens", "requests", "node_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a run. When one is reached, the run is stopped, and `thread.resume()` can continue it.

    The limits are checked before each node and before each request to a language model. Requests in progress are
    finished, and so are the nodes that ask for no further one, so more may be spent than the limit: at most what was in
    progress. A response from a cache costs nothing. A request that the LM repeats itself (`num_retries`) counts once,
    each attempt of `dspyer.lms.reliable` counts. A run whose last node reaches the limit is completed.

    Branches, maps and graphs inside of nodes share the budget of the outermost run; one that an inner graph was
    compiled with has no effect. A run that the code of a node starts with a budget of its own counts for both. A resume
    begins a new budget. A node whose request was refused commits nothing, even if its code catches every exception, and
    is called again by a resume. A refused request ends the work of `dspy.Parallel` and `dspy.Evaluate` in a node at
    once: `run.error.spent` may lack what their other threads had in progress. Calls that DSPy's callbacks do not reach,
    by a client of your own or in threads without a copy of the context, are not counted.

    Args:
        tokens: the most tokens, of prompts and responses. A response that does not say how many it has used fails the
            run.
        cost: the most US dollars, by the prices that DSPy knows, or `prices`.
        requests: the most requests to language models; one that failed counts, too. A call with `n=5` counts as five.
        seconds: how long the run may take.
        node_calls: the most calls of nodes, with those of the runs inside of nodes. A node with all its attempts is one
            call, a map with all its items too; a resume does not count again what it goes on inside of. What runs when
            one more is due is finished, with its requests.
        prices: for models whose price DSPy does not know, or that cost you something else: USD per million tokens of
            prompts and of responses, by the name of the model, `{"openai/x": (0.1, 0.4)}`.

    Raises:
        ValueError: without a limit, or for one that is not greater than 0.
        TypeError: for a limit that is no number, or prices of another form.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_edge(START, "add")
        >>> program = graph.add_conditional_edges("add", lambda n: "add",
        ...     ["add", END]).compile(max_steps=10**9)
        >>> run = program.run({"n": 0}, budget=Budget(seconds=0.05))
        >>> run.status, run.error.reason[:8]
        ('stopped', 'seconds:')
    """

    tokens: int | None = None
    cost: float | None = None
    requests: int | None = None
    seconds: float | None = None
    node_calls: int | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _LIMITS:
            _check_limit(name, getattr(self, name))
        if all(getattr(self, name) is None for name in _LIMITS):
            raise ValueError("Budget() has no limit: give tokens, cost (USD), requests, seconds or node_calls")
        # A frozen dataclass that holds a dict could still be changed through it, also by the caller who gave the dict.
        object.__setattr__(self, "prices", FrozenDict(_checked_prices(self.prices)))

    @classmethod
    def of(cls, given: Self | None) -> Self | None:
        """The budget that an option `budget=` means.

        Raises:
            TypeError: for what is neither a `Budget` nor None.

        Example:
            >>> Budget.of(None) is None
            True
        """
        if given is None or isinstance(given, cls):
            return given
        raise TypeError(f"budget={given!r}: give a dspyer.Budget, for example Budget(cost=0.50), or None")


def _check_limit(name: str, limit: object) -> None:
    if limit is None:
        return
    if not (is_whole_number(limit) if name in _COUNTS else is_number(limit)):
        kind = "a whole number" if name in _COUNTS else "US dollars" if name == "cost" else "a number"
        raise TypeError(f"Budget({name}={limit!r}): give {kind}, or None for no limit")
    assert isinstance(limit, int | float)
    if not math.isfinite(limit) or limit <= 0:
        raise ValueError(f"Budget({name}={limit!r}): give more than 0, or None for no limit")


def _checked_prices(prices: object) -> dict[str, tuple[float, float]]:
    form = "give USD per million tokens in and out by model, prices={'openai/x': (0.1, 0.4)}"
    if not isinstance(prices, Mapping):
        raise TypeError(f"Budget(prices=) got {with_article(type(prices).__name__)}: {form}")
    found: dict[str, tuple[float, float]] = {}
    for model, price in prices.items():
        pair = tuple(price) if isinstance(price, tuple | list) else ()
        numbers = [one for one in pair if is_number(one)]
        if not isinstance(model, str) or len(pair) != 2 or len(numbers) != 2:
            raise TypeError(f"Budget(prices=) has {price!r} for {model!r}: {form}")
        if not all(math.isfinite(one) and one >= 0 for one in numbers):
            raise ValueError(f"Budget(prices=) has {price!r} for {model!r}: a price is 0 or more")
        found[model] = (float(numbers[0]), float(numbers[1]))
    return found


class Spending:
    """The spending of the runs of one call of a program. May be used from any thread."""

    def __init__(self, budget: Budget, signal: StopSignal) -> None:
        self.budget = budget
        self._signal = signal
        self._lock = Lock()
        self._began = clock.now()
        self._counted: dict[str, float] = {"tokens": 0, "cost": 0.0, "requests": 0, "node_calls": 0}
        self._ended: float | None = None
        self._used_up = False

    def check(self) -> bool:
        """Return whether another request may start; stops the run when a limit is reached.

        A run that something else has stopped may make requests: its sync nodes are finished.
        """
        # Without the lock: two threads may both find the limit reached, and the second stop of a signal changes
        # nothing.
        if not self._used_up and (reached := self._reached()):
            self._ended = clock.now()
            self._used_up = True  # before the stop: what it wakes asks again
            self._signal.stop(reached, self._error(reached))
        return not self._used_up

    def begin_node(self, counts: bool) -> bool:
        """Counts a node that is to start, and returns true; stops the run and returns false if it is one too many."""
        if not self.check():
            return False
        most = self.budget.node_calls
        # Asked and counted under one lock: two nodes that begin at once must not both be the last one.
        with self._lock:
            allowed = not counts or most is None or self._counted["node_calls"] < most
            self._counted["node_calls"] += allowed and counts
        if not allowed:  # the budget is not used up: the nodes that run may make requests
            reason = _text("node_calls", self._counted["node_calls"], most or 0)
            self._signal.stop(reason, self._error(reason))
        return allowed

    def add_node_calls(self, calls: int) -> None:
        """Adds the calls that a worker has made of the nodes of a run inside."""
        with self._lock:
            self._counted["node_calls"] += calls

    @contextmanager
    def on_used_up(self, callback: Callable[[str], object]) -> Iterator[None]:
        """Calls `callback` with the reason if the budget stops the run during the block, or did before."""

        def stopped(reason: str) -> None:
            if self._used_up:
                callback(reason)

        with self._signal.on_stop(stopped):
            yield

    def add(self, model: str, tokens: int | None, cost: float | None, requests: int) -> None:
        """Adds what an LM call has spent; tokens and cost are None if they are not known."""
        with self._lock:
            for name, more in (("tokens", tokens), ("cost", cost), ("requests", requests)):
                self._counted[name] += more or 0
        # What cannot be counted cannot be bounded. The run fails at once: to go on would spend without a limit.
        unbounded = cost is None and self.budget.cost is not None
        if tokens is None and (unbounded or self.budget.tokens is not None):
            bounded = "the cost" if unbounded else "tokens"
            self._fail(
                f"the budget bounds {bounded}, and a response of {model!r} does not say how many tokens it has used: "
                "bound requests or seconds instead"
            )
        elif unbounded:
            self.refuse(f"what a response of {model!r} has cost is not known", model)
        self.check()
        if isinstance(self._signal.error, BudgetError):  # with what was in progress at the limit
            self._signal.error = self._error(self._reached() or self._signal.error.reason)

    def refuse(self, what: str, model: str) -> None:
        """Fails the run: without a price, its cost cannot be bounded."""
        self._fail(
            f"the budget bounds the cost, and {what}: give its price in USD per million tokens in and out, "
            f"Budget(cost={self.budget.cost:g}, prices={{{model!r}: (0.1, 0.4)}}), or bound tokens or requests instead"
        )

    def _fail(self, text: str) -> None:
        self._used_up = True
        error = InputError(text)
        error.add_note("in the budget of this run")  # `errors.public` reads it: no input of a customer is wrong
        self._signal.stop(text, error)

    def seconds_left(self) -> float | None:
        """The seconds that the run has left, at least 0; None for no limit."""
        seconds = self.budget.seconds
        return None if seconds is None else max(self._began + seconds - clock.now(), 0.0)

    def _spent(self) -> dict[str, float]:
        """The amounts that were spent, by the name of the limit."""
        # The time at which it was used up, so that the nodes that are still finished do not change what the error says.
        now = self._ended if self._ended is not None else clock.now()
        with self._lock:
            found = {**self._counted, "seconds": now - self._began}
        return {name: found[name] for name in self._limits()}

    def _error(self, reason: str) -> BudgetError:
        """The error of a run that was stopped by the budget."""
        return BudgetError(reason, reason, self._spent(), self._limits())

    def _limits(self) -> dict[str, float]:
        return {name: limit for name in _LIMITS if (limit := getattr(self.budget, name)) is not None}

    def _reached(self) -> str:
        """The limits that are reached, as text: `"cost: 0.51 of 0.50 USD"`; "" for none.

        That of node calls is not among them: the last node that may be called has still to make its requests.
        """
        spent, limits = self._spent(), self._limits()
        limits.pop("node_calls", None)
        return ", ".join(_text(name, spent[name], limit) for name, limit in limits.items() if spent[name] >= limit)


def _text(name: str, spent: float, limit: float) -> str:
    if name == "cost":
        digits = 2 if limit >= 0.1 else 6
        return f"cost: {spent:.{digits}f} of {limit:.{digits}f} USD"
    if name == "seconds":
        return f"{name}: {spent:.{1 if limit >= 1 else 3}f} of {limit:g}"
    return f"{name}: {spent:.0f} of {limit}"
