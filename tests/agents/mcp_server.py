"""An MCP server for tests, which talks over its standard input and output: `python mcp_server.py`."""

from __future__ import annotations

import importlib
import os
from typing import Any


def low_tide(place: str, day: int = 1) -> str:
    """Says when the tide is low."""
    if place == "Atlantis":
        raise ValueError("no such place")
    return f"{place}, day {day}: 6:10"


def process() -> int:
    """The number of the process of the server."""
    return os.getpid()


def main() -> None:
    """Serve until the input ends. The package is imported here alone: it need not be there to collect the tests."""
    try:
        kind: Any = importlib.import_module("mcp.server.mcpserver").MCPServer
    except ImportError:  # version 1 of the SDK
        kind = importlib.import_module("mcp.server.fastmcp").FastMCP
    server = kind("tides")
    for function in (low_tide, process):
        server.tool()(function)
    server.run("stdio")


if __name__ == "__main__":
    main()
