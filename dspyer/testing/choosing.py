"""Which allowed value fits: votes of the demonstrations, and what instructions and names of the values say."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from dspyer.testing.prompt import Prompt, PromptField
from dspyer.testing.text import content_words, index_of, sentences, words

_SHARPNESS = 2.0  # power of a likeness: near demonstrations count more than many far ones
_FEW = 4  # so many demonstrations get half of the trust that very many would
_NAMES = 2.0  # weight of the likeness to the bare name of a value
_PASSAGES = 6.0  # weight that passages about the values add, at most
_SAID = 6  # so many content words per value add half of it
_TRUE = 0.12  # likeness to its description from which on a condition holds

Noise = Mapping[str, float]


def similar_demos(prompt: Prompt) -> list[float]:
    """How alike the inputs of each demonstration are to the current ones: the mean over the input fields."""
    totals = [0.0] * len(prompt.demos)
    names = [name for name, text in prompt.inputs.items() if text]
    for name in names:
        index = index_of(tuple(demo.inputs.get(name, "") for demo in prompt.demos))
        for number, value in enumerate(index.similarities(prompt.inputs[name])):
            totals[number] += value / len(names)
    return totals


def scores(prompt: Prompt, field: PromptField, values: Sequence[str], likeness: Sequence[float]) -> dict[str, float]:
    """How well each of some values fits as the value of a field.

    Args:
        prompt: the prompt.
        field: the field that is asked for.
        values: its allowed values.
        likeness: of each demonstration, see `similar_demos`.

    Returns:
        A score per value, the higher the better.
    """
    votes = dict.fromkeys(values, 0.0)
    seen = dict.fromkeys(values, 0)
    for demo, like in zip(prompt.demos, likeness, strict=True):
        value = demo.outputs.get(field.name, "").strip()
        if value in votes:
            votes[value] += like**_SHARPNESS
            seen[value] += 1
    shares = {value: vote / math.sqrt(1 + seen[value]) for value, vote in votes.items()}  # not by their number alone
    total = sum(shares.values()) or 1.0
    count = sum(seen.values())
    trust = count / (count + _FEW)
    new = 1 - max(likeness, default=0.0) ** 2  # of an input that was demonstrated itself, hints tell nothing new
    hints, attention = hint_scores(prompt, field, values), new * attention_to_hints(prompt, field, values)
    return {value: trust * shares[value] / total + attention * hints[value] + 1e-6 * seen[value] for value in values}


def hint_scores(prompt: Prompt, field: PromptField, values: Sequence[str]) -> dict[str, float]:
    """How much the inputs have in common with what the prompt says about each value."""
    texts = hints_of(prompt.instructions, field.name, field.about, tuple(values))
    found = index_of(texts).similarities(" \n".join(prompt.inputs.values()))
    return dict(zip(values, found, strict=True))


def attention_to_hints(prompt: Prompt, field: PromptField, values: Sequence[str]) -> float:
    """How much hints count beside demonstrations: the more, the more the prompt says about the values."""
    texts = hints_of(prompt.instructions, field.name, field.about, tuple(values))
    said = sum(len(content_words(text)) - 1 for text in texts) / len(texts)
    return _NAMES + _PASSAGES * said / (said + _SAID)


@lru_cache(maxsize=512)
def hints_of(instructions: str, name: str, about: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """What a prompt says about each value: the name of the value and the passages that speak of it."""
    said = {value: [_spoken(value)] for value in values}
    if values == ("True", "False"):
        said["True"].append(f"{_spoken(name)} {about}")
    mentions = {value: re.compile(rf"(?<!\w){_mention(value)}(?!\w)", re.IGNORECASE) for value in values}
    for passage in [*sentences(instructions), *sentences(about)]:
        found = sorted(
            (match.start(), match.end(), v) for v, each in mentions.items() for match in each.finditer(passage)
        )
        speakers = {value for _, _, value in found}
        if len(speakers) == 1:
            said[speakers.pop()].append(passage)
            continue
        ends = [start for start, _, _ in found[1:]] + [len(passage)]
        for (_, start, value), end in zip(found, ends if found else [], strict=True):
            said[value].append(passage[start:end])
    return tuple(" . ".join(said[value]) for value in values)


def condition_holds(prompt: Prompt, field: PromptField) -> bool:
    """Whether a bool field is true, by its name, its description and the instructions alone."""
    true, false = hint_scores(prompt, field, ("True", "False")).values()
    return true > max(false, _TRUE)


def best(scored: Mapping[str, float], noise: float, seed: str) -> str:
    """The value with the best score, the first of equals. Noise above 0 makes it vary with the seed."""
    if noise <= 0:
        return max(scored, key=lambda value: scored[value])
    return max(scored, key=lambda value: scored[value] + noise * _gumbel(f"{seed}|{value}"))


def fraction(seed: str) -> float:
    """A number in (0, 1) that depends on the seed alone."""
    digest = hashlib.blake2b(seed.encode(), digest_size=7).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**56


def _gumbel(seed: str) -> float:
    return -math.log(-math.log(fraction(seed)))


def _spoken(name: str) -> str:
    return " ".join(words(name.replace("_", " ")))


def _mention(value: str) -> str:
    parts = [re.escape(part) for part in re.split(r"[\s_-]+", value.strip()) if part]
    return r"[\s_-]+".join(parts) or "(?!)"  # an empty value is never mentioned
