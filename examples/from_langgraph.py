"""A support desk of LangGraph is explained, converted, compared on 48 tickets, and tuned by predictors and fields.

python examples/from_langgraph.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/from_langgraph.py   # with a real model: some 1,700 calls

START ─┬─ classify ─┐        ┌─ search ─┐
       └─ judge ────┴─ plan ─┼─ search ─┼─ reply ─┬─ approve ─┬─ END
                             └─ ... ────┘         └───────────┘
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import dspy
from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from model import language_model
from triage import Classify, Judge, tickets

from dspyer import CompiledGraph, Thread, optimize
from dspyer.migrate import explain_langgraph, from_langgraph

# The desk as it was found, in LangGraph.

ARTICLES = {
    "billing": ["Refunds take five days.", "Invoices are under Account, Billing."],
    "bug": ["Known faults are on the status page."],
    "how_to": ["The manual has a chapter for each page."],
    "account_access": ["An owner can reset each password."],
    "feature_request": ["Wishes are read on Fridays."],
    "cancellation": ["A contract ends with its month."],
}
WORDS = {
    "category": {
        "charge": "billing", "invoice": "billing", "error": "bug", "wrong": "bug", "password": "account_access",
        "log in": "account_access", "cancel": "cancellation", "end": "cancellation", "wish": "feature_request",
    },
    "urgency": {"now": "high", "today": "high", "urgent": "high", "question": "low", "curious": "low"},
}  # fmt: skip


class Keywords(SimpleChatModel):
    """A chat model that needs no network: it answers by single words of the prompt. It stands for a real one."""

    @property
    def _llm_type(self) -> str:
        return "keywords"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        question, _, ticket = str(messages[-1].content).lower().partition("ticket: ")
        asked, default = ("category", "how_to") if "category" in question else ("urgency", "normal")
        return next((label for word, label in WORDS[asked].items() if word in ticket), default)


model = Keywords()


class Desk(MessagesState):
    """A conversation with one customer; its last message is the ticket."""

    category: str
    urgency: str
    queue: str
    shelves: list[str]
    articles: Annotated[list[str], operator.add]
    sent: bool


# --8<-- [start:nodes]
def classify(state: Desk) -> dict[str, Any]:
    ticket = state["messages"][-1].content
    labels = ", ".join(ARTICLES)
    prompt = f"Which category is this? {labels}.\n\nTicket: {ticket}"
    return {"category": model.invoke(prompt).content}


def approve(state: Desk) -> dict[str, Any]:
    said = interrupt(f"Send this? {state['messages'][-1].content}")
    return {"sent": said == "yes"}


# --8<-- [end:nodes]
def judge(state: Desk) -> dict[str, Any]:
    ticket = state["messages"][-1].content
    prompt = f"Which urgency has this? low, normal, high.\n\nTicket: {ticket}"
    return {"urgency": model.invoke(prompt).content}


def plan(state: Desk) -> dict[str, Any]:
    queue = f"{state['category']}, {state['urgency']}"
    return {"shelves": sorted({state["category"], "how_to"}), "queue": queue}


def look_up(state: Desk) -> list[Send]:
    return [Send("search", {"shelf": shelf}) for shelf in state["shelves"]]


def search(state: dict[str, str]) -> dict[str, Any]:
    return {"articles": ARTICLES.get(state["shelf"], [])}


def reply(state: Desk) -> dict[str, Any]:
    text = f"About your {state['category']} request: {' '.join(state['articles'])}"
    return {"messages": [AIMessage(text)], "sent": state["urgency"] != "high"}


def needs_approval(state: Desk) -> Literal["approve", "__end__"]:
    return "approve" if state["urgency"] == "high" else "__end__"


# --8<-- [start:graph]
builder = StateGraph(Desk)
for node in (classify, judge, plan, search, reply, approve):
    builder.add_node(node)
builder.add_edge(START, "classify")
builder.add_edge(START, "judge")
builder.add_edge(["classify", "judge"], "plan")
builder.add_conditional_edges("plan", look_up, ["search"])
builder.add_edge("search", "reply")
builder.add_conditional_edges("reply", needs_approval)
builder.add_edge("approve", END)
app = builder.compile(checkpointer=InMemorySaver())
# --8<-- [end:graph]

# What dspyer makes of it.

TRAIN, TEST = 144, 48
State = dict[str, Any]
Messages = list[AnyMessage]


def examples(split: Any, count: int) -> list[dspy.Example]:
    """Tickets with what people said about them, as inputs of the graph."""
    return [
        dspy.Example(
            messages=[HumanMessage(ticket.text)],
            category=ticket.category,
            urgency=ticket.urgency,
            queue=f"{ticket.category}, {ticket.urgency}",
        ).with_inputs("messages")
        for ticket in tickets(split)[:count]
    ]


def convert(ticket: HumanMessage) -> None:
    """Run one ticket, and answer the question that the run stops at."""
    # --8<-- [start:convert]
    program = from_langgraph(app).compile(store=":memory:")
    thread = program.thread("ticket-1")
    run = thread.run({"messages": [ticket]})
    print(run.status, [question.key for question in run.questions])

    run = thread.resume({"approve-0": "yes"})
    print(run.status, "|", run.state["queue"], "|", run.state["sent"])
    print("the queue was written by", run.blame("queue").node)
    # --8<-- [end:convert]


# --8<-- [start:both]
def in_langgraph(message: HumanMessage, name: str) -> State:
    config: Any = {"configurable": {"thread_id": name}}
    state = app.invoke({"messages": [message]}, config)
    if "__interrupt__" in state:
        state = app.invoke(Command(resume="yes"), config)
    return dict(state)


def in_dspyer(thread: Thread, message: HumanMessage) -> State:
    run = thread.run({"messages": [message]})
    if run.questions:
        run = thread.resume({"approve-0": "yes"})
    return run.state.to_dict()
    # --8<-- [end:both]


def same(one: State, other: State) -> bool:
    """Whether two states are equal. The ids of messages, which LangGraph draws at random, are left out."""
    for state in (one, other):
        state["messages"] = [(message.type, message.content) for message in state["messages"]]
    return one == other


def compare(held_out: list[dspy.Example]) -> None:
    program = from_langgraph(app).compile(store=":memory:")
    messages = {f"ticket-{number}": example.messages[0] for number, example in enumerate(held_out)}
    equal = asked = 0
    for name, message in messages.items():
        thread = program.thread(name)
        equal += same(in_langgraph(message, name), in_dspyer(thread, message))
        asked += any(commit.node == "approve" for commit in thread.history())
    print(f"the same state on {equal} of {len(held_out)} tickets; {asked} of them asked a question")


# --8<-- [start:predictors]
def classify_anew(messages: Messages, predict: dspy.Predict) -> State:
    return {"category": predict(text=messages[-1].content).category}


def judge_anew(messages: Messages, predict: dspy.Predict) -> State:
    return {"urgency": predict(text=messages[-1].content).urgency}


NODES = {
    "classify": {
        "node": classify_anew,
        "modules": {"predict": dspy.Predict(Classify)},
        "writes": ["category"],
    },
    "judge": {
        "node": judge_anew,
        "modules": {"predict": dspy.Predict(Judge)},
        "writes": ["urgency"],
    },
}


def desk(*names: str) -> CompiledGraph:
    nodes = {name: NODES[name] for name in names}
    graph = from_langgraph(app, nodes=nodes)
    return graph.compile(answers={"approve-0": "yes"})  # no person here
    # --8<-- [end:predictors]


# --8<-- [start:metric]
FIELDS = ["category", "urgency", "queue"]
equals = {name: optimize.equals(name) for name in FIELDS}
metric = optimize.by_field(equals, goal="queue")
# --8<-- [end:metric]


def show(title: str, program: CompiledGraph, held_out: list[dspy.Example]) -> None:
    """A row of the table: how many values of each field are right."""
    runs = [(program.run({"messages": example.messages}).state, example) for example in held_out]
    counts = [sum(state[name] == example[name] for state, example in runs) for name in FIELDS]
    print(f"  {title:<28}" + "".join(f"{count:>10}" for count in counts))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the optimizer, which prints a page."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def tune(train: list[dspy.Example]) -> CompiledGraph:
    """The desk with demonstrations from runs over the training tickets."""
    # --8<-- [start:tune]
    optimizer = optimize.FewShot(
        metric,
        max_demos=96,
        max_labeled_demos=0,
        rollouts=4,
    )
    return optimizer.compile(desk("classify", "judge"), trainset=train)
    # --8<-- [end:tune]


def main() -> None:
    train, held_out = examples("train", TRAIN), examples("test", TEST)
    print(explain_langgraph(app), "\n")
    convert(next(example.messages[0] for example in held_out if example.urgency == "high"))
    compare(held_out)

    dspy.configure(lm=language_model())
    print(f"\nright, of {TEST} tickets        " + "".join(f"{name:>10}" for name in FIELDS))
    show("converted, its chat model", desk(), held_out)
    show("classify is a predictor", desk("classify"), held_out)
    show("judge, too", desk("classify", "judge"), held_out)

    print()
    print(optimize.headroom(desk("classify", "judge"), held_out, metric))

    with quietly():
        tuned = tune(train)
    print("\ntuned")
    show("in this process", tuned, held_out)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "desk.json"
        # --8<-- [start:save]
        tuned.save(file)
        again = desk("classify", "judge")
        again.load(file)
        # --8<-- [end:save]
    show("saved and loaded", again, held_out)


if __name__ == "__main__":
    main()
