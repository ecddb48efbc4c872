"""What the rows of a run hold, as values and as JSON.

A patch keeps apart what merges and what is a value: `DELETE`, `Replace`, `Updates` and mappings that merge are tagged,
everything else is the JSON form of a frozen value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.patch import SealedPatch, decode_update, encode_update
from dspyer.scheduler.lineage import Resolution
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict

Decode = Callable[[Any], Any]
"""Makes a frozen value of its JSON form."""


class Unreadable(SealedPatch):
    """The patch of a commit that cannot be read, or that builds on one: empty, and says why.

    Attributes:
        error: why.
    """

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable: {self.error}>"


class CommitContent(NamedTuple):
    """What a commit holds beside its structure.

    Attributes:
        patch: its patch; None for the patch with which the run was opened.
        overlays: what each branch that goes on gets, for those started by a `Send`; empty where there are none.
        reason: why an LM router chose the route.
        resolutions: what the merge policies of a join decided.
    """

    patch: Mapping[str, Any] | None
    overlays: tuple[FrozenDict[str, Any] | None, ...] = ()
    reason: str | None = None
    resolutions: tuple[Resolution, ...] = ()


def encode_commit_content(written: CommitContent) -> Any:
    """The JSON form of what a commit holds: patch, overlays, reason, resolutions, as far as there are any."""
    patch, overlays, reason, resolutions = written
    encoded = None if patch is None else {name: encode_update(update) for name, update in patch.items()}
    if not overlays and reason is None and not resolutions:
        return [encoded]
    sent = [None if overlay is None else encoding.encode(overlay) for overlay in overlays]
    return [encoded, sent, reason, [_encode_resolution(resolution) for resolution in resolutions]]


def encode_without(field: str, written: CommitContent) -> Any:
    """The JSON form without one field of the patch, which other rows hold."""
    patch = {name: update for name, update in (written.patch or {}).items() if name != field}
    return encode_commit_content(written._replace(patch=patch))


class Gathered(Content):
    """What the commit of a map holds, with the results of its items from their own rows.

    Args:
        own: the content of the commit.
        field: the field of the results.
        items: the results in order.
    """

    __slots__ = ("field", "items", "own")

    def __init__(self, own: Content, field: str, items: Sequence[Content]) -> None:
        super().__init__(None)
        self.own = own
        self.field = field
        self.items = items

    @property
    def encoded(self) -> bool:
        """Whether the bytes are there already."""
        return self.own.encoded

    @property
    def data(self) -> bytes:
        """The bytes of the commit's own content."""
        self._data = self.own.data
        self._refs, self._blobs = self.own.refs, self.own.blobs
        return self._data

    def value(self, fetch: Fetch, decode: Decode = encoding.decode) -> Any:
        """The value of the commit's own content."""
        return self.own.value(fetch, decode)

    def completed(self, written: CommitContent, fetch: Fetch, decode: Decode) -> CommitContent:
        """The commit with the results in it."""
        patch = written.patch or {}
        if self.field in patch:
            return written
        results = freeze([item.value(fetch, decode) for item in self.items])
        return written._replace(patch={self.field: results, **patch})


def decode_commit_content(found: list[Any], decode: Decode = encoding.decode) -> CommitContent:
    """What a commit holds, from its JSON form."""
    encoded, *more = found
    patch = None if encoded is None else {name: decode_update(update, decode) for name, update in encoded.items()}
    if not more:
        return CommitContent(patch)
    sent, reason, resolved = more
    return CommitContent(
        patch,
        tuple([None if overlay is None else decode(overlay) for overlay in sent]),
        reason,
        tuple([_decode_resolution(resolution, decode) for resolution in resolved]),
    )


def _encode_resolution(resolution: Resolution) -> list[Any]:
    parts: list[Any] = [resolution.policy, resolution.chosen]
    return [*parts, encode_update(resolution.value)] if resolution.chosen == "new" else parts


def _decode_resolution(found: list[Any], decode: Decode) -> Resolution:
    policy, chosen, *value = found
    return Resolution(policy, chosen, decode_update(value[0], decode) if value else None)
