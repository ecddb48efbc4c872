"""`Failure`: the record of an exception, as states, commits, events and stores hold it."""

from __future__ import annotations

from traceback import format_exception
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from dspyer.errors import error_text, is_transient

MESSAGE_LIMIT = 500
"""The most characters of an exception's text that a `Failure` keeps."""

TRACEBACK_LIMIT = 50_000
"""The most characters of a traceback that is stored: it ends with the exception's text, which may be of any length."""


ITEM = "_dspyer_item"
"""The attribute of an exception that an item of a map raised: the map and the index of the item."""


class Failure(BaseModel):
    """The record of an exception that a node raised: no object of the run, no inputs, and no traceback in a state.

    Attributes:
        node: the node that failed.
        branch: the path of its branch, `()` for the trunk.
        execution: the id of the execution.
        type: the class of the exception.
        message: its text, at most 500 characters.
        attempt: the number of the attempt, from 1.
        retryable: whether `dspyer.errors.is_transient` accepts the exception: another attempt may succeed.
        index: the item of a map, or the position of a `Send` among the targets of its node; None otherwise.
        traceback: as Python prints it; only in `thread.failures`, empty elsewhere.

    Example:
        >>> print(Failure(node="read", execution="trunk:2[7]", type="TimeoutError",
        ...     message="no answer", index=7))
        read[7] (execution trunk:2[7], attempt 1): TimeoutError: no answer
    """

    model_config = ConfigDict(frozen=True)

    node: str
    branch: tuple[int, ...] = ()
    execution: str = ""
    type: str
    message: str = ""
    attempt: int = 1
    retryable: bool = False
    index: int | None = None
    traceback: str = ""

    @classmethod
    def of(
        cls,
        error: BaseException,
        *,
        node: str,
        branch: tuple[int, ...] = (),
        execution: str = "",
        attempt: int = 1,
        index: int | None = None,
    ) -> Self:
        """The record of an exception.

        Args:
            error: the exception.
            node: the node that raised it.
            branch: the path of its branch.
            execution: the id of the execution.
            attempt: the number of the attempt.
            index: the item of a map, or the position of a `Send`.

        Returns:
            The record; the text is cut after 500 characters.

        Example:
            >>> Failure.of(TimeoutError("no answer"), node="read", attempt=2).retryable
            True
        """
        if index is None and (item := getattr(error, ITEM, None)) is not None and item[0] == node:
            index = item[1]
        return cls(
            node=node,
            branch=branch,
            execution=execution,
            type=type(error).__name__,
            message=_encodable(error_text(error)[:MESSAGE_LIMIT])[:MESSAGE_LIMIT],
            attempt=attempt,
            retryable=is_transient(error),
            index=index,
        )

    def stored_with(self, error: BaseException) -> dict[str, Any]:
        """Return the JSON form with the traceback of the exception, cut in the middle if it is too long.

        Example:
            >>> error = TimeoutError("no answer")
            >>> Failure.of(error, node="read").stored_with(error)["traceback"]
            'TimeoutError: no answer\\n'
        """
        text = "".join(format_exception(error))
        half = TRACEBACK_LIMIT // 2
        if len(text) > TRACEBACK_LIMIT:
            text = f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[-half:]}"
        return {**self.to_dict(), "traceback": _encodable(text)}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without an empty traceback.

        Example:
            >>> Failure(node="read", type="TimeoutError").to_dict()["type"]
            'TimeoutError'
        """
        return self.model_dump(mode="json")

    @model_serializer(mode="wrap")
    def _without_empty_traceback(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = serialize(self)
        return found if self.traceback else {name: value for name, value in found.items() if name != "traceback"}

    def __str__(self) -> str:
        place = self.node if self.index is None else f"{self.node}[{self.index}]"
        text = " ".join(self.message.split())
        return f"{place} (execution {self.execution}, attempt {self.attempt}): {self.type}{': ' + text if text else ''}"


def _encodable(text: str) -> str:
    """The text as a store can hold it: half of a surrogate pair becomes an escape."""
    return text.encode(errors="backslashreplace").decode()
