"""What is made of other files: tables of extras and benchmarks, the commands, and llms.txt for programs that read."""

from __future__ import annotations

import pydoc
import re
import tomllib
from pathlib import Path
from typing import Any

import typer
from markdown import Markdown
from typer.cli import get_docs_for_click

from dspyer.cli.app import make_command

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"


def extras() -> str:
    """The optional parts as a table: the comment above each in pyproject.toml, and its packages."""
    rows, comment = ["| part | what it is for | packages |", "|---|---|---|"], ""
    named = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for line in PROJECT.read_text().partition("[project.optional-dependencies]\n")[2].splitlines():
        name = line.partition(" = ")[0]
        if comment and name in named:
            packages = [p for each in named[name] for p in named.get(each.removeprefix("dspyer[")[:-1], [each])]
            rows.append(f"| `{name}` | {comment} | {', '.join(f'`{package}`' for package in packages)} |")
        comment = line.removeprefix("# ").removesuffix(".") + "." if line.startswith("# ") else ""
    return "\n".join(rows)


def commands() -> str:
    """The commands with their arguments, options and texts of help."""
    command = make_command()
    return get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="dspyer"), name="dspyer")


def results() -> str:
    """The tables of the benchmarks for a closed box: the contents and the search leave them out without headings."""
    text = re.sub(r"^#+ (.*)", r"**\1**", (ROOT / "bench/results.md").read_text(), flags=re.MULTILINE)
    return text.replace("\n", "\n    ")


GENERATED = {"<!-- extras -->": extras, "<!-- commands -->": commands, "<!-- results -->": results}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts what is generated in the place of its marker."""
    for marker in filter(markdown.__contains__, GENERATED):
        markdown = markdown.replace(marker, GENERATED[marker]())
    return markdown


def on_nav(nav: Any, *, config: Any, **_: Any) -> None:
    """Keeps the pages for the end, in the order of the navigation and with their tabs."""
    config.extra["pages"] = nav.pages


def on_post_build(*, config: Any) -> None:
    """Writes both files for programs below the site, with the code that pages include."""
    lines, last = [f"# {config.site_name}", f"\n> {config.site_description}"], None
    for page in config.extra["pages"]:
        if (tab := page.ancestors[-1].title) != last:
            lines, last = [*lines, f"\n## {tab}\n"], tab
        lines.append(f"- [{page.title}]({config.site_url or ''}{page.url}): {page.meta.get('description')}")
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    snippets = Markdown(extensions=["pymdownx.snippets"], extension_configs=config.mdx_configs).preprocessors["snippet"]
    texts = ("\n".join(snippets.run(page.markdown.splitlines())) for page in config.extra["pages"])
    shown = re.compile(r"^::: ([\w.]+)(?:\n +.*)*", re.MULTILINE)  # what an API page shows
    text = shown.sub(lambda name: f"`{name[1]}`\n\n{pydoc.getdoc(pydoc.locate(name[1]))}", "\n\n".join(texts))
    (site / "llms-full.txt").write_text(text)
