"""Send a message to a thread, whether a run works on it, waits, has crashed or has ended.

No thread need be owned for that. The message is written under the epoch that the thread has, so that none
reaches a thread that was deleted meanwhile, and as the next row of its inbox, so that of two senders one writes again.
"""

from __future__ import annotations

from dataclasses import replace
from secrets import token_hex
from typing import Any

from dspyer.errors import ConcurrentRunError, InputError, ThreadError, brief, list_names, suggestion
from dspyer.events import Sent
from dspyer.log.message_log import inbox_of, index_of, message, unnamed
from dspyer.log.rows import SentRow, row_time
from dspyer.log.time_travel import status_of
from dspyer.stores.base import Change, RunRow
from dspyer.threads.start import LONGEST_NOTE, StoredThread
from dspyer.values.json import with_valid_text

LONGEST_TEXT = 100_000
"""Most bytes of a message."""


def send(thread: StoredThread, text: str, to: str | None, by: str, key: str | None) -> Sent:
    """Write a message to the inbox of a thread; return it, or the one that was sent with this key before."""
    store, name, inbox = thread.store, thread.name, inbox_of(thread.name)
    text, by = _checked(thread, text, to, by, key)
    made = SentRow(token_hex(8), row_time(), text, by, to, key)
    while True:
        row = store.thread(name)
        if row is None or row.head is None:
            raise ThreadError(f"thread {name!r} has no run yet: begin with thread.run(...). Nothing was sent")
        known = index_of(store, inbox)
        if key is not None and key in known.keys:
            first = message(store, inbox, known.keys[key])
            if (first.text, first.to) != (text, to):
                raise InputError(
                    f"key={key!r} is that of message {first.number} of thread {name!r}, which has another text or "
                    "another agent: nothing was sent. A key stands for one message: give another one another key"
                )
            return replace(first, open=status_of(store, name) != "completed")
        try:
            if not known.id:  # of no thread, for which the store would count it as a run
                store.write(Change(run=RunRow(inbox, name, (), {"inbox": token_hex(8)})))
            sent = made.row().numbered(known.size)
            store.write(Change(name, row.epoch, rows_of=inbox, rows=[sent], flush=True))
        except ConcurrentRunError:
            continue  # another message has this number, or another run has the thread
        return Sent(known.size, text, by, made.at, to, status_of(store, name) != "completed")


def _checked(thread: StoredThread, text: Any, to: Any, by: Any, key: Any) -> tuple[str, str]:
    """The text and the name of its author, as they are stored."""
    listeners = thread.graph.listeners
    if not listeners:
        raise ThreadError(
            f"graph {thread.graph.name!r} has no agent that could read a message: change its state with "
            "thread.update(...), or answer its questions with thread.resume(...)"
        )
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a message is a text that is not empty, not {brief(text)}. Nothing was sent")
    text = with_valid_text(text)
    size = len(text.encode())
    if size > LONGEST_TEXT:
        raise InputError(f"a message has at most {LONGEST_TEXT:,} bytes, and this one {size:,}. Nothing was sent")
    if not isinstance(by, str) or len(by) > LONGEST_NOTE:
        raise InputError(f"by= is a text of at most {LONGEST_NOTE} characters, not {brief(by)}. Nothing was sent")
    if key is not None and (not isinstance(key, str) or not key):
        raise InputError(f"key= is a text that is not empty, not {brief(key)}. Nothing was sent")
    if to is None and not unnamed(listeners):
        raise InputError(f"say which agent is meant, to=...: {list_names(listeners)}. Nothing was sent")
    if to is not None and (not to or to not in listeners):
        named = [path for path in listeners if path]
        known = f"Agents: {list_names(named)}" if named else "The program is the only agent: leave to= out"
        raise InputError(f"to={brief(to)} is no agent.{suggestion(str(to), named)} {known}. Nothing was sent")
    return text, with_valid_text(by)
