"""The classes of LangChain and LangGraph that a state may hold: another process finds them by name in a thread."""

from __future__ import annotations

from typing import Any

from langchain_core import messages
from langchain_core.documents import Document
from langgraph.types import Command, Send
from pydantic import BaseModel

from dspyer.values.freezing import register_value_type


def register_langchain_classes() -> None:
    """Register documents and the classes of messages; values of LangChain's other types are dicts."""
    found = [getattr(messages, name) for name in messages.__all__]
    for cls in [*found, Document]:
        if isinstance(cls, type) and issubclass(cls, BaseModel):
            register_value_type(cls)
    # What a `Send` gives a node may be one of these, which the node returns as its own.
    register_value_type(Command)
    register_value_type(Send, encode=_send_parts, decode=lambda parts: Send(**parts))


def _send_parts(send: Send) -> dict[str, Any]:
    return {"node": send.node, "arg": send.arg, "timeout": send.timeout}
