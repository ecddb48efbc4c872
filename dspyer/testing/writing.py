"""Free texts: sentences taken from the inputs, and instructions built from the examples that a prompt shows."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dspyer.testing.choosing import fraction
from dspyer.testing.prompt import Prompt, PromptField
from dspyer.testing.text import content_words, index_of, sentences, stem

Example = tuple[tuple[str, str], ...]  # (field, value) pairs
Hints = dict[str, dict[str, list[str]]]  # field -> value -> words

_INSTRUCTION = re.compile(r"instruction|rules?$|advice|guideline", re.IGNORECASE)
_ACCOUNT = re.compile(r"observation|description|summary", re.IGNORECASE)
_ATTEMPT = re.compile(r"Instruction #\d+: (.*?)\s*Resulting Score #\d+: ([\d.]+)", re.DOTALL)
_LISTED = re.compile(r"^\s*- (?:(\w+) )?[“\"](.+?)[”\"]: ([^.\n]+)", re.MULTILINE)
_PREFIXED = re.compile(r"^([A-Z]\w*(?: \w+){0,3}|\w+): (.*)$")
_REPR = re.compile(r"Example\((\{.*?\})\) \(input_keys=", re.DOTALL)
_LEADS = (
    "Read the whole input before you decide.",
    "Decide by what the writer wants to happen next, not by single words.",
    "Compare the input with the words listed for each value and give the value that fits best.",
    "Weigh every sentence, the last one most.",
)
_VALUE_LENGTH = 30  # characters; longer values are texts, not labels
_LEARNED = 12  # words per value that an instruction lists
_USUAL_LENGTH = 5  # of words; much longer ones are rare and help little
_KEPT = 24  # words per value after several rounds
_NOTED = 60  # words per value in an account, from which an instruction is still to be made


def extract(prompt: Prompt, field: PromptField, count: int = 1) -> list[str]:
    """The sentences of the inputs that have most to do with what is asked.

    The longest input is the source. The other inputs, or else the field's name and the instructions, are the question.
    """
    longest = max(prompt.inputs, key=lambda name: len(prompt.inputs[name]), default="")
    source = list(dict.fromkeys(sentences(_prose(prompt.inputs.get(longest, "")))))
    if not source:
        return [""]
    others = " ".join(_prose(text) for name, text in prompt.inputs.items() if name != longest)
    question = others or f"{field.name.replace('_', ' ')} {field.about} {prompt.instructions}"
    index = index_of(tuple(source))
    asked = index.similarities(question)
    central = index.similarities(" ".join(source))
    order = sorted(range(len(source)), key=lambda number: -(asked[number] + 0.2 * central[number]))
    return [source[number] for number in sorted(order[:count])]


def written_instruction(prompt: Prompt, field: PromptField, seed: str = "") -> str:
    """The text for a field that asks for an instruction, or for an account of examples; empty for any other field."""
    if _INSTRUCTION.search(field.name):
        return write_instruction(prompt, seed)
    return write_account(prompt) if _ACCOUNT.search(field.name) else ""


def write_instruction(prompt: Prompt, seed: str = "") -> str:
    """An instruction from what the prompt shows: the task as it was, and the words that speak for each value."""
    base = _base_instruction(prompt)
    plain = "\n".join(line for line in base.splitlines() if not _LISTED.match(line)).strip()
    lead = _LEADS[int(fraction(f"lead|{seed}") * len(_LEADS))]
    lines = [plain] if plain else []
    if lead not in plain:
        lines.append(lead)
    keep = _LEARNED + int(fraction(f"keep|{seed}") * 5) - 2
    learned = learn(list(examples_in(prompt)), keep)
    return "\n".join([*lines, *_listing(_merged(hints_in(prompt), learned, _KEPT))])


def write_account(prompt: Prompt) -> str:
    """An account of the examples that a prompt shows, or of earlier accounts. Empty if it shows fewer than two."""
    examples = list(examples_in(prompt))
    learned = learn(examples, _NOTED) if len(examples) > 1 else {}
    lines = _listing(learned or hints_in(prompt))  # what it was told before is not told again: it would count twice
    return "\n".join(["Each value is told by words of its own.", *lines]) if lines else ""


def _listing(hints: Hints) -> list[str]:
    return [
        f'- {field} "{value}": {", ".join(found)}.'
        for field, values in hints.items()
        for value, found in values.items()
    ]


def learn(examples: Sequence[Example], keep: int) -> Hints:
    """The words, at most so many, that speak for each value of the short fields of some examples."""
    labels = _label_fields(examples)
    result: Hints = {}
    for field in labels:
        told: dict[str, Counter[str]] = {}
        for example in examples:
            value = dict(example).get(field)
            if value:
                text = " ".join(other for name, other in example if name not in labels)
                told.setdefault(value, Counter()).update(set(content_words(text)))
        for value, found in _telling_words(told, keep).items():
            if found:
                result.setdefault(field, {})[value] = found
    return result


def _telling_words(told: Mapping[str, Counter[str]], keep: int) -> dict[str, list[str]]:
    """For each value the words that come with it often, and seldom with other values."""
    spread = Counter(stem(word) for counts in told.values() for word in counts)
    overall: Counter[str] = Counter()
    for counts in told.values():
        overall.update(counts)
    common = max(1, len(told) // 2)

    def rank(word: str, count: int) -> tuple[float, int, str]:
        share = (count - 0.5) / (overall[word] + 1)  # one time proves less than two
        return -share * math.sqrt(count), abs(len(word) - _USUAL_LENGTH), word

    return {
        value: sorted((word for word in counts if spread[stem(word)] <= common), key=lambda w: rank(w, counts[w]))[
            :keep
        ]
        for value, counts in told.items()
    }


def hints_in(prompt: Prompt) -> Hints:
    """The words per value that the inputs of a prompt already list, those that are listed most often first."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for text in prompt.inputs.values():
        for field, value, found in _LISTED.findall(text):
            counts.setdefault(field, {}).setdefault(value, Counter()).update(found.split(", "))
    return {
        field: {value: [word for word, _ in counted.most_common()] for value, counted in values.items()}
        for field, values in counts.items()
    }


