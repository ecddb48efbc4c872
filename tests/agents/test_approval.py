"""Tool calls that need approval, and the tool that asks the user (rule 13 of agents)."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import Retry, Run, Thread, agents, to_chat
from dspyer.agents import Approval
from dspyer.errors import ChangedGraphError, InputError, ThreadError
from dspyer.stores import Memory, Store
from dspyer.testing import ScriptedLM, no_pauses
from tests.agents.kit import SUBMIT, agent, modes, results, run_turn, start, turn
from tests.rows import each, in_turn


class Budget(BaseModel):
    limit: int = 50


class Desk:
    """A program with tools that note their calls."""

    def __init__(self, store: Store | str = ":memory:", mode: str = "sync", **options: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.mode = mode
        mail = agents.tool(self.mail if mode == "sync" else self.amail, name="mail", **{"approve": True, **options})
        self.program = agent(self.look, mail, agents.ask_user, store=store, schema=Budget)
        self.thread: Thread = self.program.thread("t")

    def look(self, word: str) -> str:
        """Looks up a word."""
        self.calls.append(("look", word))
        return word

    def mail(self, to: str, text: str = "hi") -> str:
        """Sends a mail."""
        self.calls.append(("mail", to, text))
        return f"sent to {to}"

    async def amail(self, to: str, text: str = "hi") -> str:
        """Sends a mail."""
        return self.mail(to, text)


def ask(desk: Desk, *calls: tuple[str, dict[str, Any]]) -> Run:
    """A run whose turn makes these calls; it must wait for an answer."""
    with dspy.context(lm=ScriptedLM([turn(*calls)])):
        run = start(desk.thread, desk.mode)
    assert run.status == "interrupted", run.error
    return run


def resume(desk: Desk, answers: Any, last: bool = True) -> Run:
    with dspy.context(lm=ScriptedLM([SUBMIT] if last else [])):
        return desk.thread.resume(answers) if desk.mode == "sync" else asyncio.run(desk.thread.aresume(answers))


ANSWERS: dict[str, tuple[Any, tuple[str, Any, bool], list[Any]]] = {
    "true": (True, ("mail", "sent to Ada", False), [("mail", "Ada", "At 9:40.")]),
    "false": (False, ("mail", "The call was refused.", True), []),
    "approval": (Approval(True), ("mail", "sent to Ada", False), [("mail", "Ada", "At 9:40.")]),
    "refusal with a reason": (
        Approval(False, "Ada is\n on leave"),
        ("mail", "The call was refused: Ada is on leave", True),
        [],
    ),
    "a refusal as JSON": (
        json.loads('{"ok": false, "reason": "not now"}'),
        ("mail", "The call was refused: not now", True),
        [],
    ),
    "other arguments": (
        Approval(True, args={"to": "Bob"}),
        ("mail", "sent to Bob", False),
        [("mail", "Bob", "hi")],
    ),
    "other arguments as JSON": (
        {"ok": True, "args": {"to": "Bob", "text": "x"}},
        ("mail", "sent to Bob", False),
        [("mail", "Bob", "x")],
    ),
}


@each(("case", "mode"), in_turn(ANSWERS))
def test_the_answer_decides(case: str, mode: str) -> None:
    """The question has the tool's name as its key and the call as its text; another program may resume."""
    answer, result, calls = ANSWERS[case]
    store = Memory()
    desk = Desk(store, mode)
    run = ask(desk, ("mail", {"to": "Ada", "text": "At 9:40."}))
    assert [(one.key, one.text) for one in run.questions] == [("mail", "mail(to='Ada', text='At 9:40.')?")]
    assert desk.calls == []
    later = Desk(store, mode)
    run = resume(later, {"mail": answer})
    assert run.status == "completed", run.error
    assert results(run) == [result]
    assert later.calls == calls


