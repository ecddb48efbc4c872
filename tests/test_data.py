"""The examples' data: well-formed, evenly split, without duplicates, and not to be solved by keywords."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent.parent / "examples" / "data"
TICKETS: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "tickets.jsonl").read_text("utf-8").splitlines()]
PEPS: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "peps.jsonl").read_text("utf-8").splitlines()]
README = (DATA / "README.md").read_text("utf-8")

VALUES = {
    "category": {"billing", "bug", "how_to", "account_access", "feature_request", "cancellation"},
    "urgency": {"low", "normal", "high"},
    "product": {"tallow", "rotawing", "parcelhen", "quillbox"},
    "plan": {"free", "team", "business"},
    "split": {"train", "dev", "test"},
}
OBVIOUS = {
    "billing": "invoice bill billing charge charged payment pay paid price refund card cost discount receipt tax vat",
    "bug": "bug error crash crashes broken fix wrong fails failed freezes doesn't update stopped twice",
    "how_to": "how where which steps setting settings explain find set way",
    "account_access": "account access login log locked password code email reset admin user sign link owner unlock",
    "feature_request": "feature add option idea wish would like love please consider support integration could nice",
    "cancellation": "cancel cancelled end terminate delete close renew renewal subscription contract notice longer",
}
TONE = {
    "high": "urgent now today tonight immediately asap tomorrow help hurry quickly",
    "low": "rush hurry curious nice some wondering idea small day",
    "normal": "",
}


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def guessed(text: str, keywords: dict[str, str], default: str) -> str:
    found = Counter(words(text))
    scores = {label: sum(found[word] for word in listed.split()) for label, listed in keywords.items()}
    best = max(scores, key=lambda label: scores[label])
    return best if scores[best] else default


def test_every_ticket_is_well_formed() -> None:
    for ticket in TICKETS:
        assert list(ticket) == ["id", "text", "category", "urgency", "product", "plan", "split"]
        assert all(ticket[name] in allowed for name, allowed in VALUES.items()), ticket["id"]
        assert ticket["text"] == ticket["text"].strip()
        assert 5 <= len(words(ticket["text"])) <= 90
    assert [ticket["id"] for ticket in TICKETS] == [f"T{number:03d}" for number in range(1, len(TICKETS) + 1)]
    assert {name: {ticket[name] for ticket in TICKETS} for name in VALUES} == VALUES


def test_the_splits_are_stratified() -> None:
    by_category = Counter((ticket["split"], ticket["category"]) for ticket in TICKETS)
    expected = {"train": 24, "dev": 16, "test": 16}
    assert by_category == {(split, label): expected[split] for split in expected for label in VALUES["category"]}
    overall = Counter(ticket["urgency"] for ticket in TICKETS)
    for split in expected:
        part = [ticket["urgency"] for ticket in TICKETS if ticket["split"] == split]
        for label, count in overall.items():
            assert abs(part.count(label) / len(part) - count / len(TICKETS)) < 0.05, (split, label)


def test_no_ticket_comes_twice_and_none_is_a_template() -> None:
    sets = [(ticket["id"], frozenset(words(ticket["text"]))) for ticket in TICKETS]
    alike = [(a, b) for (a, left), (b, right) in combinations(sets, 2) if len(left & right) > 0.5 * len(left | right)]
    assert alike == []
    openings = Counter(" ".join(words(ticket["text"])[:4]) for ticket in TICKETS)
    assert max(openings.values()) <= 4, openings.most_common(3)


@pytest.mark.parametrize(
    ("label", "keywords", "default", "most"),
    [("category", OBVIOUS, "billing", 0.6), ("urgency", TONE, "normal", 0.75)],
)
def test_keywords_do_not_give_the_labels_away(label: str, keywords: dict[str, str], default: str, most: float) -> None:
    right = sum(guessed(ticket["text"], keywords, default) == ticket[label] for ticket in TICKETS)
    assert 1 / len(keywords) < right / len(TICKETS) < most


@pytest.mark.parametrize("word", ["invoice", "refund", "cancel", "export", "error", "update", "link", "account"])
def test_telling_words_come_in_several_categories(word: str) -> None:
    found = {ticket["category"] for ticket in TICKETS if word in words(ticket["text"])}
    assert len(found) >= 3


def test_texts_vary_in_length_and_language() -> None:
    lengths = [len(re.findall(r"[.!?]+(?:\s|$)", ticket["text"])) for ticket in TICKETS]
    assert {1, 2, 3, 4, 5, 6} <= set(lengths)
    text = " ".join(ticket["text"] for ticket in TICKETS)
    for greeting in ["Guten Tag", "Bonjour", "Buenos días", "Bom dia", "Merhaba", "Diolch", "arigato", "Shukran"]:
        assert greeting in text


def test_the_peps_are_well_formed_and_as_the_readme_says() -> None:
    assert len(PEPS) == 300
    numbers = [pep["number"] for pep in PEPS]
    assert numbers == sorted(set(numbers))
    for pep in PEPS:
        assert list(pep) == ["number", "title", "status", "type", "python_version", "text"]
        assert all(pep[name] for name in ["title", "status", "type"]), pep["number"]
        assert pep["python_version"] is None or re.fullmatch(r"\d\.[\dx., ]+", pep["python_version"]), pep["number"]
        assert 1400 <= len(pep["text"]) <= 1500, pep["number"]
        assert not re.search(r"``|`_|:pep:|^(PEP|Author|Status): ", pep["text"], re.MULTILINE), pep["number"]
    assert Counter(pep["type"] for pep in PEPS) == {"Standards Track": 248, "Informational": 28, "Process": 24}
    said = README.split("## peps.jsonl")[1].split("\n## ")[0]
    for status, count in Counter(pep["status"] for pep in PEPS).most_common(4):
        assert f"{count} are {status.lower()}" in said or f"{count} {status.lower()}" in " ".join(said.split())


def test_the_questions_about_peps_have_gold_among_them() -> None:
    rows = [json.loads(line) for line in (DATA / "pep_questions.jsonl").read_text("utf-8").splitlines()]
    assert Counter(row["split"] for row in rows) == {"train": 20, "test": 20}
    assert len({row["question"] for row in rows}) == 40
    status = {pep["number"]: pep["status"] for pep in PEPS}
    golds = [number for row in rows for number in row["gold"]]
    assert len(golds) == len(set(golds)), "a gold number of `test` is in `train`"
    assert all(len({status[number] for number in row["gold"]}) == 1 for row in rows)
