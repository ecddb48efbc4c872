"""Text that is not valid Unicode: half of a surrogate pair, which a cut emoji leaves. No request can hold it."""

from __future__ import annotations

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

    The texts are those in dicts, lists and tuples. A value that needs no repair is returned itself.

    Example:
        >>> ascii(with_valid_text({"text": "cut \\ud83d"}))
        "{'text': 'cut \\\\ufffd'}"
    """
    if isinstance(value, str):
        valid = is_valid_text(value)
        return value if valid else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, (dict, FrozenDict)):
        parts = [part for item in (value.items() if isinstance(value, dict) else value.raw_items()) for part in item]
    elif type(value) in (list, tuple, FrozenList):  # a named tuple is an object with texts of its own
        parts = list(value.raw_items() if isinstance(value, FrozenList) else value)
    else:
        return value
    found = [with_valid_text(part) for part in parts]
    if all(new is old for old, new in zip(parts, found, strict=True)):
        return value
    if isinstance(value, (dict, FrozenDict)):
        return dict(zip(found[::2], found[1::2], strict=True))
    return tuple(found) if type(value) is tuple else found
