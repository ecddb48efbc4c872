"""Checks of the pages that no other tool makes: width of code, words, sentences, descriptions. `make lint` runs it.

python docs/build/check_pages.py [PAGE...]    # prints a line for each fault, and one for all pages
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH, LINES, PAGE_WORDS, ALL_WORDS, WRITTEN = 76, 25, 2_000, 48_000, 46
NEGATIONS, LONG, AVERAGE = 25, 10, 18  # per 100 sentences: of a page, longer than 25 words, of all pages
FENCE = re.compile(r"^(?P<i> *)```[^\n]*\n(?P<b>.*?)^(?P=i)```\s*?$", re.MULTILINE | re.DOTALL)
NEGATION = re.compile(r"\b(not|no|nor|neither|none|never|nothing|without|cannot|unless|except)\b|n't\b", re.IGNORECASE)
PHRASES = re.compile(r"`t\.\w+\(|\b(tides?|harbours?|lamps?)\b|dspyer\[|\bS00\d\b", re.IGNORECASE)
DESCRIPTION = re.compile(r'\A---\n(?:.*\n)*?description: *(".{40,170}"|(?:(?!: |").){40,170})\n(?:.*\n)*?---\n')


def prose(text: str) -> str:
    """The sentences of a page: no front matter, code, tables, headings or addresses."""
    text = FENCE.sub("\n\n", re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL))
    text = re.sub(r"^\s*(\||--8<--|!!!|\?\?\?|:::|#).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"<[^>]+>|\{[^}]*\}|!\[[^\]]*\]\([^)]*\)", " ", text)
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(text: str) -> list[list[str]]:
    """The words of each sentence with at least four of them."""
    parts = re.split(r"\n\s*\n|^\s*[-*] |^\s*\d+\. ", prose(text), flags=re.MULTILINE)
    split = (each for part in parts for each in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*(])", " ".join(part.split())))
    return [words for each in split if len(words := re.findall(r"[A-Za-z][\w'-]*", each)) >= 4]


def faults(text: str, described: bool) -> list[str]:
    """What is wrong with one page; the README is not `described`, and its first block is a whole program."""
    lines = [(line, len(line) - len(f["i"])) for f in FENCE.finditer(text) for line in f["b"].splitlines()]
    found = [f"{width} columns: {line.strip()[:40]}" for line, width in lines if width > WIDTH]
    blocks = [f["b"].count("\n") for f in FENCE.finditer(text) if "```text" not in f[0]]
    found += [f"a block of {size} lines" for size in blocks if size > LINES and described]
    found += [f"{size} words"] if (size := len(text.split())) > PAGE_WORDS else []
    if len(read := sentences(text)) >= 15:
        denied = 100 * len(NEGATION.findall(prose(text))) / len(read)
        long = 100 * sum(len(words) > 25 for words in read) / len(read)
        found += [f"{denied:.0f} negations per 100 sentences"] if denied > NEGATIONS else []
        found += [f"{long:.0f} % of the sentences have more than 25 words"] if long > LONG else []
    found += [f"forbidden: {hit[0]}" for hit in PHRASES.finditer(text)]
    missing = described and not DESCRIPTION.match(text)
    return found + ["no description of 40 to 170 characters, in quotes if it has a colon"] * missing


def main(only: list[str]) -> int:
    """Print the faults of all pages, or of those that are named."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    lines = [f"{name}: {fault}" for name, text in pages.items() for fault in faults(text, name != "README.md")]
    same = Counter(found[1] for text in pages.values() if (found := DESCRIPTION.match(text)))
    lines += [f"two pages have the description {text!r}" for text, times in same.items() if times > 1]
    read = sum(len(sentences(text)) for text in pages.values())
    denied = 100 * sum(len(NEGATION.findall(prose(text))) for text in pages.values()) / read
    words = sum(len(text.split()) for text in pages.values())
    written = sum(not name.startswith("docs/api/") for name in pages) - 3  # README, errors and command line
    said = [(written, WRITTEN, "written pages"), (words, ALL_WORDS, "words"), (denied, AVERAGE, "negations per 100")]
    shown = [line for line in lines if not only or any(map(line.startswith, only))]
    shown += [f"{found:,.1f} {what}, at most {most:,}" for found, most, what in said if found > most]
    sys.stdout.write("\n".join([*shown, ", ".join(f"{found:,.0f} {what}" for found, _, what in said), ""]))
    return bool(shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
