"""The errors for a LangGraph that is not installed, or of a version that is not known."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

TESTED = ("1.2.11", "1.2.22")
"""The versions of LangGraph with which the converter was tested."""


def not_installed() -> ImportError:
    """The error if LangGraph is missing."""
    return ImportError(
        "dspyer.migrate reads graphs of LangGraph, which is not installed: pip install 'langgraph>=1.2,<1.3'"
    )


def unknown_version(error: Exception) -> ImportError:
    """The error if LangGraph lacks a private name that the converter needs."""
    return ImportError(
        f"dspyer.migrate was tested with LangGraph {' and '.join(TESTED)}, and {_found()} is installed, which differs "
        f"({error}): pip install 'langgraph>=1.2,<1.3'"
    )


def _found() -> str:
    try:
        return version("langgraph")
    except PackageNotFoundError:
        return "another version"