WRONG: dict[str, tuple[Any, str]] = {
    "a text": ("maybe", "is no bool | Approval"),
    "a letter for yes": ("y", "is no bool | Approval"),
    "a text for yes": ("true", "is no bool | Approval"),
    "a number for yes": (1, "is no bool | Approval"),
    "a text for ok": ({"ok": "on"}, "Input should be a valid boolean"),
    "a number for ok": ({"ok": 1}, "Input should be a valid boolean"),
    "a number as the reason": ({"ok": False, "reason": 3}, "Input should be a valid string"),
    "a missing ok": ({"reason": "no"}, "ok"),
    "an unknown key": ({"ok": True, "why": "no"}, "Unexpected keyword argument"),
    "a missing argument": ({"ok": True, "args": {}}, "the argument 'to' is missing"),
    "an argument of a wrong type": (Approval(True, args={"to": 3}), "3 is not of type 'string'"),
    "an unknown argument": (Approval(True, args={"to": "Ada", "cc": "Bob"}), "there is no argument 'cc'"),
}


@each(("case", "mode"), in_turn(WRONG))
def test_a_wrong_answer_leaves_the_question_open(case: str, mode: str) -> None:
    """The one who answers is told, and not the model; nothing is stored."""
    answer, text = WRONG[case]
    desk = Desk(mode=mode)
    ask(desk, ("mail", {"to": "Ada"}))
    with pytest.raises(InputError, match=text) as refusal:
        resume(desk, {"mail": answer}, last=False)
    assert "The question is open" in str(refusal.value)
    assert [one.key for one in desk.thread.questions] == ["mail"]
    assert results(resume(desk, {"mail": True})) == [("mail", "sent to Ada", False)]


@pytest.mark.parametrize("inside", [True, False], ids=["sub-agent", "agent"])
def test_edited_arguments_that_do_not_fit_are_refused_in_a_sub_agent_too(inside: bool, tmp_path: Path) -> None:
    """Also where another sub-agent has a tool of this name with other arguments."""
    office = Office(tmp_path, "sync", inside)
    with ScriptedLM([turn(("office", {"question": "Pay."})), turn(PAY)] if inside else [turn(PAY)]):
        start(office.thread)
    for args in ({"to": "Ada", "amount": "many"}, {"to": "Ada"}, {"to": "Ada", "amount": 5, "cc": "Bob"}):
        with pytest.raises(InputError, match="The question is open"):
            office.thread.resume({"pay": Approval(True, args=args)})
    assert (office.thread.status, len(office.thread.questions), office.thread.answers) == ("interrupted", 1, ())
    run, _ = office.resume(Approval(True, args={"to": "Ada", "amount": 5}), *[SUBMIT] * (inside + 1))
    assert (run.status, office.made) == ("completed", [5])


@pytest.mark.parametrize(
    ("amount", "kind"),
    [(float("nan"), float), (float("nan"), float | None), (json.loads("1e999"), float | None), (Decimal("4.5"), float)],
    ids=str,
)
def test_numbers_that_no_call_can_have_are_refused(amount: Any, kind: Any) -> None:
    """They would be kept as null or as a text: the answer would be lost, or the tool called with null."""
    made: list[Any] = []

    def pay(amount: Any) -> str:
        """Pays."""
        made.append(amount)
        return "paid"

    pay.__annotations__["amount"] = kind
    thread = agent(agents.tool(pay, approve=True), store=Memory()).thread("t")
    with ScriptedLM([turn(("pay", {"amount": 9.5})), SUBMIT]):
        asked = start(thread).questions[0]
        for answer in (Approval(True, args={"amount": amount}), {"ok": True, "args": {"amount": amount}}):
            with pytest.raises(InputError, match="The question is open") as refusal:
                thread.resume({asked.id: answer})
            assert "Frozen" not in str(refusal.value)
        assert (thread.status, thread.answers, made) == ("interrupted", (), [])
        assert thread.resume({asked.id: Approval(True, args={"amount": 4.5})}).status == "completed"
        with pytest.raises(ThreadError, match="was answered already, with Approval") as refused:
            thread.resume({asked.id: Approval(False)})
        assert "CopyOnRead" not in str(refused.value)  # what the caller gave, not how it is kept
    assert made == [4.5]


