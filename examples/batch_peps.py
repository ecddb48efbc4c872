"""300 proposals for Python on a budget: the type and the version of each, by a provider that limits and fails.

python examples/batch_peps.py                                   # offline: two rules stand for the model
DSPYER_MODEL=openai/gpt-4o-mini python examples/batch_peps.py   # with a provider's model
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal, get_args

import dspy
from pydantic import BaseModel
from tenacity import wait_fixed

import dspyer
from dspyer import END, START, Budget, CompiledGraph, Failure, Graph, Retry, lms
from dspyer.testing import Prompt, ScriptedLM

PEPS = [json.loads(line) for line in (Path(__file__).parent / "data" / "peps.jsonl").read_text("utf-8").splitlines()]


# --8<-- [start:read]
Type = Literal["Standards Track", "Informational", "Process"]


class Read(dspy.Signature):
    """What a Python Enhancement Proposal is, and for which Python."""

    text: str = dspy.InputField(desc="its title and its beginning")
    type: Type = dspy.OutputField()
    python_version: str = dspy.OutputField(desc="like 3.8; may be empty")


class Corpus(BaseModel):
    texts: list[str]
    readings: list[dict[str, Any]] = []
    unread: list[Failure] = []


# --8<-- [end:read]
# --8<-- [start:graph]
def reader(store: Path) -> CompiledGraph:
    graph = Graph(Corpus, inputs=["texts"], name="Proposals")
    graph.add_map(
        "read",
        dspy.Predict(Read),
        over="texts",
        item="text",
        into="readings",
        failures="unread",
        min_success=0.95,
        timeout=60,
    )
    graph.add_path(START, "read", END)
    return graph.compile(store=store, max_concurrency=16)


# --8<-- [end:graph]
# --- offline: a provider with its limits, and two rules in the place of its model


class Provider:
    """Answers 30 requests in 0.2 s, fails at each 20th one, and refuses texts that its filter does not like."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.window = (0, 0)  # the number of the current window, and its requests

    def __call__(self, prompt: Prompt) -> Any:
        number, text = int(time.monotonic() / 0.2), prompt.inputs["text"]
        self.window = (number, self.window[1] + 1 if self.window[0] == number else 1)
        if self.window[1] > 30:
            return self.fail("limited", dspy.LMRateLimitError("30 requests in 0.2 s", retry_after=0.1))
        self.counts["requests"] += 1
        if self.counts["requests"] % 20 == 0:
            return self.fail("overloaded", dspy.LMServerError("overloaded"))
        if "malicious" in text:
            return self.fail("refused", dspy.LMInvalidRequestError("refused by the content filter"))
        self.counts["answered"] += 1
        return read_by_rules(text)

    def fail(self, what: str, error: Exception) -> Exception:
        self.counts[what] += 1
        return error


def read_by_rules(text: str) -> dict[str, Any]:
    """The type by words of the title, the version where the text names one."""
    title, named = text.partition("\n")[0], re.findall(r"Python (\d\.\d+)", text)
    kind = "Standards Track"
    if re.search("(?i)guide|governance|migrat|policy|procedure|cycle|workflow", title):
        kind = "Process"
    elif re.search("(?i)schedule|convention|rationale|tutorial|gateway", title):
        kind = "Informational"
    return {"type": kind, "python_version": named[0] if named else ""}


# --8<-- [start:lm]
def language_model(provider: Provider) -> dspy.LM:
    name = os.environ.get("DSPYER_MODEL")
    lm = dspy.LM(name) if name else ScriptedLM(provider, model="rules")
    again = Retry(8, wait=wait_fixed(0.05), max_wait=30)
    return lms.reliable(lm, requests_per_minute=12_000, retry=again)


# --8<-- [end:lm]
# --8<-- [start:score]
def print_scores(readings: dict[int, dict[str, Any]]) -> None:
    """Compare with the headers: each type by itself, and the versions."""
    for kind in get_args(Type):
        these = [i for i in readings if PEPS[i]["type"] == kind]
        right = sum(readings[i]["type"] == kind for i in these)
        print(f"{kind:16}{right:4} of {len(these):3}")
    named = {i: one["python_version"] for i, one in readings.items()}
    named = {i: version for i, version in named.items() if version}
    right = sum(PEPS[i]["python_version"] == named[i] for i in named)
    print(f"{'Python version':16}{right:4} of {len(named):3} named")


# --8<-- [end:score]
def main(folder: Path) -> None:
    provider = Provider()
    dspy.configure(lm=language_model(provider))
    texts = [f"{pep['title']}\n\n{pep['text']}" for pep in PEPS]

    # --8<-- [start:run]
    price = {"rules": (0.15, 0.60)}  # USD per million tokens, in and out
    thread = reader(folder / "peps.db").thread("peps")
    with dspyer.progress():  # a live line on a terminal
        budget = Budget(cost=0.01, prices=price)
        run = thread.run({"texts": texts}, budget=budget)
    # --8<-- [end:run]
    # --8<-- [start:resume]
    while run.status == "stopped":
        read = thread.items("read").done
        print(f"stopped, with more than {read // 50 * 50} read")
        with dspyer.progress():
            budget = Budget(cost=0.02, prices=price)
            run = thread.resume(budget=budget)
    print(f"{run.status}: {len(run.state['readings'])} are read")
    # --8<-- [end:resume]
    # --8<-- [start:unread]
    for failure in run.state["unread"]:
        number = PEPS[failure.index]["number"]
        print(f"PEP {number}: {failure.type}: {failure.message}")
    # --8<-- [end:unread]
    print_scores(thread.items("read").results)
    # --8<-- [start:cost]
    print(f"{thread.cost:.4f} USD, {thread.cost / len(texts):.6f} each")
    # --8<-- [end:cost]
    if counts := provider.counts:
        print(f"the provider answered {counts['answered']} requests and failed at {counts['overloaded']}")
        print(f"it refused {counts['refused']}; {counts['limited']} came too early")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
