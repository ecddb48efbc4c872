"""Support tickets through a graph: four parallel branches, a join, a conflict with a winner, a loop with a check.

python examples/quickstart.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/quickstart.py   # with a real model
"""

from __future__ import annotations

import logging

import dspy
from model import language_model
from triage import desk, inbox, line

from dspyer.events import Committed, ConflictFound, Forked, Joined


def main() -> None:
    lm = language_model()
    dspy.configure(lm=lm)
    logging.getLogger("dspyer").setLevel(logging.ERROR)  # conflicts are shown below
    program = desk()
    print(f"Support desk with {lm.model}\n")
    print(program.graph.explain())

    print("\nOne ticket, as it happens")
    ticket, *_ = inbox()
    print(f"  \u201c{ticket.text}\u201d\n")
    with program.stream(ticket.inputs().toDict()) as stream:
        for event in stream:
            show(event)
    run = stream.run
    print(f"\n{run.report()}")
    print(
        "\nWho wrote it? "
        + ", ".join(f"{field}: {run.blame(field).node}" for field in ("category", "urgency", "reply"))
    )

    print(f"\n{len(inbox())} tickets, as the desk is written (✓ and ✗ by the labels of the data)")
    for ticket in inbox():
        print(line(ticket, program.run(ticket.inputs().toDict())))
    print("\nNext: examples/optimize.py tunes this desk and prints the same tickets again.")


def show(event: object) -> None:
    """Print an event if it is a fork, a resolved conflict, a join or a failed check; the report shows the commits."""
    match event:
        case Forked(targets=targets):
            print(f"  fork    {', '.join(targets)}")
        case ConflictFound(conflict=conflict):
            written = ", ".join(f"{author}: {value}" for author, value in conflict.values)
            path = ".".join(map(str, conflict.path))
            print(f"  merge   {path} ({written}) -> {conflict.value}, by {conflict.winner}")
        case Joined(node=node, branches=branches):
            print(f"  join    {len(branches)} branches at {node}")
        case Committed(commit=commit) if commit.node == "check" and commit.patch.get("remarks"):
            print(f"  again   {commit.patch['remarks'][0]}")
        case _:
            pass


if __name__ == "__main__":
    main()
