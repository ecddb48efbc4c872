"""Patterns of paths: `draft.*`, `**.title`, `("a.b", "c")`."""

from __future__ import annotations

from typing import Any, NamedTuple

from dspyer.errors import brief

KeyPath = tuple[Any, ...]
ONE, MANY = "*", "**"


class Pattern(NamedTuple):
    """A pattern of paths.

    Attributes:
        segments: keys, `*` for any one key, `**` for any number of keys.
        literal: whether the segments are a path as they stand.

    Example:
        >>> Pattern.of("draft.*").matches(("draft", "title")), Pattern.of("draft.*").matches(("draft",))
        (True, False)
    """

    segments: KeyPath
    literal: bool = False

    @classmethod
    def of(cls, spec: object) -> Pattern:
        """Reads a pattern.

        Args:
            spec: text with dots between segments, or a tuple of keys, which is a path as it stands.

        Returns:
            The pattern.

        Raises:
            ValueError: if it is malformed.
        """
        if isinstance(spec, tuple) and spec:
            return cls(spec, True)
        if not isinstance(spec, str):
            raise ValueError(  # noqa: TRY004  # like every other mistake in a policy table
                f"a pattern is text such as 'draft.*', or a tuple of keys, not {brief(spec)}; write '**' for every path"
            )
        segments = tuple(spec.split("."))
        if all(segment and ("*" not in segment or segment in (ONE, MANY)) for segment in segments):
            return cls(segments)
        raise ValueError(
            f"malformed pattern {spec!r}: single dots separate its segments, and a segment is a key, '*' (any one key) "
            "or '**' (any number of keys); give keys that hold dots or stars as a tuple, such as ('a.b', 'c')"
        )

    def matches(self, path: KeyPath) -> bool:
        """Whether a path is one of the pattern's. Keys that are no strings are compared as text."""
        return self.segments == path if self.literal else len(self.segments) in self._reached(path)

    def covers(self, path: KeyPath) -> bool:
        """Whether it matches the path, or may match one below it."""
        return self.segments[: len(path)] == path if self.literal else bool(self._reached(path))

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """What decides between patterns: the longest literal prefix, then more literals, fewer `**`, more segments."""
        if self.literal:
            return len(self.segments), len(self.segments), 1, len(self.segments)
        wild = [segment in (ONE, MANY) for segment in self.segments]
        prefix = wild.index(True) if True in wild else len(wild)
        return prefix, len(wild) - sum(wild), -self.segments.count(MANY), len(wild)

    def _reached(self, path: KeyPath) -> set[int]:
        """How many of its segments a path may have used up."""
        reached = self._skip({0})
        for key in path:
            reached = self._skip({after for at in reached for after in self._step(at, str(key))})
        return reached

    def _skip(self, reached: set[int]) -> set[int]:
        """Adds what is reached where `**` stands for no key at all."""
        result = set(reached)
        for at, segment in enumerate(self.segments):
            if at in result and segment == MANY:
                result.add(at + 1)
        return result

    def _step(self, at: int, key: str) -> tuple[int, ...]:
        if at == len(self.segments):
            return ()
        if self.segments[at] == MANY:
            return (at,)
        return (at + 1,) if self.segments[at] in (ONE, key) else ()
