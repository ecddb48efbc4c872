"""Support tickets through a graph: four branches at once, one join, a conflict with a winner, a loop until it is good.

python examples/quickstart.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/quickstart.py   # with a real model
"""

from __future__ import annotations

import logging

import dspy
from model import language_model
from triage import desk, tickets

from dspyer import Run
from dspyer.events import Committed, ConflictFound, Forked, Joined

SHOWN = 12


def main() -> None:
    lm = language_model()
    dspy.configure(lm=lm)
    logging.getLogger("dspyer").setLevel(logging.ERROR)  # conflicts are shown below
    program = desk()
    inbox = tickets("dev")[:SHOWN]
    print(f"Support desk with {lm.model}\n")
    print(program.graph.explain())

    print("\nOne ticket, as it happens")
    ticket = next(ticket for ticket in inbox if ticket.plan == "business")
    print(f"  {ticket.text}\n")
    with program.stream(ticket.inputs().toDict()) as stream:
        for event in stream:
            tell(event)
    assert stream.run is not None
    print(f"\n{stream.run.report()}")

    print(f"\n{SHOWN} tickets")
    for ticket in inbox:
        run = program.run(ticket.inputs().toDict())
        print(line(ticket, run))
    print(
        "\nRight or wrong is marked by the labels of the data. See what an optimizer makes of it: examples/optimize.py"
    )


def tell(event: object) -> None:
    """Prints the turns of a run as they happen; its commits are in the report."""
    match event:
        case Forked(targets=targets):
            print(f"  fork    {', '.join(targets)}")
        case ConflictFound(conflict=conflict):
            said = ", ".join(f"{author}: {value}" for author, value in conflict.values)
            path = ".".join(map(str, conflict.path))
            print(f"  merge   {path} ({said}) -> {conflict.value}, by {conflict.winner}")
        case Joined(node=node, branches=branches):
            print(f"  join    {len(branches)} branches at {node}")
        case Committed(commit=commit) if commit.node == "check" and commit.patch.get("remarks"):
            print(f"  again   {commit.patch['remarks'][0]}")
        case _:
            pass


def line(ticket: dspy.Example, run: Run) -> str:
    state = run.state
    category = f"{state['category']} {'✓' if state['category'] == ticket.category else '✗'}"
    urgency = f"{state['urgency']} {'✓' if state['urgency'] == ticket.urgency else '✗'}"
    author = run.blame("urgency").node
    text = ticket.text if len(ticket.text) < 44 else f"{ticket.text[:43]}…"
    return f"  {text:<44}  {category:<18} {urgency:<9} said {author:<9} {len(run.commits)} commits"


if __name__ == "__main__":
    main()