WRONG_TO = (
    "error: ValueError: Arg to is invalid: 3 is not of type 'string'; action: correct what was given, and try again"
)


@modes
def test_other_calls_run_meanwhile_and_none_runs_again(mode: str) -> None:
    """Several questions of one tool are told apart by their ids, and may be answered one after the other."""
    desk = Desk(mode=mode)
    run = ask(
        desk,
        ("look", {"word": "a"}),
        ("mail", {"to": "Ada"}),
        ("mail", {"to": "Bob"}),
        ("mail", {"to": 3}),
        ("look", {"word": "b"}),
    )
    assert sorted(desk.calls) == [("look", "a"), ("look", "b")]
    first, second = run.questions
    with pytest.raises(ThreadError, match="2 open questions have the key 'mail': answer each by its id"):
        resume(desk, {"mail": True}, last=False)
    run = resume(desk, {second.id: True}, last=False)
    assert [one.id for one in run.questions] == [first.id]
    assert desk.calls[2:] == [("mail", "Bob", "hi")]
    run = resume(desk, {"mail": Approval(False, "no")})
    assert [result[1:] for result in results(run)] == [
        ("a", False),
        ("The call was refused: no", True),
        ("sent to Bob", False),
        (f"step: mail; {WRONG_TO}", True),
        ("b", False),
    ]
    assert desk.calls[3:] == []


CONDITIONS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "an argument": (lambda amount: amount > 50, {"amount": 60}, True),
    "an argument that needs no approval": (lambda amount: amount > 50, {"amount": 40}, False),
    "an argument and a field": (lambda amount, limit: amount > limit, {"amount": 60}, True),
    "a default of the tool": (lambda amount, currency: currency != "EUR", {"amount": 60}, False),
    "an argument instead of its default": (
        lambda amount, currency: currency != "EUR",
        {"amount": 60, "currency": "USD"},
        True,
    ),
    "all arguments": (lambda **args: sorted(args) == ["amount", "currency"], {"amount": 60}, True),
    "no argument": (lambda: False, {"amount": 60}, False),
    "never": (False, {"amount": 60}, False),
}


@each(("case", "mode"), in_turn(CONDITIONS))
def test_a_function_says_whether_to_ask(case: str, mode: str) -> None:
    """Of the validated arguments, those that the model left out included, and of fields."""
    approve, args, asks = CONDITIONS[case]

    def refund(amount: int, currency: str = "EUR") -> int:
        """Refunds."""
        return amount

    program = agent(agents.tool(refund, approve=approve), schema=Budget, answers={"refund": True})
    run = run_turn(program, ("refund", args), mode=mode)
    assert results(run) == [("refund", args["amount"], False)]
    with dspy.context(lm=ScriptedLM([turn(("refund", args)), SUBMIT])):
        plain = agent(agents.tool(refund, approve=approve), schema=Budget)
        assert start(plain, mode).status == ("interrupted" if asks else "completed")


def test_an_error_in_the_condition_calls_nothing() -> None:
    called: list[int] = []

    def refund(amount: int) -> int:
        """Refunds."""
        called.append(amount)
        return amount

    run = run_turn(agent(agents.tool(refund, approve=lambda amount: 1 / 0)), ("refund", {"amount": 3}))
    assert results(run)[0][1].startswith("step: refund; error: ZeroDivisionError")
    assert called == []


def test_under_evaluate_the_answers_come_from_compile() -> None:
    sent: list[str] = []

    def mail(to: str) -> None:
        """Sends a mail."""
        sent.append(to)

    program = agent(agents.tool(mail, approve=True), answers={"mail": True})
    example = dspy.Example(question="Why?", answer="done").with_inputs("question")
    with dspy.context(lm=ScriptedLM([turn(("mail", {"to": "Ada"})), SUBMIT])):
        score = dspy.Evaluate(devset=[example], metric=lambda gold, found: found.answer == gold.answer)(program).score
    assert score == 100
    assert sent == ["Ada"]


