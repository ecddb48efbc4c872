"""An LM that knows nothing but its prompt: it answers like the demonstrations that are nearest to the inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from dspyer.testing.choosing import best, condition_holds, scores, similar_demos
from dspyer.testing.engine import Sampling, TextLM
from dspyer.testing.prompt import Prompt, PromptField, Said, ToolCall, write_answer
from dspyer.testing.text import content_words, index_of
from dspyer.testing.writing import extract, written_instruction

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_SAME = 0.45  # likeness from which on the text of a demonstration is taken over
_NOISE = 0.04  # of a score, per degree of temperature


class NearestLM(TextLM):
    """An LM for tests and examples that learns from the demonstrations in its prompt, and from nothing else.

    A value of a `Literal`, `Enum` or `bool` field is voted for by the demonstrations, the nearest with most weight
    (likeness of word stems, pairs of stems and pieces of words); what instructions and descriptions say about a value
    counts too. Other texts are taken from the nearest demonstration or from the sentences of the inputs. Asked for
    instructions, as optimizers do, it lists the words that speak for each value in the examples that it is shown.

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
        super().__init__(model, NearestWriter(), **kwargs)

    def dump_state(self) -> dict[str, Any]:
        """What `load_state` needs: the class, the model's name and the settings."""
        state: dict[str, Any] = dspy.BaseLM.dump_state(self)  # without the engine: it has no state
        return state

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> NearestLM:
        """An LM with the saved settings."""
        return cls(**state)


class NearestWriter:
    """The writer behind `NearestLM`. It keeps no state."""

    def write(self, prompt: Prompt, sampling: Sampling, /) -> Said:
        """Answers one prompt."""
        varies = sampling.temperature > 0 and (sampling.rollout is not None or sampling.candidate > 0)
        seed = f"{sampling.rollout}|{sampling.candidate}" if varies else ""
        noise = _NOISE * sampling.temperature if varies else 0.0
        answer = _Answer(prompt, noise, seed)
        calls = (answer.tool_call(),) if prompt.tools else ()
        if prompt.output_fields:
            return Said(write_answer(prompt, answer.values()), calls)
        return Said("" if calls else extract(prompt, PromptField("answer", "str", "", "text"), 1)[0] or "Yes.", calls)


