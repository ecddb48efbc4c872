"""Reading scans, for `scans.py`: plain functions of plain values, in a module that a worker imports in no time.

A character is a picture of 64 bits. A scan is a row of pictures, all of them shifted alike, and some bits are wrong.
"""

from __future__ import annotations

import random
from hashlib import blake2b

BITS, SHIFTS, NOISE = 64, 16, 5


def picture(character: str) -> int:
    return int.from_bytes(blake2b(character.encode(), digest_size=BITS // 8).digest())


FONT = [(chr(code), picture(chr(code))) for code in range(32, 127)]


def shifted(bits: int, by: int) -> int:
    return (bits << by | bits >> BITS - by) & (1 << BITS) - 1


def read_scan(scan: bytes) -> str:
    """The text of a scan: by the shift, and the characters, of which the fewest bits are wrong."""
    pictures = [int.from_bytes(scan[i : i + BITS // 8]) for i in range(0, len(scan), BITS // 8)]
    tries = []
    for shift in range(SHIFTS):
        best = [
            min(((bits ^ shifted(known, shift)).bit_count(), character) for character, known in FONT)
            for bits in pictures
        ]
        tries.append((sum(wrong for wrong, _ in best), "".join(character for _, character in best)))
    return min(tries)[1]


def scanned(letters: list[str]) -> list[bytes]:
    chance = random.Random(7)
    found = []
    for letter in letters:
        shift = chance.randrange(SHIFTS)
        noise = [sum(1 << bit for bit in chance.sample(range(BITS), NOISE)) for _ in letter]
        pictures = [shifted(picture(character), shift) ^ wrong for character, wrong in zip(letter, noise, strict=True)]
        found.append(b"".join(bits.to_bytes(BITS // 8) for bits in pictures))
    return found
