"""What surrounds the calls of a node and changes no result: its policy."""

from __future__ import annotations

from typing import Final, NamedTuple

from dspyer.retry import Retry


class CachePlan(NamedTuple):
    """How the results of a node are kept.

    Attributes:
        node: its name.
        identity: a hash of all parts of the key that are the same for each call (`nodes.cache_key`).
        ttl: how old a result may be, in seconds; None for any age.
    """

    node: str
    identity: str
    ttl: float | None


class NodePolicy(NamedTuple):
    """What surrounds each call of a node; nothing of it changes a result.

    Attributes:
        retry: which failed attempts are followed by another one; None for none.
        timeout: the seconds of one attempt; None for no limit.
        cache: how its results are kept; None for a node that is called each time.
    """

    retry: Retry | None = None
    timeout: float | None = None
    cache: CachePlan | None = None


NO_POLICY: Final = NodePolicy()
