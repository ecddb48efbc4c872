"""Offline LMs: one whose answers an object writes, and one that learns from its prompt and pretends to be finetuned."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import dspy
from dspy.clients.provider import Provider, ReinforceJob, TrainingJob

from dspyer.testing import Prompt, ScriptedLM


@dataclass
class Sampling:
    """By what the answers to one prompt differ."""

    temperature: float = 0.0
    rollout: int | None = None
    candidate: int = 0


class Writer(Protocol):
    """Writes the answers of a `WriterLM`."""

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        """The answer to a prompt."""
        ...


_sampling: ContextVar[Sampling | None] = ContextVar("sampling", default=None)


@contextmanager
def _sampled(settings: Mapping[str, Any]) -> Iterator[None]:
    """Tells the writer of the settings of a call, which DSPy removes from the request."""
    token = _sampling.set(Sampling(settings.get("temperature") or 0.0, settings.get("rollout_id")))
    try:
        yield
    finally:
        _sampling.reset(token)


def _script_of(writer: Writer) -> Callable[[Prompt], str]:
    def answer(prompt: Prompt) -> str:
        call = _sampling.get() or Sampling()
        given = Sampling(call.temperature, call.rollout, call.candidate)
        call.candidate += 1
        return writer.write(prompt, given)

    return answer


class WriterLM(ScriptedLM):
    """An LM whose copies, deep copies and unpickled copies have one writer, which is told rollout ids too."""

    def __init__(self, model: str, writer: Writer, **kwargs: Any) -> None:
        self.writer: Any = writer
        super().__init__(_script_of(writer), model=model, **kwargs)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        with _sampled({**self.kwargs, **kwargs}):
            return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        with _sampled({**self.kwargs, **kwargs}):
            return await super().acall(prompt, messages=messages, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if not type(value).__module__.startswith("dspyer.testing")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = vars(WriterLM(state["model"], state["writer"]))  # with the engine and the script, which no state has
        super().__setstate__({**own, **state})

    def dump_state(self) -> dict[str, Any]:  # type: ignore[override] # of a class that refuses to be saved
        return {**dspy.BaseLM.dump_state(self), "model": self.model}


def written(prompt: Prompt, values: Mapping[str, Any]) -> str:
    """The answer with these values, in the form that the prompt asks for."""
    if prompt.form == "json":
        return json.dumps(values)
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    if prompt.form == "xml":
        return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in texts.items())
    return "\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items()), "[[ ## completed ## ]]"])


class Sent(NamedTuple):
    """One call, as the engine saw it."""

    turns: tuple[Any, ...]
    rollout: int | None

    @property
    def asks(self) -> str:
        return str(self.turns[0].content) if self.turns else ""


TOPICS = ("invoice|refund|charge|receipt|payment", "train|flight|bus|seat", "dish|soup|vegan")
"""What is chosen for which words, by who has instructions that an LM has written."""


class NotingWriter:
    """Answers like the nearest demonstration; rollouts at a temperature err now and then, the same in every process."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> NotingWriter:
        return self  # all copies of the LM note in one place

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        rollout = sampling.rollout if sampling.temperature > 0 else None
        with self._lock:
            self.sent.append(Sent(prompt.turns, rollout))
        if not prompt.output_fields:
            return f"Yes: {digest(prompt.turns, rollout, sampling.candidate).hex()[:8]}"
        chance = sampling.candidate if rollout is None else (rollout, sampling.candidate)
        return written(
            prompt, {field.name: self._value(field, prompt, rollout, chance) for field in prompt.output_fields}
        )

    def _value(self, field: Any, prompt: Prompt, rollout: int | None, chance: Any) -> Any:
        given, kind = dict(prompt.inputs), json.dumps(dict(field.schema or {}))
        lots = digest(prompt.instructions, field.name, given, chance)
        if "noul" in kind:
            return {"noul": 0.35 if "refund" in str(given) else 0.2}
        if field.choices:
            errs = rollout is not None and len(prompt.output_fields) == 1 and digest(rollout, given)[0] < 80
            near = [
                demo.outputs[field.name] for demo in nearest(prompt) if demo.outputs.get(field.name) in field.choices
            ]
            if "instruction of" in prompt.instructions:
                found = [re.search(words, str(given)) for words in TOPICS[: len(field.choices)]]
                near = [choice for choice, match in zip(field.choices, found, strict=False) if match] or near
            return near[0] if near and not errs else field.choices[lots[1] % len(field.choices)]
        if field.schema:
            items = dict(field.schema).get("type") == "array"
            return [lots.hex()[:8]] if items else {name: f"Look at {name}." for name in prompt.inputs}
        if field.kind == "number":
            return lots[0] % 10
        return f"{field.name} of {' '.join(map(str, given.values()))[:40]} {lots.hex()[:8]}"


def digest(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def nearest(prompt: Prompt) -> list[Any]:
    """The demonstrations, by how many words their inputs share with those of the prompt."""
    words = [
        set(re.findall(r"\w+", str(dict(inputs)))) for inputs in (prompt.inputs, *(one.inputs for one in prompt.demos))
    ]
    order = sorted(range(len(prompt.demos)), key=lambda at: -len(words[0] & words[at + 1]))
    return [prompt.demos[at] for at in order]


class NotingLM(WriterLM):
    """The LM of these tests."""

    writer_type: type[NotingWriter] = NotingWriter

    def __init__(self, model: str = "fake/model", **kwargs: Any) -> None:
        super().__init__(model, self.writer_type(), provider=FakeProvider(), **kwargs)

    @property
    def sent(self) -> list[Sent]:
        found: list[Sent] = self.writer.sent
        return found

    def prompts(self) -> Counter[Sent]:
        return Counter(self.sent)

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> NotingLM:
        return cls(state["model"])


class FakeTraining(TrainingJob):
    """A finetuning job that is done at once."""

    def status(self) -> str:
        return "succeeded"


class FakeReinforcement(ReinforceJob):
    """A reinforcement job that keeps what it is given."""

    groups: list[Any]

    def initialize(self) -> None:
        self.groups = []
        self.lm.reinforced = self

    def step(self, train_data: list[dict[str, Any]], train_data_format: Any = None) -> None:
        self.groups.extend(train_data)

    def get_status(self) -> dict[str, Any]:
        return {"job_id": "1", "current_model": self.lm.model, "pending_batch_ids": [len(self.groups)]}

    def terminate(self) -> None:
        self.done = True

    def save_checkpoint(self, checkpoint_name: str) -> None:
        raise NotImplementedError


class FakeProvider(Provider):
    """Finetunes nothing, and notes with what it would have."""

    jobs: list[list[dict[str, Any]]]

    def __init__(self) -> None:
        super().__init__()
        self.finetunable = True
        self.reinforceable = True
        self.TrainingJob = FakeTraining
        self.ReinforceJob = FakeReinforcement
        self.jobs = []

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeProvider:
        return self

    def finetune(
        self, job: Any, model: str, train_data: list[dict[str, Any]], train_data_format: Any, train_kwargs: Any = None
    ) -> str:
        self.jobs.append(train_data)
        return f"{model}-tuned"
