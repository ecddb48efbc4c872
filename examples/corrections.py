"""A support desk learns from its archive: what it did, and what people have corrected.

python examples/corrections.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/corrections.py   # with a real model: some 1,400 calls

START ── classify (a map over the requests of a mail) ── judge ── review ── route ── END

`judge` drafts the urgency of a mail, and `review` edits it: under an emergency contract, every mail is urgent.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from operator import eq
from typing import Any, Literal, NamedTuple

import dspy
from model import language_model
from pydantic import BaseModel
from triage import Category, Classify, Judge, Urgency, tickets
from tune import queue_of, quietly

from dspyer import END, START, Archive, CompiledGraph, Graph, Run, optimize

MAILS, TEST, CALLS = 40, 24, 110
Contract = Literal["basic", "emergency"]


class Mail(BaseModel):
    """One mail with several requests."""

    requests: list[str] = []
    contract: Contract = "basic"
    text: str = ""
    categories: list[Category] = []
    urgency: Urgency | None = None
    queue: str = ""


class Review(dspy.Signature):
    """Edit the urgency of a mail by the contract of its writer."""

    drafted: Urgency = dspy.InputField()
    contract: Contract = dspy.InputField()
    urgency: Urgency = dspy.OutputField()


def desk(store: Any = None) -> CompiledGraph:
    """Build and compile the graph."""
    graph = Graph(Mail, name="Mails", inputs=["requests", "contract"])
    graph.add_map("classify", dspy.Predict(Classify), over="requests", item="text", into="categories")
    graph.add_node("join", lambda requests: {"text": " ".join(requests)}, writes=["text"])
    graph.add_node("judge", dspy.Predict(Judge))
    graph.add_node("review", dspy.Predict(Review), reads={"drafted": "urgency", "contract": "contract"})
    graph.add_node("route", lambda categories, urgency: {"queue": queue_of(categories[0], urgency)}, writes=["queue"])
    return graph.add_path(START, "classify", "join", "judge", "review", "route", END).compile(store=store)


class Labelled(NamedTuple):
    """A mail, and what a person would say of it."""

    inputs: dict[str, Any]
    categories: list[str]
    urgency: str


def mails(split: Any) -> Iterator[Labelled]:
    """Mails of two requests that are equally urgent; every third writer has an emergency contract."""
    waiting: dict[str, Any] = {}
    made = 0
    for ticket in tickets(split):
        other = waiting.pop(ticket.urgency, None)
        if other is None:
            waiting[ticket.urgency] = ticket
            continue
        contract = "emergency" if made % 3 == 2 else "basic"
        inputs = {"requests": [other.text, ticket.text], "contract": contract}
        yield Labelled(inputs, [other.category, ticket.category], "high" if contract == "emergency" else ticket.urgency)
        made += 1


def work(program: CompiledGraph) -> None:
    """A day at the desk: mails are answered, and a person corrects what is wrong."""
    for number, mail in enumerate([*mails("train")][:MAILS]):
        thread = program.thread(f"mail-{number}")
        run = thread.run(mail.inputs)
        if list(run.state["categories"]) != mail.categories:
            thread.update({"categories": mail.categories}, as_node="classify")
            run = thread.resume()
        if run.state["urgency"] != mail.urgency:
            thread.update({"urgency": mail.urgency}, as_node="review")
            thread.resume()


def draft_of(example: dspy.Example, state: Any) -> str:
    """Nobody has corrected drafts: without an emergency contract they are what the review says, else nobody knows."""
    urgency: str = example.gold_urgency if example.contract == "basic" else state["urgency"]
    return urgency


metric = optimize.by_field(
    {
        "categories": optimize.equals("gold_categories"),
        "judge.urgency": optimize.equals(draft_of),
        "review.urgency": optimize.equals("gold_urgency"),
        "queue": optimize.equals("gold_queue"),
    },
    goal="queue",
)
GOLD = {"gold_categories": "categories", "gold_urgency": "urgency", "gold_queue": "queue"}


def scores(program: Any) -> str:
    """The shares of right categories, urgencies and queues of mails that nobody has seen, as cells of the table."""
    right: dict[str, list[bool]] = {"category": [], "urgency": [], "queue": []}
    for mail in [*mails("test")][:TEST]:
        run: Run = program.run(mail.inputs)
        right["category"] += [*map(eq, run.state["categories"], mail.categories)]
        right["urgency"].append(run.state["urgency"] == mail.urgency)
        right["queue"].append(run.state["queue"] == queue_of(mail.categories[0], mail.urgency))
    return "".join(f"{sum(found) / len(found):>10.0%}" for found in right.values())


def main() -> None:
    lm = language_model()
    dspy.configure(lm=lm)
    with tempfile.TemporaryDirectory() as folder:
        work(desk(f"{folder}/desk.db"))
        with Archive(f"{folder}/desk.db") as archive:
            learned = optimize.dataset(archive, GOLD)
    corrected = Counter(field for example in learned for field in example.corrected)
    told = ", ".join(f"{field} in {count}" for field, count in corrected.items())
    print(f"{len(learned)} mails in the archive; people have corrected {told}")
    print(f"\nWhere the desk loses: {optimize.headroom(desk(), learned, metric)}")
    gepa = optimize.GEPA(
        metric, reflection_lm=lm, max_metric_calls=CALLS, reflection_minibatch_size=24, num_threads=4, seed=1
    )
    train = 2 * len(learned) // 3
    with quietly():
        tuned = gepa.compile(desk(), trainset=learned[:train], valset=learned[train:])
    print(f"\n{gepa.stats}")
    print(f"\n{f'of {TEST} new mails':<22}" + "".join(f"{name:>10}" for name in ("category", "urgency", "queue")))
    print(f"  {'as written':<20}{scores(desk())}")
    print(f"  {'tuned':<20}{scores(tuned)}")


if __name__ == "__main__":
    main()
