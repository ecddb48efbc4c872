"""Counts, durations and amounts of money as texts: the same in reports, pictures, live displays and commands."""

from __future__ import annotations


def count_of(number: int, thing: str, things: str = "") -> str:
    """A number of things; `things` is their plural, if it is not made by an `s`.

    Example:
        >>> (count_of(1, "run"), count_of(2000, "run"),
        ...     count_of(2, "retry", "retries"))
        ('1 run', '2,000 runs', '2 retries')
    """
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def duration_text(seconds: float | None) -> str:
    """A duration, given in seconds, in a fitting unit; "" for none.

    Example:
        >>> [duration_text(seconds) for seconds in (0.0000354, 0.25, 1.24, 184,
        ...     7500)]
        ['35 µs', '250 ms', '1.2 s', '3 min 4 s', '2 h 5 min']
    """
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    # Each limit is where rounding would write the next unit: 999.5 µs is 1 ms, and 59.95 s is 1 min.
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def cost_text(cost: float | None) -> str:
    """US dollars to the digits that matter, never as a power of ten; "" if the cost is not known.

    Example:
        >>> (cost_text(12.5), cost_text(0.01234), cost_text(0.0000244),
        ...     cost_text(0.0))
        ('12.50', '0.0123', '0.000024', '0')
    """
    if cost is None:
        return ""
    if cost == 0:
        return "0"
    if cost < 0.0001:
        return f"{cost:.6f}" if cost >= 0.0000005 else "<0.000001"
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.3g}"


def one_line(text: str) -> str:
    """A text on one line, without control characters: a terminal would obey those."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
