"""The policies of LangGraph's nodes as those of dspyer: retries and timeouts. What is left out is a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langgraph import errors as langgraph_errors
from langgraph.types import RetryPolicy
from tenacity import wait_exponential, wait_random

from dspyer.errors import NodeTimeoutError, is_transient
from dspyer.layers.retry import Retry, accepts
from dspyer.migrate.findings import Findings
from dspyer.migrate.noted_errors import is_of_handler


@dataclass(frozen=True, slots=True)
class ConvertedRetry(Retry):
    """The first of several policies that accepts an error decides how often and when its node is attempted again."""

    policies: tuple[Retry, ...] = ()

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """How long to wait before the next attempt; None if there is none."""
        policy = next((one for one in self.policies if accepts(one.on, error)), None)
        return None if policy is None else policy.pause(attempt, error)


def retry_of(given: RetryPolicy | Sequence[RetryPolicy] | None, *, replaced: bool = False) -> Retry | None:
    """The policy of a node; None for none.

    The default of LangGraph would repeat what the LM of a module has repeated, so a node that `nodes=` has `replaced`
    has the default of `Retry` in its place.
    """
    policies = (given,) if isinstance(given, RetryPolicy) else tuple(given or ())
    found = tuple([_one_policy(policy, replaced) for policy in policies])
    if len(found) < 2:
        return found[0] if found else None
    return ConvertedRetry(max(one.attempts for one in found), policies=found)


def _one_policy(policy: RetryPolicy, replaced: bool) -> Retry:
    wait: Any = wait_exponential(
        multiplier=policy.initial_interval, exp_base=policy.backoff_factor, max=policy.max_interval
    )
    longest = policy.max_interval
    if policy.jitter:
        wait, longest = wait + wait_random(0, 1), longest + 1
    on = is_transient if replaced and policy.retry_on is RetryPolicy().retry_on else _RetryOn(policy.retry_on)
    return Retry(max(policy.max_attempts, 1), on, wait, longest)


@dataclass(frozen=True, slots=True)
class _RetryOn:
    """The `retry_on` of a policy: a type, several of them, or a function."""

    accepted: Any

    def __call__(self, error: BaseException) -> bool:
        if is_of_handler(error):
            return False
        accepted = tuple(self.accepted) if isinstance(self.accepted, Sequence) else self.accepted
        return accepts(accepted, as_langgraph_raises(error))


def as_langgraph_raises(error: BaseException) -> BaseException:
    """The error that LangGraph raises in place of one of dspyer: its timeout is no `TimeoutError`."""
    if not isinstance(error, NodeTimeoutError):
        return error
    found: BaseException = langgraph_errors.NodeTimeoutError("", 0.0, kind="run", run_timeout=0.0)
    return found


def timeout_of(label: str, spec: Any, findings: Findings) -> float | None:
    """The seconds that an attempt of node `label` may take; None for no limit."""
    policy = spec.timeout
    if policy is None:
        return None
    if policy.idle_timeout is not None:
        findings.note(f"the idle_timeout of node {label!r} is left out: timeout= bounds a whole attempt")
    limit = policy.run_timeout
    return limit.total_seconds() if isinstance(limit, timedelta) else limit
