"""The events of a run as the body of an HTTP response: server-sent events, as the HTML standard defines them.

A message is a few lines of text. All of its data is one line of JSON in ASCII, in which every line break of a value is
escaped: no value can end a line, or the message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from logging import ERROR, INFO
from typing import Any, Final

from dspyer.errors import ConcurrentRunError, InputError, RunStoppedError, ThreadError, public
from dspyer.record_codec import error_dict

logger = logging.getLogger("dspyer")

LAST: Final = "StreamEnded"
"""The name of the last message."""

OPENING: Final = b"retry: 86400000\n\n"
"""The milliseconds after which a browser that lost the connection asks again: a day. It would start another run."""

HEARTBEAT: Final = b":\n\n"
"""A comment: it tells what is between server and client that the connection is in use."""


def checked_heartbeat(seconds: float | None) -> float | None:
    """Returns the seconds between heartbeats, if they are positive."""
    if seconds is None or seconds > 0:
        return seconds
    raise InputError(f"sse(heartbeat={seconds!r}): give the seconds of silence after which a comment is sent, or None")


def message(number: int, data: Mapping[str, Any]) -> bytes:
    """Returns the message of an event, or the last one: `data` is its JSON form, and names it."""
    text = json.dumps(data, allow_nan=False)  # in ASCII: no line break of any kind is in it
    return f"event: {data['event']}\nid: {number}\ndata: {text}\n\n".encode("ascii")


def data_of(event: Any, hides: bool) -> dict[str, Any]:
    """Returns the JSON form of an event; with `hides`, no more of errors and answers than a customer may read."""
    found: dict[str, Any] = event.to_dict()
    if hides and isinstance(error := getattr(event, "error", None), BaseException):
        found["error"] = _told(error, hides)
    if hides and "commit" in found:
        found["commit"].update(failure=None, failed_attempts=[])
    if hides and found["event"] == "Answered":  # who has approved, and why, is for those who run the service
        found["answer"].update(by=None, comment=None)
    return found


def last_of_run(run_id: str, status: str, error: BaseException | None, hides: bool = False) -> dict[str, Any]:
    """The last message of a run: how it ended, and why it is not completed. The error is redacted, as events are."""
    if status == "failed":  # nothing is raised into the response, so only the log has the traceback
        logger.error("run %s failed; its reader was told: %r", run_id, error, exc_info=error)
    return _last(run_id, status, None if error is None else _told(error, hides))


def last_of_refusal(error: BaseException, hides: bool = False) -> dict[str, Any]:
    """The last message if the run could not begin, or broke off since its store failed.

    Errors of the request are told. Any other text is for the log: that of a store may have its address, and that of a
    thread with an owner names a process and a host.
    """
    of_request = isinstance(error, InputError | ThreadError | RunStoppedError)
    logger.log(INFO if of_request else ERROR, "a run could not begin or go on: %r", error, exc_info=error)
    found = _told(error, hides)
    if not hides and not of_request:
        found.update(message="the run could not begin or go on; the log of the server says why", notes=[])
    elif not hides and isinstance(error, ConcurrentRunError):
        found.update(message="the thread is owned by another run: try again when it has ended", notes=[])
    return _last(None, "refused", found)


def _told(error: BaseException, hides: bool) -> dict[str, Any]:
    return public(error)._asdict() if hides else error_dict(error)


def _last(run_id: str | None, status: str, error: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"event": LAST, "run_id": run_id, "status": status, "error": error}
