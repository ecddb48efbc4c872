"""Questions about 300 Python Enhancement Proposals: retrieve, answer with citations, check, score, tune, score.

python examples/documents.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/documents.py   # with a real model: some 400 calls

START ── understand ── retrieve ── answer ── quoted ─┬─ END
                                     │   │     │     │
                                     └ answer_fix    └─ unsure
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import dspy
from model import language_model

from dspyer import END, START, CompiledGraph, Graph, Run, optimize
from dspyer.errors import CheckError
from dspyer.testing import ScriptedLM

Lines = list[str]


# --8<-- [start:corpus]
def rows(name: str) -> list[dict[str, Any]]:
    text = (Path(__file__).parent / "data" / name).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


Fate = Literal["adopted", "dropped", "replaced"]
FATES: dict[str, Fate] = {"Superseded": "replaced", "Rejected": "dropped"}
FATES |= {"Withdrawn": "dropped", "Deferred": "dropped"}
PEPS = {pep["number"]: pep for pep in rows("peps.jsonl")}


def fate_of(number: int) -> Fate:
    return FATES.get(PEPS[number]["status"], "adopted")


# --8<-- [end:corpus]


# --8<-- [start:bm25]
def words(text: str) -> Lines:
    found = re.findall("[a-z]{2,}", text.lower())
    return [word.removesuffix("s") for word in found]


TEXTS = {n: f"{pep['title']}.\n{pep['text']}" for n, pep in PEPS.items()}
COUNTS = {n: Counter(words(text)) for n, text in TEXTS.items()}
USED_BY = Counter(word for count in COUNTS.values() for word in count)
USUAL = sum(count.total() for count in COUNTS.values()) / len(COUNTS)


def bm25(question: str, number: int) -> float:
    score, count = 0.0, COUNTS[number]
    length = 0.25 + 0.75 * count.total() / USUAL
    for word in {*words(question)} & count.keys():
        rarity = math.log(len(PEPS) / USED_BY[word])
        score += rarity * count[word] / (count[word] + 1.2 * length)
    return score


# --8<-- [end:bm25]


# --8<-- [start:steps]
class Understand(dspy.Signature):
    """Which fate has the proposal that the question asks for?"""

    question: str = dspy.InputField()
    fate: Fate = dspy.OutputField()


def retrieve(question: str, fate: Fate) -> dict[str, Any]:
    fitting = [number for number in PEPS if fate_of(number) == fate]
    found = sorted(fitting, key=lambda n: -bm25(question, n))[:3]
    passages = []
    for number in found:
        sentences = re.split(r"(?<=[.?!])\s+|\n\s*", TEXTS[number])
        passages += [f"[PEP {number}] {sentence}" for sentence in sentences]
    return {"found": found, "passages": passages}


class Answer(dspy.Signature):
    """Answer from the passages alone. Cite each proposal as [PEP 8]."""

    question: str = dspy.InputField()
    passages: Lines = dspy.InputField()
    answer: str = dspy.OutputField()
    quotes: Lines = dspy.OutputField(desc="lines of passages, unchanged")


# --8<-- [end:steps]


# --8<-- [start:check]
def cited(answer: str) -> list[int]:
    return [int(number) for number in re.findall(r"\[PEP (\d+)]", answer)]


def quoted(answer: str, quotes: Lines, passages: Lines) -> Lines:
    sources = {number for quote in quotes for number in cited(quote)}
    bare = {*cited(answer)} - sources
    unquoted = [f"PEP {number} is cited and not quoted" for number in bare]
    other = [quote for quote in quotes if quote not in passages]
    changed = [f"not in the passages: {quote}" for quote in other]
    return changed + unquoted if cited(answer) else ["no proposal is cited"]


# --8<-- [end:check]


# --8<-- [start:in_words]
def plain(line: str) -> str:
    return re.sub(r"[^\w\s\[\]]", "", line)


def in_words(answer: str, quotes: Lines, passages: Lines) -> Lines:
    return quoted(answer, [*map(plain, quotes)], [*map(plain, passages)])


# --8<-- [end:in_words]


# --8<-- [start:graph]
def librarian(check: Callable[..., Lines] = quoted) -> CompiledGraph:
    unsure = {"answer": "I found nothing that I can quote.", "quotes": []}
    graph = Graph(name="Librarian", inputs=["question"])
    graph.add_node("understand", dspy.Predict(Understand))
    graph.add_node("retrieve", retrieve, writes=["found", "passages"])
    graph.add_node("answer", dspy.Predict(Answer))
    graph.add_check("quoted", check, of="answer", max_fixes=1)
    graph.add_node("unsure", lambda: unsure, writes=["answer", "quotes"])
    graph.add_path(START, "understand", "retrieve", "answer", END)
    graph.add_error_edge("quoted", "unsure", on=CheckError)
    graph.add_edge("unsure", END)
    return graph.compile()


# --8<-- [end:graph]


# --8<-- [start:metric]
def questions(split: str) -> list[dspy.Example]:
    examples = []
    for row in rows("pep_questions.jsonl"):
        if row["split"] == split:
            labelled = row | {"fate": fate_of(row["gold"][0])}
            examples.append(dspy.Example(labelled).with_inputs("question"))
    return examples


def retrieved(example: dspy.Example, found: list[int]) -> bool:
    return any(number in example.gold for number in found)


def answered(example: dspy.Example, answer: str) -> bool:
    return any(number in example.gold for number in cited(answer)[:1])


fate = optimize.equals("fate")
JUDGES = {"fate": fate, "found": retrieved, "answer": answered}
metric = optimize.by_field(JUDGES, goal="answer")
# --8<-- [end:metric]


# --8<-- [start:score]
def score(name: str, program: CompiledGraph) -> list[Run]:
    """Print how much is right; return the runs whose answer is wrong."""
    test = questions("test")
    runs = [program.run({"question": each.question}) for each in test]
    pairs = list(zip(test, runs, strict=True))
    for field, judge in JUDGES.items():
        wrong = [run for e, run in pairs if not judge(e, run.state[field])]
        name += f"  {len(test) - len(wrong):2} {field}"
    print(name)
    return wrong


# --8<-- [end:score]


def show_check(program: CompiledGraph) -> None:
    """A scripted model invents a proposal, and is sent back."""
    # --8<-- [start:invents]
    invented = {"answer": "[PEP 9] Use +.", "quotes": ["[PEP 9] Use +."]}
    title = "[PEP 584] Add Union Operators To dict."
    better = {"answer": "Write d | e [PEP 584].", "quotes": [title]}
    with ScriptedLM([{"fate": "adopted"}, invented, better]):
        run = program.run({"question": "How do I merge two dictionaries?"})
    print(*[commit.node for commit in run.commits], sep=" -> ")
    print(run.repairs()[0].problems)
    print(run.state["answer"])
    # --8<-- [end:invents]


def main() -> None:
    dspy.configure(lm=language_model())
    program = librarian()
    show_check(program)

    # --8<-- [start:tune]
    score("as written", program)
    print(optimize.headroom(program, questions("train"), metric))
    few_shot = optimize.FewShot(metric, max_demos=20, rollouts=8)
    tuned = few_shot.compile(program, trainset=questions("train"))
    wrong = score("tuned     ", tuned)
    # --8<-- [end:tune]
    # --8<-- [start:blame]
    print(Counter(run.blame("answer").node for run in wrong))
    unsure = [run for run in wrong if run.blame("answer").node == "unsure"]
    for run in unsure[:1]:
        print(run.state["question"])
        for field in ["answer", "problems", "found", "fate"]:
            print(f"{field}, by {run.blame(field).node}:")
            print("   ", run.prediction[field])
    # --8<-- [end:blame]
    # --8<-- [start:mend]
    mended = librarian(check=in_words)
    mended.load_state(tuned.dump_state())
    score("mended    ", mended)
    # --8<-- [end:mend]


if __name__ == "__main__":
    main()
