"""`NearestLM`: an LM without a model, which answers like the demonstrations in its prompt that are nearest to it.

It is a k-nearest-neighbour classifier over the demonstrations: texts are compared by the cosine of TF-IDF weighted
features (`TextIndex`), and the similarities are votes for the values of a field (`scores`). Texts without a fixed set
of values are copied from the nearest demonstration, or extracted from the inputs. It has no other knowledge, so
optimizers that add demonstrations or better instructions improve it, as they would improve a real LM.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import dspy

from dspyer.testing.prompt import LMAnswer, Prompt, PromptCall, PromptField, Sampling, TextLM, write_answer

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_COPY_FROM = 0.45  # similarity from which on the text of a demonstration is copied
_MAX_DEPTH = 8  # of a value that is built for a JSON schema, which may refer to itself
_NOISE = 0.04  # scale of the noise in scores, per unit of temperature


class NearestLM(TextLM):
    """An LM for tests and examples that learns from the demonstrations in its prompt, and from nothing else.

    For a `Literal`, `Enum` or `bool` field the demonstrations vote, the most similar ones with the most weight (by word
    stems, pairs of stems and pieces of words); instructions and descriptions that mention a value count too. Other
    texts are copied from the nearest demonstration or from the sentences of the inputs. Asked for instructions as GEPA
    does, it lists the words that are typical of each value in the examples of the prompt.

    The same prompt gets the same answer. Another `rollout_id` or candidate at a temperature above 0 may get another
    one, the same in every process.

    Args:
        model: name of the model, in histories and usage.
        **kwargs: settings of `dspy.LM`; by default it does not cache and does not retry.

    Example:
        >>> classify = dspy.Predict("text -> mood: Literal['glad', 'sad']")
        >>> classify.demos = [
        ...     dspy.Example(text="We won the cup!", mood="glad"),
        ...     dspy.Example(text="My dog died yesterday.", mood="sad"),
        ... ]
        >>> with dspy.context(lm=NearestLM()):
        ...     classify(text="Our team won again").mood
        'glad'
    """

    def __init__(self, model: str = "nearest", **kwargs: Any) -> None:
        super().__init__(model, nearest_answer, **kwargs)

    def dump_state(self) -> dict[str, Any]:
        """The state to save, for `load_state`: the model's name and the settings.

        Returns:
            A dict of JSON values.

        Example:
            >>> NearestLM("mine").dump_state()["model"]
            'mine'
        """
        state: dict[str, Any] = dspy.BaseLM.dump_state(self)  # not that of dspy.LM: the engine has no state
        return state

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> NearestLM:
        """Makes an LM from a saved state.

        Args:
            state: the result of `dump_state`.

        Returns:
            The LM.

        Example:
            >>> NearestLM.load_state(NearestLM("mine").dump_state()).model
            'mine'
        """
        return cls(**state)


def nearest_answer(prompt: Prompt, sampling: Sampling) -> LMAnswer:
    """The answer of a `NearestLM` to one prompt."""
    varies = sampling.temperature > 0 and (sampling.rollout is not None or sampling.candidate > 0)
    seed = f"{sampling.rollout}|{sampling.candidate}" if varies else ""
    noise = _NOISE * sampling.temperature if varies else 0.0
    answer = _Answer(prompt, noise, seed)
    calls = (answer.tool_call(),) if prompt.tools else ()
    if prompt.output_fields:
        return LMAnswer(write_answer(prompt, answer.values()), calls)
    return LMAnswer("" if calls else extract(prompt, PromptField("answer", "str", "", "text"), 1)[0] or "Yes.", calls)


class _Answer:
    """One answer, field by field. The reasoning comes last, since it names the other values."""

    def __init__(self, prompt: Prompt, noise: float, seed: str) -> None:
        self.prompt = prompt
        self.noise = noise
        self.seed = seed
        self.similarity = demo_similarities(prompt)
        self.nearest = max(range(len(prompt.demos)), key=self.similarity.__getitem__, default=-1)

    def values(self) -> dict[str, object]:
        fields = self.prompt.output_fields
        found = {field.name: self.value(field) for field in fields if field.name != "reasoning"}
        return {field.name: found[field.name] if field.name in found else self.reasoning(found) for field in fields}

    def value(self, field: PromptField) -> object:
        if field.kind == "choice":
            return self.choice(field, field.choices)
        if field.kind == "bool":
            return self.condition(field)
        if field.kind == "number":
            return self.number(field)
        if field.kind == "json":
            # A value that was demonstrated for nearly the same inputs is better than one that only fits the schema.
            return self.demonstrated(field) or self.build(field, field.schema or {}, field.schema or {}, 0)
        return self.text(field)

    def choice(self, field: PromptField, choices: Sequence[str]) -> str:
        scored = scores(self.prompt, field, choices, self.similarity)
        return best(scored, self.noise, f"{self.prompt.inputs}|{field.name}|{self.seed}")

    def condition(self, field: PromptField) -> str:
        if any(field.name in demo.outputs for demo in self.prompt.demos):
            return self.choice(field, field.choices)
        return str(condition_holds(self.prompt, field))

    def number(self, field: PromptField) -> str:
        given = self.given(field)
        # A number that the demonstration took from its own inputs was copied, so one from these inputs is copied here.
        copied = self.nearest >= 0 and given in " ".join(self.prompt.demos[self.nearest].inputs.values())
        found = self.input_number()
        number = given if _NUMBER.fullmatch(given) and not (copied and found) else found or "0"
        return str(round(float(number))) if field.type == "int" else number

    def input_number(self) -> str:
        """The first number of the inputs, empty if there is none."""
        match = _NUMBER.search(" ".join(self.prompt.inputs.values()))
        return match.group() if match else ""

    def text(self, field: PromptField) -> str:
        if _INSTRUCTION.search(field.name):
            return write_instruction(self.prompt, self.seed)
        return self.demonstrated(field) or " ".join(extract(self.prompt, field))

    def reasoning(self, found: Mapping[str, object]) -> str:
        quoted = extract(self.prompt, PromptField("reasoning", "str", "", "text"))[0]
        topics = ", ".join(content_words(quoted)[:6]) or "nothing in particular"
        chosen = [field.name for field in self.prompt.output_fields if field.kind in ("choice", "bool", "number")]
        outcome = "".join(f" That speaks for {name} {found[name]}." for name in chosen[-1:])
        return f"The input speaks of {topics}.{outcome}"

    def tool_call(self) -> PromptCall:
        """A call of the tool that is most similar to the inputs; after results, of the one that ends the loop."""
        tools = [tool for tool in self.prompt.tools if tool.name in self.prompt.must_call] or list(self.prompt.tools)
        ends = [tool for tool in tools if tool.name == "submit"]
        # One call of a tool, then the end: an agent in a test must not go on for ever.
        if len(tools) > len(ends) and any(turn.role == "tool" for turn in self.prompt.turns):
            tools = ends or tools
        elif len(tools) > 1:
            tools = [tool for tool in tools if tool not in ends]
        texts = tuple(f"{tool.name.replace('_', ' ')} {tool.description}" for tool in tools)
        similarity = index_of(texts).similarities(" ".join(self.prompt.inputs.values()))
        tool = tools[max(range(len(tools)), key=similarity.__getitem__)]
        properties = dict(tool.schema.get("properties", {}))
        # Optional arguments are left out: nothing in the prompt asks for them.
        needed = tool.schema.get("required", properties)
        args = {
            name: self.build(PromptField(name, "", tool.description, "text"), properties[name], tool.schema, 1)
            for name in properties
            if name in needed
        }
        return PromptCall(tool.name, args)

    def given(self, field: PromptField) -> str:
        """The value of a field in the nearest demonstration, empty if it has none."""
        return self.prompt.demos[self.nearest].outputs.get(field.name, "").strip() if self.nearest >= 0 else ""

    def demonstrated(self, field: PromptField) -> str:
        """The same, if the inputs are nearly those of the demonstration."""
        return self.given(field) if self.nearest >= 0 and self.similarity[self.nearest] >= _COPY_FROM else ""

    def build(self, field: PromptField, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
        """A value that fits a JSON schema, from the inputs."""
        if "$ref" in schema and depth < _MAX_DEPTH:
            name = str(schema["$ref"]).rsplit("/", 1)[-1]
            return self.build(field, root.get("$defs", {}).get(name, {}), root, depth + 1)
        for union in ("anyOf", "oneOf", "allOf"):
            options = schema.get(union)
            if options:
                # A value that may be missing below the first level ends types that refer to themselves.
                absent = {"type": "null"} if {"type": "null"} in options and depth > 1 else None
                return self.build(field, absent or options[0], root, depth + 1)
        if "const" in schema or "enum" in schema:
            allowed = schema.get("enum", [schema.get("const")])
            texts = [str(value) for value in allowed]
            return allowed[texts.index(self.choice(field, texts))]
        return self.build_plain(field, schema, root, depth)

    def build_plain(self, field: PromptField, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if kind == "object":
            inner = schema.get("properties", {}) if depth < _MAX_DEPTH else {}
            return {
                name: self.build(PromptField(name, "", field.description, "text"), one, root, depth + 1)
                for name, one in inner.items()
            }
        if kind == "array":
            items = schema.get("items", {})
            if depth < _MAX_DEPTH and (items.get("type") != "string" or "enum" in items):
                return [self.build(field, items, root, depth + 1)]
            return extract(self.prompt, field, 3)
        if kind in ("integer", "number"):
            number = float(self.input_number() or "0")
            return round(number) if kind == "integer" else number
        if kind == "boolean":
            return condition_holds(self.prompt, field)
        if kind == "null":
            return None
        return self.text(PromptField(field.name, "str", field.description, "text"))


# --- which allowed value fits: votes of the demonstrations, and what the prompt says about each value

_SHARPNESS = 2.0  # exponent of a similarity: near demonstrations count more than many far ones
_HALF_TRUST = 4  # the number of demonstrations that get half of the trust of very many
_NAME_WEIGHT = 2.0  # weight of the similarity to the bare name of a value
_PASSAGE_WEIGHT = 6.0  # weight that passages about the values add, at most
_HALF_WEIGHT = 6  # the number of content words per value that add half of it
_CONDITION_FROM = 0.12  # similarity to its description from which on a condition holds


def demo_similarities(prompt: Prompt) -> list[float]:
    """The similarity of the inputs of each demonstration to the current ones: the mean over the input fields."""
    totals = [0.0] * len(prompt.demos)
    names = [name for name, text in prompt.inputs.items() if text]
    for name in names:
        index = index_of(tuple(demo.inputs.get(name, "") for demo in prompt.demos))
        for number, value in enumerate(index.similarities(prompt.inputs[name])):
            totals[number] += value / len(names)
    return totals


def scores(prompt: Prompt, field: PromptField, values: Sequence[str], similarity: Sequence[float]) -> dict[str, float]:
    """A score for each allowed value of a field, the higher the better, from the `demo_similarities` of the prompt."""
    votes = dict.fromkeys(values, 0.0)
    seen = dict.fromkeys(values, 0)
    for demo, near in zip(prompt.demos, similarity, strict=True):
        value = demo.outputs.get(field.name, "").strip()
        if value in votes:
            votes[value] += near**_SHARPNESS
            seen[value] += 1
    # Divided by the root of its count, a frequent value does not win by its number alone.
    shares = {value: vote / math.sqrt(1 + seen[value]) for value, vote in votes.items()}
    total = sum(shares.values()) or 1.0
    count = sum(seen.values())
    trust = count / (count + _HALF_TRUST)
    novelty = 1 - max(similarity, default=0.0) ** 2  # an input that was demonstrated needs no descriptions
    described, weight = description_scores(prompt, field, values), novelty * description_weight(prompt, field, values)
    return {value: trust * shares[value] / total + weight * described[value] + 1e-6 * seen[value] for value in values}


def description_scores(prompt: Prompt, field: PromptField, values: Sequence[str]) -> dict[str, float]:
    """The similarity of the inputs to what the prompt says about each value."""
    texts = value_descriptions(prompt.instructions, field.name, field.description, tuple(values))
    found = index_of(texts).similarities(" \n".join(prompt.inputs.values()))
    return dict(zip(values, found, strict=True))


def description_weight(prompt: Prompt, field: PromptField, values: Sequence[str]) -> float:
    """The weight of descriptions against demonstrations: it grows with what the prompt says about the values."""
    texts = value_descriptions(prompt.instructions, field.name, field.description, tuple(values))
    length = sum(len(content_words(text)) - 1 for text in texts) / len(texts)
    return _NAME_WEIGHT + _PASSAGE_WEIGHT * length / (length + _HALF_WEIGHT)


@lru_cache(maxsize=512)
def value_descriptions(instructions: str, name: str, description: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """The texts of a prompt about each value: the name of the value, and the passages that mention it alone.

    A passage that mentions several values is cut at the mentions; each piece belongs to the value that it begins with.
    """
    texts = {value: [_name_words(value)] for value in values}
    if values == ("True", "False"):
        texts["True"].append(f"{_name_words(name)} {description}")
    mentions = {value: re.compile(rf"(?<!\w){_mention_pattern(value)}(?!\w)", re.IGNORECASE) for value in values}
    for passage in [*sentences(instructions), *sentences(description)]:
        found = sorted(
            (match.start(), match.end(), v) for v, each in mentions.items() for match in each.finditer(passage)
        )
        mentioned = {value for _, _, value in found}
        if len(mentioned) == 1:
            texts[mentioned.pop()].append(passage)
            continue
        ends = [start for start, _, _ in found[1:]] + [len(passage)]
        for (_, start, value), end in zip(found, ends if found else [], strict=True):
            texts[value].append(passage[start:end])
    return tuple(" . ".join(texts[value]) for value in values)


def condition_holds(prompt: Prompt, field: PromptField) -> bool:
    """Return whether a bool field is true, by its name, its description and the instructions alone."""
    true, false = description_scores(prompt, field, ("True", "False")).values()
    return true > max(false, _CONDITION_FROM)


def best(scored: Mapping[str, float], noise: float, seed: str) -> str:
    """The value with the best score, the first of equals.

    With noise above 0 it varies with the seed: Gumbel noise makes the maximum a sample of the softmax of the scores.
    """
    if noise <= 0:
        return max(scored, key=lambda value: scored[value])
    gumbel = {value: -math.log(-math.log(hash_fraction(f"{seed}|{value}"))) for value in scored}
    return max(scored, key=lambda value: scored[value] + noise * gumbel[value])


def hash_fraction(seed: str) -> float:
    """A number in (0, 1) that depends on the seed alone."""
    digest = hashlib.blake2b(seed.encode(), digest_size=7).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**56


def _name_words(name: str) -> str:
    return " ".join(words(name.replace("_", " ")))


def _mention_pattern(value: str) -> str:
    parts = [re.escape(part) for part in re.split(r"[\s_-]+", value.strip()) if part]
    return r"[\s_-]+".join(parts) or "(?!)"  # an empty value is never mentioned


# --- free texts: sentences of the inputs, and instructions made from the examples in a prompt

Example = tuple[tuple[str, str], ...]  # (field, value) pairs

_INSTRUCTION = re.compile(r"instruction|rules?$|advice|guideline", re.IGNORECASE)
_LEADS = (
    "Read the whole input before you decide.",
    "Decide by what the writer wants to happen next, not by single words.",
    "Compare the input with the words listed for each value and give the value that fits best.",
    "Weigh every sentence, the last one most.",
)
_CURRENT = ("basic_instruction", "current_instruction", "instruction")  # the inputs with the instruction so far
_VALUE_LENGTH = 30  # characters; longer values are texts, not labels
_LEARNED = 12  # words per value that an instruction lists
_USUAL_LENGTH = 5  # of words; much longer ones are rare and help little


def extract(prompt: Prompt, field: PromptField, count: int = 1) -> list[str]:
    """The sentences of the longest input that are most similar to the question, in their order.

    The question is the text of the other inputs, or else the field's name, its description and the instructions.
    """
    longest = max(prompt.inputs, key=lambda name: len(prompt.inputs[name]), default="")
    source = list(dict.fromkeys(sentences(_prose(prompt.inputs.get(longest, "")))))
    if not source:
        return [""]
    others = " ".join(_prose(text) for name, text in prompt.inputs.items() if name != longest)
    question = others or f"{field.name.replace('_', ' ')} {field.description} {prompt.instructions}"
    index = index_of(tuple(source))
    asked = index.similarities(question)
    central = index.similarities(" ".join(source))
    # A sentence that is similar to the whole text decides between sentences that are equally similar to the question.
    order = sorted(range(len(source)), key=lambda number: -(asked[number] + 0.2 * central[number]))
    return [source[number] for number in sorted(order[:count])]


def write_instruction(prompt: Prompt, seed: str = "") -> str:
    """An instruction made from the prompt: the current one, and lists of the words that are typical of each value."""
    base = next((prompt.inputs[name] for name in _CURRENT if name in prompt.inputs), "")
    lead = _LEADS[int(hash_fraction(f"lead|{seed}") * len(_LEADS))]
    keep = _LEARNED + int(hash_fraction(f"keep|{seed}") * 5) - 2
    words_of: dict[str, dict[str, None]] = {}  # by the beginning of a line; a round adds words to those of earlier ones
    for line in [*base.splitlines(), *([] if lead in base else [lead]), *list_lines(examples_in(prompt), keep)]:
        begin, is_list, found = line.partition('": ')
        known = words_of.setdefault(begin + is_list, {})
        known.update(dict.fromkeys(found.removesuffix(".").split(", ") if is_list else ()))
    return "\n".join([f"{begin}{', '.join(known)}{'.' if known else ''}" for begin, known in words_of.items()])


def list_lines(examples: Sequence[Example], keep: int) -> Iterator[str]:
    """Lines with the words that are typical of each value of the label fields of some examples, at most `keep` each."""
    labels = _label_fields(examples)
    for field in labels:
        counts_by_value: dict[str, Counter[str]] = {}
        for example in examples:
            value = dict(example).get(field)
            if value:
                text = " ".join(other for name, other in example if name not in labels)
                counts_by_value.setdefault(value, Counter()).update(set(content_words(text)))
        for value, found in _distinctive_words(counts_by_value, keep).items():
            if found:
                yield f'- {field} "{value}": {", ".join(found)}.'


def _distinctive_words(counts_by_value: Mapping[str, Counter[str]], keep: int) -> dict[str, list[str]]:
    """For each value the words that are frequent with it and rare with other values."""
    values_with = Counter(stem(word) for counts in counts_by_value.values() for word in counts)
    overall: Counter[str] = Counter()
    for counts in counts_by_value.values():
        overall.update(counts)
    common = max(1, len(counts_by_value) // 2)

    def rank(word: str, count: int) -> tuple[float, int, str]:
        share = (count - 0.5) / (overall[word] + 1)  # one time proves less than two
        return -share * math.sqrt(count), abs(len(word) - _USUAL_LENGTH), word

    return {
        value: sorted((word for word in counts if values_with[stem(word)] <= common), key=lambda w: rank(w, counts[w]))[
            :keep
        ]
        for value, counts in counts_by_value.items()
    }


def examples_in(prompt: Prompt) -> list[Example]:
    """The examples that GEPA shows in the inputs of a prompt."""
    return [example for text in prompt.inputs.values() for example in _json_examples(text)]


def _json_examples(text: str) -> Iterator[Example]:
    """The examples in the JSON in which GEPA shows them, with the outputs corrected by the feedback."""
    try:
        shown = json.loads(text) if text.startswith("[{") else []
    except ValueError:
        return
    graded = [item for item in shown if isinstance(item, dict) and isinstance(item.get("Inputs"), dict)]
    generated = {str(value) for item in graded for value in _mapping(item.get("Generated Outputs")).values()}
    for item in graded:
        pairs = [(name, str(value)) for name, value in item["Inputs"].items()]
        feedback = str(item.get("Feedback", ""))
        for name, value in _mapping(item.get("Generated Outputs")).items():
            right = _expected(name, feedback) or _corrected(str(value), feedback, generated)
            if right and name != "reasoning":
                pairs.append((name, right))
        yield tuple(pairs)


def _expected(name: str, feedback: str) -> str:
    """The value that feedback expects of a field, as in "`label` is 'a', expected 'b'"; empty if it says none."""
    found = re.search(rf"\b{re.escape(name)}\b[^.]*\bexpected ['\"“‘]([^'\"”’]+)", feedback)
    return found[1] if found and len(found[1]) <= _VALUE_LENGTH else ""


def _corrected(value: str, feedback: str, known: set[str]) -> str:
    """The right value according to feedback: the value that it names, or the given one if it does not object."""
    # Another known value in the feedback is the right one, if it is the only one.
    named = [other for other in sorted(known) if other != value and re.search(rf"\b{re.escape(other)}\b", feedback)]
    if len(named) == 1 and len(named[0]) <= _VALUE_LENGTH:
        return named[0]
    quoted = re.findall(r"(?:expected|correct|should be|is|was)[^\w'\"]*['\"“]?([\w-]+)", feedback, re.IGNORECASE)
    other = next((word for word in quoted if word != value and "_" in word), "")
    objects = re.search(r"\b(not|wrong|incorrect|instead|should|expected)\b", feedback, re.IGNORECASE)
    return other or ("" if objects else value)


def _label_fields(examples: Sequence[Example]) -> list[str]:
    """The fields whose values are short and repeated, as far as a few examples show that."""
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


# --- the similarity of texts: words, stems, and the cosine of TF-IDF weighted features

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)]*\s+|\n+")
# A common English ending, the longest that leaves four letters.
_ENDING = re.compile(r"(?<=....)(?:ations?|ments?|ings?|edly|ions?|ied|ies|ed|es|ly|s)$")
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
_NGRAM = 4  # characters of a piece of a word; pieces find misspelled words
_NGRAM_WEIGHT = 0.35
_BIGRAM_WEIGHT = 0.5


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return [word.replace("’", "'").lower() for word in _WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """The words that carry meaning: no articles, pronouns, prepositions and the like."""
    return [word for word in words(text) if word not in _STOP and word.partition("'")[0] not in _STOP]


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """A word without common English endings, if four letters remain: a crude suffix-stripping stemmer."""
    word = _ENDING.sub("", word.removesuffix("'s"))
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]
    return word.rstrip("ei") if len(word) > 4 else word


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text."""
    return [part.strip() for part in _SENTENCE.split(text) if part and part.strip()]


