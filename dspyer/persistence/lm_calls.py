"""LM calls in the rows of a run: their compact form, and how to find those of an execution.

The calls of an execution that committed are in the content of its commit's row, so that they go where the commit goes:
into copies, reruns, exports; and the row numbers of commits stay what they are without LM calls. Calls of an execution
that has no commit, or not yet (it failed, it waits for an answer, an item of a map), are in rows of the kind `lm_call`.

Long texts of messages and responses are blobs: a system prompt is stored once. They are read only when calls are asked
for: the content names them in another form than `Content.value` looks for.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.errors import StoreError, brief
from dspyer.events import LMCall
from dspyer.ids import path_of_id
from dspyer.persistence.reader import newest_rows
from dspyer.persistence.rows import (
    COMMITS,
    LM_CALLS_INDEX,
    NO_BLOBS,
    TIME_ORIGIN,
    CommitContent,
    CommitHeader,
    MapCommitContent,
    NewRow,
    RowKind,
)
from dspyer.stores.base import Point, Row, Store
from dspyer.stores.content import Content, Fetch, ReadBudget, blob_id

INLINE = 256
"""The longest text of a message that stays in its row; longer ones become blobs."""

PackedCall = list[Any]
"""An LM call as a row holds it: JSON values."""


class PackedCalls(NamedTuple):
    """LM calls of one execution on their way to a row.

    Attributes:
        calls: their packed forms.
        blobs: the long texts in them, by id.
    """

    calls: tuple[PackedCall, ...] = ()
    blobs: Mapping[str, bytes] = NO_BLOBS


NO_CALLS = PackedCalls()

# --- Writing


def pack_call(call: LMCall, blobs: dict[str, bytes], since: int = TIME_ORIGIN, hidden: bool = False) -> PackedCall:
    """Return the compact form of a call; its long texts are added to `blobs`.

    Args:
        call: the call. Its execution and its node are those of the row.
        blobs: long texts by id.
        since: the milliseconds since the Unix epoch from which its start is counted: in a commit, those of the commit.
        hidden: whether readers show its usage alone: its graph redacts values, and no function has decided about texts.
    """
    texts: list[Any] | int = 0
    if call.messages is not None or call.response is not None:
        messages = None if call.messages is None else [_pack_message(one, blobs) for one in call.messages]
        texts = [messages, None if call.response is None else _pack_value(call.response, blobs)]
    usual_requests = 0 if call.cached else 1
    packed = [
        _shortened(call.predictor, call.node),
        call.model,
        None if call.response_model is None else _shortened(call.response_model, _bare(call.model)),
        call.prompt_tokens,
        call.response_tokens,
        None if call.cost is None else round(call.cost, 12),
        int(call.started * 1_000) - since,
        int(call.seconds * 1_000_000),
        int(call.cached),
        0 if call.finish_reason == "stop" else call.finish_reason,
        0 if call.attempt == 1 else call.attempt,
        0 if call.failed is None else call.failed,
        0 if call.requests == usual_requests else [call.requests],
        int(call.fallback),
        texts,
        int(hidden and (texts != 0 or call.failed is not None)),
    ]
    while packed[-1] == 0 and len(packed) > 8:
        packed.pop()
    return packed


def lm_call_row(execution: str, node: str, packed: PackedCalls) -> NewRow:
    """Build the row of the LM calls of an execution that has no commit yet: it goes before the next row of it."""
    return NewRow(RowKind.LM_CALL, (execution, node), Content(list(packed.calls), list, packed.blobs))


def _shortened(name: str, known: str) -> Any:
    """Return a name without a known one that it begins with, as a list; 0 for the known one itself."""
    if name == known:
        return 0
    return [name.removeprefix(known)] if known and name.startswith(known) else name


def _bare(model: str) -> str:
    """Return the name of a model without its provider, which servers do not repeat: "gpt-4o" of "openai/gpt-4o"."""
    return model.rpartition("/")[2]


def _pack_message(message: Any, blobs: dict[str, bytes]) -> list[Any]:
    if isinstance(message, Mapping) and set(message) == {"role", "content"} and isinstance(message["role"], str):
        content = message["content"]
        if isinstance(content, str):
            return [message["role"], _pack_text(content, blobs)]
    return [0, _pack_text(_to_json(message), blobs)]


def _pack_value(value: Any, blobs: dict[str, bytes]) -> Any:
    return _pack_text(value, blobs) if isinstance(value, str) else [0, _pack_text(_to_json(value), blobs)]


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _pack_text(text: str, blobs: dict[str, bytes]) -> str | dict[str, str]:
    """Return a short text as it is; of a long one, which becomes a blob, the id."""
    data = text.encode("utf-8", "backslashreplace")  # of a text with half a surrogate pair, which no file can hold
    if len(data) <= INLINE:
        return data.decode()
    name = blob_id(data)
    blobs[name] = data
    return {"text": base64.urlsafe_b64encode(bytes.fromhex(name)).decode().rstrip("=")}


# --- Reading


def unpack_call(
    packed: Sequence[Any], execution: str, node: str, since: int = TIME_ORIGIN, fetch: Fetch | None = None
) -> LMCall:
    """Return a call from its compact form, with the `since` of `pack_call`; without `fetch`, without its texts.

    Raises:
        StoreError: if the form is malformed.
    """
    try:
        return _unpack(packed, execution, node, since, fetch)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreError(
            f"an LM call of execution {execution!r} is stored as {brief(packed)}, which cannot be read ({error}): it "
            "was changed after dspyer wrote it. Restore the store from a backup"
        ) from error


def _unpack(packed: Sequence[Any], execution: str, node: str, since: int, fetch: Fetch | None) -> LMCall:
    predictor, model, response_model, prompt, response, cost, started, micros, *rest = packed
    cached, finish_reason, attempt, failed, requests, fallback, texts, hidden = (*rest, *[0] * 8)[:8]
    messages = answer = None
    if texts and not hidden and fetch is not None:
        blobs = _fetched(texts, fetch)
        if texts[0] is not None:
            messages = [_unpack_message(one, blobs) for one in texts[0]]
        answer = None if texts[1] is None else _unpack_value(texts[1], blobs)
    return LMCall(
        execution,
        node,
        _lengthened(predictor, node),
        model,
        None if response_model is None else _lengthened(response_model, _bare(model)),
        prompt,
        response,
        cost,
        micros / 1_000_000,
        (started + since) / 1_000,
        bool(cached),
        "stop" if finish_reason == 0 else finish_reason,
        attempt or 1,
        None if failed == 0 else failed.partition(":")[0] if hidden else failed,
        messages,
        answer,
        requests[0] if requests else 0 if cached else 1,
        bool(fallback),
    )


def _lengthened(packed: Any, known: str) -> str:
    if packed == 0:
        return known
    return known + packed[0] if isinstance(packed, list) else str(packed)


def _fetched(texts: Sequence[Any], fetch: Fetch) -> Mapping[str, bytes]:
    messages, response = texts
    parts = [*(one[1] for one in messages or ()), response[1] if isinstance(response, list) else response]
    names = {_blob_name(part) for part in parts if isinstance(part, Mapping)}
    return fetch(names) if names else NO_BLOBS


def _blob_name(reference: Mapping[str, str]) -> str:
    return base64.urlsafe_b64decode(reference["text"] + "==").hex()


def _unpack_message(packed: Sequence[Any], blobs: Mapping[str, bytes]) -> Any:
    role, text = packed
    if role == 0:
        return json.loads(_unpack_text(text, blobs))
    return {"role": role, "content": _unpack_text(text, blobs)}


def _unpack_value(packed: Any, blobs: Mapping[str, bytes]) -> Any:
    if isinstance(packed, list):
        return json.loads(_unpack_text(packed[1], blobs))
    return _unpack_text(packed, blobs)


def _unpack_text(packed: Any, blobs: Mapping[str, bytes]) -> str:
    return blobs[_blob_name(packed)].decode() if isinstance(packed, Mapping) else str(packed)


def calls_in(row: Row, fetch: Fetch | None = None) -> list[LMCall]:
    """Return the LM calls that a row holds: a commit's own, or those of an `lm_call` row; none for other rows.

    Args:
        row: the row.
        fetch: loads blobs by id, as `Store.blobs` does; None for calls without messages and responses.
    """
    if row.kind == RowKind.LM_CALL:
        execution, node, *_ = map(str, row.header)
        return [unpack_call(one, execution, node, fetch=fetch) for one in _packed_in(row)]
    if row.kind not in COMMITS:
        return []
    packed = _packed_in(row)
    if not packed:
        return []
    header = CommitHeader.parse(row.header)
    execution = "/".join((*header.scope, header.id))
    return [unpack_call(one, execution, header.node, header.started, fetch) for one in packed]


def _packed_in(row: Row) -> Sequence[PackedCall]:
    content = row.content.own if isinstance(row.content, MapCommitContent) else row.content
    if content is None:
        return ()
    if content.original is not None:  # of a store in memory
        found: CommitContent | Sequence[PackedCall] = content.original
        return found.lm_calls if isinstance(found, CommitContent) else found
    data = content.data
    # Not `content.value`, which reads the long values of the patch, too.
    plain: list[Any] = json.loads(ReadBudget().spend(data))
    if row.kind == RowKind.LM_CALL:
        return plain
    return plain[LM_CALLS_INDEX] if len(plain) > LM_CALLS_INDEX else ()


def usage_alone(row: Row) -> list[PackedCall]:
    """Return the LM calls of a row as a redacted export shows them: without messages, response and text of an error."""
    found = [list(packed[:_TEXTS]) for packed in _packed_in(row)]
    for packed in found:
        if len(packed) > _FAILED and packed[_FAILED] != 0:
            packed[_FAILED] = str(packed[_FAILED]).partition(":")[0]
    return found


_FAILED, _TEXTS = 11, 14
"""Where a packed call has the error, and its texts."""


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
            header = CommitHeader.parse(row.header)
            if index and not header.scope and header.branch == path[: len(header.branch)]:
                break
        found[:0] = [call for call in calls_in(row, fetch) if is_within(call.execution, execution)]
        if Point(run.id, row.seq) == root:
            break
    return found


def is_within(execution: str, outer: str) -> bool:
    """Return whether an execution is another one, or a part of it.

    Example:
        >>> is_within("trunk:2[0]/trunk:1", "trunk:2"), is_within("trunk:21", "trunk:2")
        (True, False)
    """
    return execution == outer or execution.startswith((f"{outer}/", f"{outer}["))
