"""Schemas: the fields of a state, and how what a node wrote becomes the next state."""

from __future__ import annotations

from dspyer.schema.limits import Limit, limit
from dspyer.schema.live import Live, live
from dspyer.schema.schema import Schema

__all__ = ["Limit", "Live", "Schema", "limit", "live"]
