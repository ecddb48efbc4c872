"""An offline LM that learns from its prompt, records every prompt, and pretends to be finetuned."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import dspy
from dspy.clients.provider import Provider, ReinforceJob, TrainingJob

from dspyer.testing.nearest import NearestWriter
from dspyer.testing.prompt import Prompt, Turn, write_answer
from dspyer.testing.text_engine import Sampling, TextLM


class Sent(NamedTuple):
    """One call, as the engine saw it."""

    turns: tuple[Turn, ...]
    rollout: int | None

    @property
    def asks(self) -> str:
        return self.turns[0].content if self.turns else ""


class NotingWriter:
    """Answers like the nearest demonstration; rollouts at a temperature err now and then, the same in every process."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self._lock = threading.Lock()
        self._nearest = NearestWriter()

    def __deepcopy__(self, memo: dict[int, Any]) -> NotingWriter:
        return self  # all copies of the LM note in one place

    def write(self, prompt: Prompt, sampling: Sampling, /) -> str:
        rollout = sampling.rollout if sampling.temperature > 0 else None
        with self._lock:
            self.sent.append(Sent(prompt.turns, rollout))
        fields = {field.name: field for field in prompt.output_fields}
        if "urgent" in fields and fields["urgent"].schema and "noul" in json.dumps(dict(fields["urgent"].schema)):
            return write_answer(prompt, {"urgent": {"noul": 0.35 if "refund" in str(dict(prompt.inputs)) else 0.2}})
        label = fields.get("label")
        if label is not None and label.choices and rollout is not None and len(fields) == 1:
            digest = hashlib.sha256(f"{rollout}{dict(prompt.inputs)}".encode()).digest()
            if digest[0] < 80:
                return write_answer(prompt, {"label": label.choices[digest[1] % len(label.choices)]})
        text = self._nearest.write(prompt, sampling).text
        if "draft" in fields and "notes" in prompt.inputs:
            # DSPy seeds its choice between the rounds of a loop with a pickle of them, in which equal texts differ from
            # one text twice. By hand the texts of two rounds are two objects; a state keeps what does not change.
            rounds = prompt.inputs["notes"].count(":")
            text = text.replace("[[ ## draft ## ]]\n", f"[[ ## draft ## ]]\nround {rounds}, ")
        return text


class NotingLM(TextLM):
    """The LM of these tests."""

    writer_type: type[NotingWriter] = NotingWriter

    def __init__(self, model: str = "fake/model", **kwargs: Any) -> None:
        self.writer = self.writer_type()
        super().__init__(model, self.writer, provider=FakeProvider(), **kwargs)

    @property
    def sent(self) -> list[Sent]:
        return self.writer.sent

    def prompts(self) -> Counter[Sent]:
        return Counter(self.writer.sent)

    def dump_state(self) -> dict[str, Any]:
        return {**dspy.BaseLM.dump_state(self), "model": self.model}

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
