"""Checks as nodes and edges: `of -> check -> fix -> check -> ...`, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from dspyer.errors import list_names, suggestion
from dspyer.graph.correction import checked_node_problems, finished_fix, fix_name, plan_fix
from dspyer.graph.spec import Exit
from dspyer.layers.handlers import ErrorEdge
from dspyer.nodes.build import build_node
from dspyer.nodes.check import CheckNode, CheckOptions, checks_of, into_problems
from dspyer.nodes.node import Built, Node
from dspyer.nodes.options import NodeOptions
from dspyer.scheduler.topology import END
from dspyer.values.scalars import flag_problems, is_whole_number


class PlannedCheck(NamedTuple):
    """The names of a check: of the node that it checks, of itself, and of its fix; None without a fix."""

    of: str
    name: str
    fix: str | None


def planned_checks(nodes: Sequence[NodeOptions], problems: list[str]) -> list[PlannedCheck]:
    """The checks of a graph that follow a node; what is wrong with the others is added to `problems`."""
    names = [node.name for node in nodes]
    found: dict[str, PlannedCheck] = {}
    for options in nodes:
        check = options.node
        if not isinstance(check, CheckOptions):
            continue
        who, fix = f"check {options.name!r}", fix_name(check.of) if _has_fix(check) else None
        if check.of not in names:
            known = [node.name for node in nodes if not isinstance(node.node, CheckOptions)]
            problems.append(
                f"{who}: of={check.of!r} is no node.{suggestion(check.of, known)} Nodes: {list_names(known)}"
            )
        elif check.of in found:
            problems.append(
                f"{who}: {check.of!r} has the check {found[check.of].name!r} already: let one check find all problems"
            )
        elif fix in names:
            problems.append(
                f"{who}: the node that corrects {check.of!r} is called {fix!r}, and there is a node of this name: give "
                "that one another name"
            )
        else:
            found[check.of] = PlannedCheck(check.of, options.name, fix)
    return list(found.values())


def _has_fix(check: CheckOptions) -> bool:
    fixes: Any = check.max_fixes
    return is_whole_number(fixes) and fixes > 0


class BuiltParts(NamedTuple):
    """What the build of a graph has found so far; `build_checks` adds to it.

    Attributes:
        nodes: the nodes by name.
        modules: the modules of the program by attribute.
        unsent: by node, what is wrong unless a `Send` brings the missing values.
        problems: what is wrong.
    """

    nodes: dict[str, Node]
    modules: dict[str, dspy.Module]
    unsent: dict[str, tuple[str, ...]]
    problems: list[str]

    def add(self, name: str, built: Built) -> None:
        """Add a node that was built, or the reasons why it was not."""
        self.problems.extend(built.problems)
        self.unsent[name] = built.unknown
        if built.node is not None:
            self.nodes[name] = built.node
        if built.module is not None:
            self.modules[name] = built.module
        self.modules.update(built.more)


def build_checks(
    nodes: Sequence[NodeOptions], checks: Collection[PlannedCheck], parts: BuiltParts
) -> list[NodeOptions]:
    """Build the checks and their fixes; returns the options of all nodes, each fix after its check."""
    planned = {check.name: check for check in checks}
    of_name = {node.name: node for node in nodes}
    found: list[NodeOptions] = []
    for options in nodes:
        if not isinstance(options.node, CheckOptions):
            found.append(options)
            continue
        check = planned.get(options.name)
        fix = _build_check(options, options.node, of_name.get(options.node.of), check, parts)
        if check is not None:
            found.append(options)
            found += [fix or NodeOptions(check.fix, options.schema)] if check.fix is not None else []
    order = {options.name: options for options in found}
    built = {name: parts.nodes[name] for name in order if name in parts.nodes}
    parts.nodes.clear()
    parts.nodes.update(built)  # in the order of declaration
    return found


def _build_check(
    options: NodeOptions, given: CheckOptions, of: NodeOptions | None, check: PlannedCheck | None, parts: BuiltParts
) -> NodeOptions | None:
    """Build one check and its fix, whose options are returned."""
    who = f"check {options.name!r}"
    fixes: Any = given.max_fixes
    if not is_whole_number(fixes) or fixes < 0:
        parts.problems.append(f"{who}: max_fixes={fixes!r}: give the most corrections of one output, 0 or more")
    parts.problems.extend(f"{who}: {problem}" for problem in flag_problems(accept=given.accept))
    if given.fix is not None and fixes == 0:
        parts.problems.append(f"{who}: with max_fixes=0 nothing is corrected: leave fix= out, or allow corrections")
    wrong = into_problems(given.into, options)
    parts.problems.extend(wrong)
    built = given.build(options)
    parts.add(options.name, Built(None, built.module, built.problems, built.unknown))
    if of is None or check is None:
        return None
    node = parts.nodes.get(of.name)
    refused = checked_node_problems(node, of, who)
    parts.problems.extend(refused)
    fix = None
    if node is not None and check.fix is not None and not refused:
        planned = plan_fix(given, of, node, who)
        parts.problems.extend(planned.problems)
        fix = planned.options
        if fix is not None:
            parts.add(fix.name, finished_fix(build_node(fix), given, node))
    if built.node is not None and node is not None:
        finder = built.node
        parts.nodes[options.name] = CheckNode(
            name=options.name,
            reads=finder.reads,
            optional=finder.optional,
            writes={given.into: given.into},
            goto=() if check.fix is None else (check.fix,),
            sends=check.fix is not None,
            resources=finder.resources,
            templates=finder.templates,
            of=of.name,
            finder=finder,
            what=f"the output of {of.name!r}",
            into=given.into,
            fix=check.fix,
            max_fixes=given.max_fixes,
            accept=given.accept,
            outputs=dict(node.writes or {}),
        )
    return fix


# --- edges


def follow_checks(
    exits: dict[str, list[Exit]], checks: Collection[PlannedCheck], nodes: Mapping[str, Node], lost: Collection[str]
) -> Iterator[str]:
    """Let the edges and routers of checked nodes begin at their checks, in place; yields what is wrong with the edges.

    `nodes` are those that were built, `lost` the sources of routers that were not.
    """
    declared = [(source, target) for source, ways in exits.items() for way in ways for target in _targets(way)]
    for of, name, fix in checks:
        for part in (name, fix):
            if part is not None and exits.get(part):
                yield (
                    f"an edge begins at {part!r}, a part of the check of {of!r}: let it begin at {of!r}; the branch "
                    "follows it once the check has passed"
                )
                exits[part].clear()
        for source, target in declared:
            if target in (name, fix):
                yield f"the edge {source!r} -> {target!r} goes to a part of the check of {of!r}: let it go to {of!r}"
        ways = exits.get(of, [])
        if not ways:
            if of not in lost and not (of in nodes and nodes[of].goto):
                yield f"node {of!r} is a dead end: add an edge from it, add_edge({of!r}, END) if the branch ends there"
            ways = [END]
        exits[name], exits[of] = list(ways), [name]
        if fix is not None:
            exits[fix] = [name]
            if name not in nodes:
                exits[name].append(fix)  # as a check that was built does by its `goto`


def handler_problems(nodes: Mapping[str, Node], edges: Iterable[ErrorEdge]) -> Iterator[str]:
    """Error edges that lead to a check or a fix, which follow the node that they check alone."""
    part_of = {part: node.of for node in checks_of(nodes).values() for part in (node.name, node.fix)}
    for edge in edges:
        if edge.target in part_of:
            yield f"{edge.who} goes to a part of the check of {part_of[edge.target]!r}: name another handler"


def _targets(way: Exit) -> tuple[str, ...]:
    return (way,) if isinstance(way, str) else way.goto
