"""LM calls in the rows of a run: their compact form, and how to find those of an execution.

The calls of an execution that committed are in the content of its commit's row, so that they go where the commit goes:
into copies, reruns, exports; and the row numbers of commits stay what they are without LM calls. Calls of an execution
that has no commit, or not yet (it failed, it waits for an answer, an item of a map), are in rows of the kind `lm_call`.

Long texts of messages and responses are blobs: a system prompt is stored once. They are read only when calls are asked
for: the content names them in another form than `Content.value` looks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dspyer.errors import StoreError, brief
from dspyer.events import LMCall
from dspyer.ids import is_within, path_of_id
from dspyer.persistence.reader import commit_header, newest_rows
from dspyer.persistence.row_codec import CHANGED, is_readable
from dspyer.persistence.rows import COMMITS, CommitContent, CommitRow, LMCallsRow, MapCommitContent, RowKind
from dspyer.record_codec import MALFORMED, decode, encode
from dspyer.stores.base import Point, Row, Store
from dspyer.stores.content import Fetch, ReadBudget, blob_id

INLINE = 256
"""The longest text of a message that stays in its row; longer ones become blobs."""

StoredCall = dict[str, Any]
"""The JSON form of an LM call."""

# --- Writing


def encode_call(call: LMCall, blobs: dict[str, bytes], hidden: bool = False) -> StoredCall:
    """Return the JSON form of a call; its long texts are added to `blobs`.

    Args:
        call: the call. Its execution and its node are those of the row.
        blobs: long texts by id.
        hidden: whether readers show its usage alone: its graph redacts values, and no function has decided about texts.
    """
    found = encode(call, omit_defaults=True, omit=("execution", "node", *_TEXTS))
    found["started"], found["seconds"] = round(call.started, 3), round(call.seconds, 6)
    if call.cost is not None:
        found["cost"] = round(call.cost, 12)
    for name in _TEXTS:
        if (said := getattr(call, name)) is not None:
            found[name] = _with_short_texts(_plain(said), blobs)
    if hidden and found.keys() & {*_TEXTS, "failed"}:
        found["hidden"] = True
    return found


_TEXTS = ("messages", "response")
"""The attributes of a call that hold what was said."""

_TEXT = "$text"
"""The key of a long text, by which it is replaced; its value is the id of the blob."""

_AS_IT_IS = "$"
"""The key around a mapping that has the key of a long text itself, or this one."""


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back; of an object its text."""
    return json.loads(json.dumps(value, ensure_ascii=False, default=str))


def _with_short_texts(value: Any, blobs: dict[str, bytes]) -> Any:
    """Return JSON values with references in the place of long texts, which are added to `blobs`."""
    if isinstance(value, list):
        return [_with_short_texts(item, blobs) for item in value]
    if isinstance(value, dict):
        found = {_short(key): _with_short_texts(item, blobs) for key, item in value.items()}
        return {_AS_IT_IS: found} if found.keys() & {_TEXT, _AS_IT_IS} else found
    if not isinstance(value, str):
        return value
    data = value.encode("utf-8", "backslashreplace")  # of a text with half a surrogate pair, which no file can hold
    if len(data) <= INLINE:
        return data.decode()
    name = blob_id(data)
    blobs[name] = data
    # In capitals: `Content.value` looks for the ids of blobs in the bytes, and reads those that it finds.
    return {_TEXT: name.upper()}


def _short(key: str) -> str:
    return key.encode("utf-8", "backslashreplace").decode()


# --- Reading


def decode_call(stored: Mapping[str, Any], execution: str, node: str, fetch: Fetch | None = None) -> LMCall:
    """Return a call from its JSON form; without `fetch`, without its texts.

    Raises:
        StoreError: if the form is malformed.
    """
    try:
        plain = {**stored, "execution": execution, "node": node}
        hidden = plain.pop("hidden", False)
        texts = {name: plain.pop(name) for name in _TEXTS if name in plain}
        call = decode(LMCall, plain)
        if hidden:
            return usage_alone(call)
        if fetch is not None and texts:
            names: set[str] = set()
            _names_in(texts, names)
            blobs = fetch(names) if names else {}
            call = replace(call, **{name: _with_texts(value, blobs) for name, value in texts.items()})
    except MALFORMED as error:
        raise StoreError(
            f"an LM call of execution {execution!r} is stored as {brief(stored)}, which cannot be read ({error}): "
            f"{CHANGED}"
        ) from error
    return call