def examples_in(prompt: Prompt) -> Iterator[Example]:
    """The examples that the inputs of a prompt show: as JSON, as reprs of `Example`, or as `name: value` lines."""
    for text in prompt.inputs.values():
        if text.startswith("[{"):
            yield from _json_examples(text)
        elif _REPR.search(text):
            yield from _repr_examples(text)
        else:
            yield from _line_examples(text)
    shown: dict[str, str] = {}
    for text in prompt.inputs.values():
        for name, value in _flat_object(text).items():
            shown.setdefault(name, str(value))
    if len(shown) > 1:
        yield tuple(shown.items())


def _flat_object(text: str) -> Mapping[str, object]:
    """A JSON object without objects or lists in it, empty for any other text."""
    if not text.startswith("{"):
        return {}
    try:
        found = _mapping(json.loads(text))
    except ValueError:
        return {}
    return {} if any(isinstance(value, dict | list) for value in found.values()) else found


def _json_examples(text: str) -> Iterator[Example]:
    try:
        shown = json.loads(text)
    except ValueError:
        return
    graded = [item for item in shown if isinstance(item, dict) and isinstance(item.get("Inputs"), dict)]
    generated = {str(value) for item in graded for value in _mapping(item.get("Generated Outputs")).values()}
    for item in graded:
        pairs = [(name, str(value)) for name, value in item["Inputs"].items()]
        feedback = str(item.get("Feedback", ""))
        for name, value in _mapping(item.get("Generated Outputs")).items():
            right = _corrected(str(value), feedback, generated)
            if right and name != "reasoning":
                pairs.append((name, right))
        yield tuple(pairs)


def _corrected(value: str, feedback: str, known: set[str]) -> str:
    """The right value by the feedback: another value that it names, the given one if it does not object."""
    named = [other for other in sorted(known) if other != value and re.search(rf"\b{re.escape(other)}\b", feedback)]
    if len(named) == 1 and len(named[0]) <= _VALUE_LENGTH:
        return named[0]
    quoted = re.findall(r"(?:expected|correct|should be|is|was)[^\w'\"]*['\"“]?([\w-]+)", feedback, re.IGNORECASE)
    other = next((word for word in quoted if word != value and "_" in word), "")
    objects = re.search(r"\b(not|wrong|incorrect|instead|should|expected)\b", feedback, re.IGNORECASE)
    return other or ("" if objects else value)


def _repr_examples(text: str) -> Iterator[Example]:
    for shown in _REPR.findall(text):
        try:
            values = ast.literal_eval(shown)
        except (ValueError, SyntaxError):
            continue
        yield tuple((str(name), str(value)) for name, value in values.items())


def _line_examples(text: str) -> Iterator[Example]:
    """Blocks of `name: value` lines. A name that comes again begins the next example."""
    pairs: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        match = _PREFIXED.match(line)
        if match:
            last = match.group(1).lower().replace(" ", "_")
            if last in pairs:
                yield tuple(pairs.items())
                pairs = {}
            pairs[last] = match.group(2)
        elif last and line.strip() and not line.startswith(("Input Fields", "Output Fields", "====")):
            pairs[last] += f"\n{line}"
    if len(pairs) > 1:
        yield tuple(pairs.items())


def _label_fields(examples: Sequence[Example]) -> list[str]:
    """The fields whose values are short and come again, as far as that can be told from a few examples."""
    values: dict[str, list[str]] = {}
    for example in examples:
        for name, value in example:
            values.setdefault(name, []).append(value)
    longest = max((len(value) for each in values.values() for value in each), default=0)
    return [
        name
        for name, found in values.items()
        if name != "reasoning"
        and max(map(len, found)) <= min(_VALUE_LENGTH, max(longest - 1, 1))
        and not all(value.isdigit() for value in found)
        and (len(found) < 3 or len(set(found)) < len(found))
    ]


def _base_instruction(prompt: Prompt) -> str:
    for name, text in prompt.inputs.items():
        attempts = _ATTEMPT.findall(text)
        if attempts:
            best: str = max(attempts, key=lambda attempt: float(attempt[1]))[0]
            return best
        if name in ("basic_instruction", "current_instruction", "instruction"):
            return text
    return ""


def _merged(old: Hints, new: Hints, keep: int) -> Hints:
    result: Hints = {}
    for hints in (old, new):
        for field, values in hints.items():
            for value, found in values.items():
                kept = result.setdefault(field, {}).setdefault(value, [])
                kept.extend(word for word in found if word not in kept)
                del kept[keep:]
    return result


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _prose(text: str) -> str:
    """A JSON list of texts as lines, any other text as it is."""
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            return text
        return "\n".join(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in items)
    return text
