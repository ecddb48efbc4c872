"""A support desk in LangGraph, as `coming_over.py` finds it. Nothing in this file knows dspyer.

START ─┬─ classify ─┐        ┌─ search ─┐
       └─ judge ────┴─ plan ─┼─ search ─┼─ reply ─┬─ approve ─┬─ END
                             └─ ... ────┘         └───────────┘
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

CATEGORIES = ["billing", "bug", "how_to", "account_access", "feature_request", "cancellation"]
URGENCIES = ["low", "normal", "high"]
ARTICLES = {
    "billing": ["Refunds take five days.", "Invoices are under Account, Billing."],
    "bug": ["Known faults are on the status page."],
    "how_to": ["The manual has a chapter for each page."],
    "account_access": ["An owner can reset each password."],
    "feature_request": ["Wishes are read on Fridays."],
    "cancellation": ["A contract ends with its month."],
}


class Keywords(SimpleChatModel):
    """A chat model that needs no network: it answers by single words of the prompt. It stands for a real one."""

    @property
    def _llm_type(self) -> str:
        return "keywords"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        question, _, ticket = str(messages[-1].content).lower().partition("ticket: ")
        words = {
            "category": {
                "charge": "billing", "invoice": "billing", "error": "bug", "wrong": "bug", "password": "account_access",
                "log in": "account_access", "cancel": "cancellation", "end": "cancellation", "wish": "feature_request",
            },
            "urgency": {"now": "high", "today": "high", "urgent": "high", "question": "low", "curious": "low"},
        }["category" if "category" in question else "urgency"]  # fmt: skip
        default = "how_to" if "category" in question else "normal"
        return next((label for word, label in words.items() if word in ticket), default)


model = Keywords()


class Desk(MessagesState):
    """A conversation with one customer; its last message is the ticket."""

    category: str
    urgency: str
    shelves: list[str]
    articles: Annotated[list[str], operator.add]
    sent: bool


def classify(state: Desk) -> dict[str, Any]:
    ticket = state["messages"][-1].content
    answer = model.invoke(f"Which category is this? One of: {', '.join(CATEGORIES)}.\n\nTicket: {ticket}")
    return {"category": answer.content}


def judge(state: Desk) -> dict[str, Any]:
    ticket = state["messages"][-1].content
    answer = model.invoke(f"Which urgency has this? One of: {', '.join(URGENCIES)}.\n\nTicket: {ticket}")
    return {"urgency": answer.content}


def plan(state: Desk) -> dict[str, Any]:
    return {"shelves": sorted({state["category"], "how_to"})}


def look_up(state: Desk) -> list[Send]:
    return [Send("search", {"shelf": shelf}) for shelf in state["shelves"]]


def search(state: dict[str, str]) -> dict[str, Any]:
    return {"articles": ARTICLES.get(state["shelf"], [])}


def reply(state: Desk) -> dict[str, Any]:
    text = f"About your {state['category']} request: {' '.join(state['articles'])}"
    return {"messages": [AIMessage(text)], "sent": state["urgency"] != "high"}


def needs_approval(state: Desk) -> Literal["approve", "__end__"]:
    return "approve" if state["urgency"] == "high" else "__end__"


def approve(state: Desk) -> dict[str, Any]:
    said = interrupt(f"Send this? {state['messages'][-1].content}")
    return {"sent": said == "yes"}


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
