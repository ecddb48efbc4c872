"""What is measured: the rows of the tables, with the goals of the design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import stored_runs
from bench.environments import HERE
from bench.process import Library

DSPYER = Library(
    "dspyer",
    HERE,
    (
        *("dspyer_bench", "dspyer_state_bench", "handwritten_bench"),
        *("dspyer_stored_bench", "dspyer_lms_bench", "dspyer_agents_bench", "dspyer_search_bench"),
    ),
)
LANGGRAPH = Library("LangGraph", "graphs", ("langgraph_bench", "langgraph_stored_bench"), "langgraph")
BURR = Library("Burr", "graphs", ("burr_bench",), "apache-burr")
PYDANTIC_GRAPH = Library("pydantic-graph", "graphs", ("pydantic_graph_bench",), "pydantic-graph")
PLAIN = Library("plain Python", HERE, ("plain_bench",))

Size = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One cell of a row: a library that does the work, and how much of it one round does.

    Attributes:
        column: heading of the cell.
        library: whose process does it.
        work: name of the workload.
        size: arguments of the workload.
    """

    column: str
    library: Library
    work: str
    size: Size = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One work, by all libraries that can do it. The first entry is dspyer's.

    Attributes:
        title: what is done.
        unit: of the figures: `µs`, `ms`, `MiB`, `KiB`, `×` or `steps`.
        entries: who does it.
        goal: the goal of the design, in `unit`; or in multiples of the column `against`: below 1 to be faster.
        against: the column that the goal is relative to.
    """

    title: str
    unit: str
    entries: tuple[Entry, ...]
    goal: float | None = None
    against: str = ""


@dataclass(frozen=True)
class Table:
    """Rows with the same columns.

    Attributes:
        name: its heading.
        about: a sentence on what the figures are.
        rows: its rows.
    """

    name: str
    about: str
    rows: tuple[Row, ...]


def row(title: str, unit: str, work: str, size: Size, rivals: Mapping[Library, Size | None], **goal: Any) -> Row:
    """A row in which all libraries do the same work; a rival's own sizes make a slow one do less of it."""
    entries = [Entry(DSPYER.name, DSPYER, work, size)]
    for library, own in rivals.items():
        entries.append(Entry(library.name, library, work, {**size, **(own or {})}))
    return Row(title, unit, tuple(entries), **goal)


def loops() -> list[Row]:
    """Steps of a loop, by the size of the state. LangGraph needs half a minute to start with 100,000 channels."""
    rows = []
    for history, goals in ((False, (15, 15, 25)), (True, (20, 20, 35))):
        for keys, goal in zip((1, 1_000, 100_000), goals, strict=True):
            few = {"steps": 1_000 if keys == 1 else 100 if keys == 1_000 else 3}
            rivals: dict[Library, Size | None] = {BURR: few} if keys == 100_000 else {LANGGRAPH: few, BURR: few}
            if not history:
                rivals |= {PYDANTIC_GRAPH: {"steps": 500}}
            rivals[PLAIN] = {"steps": 20} if history and keys == 100_000 else {"steps": 1_000}
            made = row(
                f"step of a loop, {keys:,} key{'s' if keys > 1 else ''}{', history kept' if history else ''}",
                "µs",
                "loop",
                {"keys": keys, "steps": 10_000 if keys == 100_000 else 2_000, "history": history},
                rivals,
                goal=goal,
            )
            if keys > 1:
                size = {"keys": keys, "steps": 500, "history": history, "one_field": True}
                made = Row(
                    made.title,
                    made.unit,
                    (*made.entries, Entry("LangGraph, keys in one field", LANGGRAPH, "loop", size)),
                    made.goal,
                )
            rows.append(made)
    size = {"keys": 1, "steps": 1_000}
    retried = (Entry("retry=3", DSPYER, "loop", {**size, "retry": 3}), Entry("without", DSPYER, "loop", size))
    rows.append(Row("A step of a loop with a retry policy that nothing needs", "µs", retried, 1.2, "without"))
    traced = [Entry(how, DSPYER, "loop", {**size, "tracing": how}) for how in ("recorded", "left out")]
    entries = (*traced, Entry("without", DSPYER, "loop", size))
    rows.append(Row("A step of a loop with an OpenTelemetry span", "µs", entries, 65))
    rows.append(row("step from the node cache", "µs", "cached", {"steps": 300, "hits": True}, {}))
    rows.append(row("step that is stored in the node cache", "µs", "cached", {"steps": 300, "hits": False}, {}))
    return rows