class _Answer:
    """One answer in the making. Values first: the reasoning speaks of them."""

    def __init__(self, prompt: Prompt, noise: float, seed: str) -> None:
        self.prompt = prompt
        self.noise = noise
        self.seed = seed
        self.likeness = similar_demos(prompt)
        self.nearest = max(range(len(prompt.demos)), key=self.likeness.__getitem__, default=-1)

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
            return self.structure(field)
        return self.text(field)

    def choice(self, field: PromptField, choices: Sequence[str]) -> str:
        scored = scores(self.prompt, field, choices, self.likeness)
        return best(scored, self.noise, f"{self.prompt.inputs}|{field.name}|{self.seed}")

    def condition(self, field: PromptField) -> str:
        if any(field.name in demo.outputs for demo in self.prompt.demos):
            return self.choice(field, field.choices)
        return str(condition_holds(self.prompt, field))

    def number(self, field: PromptField) -> str:
        given = self.given(field)
        taken_over = self.nearest >= 0 and given in " ".join(self.prompt.demos[self.nearest].inputs.values())
        found = self.shown_number()
        number = given if _NUMBER.fullmatch(given) and not (taken_over and found) else found or "0"
        return str(round(float(number))) if field.type == "int" else number

    def shown_number(self) -> str:
        """The first number of the inputs, empty if there is none."""
        match = _NUMBER.search(" ".join(self.prompt.inputs.values()))
        return match.group() if match else ""

    def structure(self, field: PromptField) -> object:
        given = self.given(field)
        if given and self.likeness[self.nearest] >= _SAME:
            return given
        return self.build(field, field.schema or {}, field.schema or {}, 0)

    def text(self, field: PromptField) -> str:
        if "prefix" in field.name:
            return "Answer:"
        instruction = written_instruction(self.prompt, field, self.seed)
        if instruction:
            return instruction
        given = self.given(field)
        if given and self.likeness[self.nearest] >= _SAME:
            return given
        return " ".join(extract(self.prompt, field))

    def reasoning(self, found: Mapping[str, object]) -> str:
        quoted = extract(self.prompt, PromptField("reasoning", "str", "", "text"))[0]
        told = ", ".join(content_words(quoted)[:6]) or "nothing in particular"
        chosen = [field.name for field in self.prompt.output_fields if field.kind in ("choice", "bool", "number")]
        outcome = "".join(f" That speaks for {name} {found[name]}." for name in chosen[-1:])
        return f"The input speaks of {told}.{outcome}"

    def tool_call(self) -> ToolCall:
        """The tool that is most like the inputs; once tools have given results, the one that must or may end it."""
        tools = [tool for tool in self.prompt.tools if tool.name in self.prompt.must_call] or list(self.prompt.tools)
        ends = [tool for tool in tools if tool.name == "submit"]
        if len(tools) > len(ends) and any(turn.role == "tool" for turn in self.prompt.turns):
            tools = ends or tools
        elif len(tools) > 1:
            tools = [tool for tool in tools if tool not in ends]
        texts = tuple(f"{tool.name.replace('_', ' ')} {tool.about}" for tool in tools)
        likeness = index_of(texts).similarities(" ".join(self.prompt.inputs.values()))
        tool = tools[max(range(len(tools)), key=likeness.__getitem__)]
        properties = dict(tool.schema.get("properties", {}))
        needed = tool.schema.get("required", properties)
        args = {
            name: self.build(PromptField(name, "", tool.about, "text"), properties[name], tool.schema, 1)
            for name in properties
            if name in needed
        }
        return ToolCall(tool.name, args)

    def given(self, field: PromptField) -> str:
        """What the nearest demonstration gives for a field, empty if it does not."""
        return self.prompt.demos[self.nearest].outputs.get(field.name, "").strip() if self.nearest >= 0 else ""

    def build(self, field: PromptField, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
        """A value for a JSON schema, from the inputs."""
        if "$ref" in schema and depth < 8:
            name = str(schema["$ref"]).rsplit("/", 1)[-1]
            return self.build(field, root.get("$defs", {}).get(name, {}), root, depth + 1)
        for union in ("anyOf", "oneOf", "allOf"):
            options = schema.get(union)
            if options:
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
            return self.build_object(field, schema, root, depth)
        if kind == "array":
            items = schema.get("items", {})
            if depth < 8 and (items.get("type") != "string" or "enum" in items):
                return [self.build(field, items, root, depth + 1)]
            return extract(self.prompt, field, 3)
        if kind in ("integer", "number"):
            number = float(self.shown_number() or "0")
            return round(number) if kind == "integer" else number
        if kind == "boolean":
            return condition_holds(self.prompt, field)
        if kind == "null":
            return None
        return self.text(PromptField(field.name, "str", field.about, "text"))

    def build_object(self, field: PromptField, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
        properties = dict(schema.get("properties", {}))
        free = schema.get("additionalProperties")
        if not properties and free:
            inner = free if isinstance(free, Mapping) else {}
            properties = dict.fromkeys(self.names(), inner)
        if depth >= 8:
            return {}
        fields = {name: PromptField(field.name if free else name, "", field.about, "text") for name in properties}
        return {name: self.build(fields[name], inner, root, depth + 1) for name, inner in properties.items()}

    def names(self) -> list[str]:
        """The keys of an open mapping: the items of the last input that is a list of names."""
        for text in reversed(list(self.prompt.inputs.values())):
            if text.startswith("["):
                try:
                    items = json.loads(text)
                except ValueError:
                    continue
                if items and all(isinstance(item, str) and len(item) <= 60 for item in items):
                    return list(items)
        return []
