"""Things that people look at: reports, SVG, `progress()`, token tables. Functions of values, never of a `Run`."""

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names

if TYPE_CHECKING:
    from dspyer.display.amounts import cost_text, count_of, duration_text
    from dspyer.display.graph_svg import GraphDrawing, RunPath, draw_mermaid, draw_svg, drawing_of
    from dspyer.display.page_file import PAGE, drawn_graphs, json_bytes, write_page
    from dspyer.display.report import describe_run
    from dspyer.display.stats import Stats, count_stats
    from dspyer.display.tables import ShownTable, table_lines
    from dspyer.display.tokens import Tokens, count_tokens

__all__ = ["PAGE", "GraphDrawing", "RunPath", "ShownTable", "Stats", "Tokens"]
__all__ += ["count_of", "count_stats", "count_tokens", "describe_run", "draw_mermaid", "draw_svg"]
__all__ += ["drawing_of", "drawn_graphs", "duration_text", "json_bytes", "table_lines"]
__all__ += ["cost_text", "write_page"]

# By module. A program that draws nothing loads no drawings.
_HOMES = {
    "amounts": "cost_text count_of duration_text",
    "graph_svg": "GraphDrawing RunPath draw_mermaid draw_svg drawing_of",
    "page_file": "PAGE drawn_graphs json_bytes write_page",
    "report": "describe_run",
    "stats": "Stats count_stats",
    "tables": "ShownTable table_lines",
    "tokens": "Tokens count_tokens",
}
__getattr__ = lazy_names(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})