@lru_cache(maxsize=4096)
def features(text: str) -> Mapping[str, float]:
    """The term frequencies of a text, damped by their square root: stems, bigrams of stems, and character n-grams."""
    stems = [stem(word) for word in words(text)]
    counts: defaultdict[str, float] = defaultdict(float)
    for each in stems:
        counts[each] += 1.0
        padded = f"^{each}$"
        for start in range(max(1, len(padded) - _NGRAM + 1)):
            counts["~" + padded[start : start + _NGRAM]] += _NGRAM_WEIGHT
    # Pairs tell "not good" from "good": single words have no order.
    for left, right in pairwise(stems):
        counts[f"{left} {right}"] += _BIGRAM_WEIGHT
    return MappingProxyType({name: math.sqrt(count) for name, count in counts.items()})


class TextIndex:
    """An inverted index of texts, which compares them with another text by the cosine of their TF-IDF vectors."""

    def __init__(self, texts: Iterable[str]) -> None:
        vectors = [features(text) for text in texts]
        self.size = len(vectors)
        document_frequency = Counter(name for vector in vectors for name in vector)
        self.idf = {name: math.log(1 + self.size / count) for name, count in document_frequency.items()}
        self.idf_unseen = math.log(1 + self.size)
        self.postings: dict[str, list[tuple[int, float]]] = {}
        for number, vector in enumerate(vectors):
            weights = {name: frequency * self.idf[name] for name, frequency in vector.items()}
            length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
            for name, weight in weights.items():
                self.postings.setdefault(name, []).append((number, weight / length))

    def similarities(self, text: str) -> list[float]:
        """The cosine of each text with this one, from 0 for nothing in common to 1."""
        result = [0.0] * self.size
        square = 0.0
        for name, frequency in features(text).items():
            weight = frequency * self.idf.get(name, self.idf_unseen)
            square += weight * weight
            for number, other in self.postings.get(name, ()):
                result[number] += weight * other
        length = math.sqrt(square) or 1.0
        return [value / length for value in result]


index_of = lru_cache(maxsize=256)(TextIndex)
"""The index of some texts, cached: one prompt after another has the same demonstrations."""
