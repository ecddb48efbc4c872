"""Things that people look at: reports, SVG, `progress()`, token tables. Functions of values, never of a `Run`."""

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names

if TYPE_CHECKING:
    from dspyer.display.amounts import cost_text, count_of, duration_text
    from dspyer.display.cut_values import cut_within, part_of
    from dspyer.display.graph_picture import draw_mermaid
    from dspyer.display.graph_svg import GraphDrawing, RunPath, draw_svg, drawing_of
    from dspyer.display.report import describe_run
    from dspyer.display.run_file import PAGE, RECORD, json_bytes
    from dspyer.display.run_page import RunAnswers, RunInfo, maps_of, write_page
    from dspyer.display.stats import Stats, count_stats
    from dspyer.display.tables import ShownTable, table_lines
    from dspyer.display.tokens import Tokens, count_tokens

__all__ = ["PAGE", "RECORD", "GraphDrawing", "RunAnswers", "RunInfo", "RunPath", "ShownTable", "Stats", "Tokens"]
__all__ += ["count_of", "count_stats", "count_tokens", "cut_within", "describe_run", "draw_mermaid", "draw_svg"]
__all__ += ["drawing_of", "duration_text", "json_bytes", "maps_of", "part_of", "table_lines"]
__all__ += ["cost_text", "write_page"]

# By module. A program that draws nothing loads no drawings.
_HOMES = {
    "amounts": "cost_text count_of duration_text",
    "cut_values": "cut_within part_of",
    "graph_picture": "draw_mermaid",
    "graph_svg": "GraphDrawing RunPath draw_svg drawing_of",
    "report": "describe_run",
    "run_file": "PAGE RECORD json_bytes",
    "run_page": "RunAnswers RunInfo maps_of write_page",
    "stats": "Stats count_stats",
    "tables": "ShownTable table_lines",
    "tokens": "Tokens count_tokens",
}
__getattr__ = lazy_names(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})