def parallel() -> list[Row]:
    """Forks, fan-outs and maps."""
    rows = []
    for mode, goal in (("sync", 60), ("async", 40)):
        rivals: dict[Library, Size | None] = {LANGGRAPH: None, BURR: {"branches": 200}, PLAIN: None}
        if mode == "async":
            rivals[PYDANTIC_GRAPH] = None
        size: dict[str, Any] = {"branches": 1_000, "mode": mode}
        rows.append(
            row(f"`Send` to 1,000 branches and join, {mode}, a branch", "µs", "fan_out", size, rivals, goal=goal)
        )
        rows.append(row(f"map over 1,000 items, {mode}, an item", "µs", "map", size, rivals))
    for mode in ("sync", "async"):
        for keys in (1, 1_000, 100_000):
            rivals = {LANGGRAPH: {"steps": 100 if keys == 1 else 30}} if keys < 100_000 else {}
            rows.append(
                row(
                    f"fork in two and join (4 nodes), {keys:,} key{'s' if keys > 1 else ''}, {mode}, a round",
                    "µs",
                    "fork",
                    {"keys": keys, "steps": 300, "mode": mode},
                    rivals,
                )
            )
    return rows


def calls() -> list[Row]:
    """What a run and a compilation cost whatever they do."""
    all_libraries: dict[Library, Size | None] = dict.fromkeys((LANGGRAPH, BURR, PYDANTIC_GRAPH))
    crowded: dict[Library, Size | None] = {LANGGRAPH: None}
    rows = [
        row("a whole call of one node, 1 key", "µs", "call", {"keys": 1}, all_libraries),
        row("a whole call of one node, 1,000 keys", "µs", "call", {"keys": 1_000}, all_libraries),
        row("a whole call of one node, 100,000 keys", "ms", "call", {"keys": 100_000}, {BURR: None}),
    ]
    rows.extend(
        row(f"500 runs of one program at once, {mode}, a run", "µs", "crowd", {"runs": 500, "mode": mode}, crowded)
        for mode in ("sync", "async")
    )
    rows.extend(
        row(f"build and compile a chain of {nodes:,} nodes", "ms", "compile_chain", {"nodes": nodes}, all_libraries)
        for nodes in (10, 100, 1_000)
    )
    return rows


BY_HAND = (("dspyer", ""), ("by hand", "_by_hand"))


def modules() -> list[Row]:
    """Graphs of DSPy modules compared with hand-written `dspy.Module`s, both in one process."""
    rows = []
    for title, work, goal in (
        ("chain of three predictors, async", "modules_chain_async", 1.25),
        ("loop of ten predictor calls", "modules_loop", 1.25),
        ("fork of two predictors and join (by hand: one after the other)", "modules_fork", None),
        ("fork of two predictors and join, async (by hand: `asyncio.gather`)", "modules_fork_async", None),
    ):
        size = {"calls": 10}
        entries = (Entry(DSPYER.name, DSPYER, work, size), Entry("by hand", DSPYER, f"{work}_by_hand", size))
        rows.append(Row(title, "µs", entries, goal, "by hand"))
    size = {"examples": 1_000}
    four, hand = (Entry(name, DSPYER, f"modules_evaluate{how}", size) for name, how in BY_HAND)
    rows.append(Row("`Evaluate` of 1,000 examples, four predictors, an example", "µs", (four, hand), 1.25, "by hand"))
    return rows


def turns_of_agents() -> list[Row]:
    """Turns of `agents.tool_loop` compared with those of `dspy.ReActV2`, and their bytes."""
    rows = []
    for turns, goal in ((10, 1.1), (100, 1.2)):
        ours, theirs = (
            Entry(column, DSPYER, "agent_turns", {"turns": turns, "by_hand": by_hand})
            for column, by_hand in ((DSPYER.name, False), ("by hand", True))
        )
        rows.append(Row(f"a turn of {turns} (by hand: `dspy.ReActV2`)", "µs", (ours, theirs), goal, "by hand"))
    size = {"turns": 100, "size": 200}
    title = "100 turns of 200 bytes, on disk / final state"
    return [*rows, Row(title, "×", (Entry(DSPYER.name, DSPYER, "agent_bytes", size),), 2.5)]


