"""Adapters of plain types that are kept: on import, DSPy gets them in this process, and in those forked from it.

DSPy makes an adapter for each value of each prompt, a third of the time of its optimizers, and a JSON schema for each
field of each prompt. These types have one only.
"""

from __future__ import annotations

import functools
from types import GenericAlias, SimpleNamespace
from typing import Any

from dspy.adapters import utils as adapter_utils
from dspy.adapters.types.tool import ToolCalls
from pydantic import TypeAdapter, ValidationError

_PLAIN = [str, int, float, bool, list, dict, type(None), list[str], ToolCalls]
_adapters: dict[Any, Any] = {kind: TypeAdapter(kind) for kind in _PLAIN}
for _adapter in _adapters.values():
    _adapter.json_schema = functools.cache(_adapter.json_schema)


def _adapter_of(kind: Any) -> Any:
    """The adapter of a type. Others than these may have no hash."""
    return (_adapters.get(kind) if isinstance(kind, type | GenericAlias) else None) or TypeAdapter(kind)


_adapter_utils: Any = adapter_utils
_adapter_utils.TypeAdapter = _adapter_of
_adapter_utils.pydantic = SimpleNamespace(TypeAdapter=_adapter_of, ValidationError=ValidationError)