@modes
def test_the_tool_that_asks_the_user(mode: str) -> None:
    desk = Desk(mode=mode)
    run = ask(desk, ("ask_user", {"question": "Which boat?"}))
    assert [(one.key, one.text, one.answer) for one in run.questions] == [
        ("ask_user", "Which boat?", {"type": "string"})
    ]
    with pytest.raises(InputError, match="the answer 3 to question 'ask_user'"):
        resume(desk, {"ask_user": 3}, last=False)
    assert [one.key for one in desk.thread.questions] == ["ask_user"]
    assert results(resume(desk, {"ask_user": "the red one"})) == [("ask_user", "the red one", False)]
    assert results(
        run_turn(agent(agents.ask_user, answers={"ask_user": "me"}), ("ask_user", {"question": "Who?"}))
    ) == [("ask_user", "me", False)]


def test_a_question_that_is_open_must_still_be_asked_after_a_deployment() -> None:
    def refund(amount: int) -> int:
        """Refunds."""
        return amount

    store = Memory()
    with dspy.context(lm=ScriptedLM([turn(("refund", {"amount": 3})), SUBMIT])):
        start(agent(agents.tool(refund, approve=True), store=store).thread("t"))
        with pytest.raises(ChangedGraphError, match=r"node 'refund' asks for bool .* -> no answer"):
            agent(refund, store=store).thread("t").resume({"refund": True})
        run = agent(agents.tool(refund, approve=True), store=store).thread("t").resume({"refund": True})
    assert results(run) == [("refund", 3, False)]


@modes
def test_a_retry_asks_only_once(mode: str) -> None:
    attempts: list[int] = []

    def pay(amount: int, ctx: Any) -> str:
        """Pays."""
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        return "paid"

    program = agent(agents.tool(pay, approve=True, retry=2), answers={"pay": True})
    with no_pauses():
        run = run_turn(program, ("pay", {"amount": 3}), mode=mode)
    assert results(run) == [("pay", "paid", False)]
    assert attempts == [1, 2]


class Office:
    """An agent with payments that are checked, or one that delegates them; each process makes one."""

    def __init__(self, path: Path, mode: str, inside: bool, **options: Any) -> None:
        self.made: list[Any] = []
        self.checked: list[Any] = []
        self.fails = options.pop("fails", None)
        self.problems = options.pop("problems", 0)

        def pay(to: str, amount: int) -> str:
            """Pays."""
            self.made.append(amount)
            if self.fails is not None:
                raise self.fails
            return f"paid {amount}"

        async def apay(to: str, amount: int) -> str:
            """Pays."""
            return pay(to, amount)

        def check(args: dict[str, Any]) -> list[str]:
            self.checked.append(args["amount"])
            return ["again"] if len(self.checked) <= self.problems else []

        checked: dict[str, Any] = {"check": check} if self.problems else {}
        tool = agents.tool(pay if mode == "sync" else apay, name="pay", approve=True, **checked, **options)
        self.loop = agents.tool_loop("question -> answer", [tool], name="Office")
        outer = agents.tool(self.loop, name="office", desc="Pays.")
        self.program = agent(outer, store=path / "runs.db") if inside else self.loop.compile(store=path / "runs.db")
        self.thread, self.mode = self.program.thread("t"), mode

    def resume(self, answer: Any, *turns: Any) -> tuple[Run, ScriptedLM]:
        (question,) = self.thread.questions
        answers = {question.id: answer}
        with ScriptedLM(list(turns)) as lm:
            run = self.thread.resume(answers) if self.mode == "sync" else asyncio.run(self.thread.aresume(answers))
        return run, lm


