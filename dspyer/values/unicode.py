"""Text that is not valid Unicode: half of a surrogate pair, which a cut emoji leaves. No request can hold it."""

from __future__ import annotations

from operator import is_
from typing import Any

from dspyer.values.frozen import FrozenDict, FrozenList


def is_valid_text(text: str) -> bool:
    """Whether a string can be written as UTF-8; one with half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_valid_text(value: Any) -> Any:
    """A value whose texts are valid: half of a surrogate pair becomes U+FFFD, and two halves become their character.

    The texts are those in dicts and lists. A value that needs no repair is returned itself.

    Example:
        >>> ascii(with_valid_text({"text": "cut \\ud83d"}))
        "{'text': 'cut \\\\ufffd'}"
    """
    if isinstance(value, str):
        valid = is_valid_text(value)
        return value if valid else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, (dict, FrozenDict)):
        items = list(value.items() if isinstance(value, dict) else value.raw_items())
        found: Any = {with_valid_text(key): with_valid_text(inner) for key, inner in items}
        return value if all(a is c and b is d for (a, b), (c, d) in zip(items, found.items(), strict=False)) else found
    if isinstance(value, (list, FrozenList)):
        parts = list(value if isinstance(value, list) else value.raw_items())
        found = [with_valid_text(part) for part in parts]
        return value if all(map(is_, parts, found)) else found
    return value
