"""An optimization in a process of its own that notes each call in a file and is killed at a chosen one.

The LM responds by its prompt, and differently each time that it is asked the same: an optimization that asks again what
it had asked before the kill ends with another result. A request that was under way at the kill counts as one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import diskcache
import dspy
from pydantic import BaseModel

from dspyer import END, START, Graph, optimize
from dspyer.testing.prompt import Prompt, Sampling, TextLM, write_answer
from tests.log.processes import end_of, fork


class Journal:
    """What all processes of an optimization have called, one line each; in the kernel's hands when `note` returns.

    Args:
        path: the file.
        kill_at: the number of the event of this process, from 1, at which it is killed; None for never.
    """

    def __init__(self, path: Path, kill_at: int | None = None) -> None:
        self.path = path
        self.events = 0
        self._kill_at = kill_at
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, kind: str, what: str) -> None:
        """Writes one line, and kills the process if this is the event to kill it at."""
        with self._lock:
            self.events += 1
            os.write(self._file, f"{kind} {what or '-'} {threading.get_ident()}\n".encode())
            if self.events == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def lines(path: Path) -> list[tuple[str, str, str]]:
    """The notes in a file: kind, what, and the thread."""
    found = path.read_text().splitlines() if path.exists() else []
    return [(line.split(" ", 1)[0], *line.split(" ", 1)[1].rsplit(" ", 1)) for line in found]  # type: ignore[misc]


def last_of_threads(known: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """The last note of each thread: kind and what."""
    return list({thread: (kind, what) for kind, what, thread in known}.values())


class KillableWriter:
    """Responds as a function of the prompt and of how often it was asked before; errs less with better instructions."""

    def __init__(self, journal: Journal, fickle: bool) -> None:
        self.journal = journal
        self.fickle = fickle
        known = lines(journal.path)
        self._sent = Counter(what for kind, what, _ in known if kind == "answered")
        self._lock = threading.Lock()
        # The response that a thread got last may have been on its way when the process was killed.
        self._sent -= Counter(what for kind, what in last_of_threads(known) if kind == "answered")

    def __deepcopy__(self, memo: dict[int, Any]) -> KillableWriter:
        return self

    def __call__(self, prompt: Prompt, sampling: Sampling, /) -> str:
        key = digest(*[turn.content for turn in prompt.turns], sampling.rollout if sampling.temperature else None)
        self.journal.note("asked", key)
        with self._lock:
            number = self._sent[key] if self.fickle else 0
            self._sent[key] += 1
        answer = write_answer(prompt, self._values(prompt, digest(key, number)))
        self.journal.note("answered", key)
        return answer

    def _values(self, prompt: Prompt, chance: str) -> dict[str, str]:
        values = {}
        for field in prompt.output_fields:
            right = truth(field.name, prompt.inputs)
            if right is None:
                values[field.name] = f"Be careful. Rule {chance[:6]}."
            else:
                hints = prompt.instructions.count("Rule") + len(prompt.demos) / 4
                wrong = int(chance[:4], 16) % 100 >= 55 + 12 * hints
                values[field.name] = right + "?" * wrong
        return values


def truth(field: str, inputs: Mapping[str, Any]) -> str | None:
    """The right value of a field; None for a text of the LMs that write instructions."""
    if field == "desk":
        return "ab"[len(inputs["letter"]) % 2]
    if field == "tone":
        return "xyz"[len(inputs["letter"]) % 3]
    if field == "label":
        return f"{inputs['desk']}{inputs['tone']}"
    if field == "fair":
        return "yes" if "?" not in inputs["tone"] else "no"
    return None


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


BRANCHES = 2
"""How many nodes of the program run at once."""


class Letter(BaseModel):
    letter: str
    desk: str = ""
    tone: str = ""
    label: str = ""


def desk_graph() -> Graph:
    graph = Graph(Letter, name="Desk")
    graph.add_node("desk", dspy.Predict("letter -> desk"))
    graph.add_node("tone", dspy.Predict("letter -> tone"))
    graph.add_node("label", dspy.Predict("desk, tone -> label"))
    graph.add_edge(START, ["desk", "tone"])
    graph.add_edge(["desk", "tone"], "label")
    return graph.add_edge("label", END)


def letters(count: int, first: int = 1) -> list[dspy.Example]:
    found = []
    for number in range(first, first + count):
        inputs = {"letter": "letter " + "i" * number}
        inputs |= {name: truth(name, inputs) or "" for name in ("desk", "tone")}
        found.append(dspy.Example(**inputs, label=truth("label", inputs)).with_inputs("letter"))
    return found


@dataclass(frozen=True)
class Work:
    """An optimization to be killed.

    Attributes:
        optimizer: its name in `OPTIMIZERS`.
        threads: `num_threads` of the optimizer.
        requests: what keeps LM responses: DSPy's request cache on disk, or nothing.
        fickle: whether the LM responds differently each time that it is asked the same.
        small: whether there are few examples and steps.
    """

    optimizer: str
    threads: int = 1
    requests: Literal["kept", "lost"] = "kept"
    fickle: bool = True
    small: bool = False

    @property
    def train(self) -> list[dspy.Example]:
        return letters(3 if self.small else 6)

    @property
    def valset(self) -> list[dspy.Example]:
        return letters(2 if self.small else 4, 20)


def work_in(folder: Path, work: Work, journal: Journal) -> dict[str, Any]:
    """Optimizes in this process, with files in a folder; returns what must be equal after a kill."""
    quiet()
    kept = work.requests == "kept"
    many = diskcache.FanoutCache
    diskcache.FanoutCache = lambda **settings: many(**{**settings, "shards": 1})  # 16 files take a second to make
    dspy.configure_cache(
        enable_disk_cache=kept, enable_memory_cache=kept, disk_cache_dir=str(folder / "requests") if kept else None
    )
    lm = TextLM("test/killable", KillableWriter(journal, work.fickle), cache=True)
    with dspy.context(lm=lm):
        return OPTIMIZERS[work.optimizer](work, lm, journal)


def quiet() -> None:
    logging.disable(logging.ERROR)
    if not os.environ.get("LOUD"):
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends


def described(program: Any) -> dict[str, Any]:
    """The parameters of a program."""
    found: dict[str, Any] = json.loads(json.dumps(program.dump_state(), default=str))
    return found


# --- the optimizers


def _metric(journal: Journal) -> Callable[..., Any]:
    def exact(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
        journal.note("judged", f"{gold.letter} {pred.label}")
        return float(gold.label == pred.label)

    return exact


def plain_gepa(work: Work, lm: Any, journal: Journal) -> dict[str, Any]:
    gepa = dspy.GEPA(
        metric=_metric(journal),
        reflection_lm=lm,
        max_metric_calls=18 if work.small else 60,
        num_threads=work.threads,
        track_stats=True,
    )
    return _gepa_result(gepa.compile(desk_graph().compile(), trainset=work.train, valset=work.valset))


JUDGE = dspy.Predict("letter, tone -> fair")


def fair(example: Any, tone: str) -> Any:
    """A field metric that asks an LM."""
    verdict = JUDGE(letter=example.letter, tone=tone).fair
    return dspy.Prediction(score=verdict.startswith("yes"), feedback=f"The tone is {example.tone}. {verdict}")


def field_gepa(work: Work, lm: Any, journal: Journal) -> dict[str, Any]:
    del journal  # the LMs note what matters
    metric = optimize.by_field({"tone": fair, "label": optimize.equals("label")}, goal="label")
    gepa = optimize.GEPA(
        metric,
        reflection_lm=lm,
        max_metric_calls=18 if work.small else 60,
        num_threads=work.threads,
        track_stats=True,
    )
    return _gepa_result(gepa.compile(desk_graph().compile(), trainset=work.train, valset=work.valset))


def few_shot(work: Work, lm: Any, journal: Journal) -> dict[str, Any]:
    del lm, journal
    metric = optimize.by_field({"tone": fair, "label": optimize.equals("label")}, goal="label")
    return {
        "tuned": described(optimize.FewShot(metric, rollouts=2).compile(desk_graph().compile(), trainset=work.train))
    }


def _gepa_result(tuned: Any) -> dict[str, Any]:
    found = tuned.detailed_results
    return {
        "candidates": [described(candidate) for candidate in found.candidates],
        "scores": found.val_aggregate_scores,
        "subscores": found.val_subscores,
        "parents": found.parents,
        "tuned": described(tuned),
    }


def bootstrap(work: Work, lm: Any, journal: Journal) -> dict[str, Any]:
    metric = _metric(journal)
    found = dspy.BootstrapFewShot(metric=lambda gold, pred, trace=None: metric(gold, pred) == 1, max_rounds=3)
    return {"tuned": described(found.compile(desk_graph().compile(), trainset=work.train))}


def mipro(work: Work, lm: Any, journal: Journal) -> dict[str, Any]:
    metric = _metric(journal)
    found = dspy.MIPROv2(
        metric=lambda gold, pred, trace=None: metric(gold, pred),
        auto=None,
        num_candidates=2 if work.small else 3,
        num_threads=work.threads,
        max_bootstrapped_demos=2,
        max_labeled_demos=1,
    )
    tuned = found.compile(
        desk_graph().compile(),
        trainset=work.train,
        valset=work.valset,
        num_trials=2 if work.small else 4,
        minibatch=False,
        seed=3,
    )
    return {"tuned": described(tuned), "scores": [score["score"] for score in tuned.candidate_programs]}


def simba(work: Work, lm: Any, journal: Journal) -> dict[str, Any]:
    metric = _metric(journal)
    found = dspy.SIMBA(
        metric=lambda gold, pred: metric(gold, pred) if pred is not None and "label" in pred else 0.0,
        bsize=3,
        num_candidates=2,
        max_steps=1 if work.small else 2,
        max_demos=2,
        num_threads=work.threads,
    )
    tuned = found.compile(desk_graph().compile(), trainset=work.train, seed=3)
    return {"tuned": described(tuned), "scores": [one["score"] for one in tuned.candidate_programs]}


OPTIMIZERS: dict[str, Callable[[Work, Any, Journal], dict[str, Any]]] = {
    "optimize.GEPA": field_gepa,
    "optimize.FewShot": few_shot,
    "dspy.GEPA": plain_gepa,
    "BootstrapFewShot": bootstrap,
    "MIPROv2": mipro,
    "SIMBA": simba,
}


# --- processes


@dataclass(frozen=True)
class Outcome:
    """How a process ended, and what all processes of the optimization have done until then.

    Attributes:
        status: its status, or the signal that ended it as a negative number.
        result: what it returned; None if it did not end by itself.
        notes: how often each event was noted, by kind and what.
        events: how many of these are of this process.
    """

    status: int
    result: dict[str, Any] | None
    notes: Counter[tuple[str, str]]
    events: int

    @property
    def asked(self) -> Counter[str]:
        """How often each request was made."""
        return Counter({what: count for (kind, what), count in self.notes.items() if kind == "asked"})


def optimize_in(folder: Path, work: Work, kill_at: int | None = None) -> Outcome:
    """Starts an optimization in a process of its own, or starts it again; waits until it has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / "notes"
    known = len(lines(notes))

    def run() -> None:
        found = work_in(folder, work, Journal(notes, kill_at))
        (folder / f"{os.getpid()}.json").write_text(json.dumps(found))

    process = fork(run)

    status = end_of(process)
    result = folder / f"{process}.json"
    found = json.loads(result.read_text()) if result.exists() else None
    noted = lines(notes)
    return Outcome(status, found, Counter((kind, what) for kind, what, _ in noted), len(noted) - known)