def _names_in(value: Any, names: set[str]) -> None:
    """Add the ids of the long texts in a value to `names`."""
    if isinstance(value, dict) and _TEXT in value:
        names.add(value[_TEXT].lower())
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _names_in(item, names)


def _with_texts(value: Any, blobs: Mapping[str, bytes]) -> Any:
    if isinstance(value, list):
        return [_with_texts(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    if _TEXT in value:
        return blobs[value[_TEXT].lower()].decode()
    inner = value.get(_AS_IT_IS, value)
    return {key: _with_texts(item, blobs) for key, item in inner.items()}


def usage_alone(call: LMCall) -> LMCall:
    """Return a call without messages, response and the text of an error.

    Example:
        >>> call = LMCall("trunk:1", "a", "a", "lm", None, 1, 1, 0.0, 0.1, 0.0, failed="ValueError: odd", response="x")
        >>> usage_alone(call).failed, usage_alone(call).response
        ('ValueError', None)
    """
    failed = None if call.failed is None else call.failed.partition(":")[0]
    return replace(call, messages=None, response=None, failed=failed)


def stored_calls(row: Row) -> Sequence[Mapping[str, Any]]:
    """Return the JSON forms of the LM calls that a row holds; none for a row of another kind."""
    content = row.content.own if isinstance(row.content, MapCommitContent) else row.content
    if not (row.kind in COMMITS or row.kind == RowKind.LM_CALL) or not is_readable(row) or content is None:
        return ()
    if content.original is not None:  # of a store in memory
        found: CommitContent | LMCallsRow = content.original
        return found.lm_calls
    data = content.data
    # Not `content.value`, which reads the long values of the patch, too.
    if b'"lm_calls":' not in data:
        return ()
    try:
        calls: Sequence[Mapping[str, Any]] = json.loads(ReadBudget().spend(data)).get("lm_calls", ())
    except MALFORMED as error:
        raise StoreError(f"row {row.seq} has a content that cannot be read ({error}): {CHANGED}") from error
    return calls


def calls_in(row: Row, fetch: Fetch | None = None) -> list[LMCall]:
    """Return the LM calls that a row holds: a commit's own, or those of an `lm_call` row; none for other rows.

    Args:
        row: the row.
        fetch: loads blobs by id, as `Store.blobs` does; None for calls without messages and responses.
    """
    found = stored_calls(row)
    if not found:
        return []
    header = LMCallsRow.of(row) if row.kind == RowKind.LM_CALL else CommitRow.of(row)
    return [decode_call(one, header.execution, header.node, fetch) for one in found]


def calls_of(
    store: Store, at: Point, execution: str, with_texts: bool = True, root: Point | None = None
) -> list[LMCall]:
    """Return the LM calls of an execution of a run, with those of the items, graphs and calls inside of it, in order.

    Read back from its commit, or from the end of the run, to the last commit before it on its branch.

    Args:
        store: the store.
        at: the row of its commit; of an execution without one, the last row of the run.
        execution: its id in the run.
        with_texts: whether to read messages and responses.
        root: the row at which a pruned history begins: nothing before it is there.
    """
    path = path_of_id(execution)
    fetch = store.blobs if with_texts else None
    found: list[LMCall] = []
    for index, (run, row) in enumerate(newest_rows(store, at)):
        if row.kind in COMMITS:
            header = commit_header(row)
            if index and not header.scope and header.branch == path[: len(header.branch)]:
                break
        found[:0] = [call for call in calls_in(row, fetch) if is_within(call.execution, execution)]
        if Point(run.id, row.seq) == root:
            break
    return found
