"""Eight documents that contradict each other: a map, three parallel readers, merge policies, the author of each fact.

python examples/research.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/research.py   # with a real model
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Conflict, Graph, prefer

DOCUMENTS = Path(__file__).parent / "data" / "documents"
GROUPS = {
    "records": ["council_minutes", "engineers_bulletin", "storm_report"],
    "books": ["encyclopedia_entry", "visitor_leaflet"],
    "press": ["newspaper_opening", "obituary", "residents_blog"],
}
FACTS = {
    "opened_on": r"\b(\d{1,2}) May 1987",
    "length_m": r"(4\d\d) metres",
    "cost_million": r"(\d\d) million crowns",
    "households": r"(\d,\d{3}) households",
    "lost_in_1976": r"(\d\d) people",
}


class Research(BaseModel):
    """The facts about the barrier."""

    question: str
    documents: dict[str, str]
    pages: list[str] = []
    gists: list[str] = []
    facts: dict[str, Any] = {}
    answer: str | None = None


class Gist(dspy.Signature):
    """Which sentence of the document says most about the question?"""

    question: str = dspy.InputField()
    document: str = dspy.InputField()
    gist: str = dspy.OutputField()


class Answer(dspy.Signature):
    """Answer the question from the sentences that were found."""

    question: str = dspy.InputField()
    gists: list[str] = dspy.InputField()
    answer: str = dspy.OutputField()


def reader(names: list[str]) -> Any:
    """Return a node that extracts the facts of some documents; if two differ, it takes the first one's."""

    def read(documents: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            for fact, pattern in FACTS.items():
                match = re.search(pattern, documents[name])
                if match and fact not in found:
                    found[fact] = int(match[1].replace(",", ""))
        return {"facts": found}

    return read


def larger(conflict: Conflict) -> Any:
    """A merge policy for counts of people: keep the larger one."""
    return max(conflict.left, conflict.right)


def library() -> CompiledGraph:
    """Build and compile the graph."""
    policies = {
        "facts.opened_on": prefer("records", "books"),
        "facts.length_m": prefer("books"),
        "facts.households": larger,
        "facts.**": "first_write_wins",
    }
    graph = Graph(Research, name="Library", merge=policies)
    graph.add_node("shelve", lambda documents: {"pages": list(documents.values())}, writes=["pages"])
    graph.add_map("skim", dspy.Predict(Gist), over="pages", item="document", into="gists", reads=["question"])
    graph.add_edge(START, ["shelve", *GROUPS])  # fork: the documents to skim, and a reader for each group
    for group, names in GROUPS.items():
        graph.add_node(group, reader(names), writes=["facts"])
    graph.add_node("answer", dspy.Predict(Answer))
    graph.add_edge("shelve", "skim")
    graph.add_edge(["skim", *GROUPS], "answer")  # join: once, the facts merged by the policies
    graph.add_edge("answer", END)
    return graph.compile()


def main() -> None:
    dspy.configure(lm=language_model())
    program = library()
    documents = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("*.txt"))}
    run = program.run({"question": "When was the barrier opened, and what did it cost?", "documents": documents})

    print(f"{len(documents)} documents read\n")
    for name, gist in zip(documents, run.state["gists"], strict=True):
        print(f"  {name:<19} {gist if len(gist) < 76 else gist[:75] + '…'}")

    print("\nwhat was found, and which node wrote it")
    for fact, value in run.state["facts"].items():
        print(f"  {fact:<13} {value:>6,}   {run.blame(('facts', fact)).node}")

    print("\nwhere the sources disagreed")
    for conflict in run.conflicts:
        written = ", ".join(f"{author} {value:,}" for author, value in conflict.values)
        print(f"  {conflict.path[-1]:<13} {written} -> {conflict.value:,} ({conflict.policy}, by {conflict.winner})")

    print("\nthe facts after each group, and after the join")
    for commit in run.commits:
        if commit.node in GROUPS or commit.node.startswith("join"):
            print(f"  {commit.version} {commit.node:<12} {dict(run.at(commit.id)['facts'])}")
    print(f"\nanswer: {run.state['answer']}")


if __name__ == "__main__":
    main()
