"""An MCP server for tests, which talks over its standard input and output: `python mcp_server.py`."""

from __future__ import annotations

import importlib
import os
from typing import Any

try:
    kind: Any = importlib.import_module("mcp.server.mcpserver").MCPServer
except ImportError:  # version 1 of the SDK
    kind = importlib.import_module("mcp.server.fastmcp").FastMCP
server = kind("tides")


@server.tool()
def low_tide(place: str, day: int = 1) -> str:
    """Says when the tide is low."""
    if place == "Atlantis":
        raise ValueError("no such place")
    return f"{place}, day {day}: 6:10"


@server.tool()
def process() -> int:
    """The number of the process of the server."""
    return os.getpid()


if __name__ == "__main__":
    server.run("stdio")
