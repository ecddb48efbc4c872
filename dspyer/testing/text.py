"""Words, stems and character pieces of texts, and how alike two texts are. No model and no data beyond the texts."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)]*\s+|\n+")
_SUFFIXES = (
    "ations",
    "ation",
    "ments",
    "ment",
    "ings",
    "ing",
    "edly",
    "ions",
    "ion",
    "ied",
    "ies",
    "ed",
    "es",
    "ly",
    "s",
)
_STOP_WORDS = """
    a about after again all already also although always am an and any are as at be because been before being both but
    by can could did do does doing done down each either else even ever every few for from further get gets getting got
    had has have having he hello her here hers hi him his how i if in into is it its itself just kind let like me more
    most much must my myself neither no nor not now of off often on once one only or other our ours out over own per
    please quite rather really same she should since so some still such than thank thanks that the their theirs them
    then there these they this those though through to too under until up upon us use very was we well were what when
    where whether which while who whom whose why will with within without would yes yet you your yours
"""
_STOP = frozenset(_STOP_WORDS.split())
_PIECE = 4  # characters of a piece of a word
_PIECE_WEIGHT = 0.35
_PAIR_WEIGHT = 0.5


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return [word.replace("’", "'").lower() for word in _WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """The words that carry meaning: no articles, pronouns, prepositions and the like."""
    return [word for word in words(text) if word not in _STOP and word.partition("'")[0] not in _STOP]


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """A rough stem: common English endings are cut off longer words."""
    word = word.removesuffix("'s")
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            word = word[: -len(suffix)]
            break
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]
    return word.rstrip("ei") if len(word) > 4 else word


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text."""
    return [part.strip() for part in _SENTENCE.split(text) if part and part.strip()]


@lru_cache(maxsize=4096)
def features(text: str) -> Mapping[str, float]:
    """Features of a text with their weight: stems, pairs of stems, and pieces of words (for misspellings)."""
    stems = [stem(word) for word in words(text)]
    counts: defaultdict[str, float] = defaultdict(float)
    for each in stems:
        counts[each] += 1.0
        padded = f"^{each}$"
        for start in range(max(1, len(padded) - _PIECE + 1)):
            counts["~" + padded[start : start + _PIECE]] += _PIECE_WEIGHT
    for left, right in pairwise(stems):
        counts[f"{left} {right}"] += _PAIR_WEIGHT
    return MappingProxyType({name: math.sqrt(count) for name, count in counts.items()})


class TextIndex:
    """Texts, ready to be compared with another one by the cosine of their weighted features.

    A feature counts the more, the fewer of the texts have it.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        found = [features(text) for text in texts]
        self.size = len(found)
        spread = Counter(name for each in found for name in each)
        self.rarity = {name: math.log(1 + self.size / count) for name, count in spread.items()}
        self.unseen = math.log(1 + self.size)
        self.places: dict[str, list[tuple[int, float]]] = {}
        for number, each in enumerate(found):
            weights = {name: weight * self.rarity[name] for name, weight in each.items()}
            length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
            for name, weight in weights.items():
                self.places.setdefault(name, []).append((number, weight / length))

    def similarities(self, text: str) -> list[float]:
        """How alike each text is to this one: from 0, nothing in common, to 1."""
        result = [0.0] * self.size
        square = 0.0
        for name, count in features(text).items():
            weight = count * self.rarity.get(name, self.unseen)
            square += weight * weight
            for number, other in self.places.get(name, ()):
                result[number] += weight * other
        length = math.sqrt(square) or 1.0
        return [value / length for value in result]


@lru_cache(maxsize=256)
def index_of(texts: tuple[str, ...]) -> TextIndex:
    """The index of some texts. Prompts repeat their demonstrations, so recent ones are kept."""
    return TextIndex(texts)