def trials_of_searches() -> list[Row]:
    """Trials of `dspyer.search`: a late one, its bytes, and a round of them compared with `dspy.BestOfN`."""
    late = Entry(DSPYER.name, DSPYER, "late_trial", {"trials": 10_000})
    size = Entry(DSPYER.name, DSPYER, "trial_bytes", {"trials": 30, "text": 1_000_000})
    ours, theirs = (
        Entry(column, DSPYER, "round_of_trials", {"trials": 8, "seconds": 0.05, "by_hand": by_hand})
        for column, by_hand in ((DSPYER.name, False), ("by hand", True))
    )
    return [
        Row("`choose` and `grow` of the 10,000th trial of `mcts`", "ms", (late,), 2),
        Row("a trial with a state of 1 MB that it does not change, on disk", "KiB", (size,), 1),
        Row("`best_of(8, per_round=8)`, LM calls of 50 ms (by hand: `dspy.BestOfN`)", "ms", (ours, theirs), 65),
    ]


def limits() -> list[Row]:
    """Requests under a rate limit."""
    size = {"items": 60, "width": 32, "window": 0.5, "share": 0.9}
    title = "60 LM calls, 32 at once, to a server that takes 20 a second: time / 3 s"
    return [Row(title, "×", (Entry(DSPYER.name, DSPYER, "limited", size),), 1.15)]


def states() -> list[Row]:
    """Operations on states while versions are alive. A copier keeps fewer: a thousand would need gigabytes."""

    def state_row(title: str, work: str, size: Size, goal: float, copiers: Mapping[str, Size], rivals: Any) -> Row:
        made = row(title, "µs", work, {**size, "alive": 1_000, "ops": 1_000}, rivals, goal=goal)
        extra = tuple(Entry(how, PLAIN, work, {**size, **own, "how": how}) for how, own in copiers.items())
        return Row(made.title, made.unit, (*made.entries, *extra), made.goal)

    few, some = {"alive": 3, "ops": 3}, {"alive": 20, "ops": 20}
    return [
        state_row(
            "patch one key of 100,000",
            "patch_key",
            {"keys": 100_000},
            5,
            {"deepcopy": few, "dict copy": some},
            {BURR: some},
        ),
        state_row(
            "append to 10,000 messages",
            "append_message",
            {"messages": 10_000},
            5,
            {"deepcopy": few, "dict copy": {"alive": 1_000, "ops": 200}},
            {BURR: few},
        ),
        state_row(
            "patch one leaf at depth 20",
            "patch_leaf",
            {"depth": 20},
            60,
            {"deepcopy": {"alive": 1_000, "ops": 200}, "dict copy": {"alive": 1_000, "ops": 1_000}},
            {},
        ),
    ]


def sizes() -> list[Row]:
    """Memory."""
    all_libraries: dict[Library, Size | None] = {LANGGRAPH: None, BURR: None}
    kept = row(
        "1,000 versions of 1,000 keys", "MiB", "memory", {"keys": 1_000, "versions": 1_000}, all_libraries, goal=2
    )
    copies = Entry("dict copy", PLAIN, "memory", {"keys": 1_000, "versions": 1_000})
    return [
        Row(kept.title, kept.unit, (*kept.entries, copies), kept.goal),
        row("a fork that changes the last of 2,000 messages", "KiB", "fork_bytes", {"items": 2_000}, {LANGGRAPH: None}),
    ]


def stored() -> list[Row]:
    """Runs in stores."""
    return [
        row(
            work.title,
            work.unit,
            work.work,
            work.size,
            {} if work.rival is None else {LANGGRAPH: work.rival},
            goal=work.goal,
        )
        for work in stored_runs.WORKS
    ]


def tables() -> list[Table]:
    """Everything that is measured."""
    return [
        Table("Runs", "Nodes that do almost nothing, no store, garbage collector on.", (*loops(), *calls())),
        Table("Branches", "The same nodes in parallel branches.", tuple(parallel())),
        Table(
            "DSPy modules",
            'Whole programs whose LM calls take no time, compared with a `dspy.Module` of the same parts ("by hand").',
            tuple(modules()),
        ),
        Table(
            "Agents",
            "Turns of an agent with one tool call each, whose LM takes no time. What `dspy.ReActV2` does is by hand.",
            tuple(turns_of_agents()),
        ),
        Table(
            "Searches",
            "Trials of `dspyer.search`. What `dspy.BestOfN` does, one trial after the other, is by hand.",
            tuple(trials_of_searches()),
        ),
        Table(
            "Rate limits",
            "A map over HTTP, with `lms.reliable` at 90 % of the limit of the server, which refuses at most 1 %.",
            tuple(limits()),
        ),
        Table(
            "States",
            "One operation while 1,000 versions are in memory (fewer for libraries that copy), garbage collector on.",
            tuple(states()),
        ),
        Table("Memory", "Bytes that remain allocated, measured by `tracemalloc`.", tuple(sizes())),
        Table(stored_runs.NAME, stored_runs.ABOUT, tuple(stored())),
    ]
