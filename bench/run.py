"""Runs the rows: all libraries of a row take turns, round by round, so that a slow minute slows all of them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.machine import calibrate
from bench.process import Library, Peer, PeerError
from bench.report import Cell, Measured, Report, as_results, as_text, put_section, section_of
from bench.rows import Entry, Row, tables

OTHERS = (  # sections that other benches measure
    "Overhead", "Optimizing", "Executors", "Converted graphs", "How much a store carries", "LangGraph's own tests"
)  # fmt: skip
TIMEOUT = 180.0  # seconds that a single answer may take


class Bench:
    """The processes of a run, started when a row first needs them.

    Args:
        rounds: how often everything is measured.
        only: words, one of which must be in a row's title; all rows if empty.
        libraries: names of the libraries that take part; all if empty.
        timeout: seconds that one answer may take.
    """

    def __init__(
        self, rounds: int, only: tuple[str, ...] = (), libraries: tuple[str, ...] = (), timeout: float = TIMEOUT
    ) -> None:
        self.rounds = rounds
        self.only = only
        self.libraries = libraries
        self.timeout = timeout
        self.peers: dict[Library, Peer | PeerError] = {}
        self.noise: list[float] = []

    def peer(self, library: Library) -> Peer:
        """The process of a library; raises `PeerError` again if it could not be started."""
        found = self.peers.get(library)
        if found is None:
            try:
                found = Peer(library, self.timeout)
            except PeerError as error:
                found = error
            self.peers[library] = found
        if isinstance(found, PeerError):
            raise found
        return found

    def measure(self, row: Row) -> Measured:
        """All cells of a row."""
        cells = {entry.column: Cell() for entry in row.entries if self.takes_part(entry)}
        running = [entry for entry in row.entries if entry.column in cells and self.prepare(entry, cells)]
        for number in range(self.rounds + 1):  # the first round warms up
            self.noise.append(calibrate())
            for entry in running if number % 2 else reversed(running):
                cell = cells[entry.column]
                if cell.problem:
                    continue
                try:
                    answer = self.peer(entry.library).ask(ask="round", id=entry.column)
                except PeerError as problem:
                    self.failed(entry, cell, problem)
                else:
                    if number:
                        cell.values.append(answer["value"])
        for entry in running:
            if not cells[entry.column].problem:
                self.peer(entry.library).ask(ask="drop", id=entry.column)
        self.noise.append(calibrate())
        return Measured(row.title, row.unit, row.goal, row.against, cells)

    def takes_part(self, entry: Entry) -> bool:
        """Whether this run has the entry's library."""
        return not self.libraries or entry.library.name in self.libraries

    def prepare(self, entry: Entry, cells: dict[str, Cell]) -> bool:
        """Has the library prepare a workload; False, with the reason in its cell, if it cannot."""
        cell = cells[entry.column]
        try:
            self.peer(entry.library).ask(ask="prepare", id=entry.column, work=entry.work, size=dict(entry.size))
        except PeerError as problem:
            self.failed(entry, cell, problem)
        return not cell.problem

    def failed(self, entry: Entry, cell: Cell, problem: PeerError) -> None:
        """Record a problem; a process that has ended is started again for the next row."""
        cell.problem = str(problem)
        peer = self.peers.get(entry.library)
        if isinstance(peer, Peer) and peer.process.poll() is not None:
            peer.close()
            del self.peers[entry.library]

    def run(self) -> Report:
        """All rows of all tables."""
        report = Report()
        try:
            for table in tables():
                rows = []
                for row in table.rows:
                    if self.only and not any(word in row.title for word in self.only):
                        continue
                    print(f"... {row.title}", file=sys.stderr)
                    rows.append(self.measure(row))
                if rows:
                    report.tables.append((table.name, table.about, rows))
            report.noise = self.noise
            report.rounds = self.rounds
            for peer in self.peers.values():
                if isinstance(peer, Peer):
                    report.versions.update(peer.versions)
        finally:
            self.close()
        return report

    def close(self) -> None:
        """Ends the processes."""
        for peer in self.peers.values():
            if isinstance(peer, Peer):
                peer.close()
        self.peers.clear()


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="dspyer and other libraries, measured in one run."
    )
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each cell (7)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only rows with one of these in their title"
    )
    parser.add_argument("--libraries", nargs="+", default=[], metavar="NAME", help="only these libraries")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write bench/results.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values")
    given = parser.parse_args(arguments)
    report = Bench(max(1, given.rounds), tuple(given.only), tuple(given.libraries)).run()
    print(as_text(report))
    if given.write:
        page = given.write.read_text() if given.write.exists() else ""
        text = as_results(report)
        for title in OTHERS:
            text = put_section(text, section_of(page, title))
        given.write.write_text(text)
    if given.json:
        given.json.write_text(json.dumps(asdict(report), indent=1))
    return 0