PAY = ("pay", {"to": "Ada", "amount": 1000})
FIVE, SEVEN = {"to": "Ada", "amount": 5}, {"to": "Ada", "amount": 7}
CHANGED = "(A person has changed the arguments of this call.)"
EDITS: dict[str, tuple[dict[str, Any], list[Any], list[int], dict[str, Any], str]] = {
    "once": ({}, [Approval(True, args=FIVE)], [5], FIVE, "paid 5"),
    "with an effect": ({"effect": True}, [{"ok": True, "args": FIVE}], [5], FIVE, "paid 5"),
    "repeated": ({"problems": 1}, [Approval(True, args=FIVE), True], [5, 5], FIVE, "paid 5"),
    "twice": ({"problems": 1}, [Approval(True, args=FIVE), Approval(True, args=SEVEN)], [5, 7], SEVEN, "paid 7"),
    "the repeated call alone": ({"problems": 1}, [True, Approval(True, args=FIVE)], [1000, 5], FIVE, "paid 5"),
    "the repeated call is refused": ({"problems": 1}, [Approval(True, args=FIVE), False], [5], FIVE, "paid 5"),
    "an error": (
        {"fails": ConnectionError("no line"), "retry": Retry(2, wait=wait_none())},
        [Approval(True, args=FIVE)],
        [5, 5],
        FIVE,
        "step: pay; error: ConnectionError: no line; action: try again, or continue without it",
    ),
}


@pytest.mark.parametrize(("inside", "mode"), [(False, "sync"), (True, "async")], ids=["agent", "sub-agent"])
@pytest.mark.parametrize("case", EDITS)
def test_the_call_that_a_person_has_edited_is_the_call(case: str, inside: bool, mode: str, tmp_path: Path) -> None:
    """The tool, its check, the repeated call, its question, the conversation and the chat have those arguments.

    Each answer is given in another process.
    """
    options, answers, made, args, value = EDITS[case]
    first = Office(tmp_path, mode, inside, **options)
    with ScriptedLM([turn(("office", {"question": "Pay."})), turn(PAY)] if inside else [turn(PAY)]):
        start(first.thread, mode)
    before: list[Any] = []
    for number, answer in enumerate(answers):
        last = number == len(answers) - 1
        office = Office(tmp_path, mode, inside, **{**options, "problems": options.get("problems", 0)})
        office.checked = list(before)
        edited = next((one for one in reversed(answers[:number]) if one is not True), None)
        amount = 1000 if edited is None else edited.args["amount"]
        question = office.thread.questions[0]
        assert question.call is not None
        assert (question.text, question.call.args["amount"]) == (f"pay(to='Ada', amount={amount})?", amount)
        run, lm = office.resume(answer, *[SUBMIT] * (inside + 1) * last)
        before, made = office.checked, made[len(office.made) :] if office.made == made[: len(office.made)] else [-1]
    assert (run.status, made) == ("completed", []), run.error
    assert before[:1] == ([5] if options.get("problems") and answers[0] is not True else before[:1])
    messages = run.state["sessions"]["office/call_0_0"] if inside else run.state["messages"]
    result = next(message for message in messages if message["role"] == "tool")
    assert (result["args"], result["value"]) == (args, value)
    call, told = to_chat(messages)[1:3]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == args
    # Those of the last result that there is: the one that was checked when a person refused to repeat the call.
    kept = "\n(A check of this result has found problems: again)" if case == "the repeated call is refused" else ""
    assert told["content"] == f"{CHANGED} {value}{kept}"
    prompt = str(lm.calls[0].messages)
    assert f'"amount": {args["amount"]}' in prompt
    assert CHANGED in prompt
    assert "1000" not in prompt


def test_arguments_that_a_person_leaves_as_they_are_are_not_edited(tmp_path: Path) -> None:
    office = Office(tmp_path, "sync", inside=False)
    with ScriptedLM([turn(PAY)]):
        start(office.thread)
    run, _ = office.resume(Approval(True, args=PAY[1]), SUBMIT)
    result = next(message for message in run.state["messages"] if message["role"] == "tool")
    assert "args" not in result
    assert result["content"] == "paid 1000"
