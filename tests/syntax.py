"""Syntax trees of the files of the project, for tests that read code. Each file is parsed once."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

INNER = ("body", "orelse", "finalbody", "handlers", "cases")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The tree of a file. It stays: searching all trees for garbage at each new one takes two thirds of the time."""
    gc.disable()
    try:
        tree = ast.parse(path.read_text())
        gc.freeze()
        return tree
    finally:
        gc.enable()


def inner(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements directly inside of a file, a statement or one of its clauses."""
    for field in INNER:
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from child.body


def below(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, without their expressions, of which a file has ten times as many."""
    for child in inner(node):
        yield child
        yield from below(child)


@functools.cache
def statements_of(path: Path) -> list[ast.stmt]:
    """All statements of a file."""
    return [*below(tree_of(path))]
