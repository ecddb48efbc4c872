"""`Context`: what a node's function gets as its parameter `ctx`. `Attempt` does the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, overload

import dspy
from typing_extensions import TypeVar

from dspyer.nodes.attempt import Attempt, Entries, Peer
from dspyer.nodes.steps import acall_program, call_program
from dspyer.views import Delta, View

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """Where in a run a node is, and what it may do besides returning a patch. A parameter named `ctx` gets it.

    Attributes:
        run_id: id of the run.
        node: name of the node.
        branch: path of the branch, `()` for the trunk.
        visit: how often the node has run in the lineage of the branch, this time included.
        execution: id of the commit that this call will make; that of an item of a map ends with its index, `[0]`.
            Every attempt of the call has the same id, every other call another.

    Example:
        >>> from dspyer import END, START, Context, Graph
        >>> def count(ctx: Context):
        ...     return {"visits": ctx.visit}
        >>> graph = Graph().add_node("count", count, writes=["visits"])
        >>> graph.add_path(START, "count", END).compile().run({}).state["visits"]
        1
    """

    run_id: str
    node: str
    branch: tuple[int, ...] = ()
    visit: int = 1
    execution: str = ""
    delegate: Attempt = field(default_factory=Attempt, repr=False, compare=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"ctx of node {self.node!r} is a part of its run, which stays in this process: pass what the other process "
            "needs as values, such as ctx.execution"
        )

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: only `retry=` makes a second one. A resume begins with 1 again.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.testing import no_pauses
            >>> def fetch(ctx):
            ...     if ctx.attempt < 3:
            ...         raise ConnectionError("no line")
            ...     return {"tries": ctx.attempt}
            >>> graph = Graph().add_node("fetch", fetch, writes=["tries"], retry=3).add_path(START, "fetch", END)
            >>> with no_pauses():
            ...     graph.compile().run({}).state["tries"]
            3
        """
        return self.delegate.number

    @property
    def seconds_left(self) -> float | None:
        """The seconds that are left: of the attempt's `timeout=`, or of the budget of the run, whichever is less.

        None if neither is bounded. For nodes that can do less when there is little time.

        Example:
            >>> from dspyer import END, START, Graph
            >>> def search(ctx):
            ...     return {"depth": "deep" if ctx.seconds_left > 10 else "quick"}
            >>> graph = Graph().add_node("search", search, writes=["depth"], timeout=60).add_path(START, "search", END)
            >>> graph.compile().run({}).state["depth"]
            'deep'
        """
        return self.delegate.seconds_left()

    def emit(self, value: object) -> None:
        """Add a value to the run's event stream at once, for progress and partial results.

        It is for who reads the stream: nothing keeps the value, `run.events` neither. If 1,000 events wait for the
        reader, this waits too; in a node that is `async def` it never waits, and the next step does.

        Args:
            value: any object; it is not committed.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("fetch", lambda ctx: ctx.emit("half done"), writes=[])
            >>> with graph.add_path(START, "fetch", END).compile().stream({}) as events:
            ...     [event.value for event in events if type(event).__name__ == "Emitted"]
            ['half done']
        """
        self.delegate.emit(value)

    @overload
    def once(self, key: str, fn: Callable[..., Awaitable[T]]) -> Awaitable[T]: ...

    @overload
    def once(self, key: str, fn: Callable[..., T]) -> T: ...

    def once(self, key: str, fn: Callable[..., Any]) -> Any:
        """Make an effect that must not be repeated: a later attempt of the node gets the recorded result.

        On a thread the result is flushed to the store before this returns. A crash between the effect and its record
        calls `fn` again; if `fn` has a parameter `key`, it gets an idempotency key, a text that is the same in every
        attempt and differs between effects, by which the other system can recognise the repeated call. An exception is
        not recorded.

        Args:
            key: the name of the effect, unique within one attempt.
            fn: a function without parameters, or with the parameter `key`, whose result can be stored. Await what this
                method returns if `fn` is async.

        Returns:
            The recorded result.

        Raises:
            AttemptError: if the key was used before in this attempt, or the result cannot be stored.
            StoreError: if the store fails.

        Example:
            The node runs twice, since its question ends the first attempt; the card is charged once.

            >>> from dspyer import END, START, Graph
            >>> def pay(ctx):
            ...     receipt = ctx.once("charge", lambda: print("charged") or "r-1")
            ...     ctx.interrupt("ship", "Ship it?")
            ...     return {"receipt": receipt}
            >>> graph = Graph().add_node("pay", pay, writes=["receipt"]).add_path(START, "pay", END)
            >>> thread = graph.compile(store=":memory:").thread("order-7")
            >>> thread.run({}).status
            charged
            'interrupted'
            >>> thread.resume(answers={"ship": True}).state["receipt"]
            'r-1'
        """
        return self.delegate.once(key, fn)

    @overload
    def interrupt(self, key: str, question: str, answer: type[T]) -> T: ...

    @overload
    def interrupt(self, key: str, question: str) -> bool: ...

    @overload
    def interrupt(self, key: str, question: str, answer: object) -> Any: ...

    def interrupt(self, key: str, question: str, answer: Any = bool) -> Any:
        """Ask a question outside the program. The first attempt ends here; an attempt that has the answer gets it.

        The node runs again from its first line when the answer is given: effects before the question belong into
        `once`.

        Args:
            key: the name of the question, unique within one attempt.
            question: the text to show.
            answer: the type of the answer, any that pydantic validates; None for a question that only waits for a
                resume.

        Returns:
            The answer. A falsy one is an answer too.

        Raises:
            AttemptError: if an earlier attempt asked another question under this key, or asked one that got answered
                and that this attempt has left out.
            InputError: if the answer is not of this type.

        Example:
            >>> from dspyer import END, START, Graph
            >>> def send(draft, ctx):
            ...     return {"sent": ctx.interrupt("approve", f"Send {draft!r}?", bool)}
            >>> graph = Graph().add_node("send", send, writes=["sent"]).add_path(START, "send", END)
            >>> thread = graph.compile(store=":memory:").thread("mail-1")
            >>> thread.run({"draft": "Dear Ada"}).questions[0].text
            "Send 'Dear Ada'?"
            >>> thread.resume(answers={"approve": True}).state["sent"]
            True
        """
        return self.delegate.interrupt(key, question, answer)

    def call(self, program: dspy.Module, inputs: Mapping[str, Any], *, key: str | None = None) -> dspy.Prediction:
        """Call a program as a part of this run. It is bound to the node with `add_node(modules=)`.

        On a thread, its commits are stored: a later attempt of the node, after a crash, a question or an error, calls
        the same program again, and only those of its nodes run that had not finished. Its questions are questions of
        this run, its events are events of this run, and its steps are in the trace. Several threads may call programs
        at once. In an async node, use `await ctx.acall(...)`.

        A program that a function calls directly, `program(...)`, is a run of its own instead: it begins anew in each
        attempt, and cannot ask questions.

        Args:
            program: a program that is bound to the node, taken as a parameter.
            inputs: its inputs by name. Each attempt must give the same ones: compute with `once` what may differ.
            key: the name of the call, unique within one attempt; by default the name under which the program is bound.

        Returns:
            The outputs of the program, as `program(...)` returns them.

        Raises:
            AttemptError: if the key was used before in this attempt, the program is not bound to the node, or an
                earlier attempt gave other inputs under this key.
            InputError: for missing, unknown or invalid inputs.
            Exception: what a node of the program raised, unwrapped.

        Example:
            The question ends the run. Once it is answered, both nodes run again, but `look_up` has its result already.

            >>> from dspyer import END, START, Graph
            >>> def look_up(topic):
            ...     print("looked up")
            ...     return {"found": f"{topic}: 6:12"}
            >>> inner = Graph(inputs=["topic"]).add_node("look_up", look_up, writes=["found"])
            >>> inner = inner.add_interrupt("use", question="Use {found}?", answer=bool, into="used")
            >>> inner = inner.add_path(START, "look_up", "use", END)
            >>> def plan(topic, research, ctx):
            ...     result = ctx.call(research, {"topic": topic})
            ...     return {"plan": result.found if result.used else "none"}
            >>> graph = Graph(name="Plan").add_node("plan", plan, modules={"research": inner}, writes=["plan"])
            >>> thread = graph.add_path(START, "plan", END).compile(store=":memory:").thread("t-1")
            >>> thread.run({"topic": "high water"}).questions[0].text
            looked up
            'Use high water: 6:12?'
            >>> thread.resume({"use": True}).state["plan"]
            'high water: 6:12'
        """
        return call_program(self.delegate, program, inputs, key)

    async def acall(
        self, program: dspy.Module, inputs: Mapping[str, Any], *, key: str | None = None
    ) -> dspy.Prediction:
        """Call a program as a part of this run from an async node. Otherwise like `call`.

        Several calls may run at once, each with a key of its own. If one asks a question, the others run on.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> shout = Graph(inputs=["text"]).add_node("shout", lambda text: {"loud": text.upper()}, writes=["loud"])
            >>> async def both(texts, shout, ctx):
            ...     calls = [ctx.acall(shout, {"text": text}, key=f"text-{i}") for i, text in enumerate(texts)]
            ...     return {"loud": [found.loud for found in await asyncio.gather(*calls)]}
            >>> graph = Graph(name="Both").add_node(
            ...     "both", both, modules={"shout": shout.add_path(START, "shout", END)}, writes=["loud"]
            ... )
            >>> graph.add_path(START, "both", END).compile()(texts=["hey", "you"]).loud
            ['HEY', 'YOU']
        """
        return await acall_program(self.delegate, program, inputs, key)

    def post(self, field: str, value: object) -> None:
        """Add an update to the node's commit, before what the node returns. Dropped if the node fails.

        A post to a live field is visible to running siblings at once. May be called from any thread of the node.

        Args:
            field: a field with a reducer, or a live one, among what the node writes, by its name in the state.
            value: one update, as the node would return it.

        Raises:
            NodeOutputError: if the node may not write the field, or it has no reducer, or the node has returned.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, reducers
            >>> Log = create_model("Log", lines=(Annotated[list[str], reducers.append], []))
            >>> def work(ctx):
            ...     ctx.post("lines", "started")
            ...     return {"lines": "done"}
            >>> graph = Graph(Log).add_node("work", work, writes=["lines"]).add_path(START, "work", END)
            >>> graph.compile().run({}).state.to_dict()["lines"]
            ['started', 'done']
        """
        self.delegate.post(field, value)

    def view(self, view: View) -> Any:
        """The entries that a view shows, as `reads` would give them to a parameter `list[Entry]`.

        Args:
            view: the view; its field must be among what the node reads.

        Returns:
            The entries; for a view that ends with `.then(fn)`, the result of that function.

        Raises:
            InputError: if the node does not read the field, or the field's type does not support the view.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, reducers, view
            >>> Log = create_model("Log", lines=(Annotated[list[str], reducers.append], []), last=(str, ""))
            >>> def read(ctx):
            ...     (entry,) = ctx.view(view("lines").last(1))
            ...     return {"last": f"{entry.author}: {entry.value}"}
            >>> graph = Graph(Log).add_node("write", lambda state: {"lines": "tide at 6"}, writes=["lines"])
            >>> graph = graph.add_node("read", read, reads=["lines"], writes=["last"])
            >>> graph.add_path(START, "write", "read", END).compile().run({}).state["last"]
            'write: tide at 6'
        """
        return self.delegate.view(view)

    def delta(self) -> Delta:
        """What has changed since the node last ran, of the fields that it reads; on its first visit all that is set.

        For a field with a reducer these are the new entries. For any other it is the net change: a value that was
        changed and changed back is not in it.

        Returns:
            The changes by field of the state: `.patch` as values, `.text` for a prompt.

        Raises:
            NodeOutputError: if the node has returned.

        Example:
            >>> from dspyer import END, START, Graph
            >>> def watch(n, ctx):
            ...     print(ctx.delta().patch)
            >>> graph = Graph().add_node("watch", watch, writes=[])
            >>> graph = graph.add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "watch", "add")
            >>> graph = graph.add_conditional_edges("add", lambda n: "watch" if n < 2 else END, ["watch", END])
            >>> graph.compile().run({"n": 0}).status
            {'n': 0}
            {'n': 1}
            'completed'
        """
        return self.delegate.delta()

    def live(self, field: str, *, timeout: float | None = None) -> Entries:
        """The entries of a live field as they arrive, for `for` in sync nodes and `async for` in async ones.

        A node gets each entry once: on its first visit from the beginning of the field, later from the position that
        its last visit in its lineage had reached. It does not get its own posts.

        The loop ends when no one else works: all other nodes that run wait too. Of these the first in path order goes
        on whose field no other one that waits can write, nor a node after it up to the next join. If a sibling has
        failed or asked a question, this attempt ends instead: it commits nothing, and a resume calls the node again.
        While it waits it occupies no slot of `max_concurrency`.

        Args:
            field: a live field among what the node reads.
            timeout: seconds to wait for an entry, without the time in which the node waits for a slot.

        Returns:
            An iterator of `LiveEntry`.

        Raises:
            AttemptError: in an item of a map.
            InputError: if the field is not live, or the node does not read it.
            TimeoutError: in the loop, if no entry arrived in time.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, live, reducers
            >>> Pad = create_model("Pad", notes=(Annotated[list[str], reducers.append, live], []))
            >>> def writes(ctx):
            ...     ctx.post("notes", "tide at 6")
            >>> def reads(ctx):
            ...     for note in ctx.live("notes"):
            ...         print(note.author, note.value)
            >>> graph = Graph(Pad).add_node("writes", writes, writes=["notes"])
            >>> graph = graph.add_node("reads", reads, reads=["notes"], writes=[])
            >>> graph = graph.add_edge(START, ["writes", "reads"]).add_edge(["writes", "reads"], END)
            >>> graph.compile().run({}).status
            writes tide at 6
            'completed'
        """
        return self.delegate.live(field, timeout)

    def doing(self, text: str) -> None:
        """Report what the node is doing: an event, and shown to siblings by `peers`.

        Args:
            text: a few words.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("count", lambda ctx: ctx.doing("counting"), writes=[])
            >>> run = graph.add_path(START, "count", END).compile().run({})
            >>> [event.text for event in run.events if type(event).__name__ == "Doing"]
            ['counting']
        """
        self.delegate.set_doing(text)

    def peers(self) -> list[Peer]:
        """The other nodes of the graph that run at the moment, in branch order, with what they are doing.

        Returns:
            A `Peer` for each; none in a run with `live=False`, where nothing depends on timing.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("alone", lambda ctx: {"peers": len(ctx.peers())}, writes=["peers"])
            >>> graph.add_path(START, "alone", END).compile().run({}).state["peers"]
            0
        """
        return self.delegate.host.peers(self.delegate)
