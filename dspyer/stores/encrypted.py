"""Encryption at rest: a store around another store, which only sees encrypted contents.

Encrypted are the contents of rows and snapshots, and the blobs: patches, values, answers, results, errors. Readable
without a key is the structure: names of threads and nodes, kinds, order, routes, times, sizes. So a lost key loses the
values, not the history.

The cipher is AES-SIV (RFC 5297), which is deterministic: the same content in the same row gives the same bytes, so
that a repeated write is recognized as one. The row is part of the authenticated data: a content that was changed, or
moved to another row, is refused. Ids of blobs are keyed hashes (HMAC): without the key, one cannot test whether a known
value is stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV
except ImportError as error:
    raise ImportError("an encrypted store needs cryptography: pip install cryptography") from error

from dspyer.errors import StoreError
from dspyer.stores.address import open_store
from dspyer.stores.base import Change, Point, Row, Snapshot, Store, StoreAround
from dspyer.stores.content import ENCRYPTED_MARK, Content

VARIABLE = "DSPYER_STORE_KEY"
"""The environment variable that holds the keys of a store that was given none."""

CipherKey = str | bytes


class Encrypted(StoreAround):
    """A store that encrypts contents before another store writes them.

    A pickle of it contains no key: once loaded, it takes the key from the environment.
    Patches, values, answers, results, errors and snapshots are encrypted. Names of threads, nodes, questions and
    effects, the order of commits, routes and times stay readable without the key.

    Args:
        store: the store that keeps the encrypted runs, or its address, as `compile(store=...)` takes it.
        key: a key from `Encrypted.new_key()`, or several. The first one encrypts, each of them decrypts: to change
            keys, put the new one first and keep the old ones for what they have encrypted. Without keys, the
            environment variable `DSPYER_STORE_KEY` is read, with commas between several keys.

    Raises:
        ValueError: a key does not have 32 bytes.
        StoreError: (on first use) there is no key.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("shout", lambda state: {
        ...     "loud": state["text"].upper()})
        >>> store = Encrypted(":memory:", key=Encrypted.new_key())
        >>> t = graph.add_path(START, "shout", END).compile(store=store).thread(
        ...     "t-42")
        >>> t.run({"text": "secret"}).state["loud"]
        'SECRET'
    """

    def __init__(
        self, store: Store | str | os.PathLike[str], key: CipherKey | Sequence[CipherKey] | None = None
    ) -> None:
        super().__init__(open_store(store))
        self._keys = _keys_of(key)

    @staticmethod
    def new_key() -> str:
        """A new random key, as URL-safe base64. Keep it apart from the store: without it, the values are lost.

        Returns:
            44 characters.

        Example:
            >>> len(Encrypted.new_key())
            44
        """
        return base64.urlsafe_b64encode(os.urandom(32)).decode()

    def __repr__(self) -> str:
        return f"Encrypted({self.store!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Encrypted, (self.store,)

    def write(self, change: Change) -> int:
        return self.store.write(self._encrypted(change))

    def write_now(self, change: Change) -> bool:
        return self.store.write_now(self._encrypted(change))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return _with_contents(self.store.rows(run, first, last), run, self._decrypting)

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for cipher in self._ciphers():
            # The id depends on the key: a blob of before a change of keys has that of the old one.
            names = {cipher.keyed_id(name): name for name in ids if name not in found}
            for keyed_id, encrypted in self.store.blobs(list(names)).items() if names else ():
                found[names[keyed_id]] = self._decrypt(encrypted, keyed_id.encode(), "a large value")
        return found

    def snapshot(self, at: Point) -> Snapshot | None:
        found = self.store.snapshot(at)
        if found is None:
            return None
        location = _location(found.at.run, found.at.seq, "snapshot")
        return Snapshot(found.at, self._decrypting(found.content, location))

    def _ciphers(self) -> tuple[Cipher, ...]:
        # Only now: a program with the store can be built, pickled and listed where there is no key.
        if not self._keys:
            self._keys = _keys_of(os.environ.get(VARIABLE, "").split(",") if os.environ.get(VARIABLE) else None)
        if not self._keys:
            raise StoreError(
                f"the store {self.address!r} is encrypted, and there is no key: give Encrypted(store, key=...), or set "
                f"the environment variable {VARIABLE}. Names, order and times of what is in it can be read without one"
            )
        return self._keys

    def _encrypted(self, change: Change) -> Change:
        if not change.rows and change.snapshot is None:
            return change
        encrypt = partial(_encrypt, cipher=self._ciphers()[0])
        # Always with the first key: after a change of keys nothing new is written with an old one.
        rows, snapshot = _with_contents(change.rows, change.rows_of, encrypt), change.snapshot
        if snapshot is not None:
            location = _location(snapshot.at.run, snapshot.at.seq, "snapshot")
            snapshot = Snapshot(snapshot.at, encrypt(snapshot.content, location))
        return change._replace(rows=rows, snapshot=snapshot)

    def _decrypting(self, content: Content, location: bytes) -> Content:
        """A content from the inner store, decrypted when it is read: a reader of the structure alone needs no key."""

        def load() -> tuple[bytes, tuple[str, ...]]:
            what = f"row {location.decode().partition('/')[2]}"
            data = zlib.decompress(self._decrypt(content.data, location, what))
            end = 4 + int.from_bytes(data[:4])
            return data[end:], tuple(filter(None, data[4:end].decode().split(",")))

        return Content.loaded_by(load)

    def _decrypt(self, encrypted: bytes, location: bytes, what: str) -> bytes:
        if not encrypted.startswith(ENCRYPTED_MARK):
            raise StoreError(
                f"{what} in the store {self.address!r} is not encrypted: it was written without Encrypted(...). Read "
                "it with the store itself; to encrypt it, export its threads and load them into an encrypted store"
            )
        # Nothing says which key it was: authenticated encryption refuses the wrong ones.
        for cipher in self._ciphers():
            try:
                return cipher.decrypt(encrypted, location)
            except InvalidTag:
                continue
        raise StoreError(
            f"{what} in the store {self.address!r} cannot be decrypted: the key is not the one that encrypted it, or "
            "its bytes were changed since. Give the right key, Encrypted(store, key=...), or all keys there ever were, "
            "the newest one first"
        )


class Cipher:
    """Encrypts and decrypts with one key."""

    def __init__(self, key: CipherKey) -> None:
        """Take 32 bytes, raw or as URL-safe base64; raise `ValueError` for anything else."""
        raw = key
        if len(raw) != 32:
            try:
                raw = base64.urlsafe_b64decode(key)
            except ValueError:
                raw = b""
        if isinstance(raw, str) or len(raw) != 32:
            raise ValueError("a key has 32 bytes, raw or as URL-safe base64: make one with Encrypted.new_key()")
        # Two keys of one: what is learned from ids must say nothing about contents.
        self._siv = AESSIV(_derive_key(raw, b"content"))
        self._id_key = _derive_key(raw, b"id")

    def encrypt(self, data: bytes, location: bytes) -> bytes:
        return ENCRYPTED_MARK + self._siv.encrypt(data, [location])

    def decrypt(self, encrypted: bytes, location: bytes) -> bytes:
        """Raise `InvalidTag` for another key, changed bytes, or bytes that were encrypted for another location."""
        return self._siv.decrypt(encrypted[len(ENCRYPTED_MARK) :], [location])

    def keyed_id(self, name: str) -> str:
        """The id of a blob in the inner store: 32 hexadecimal digits, as other ids of blobs have."""
        return hmac.new(self._id_key, name.encode(), hashlib.sha256).hexdigest()[:32]


def _encrypt(content: Content, location: bytes, cipher: Cipher) -> Content:
    """A content for the inner store.

    The ids of its blobs are encrypted with its bytes: their length in 4 bytes, the ids with commas, the bytes. All of
    it is compressed before, since the inner store cannot compress what is encrypted. The inner store gets the keyed ids
    as references, so that it knows which blobs are still needed.
    """
    data, refs = content.data, content.refs
    names = ",".join(refs).encode()
    encrypted = cipher.encrypt(zlib.compress(len(names).to_bytes(4) + names + data), location)
    blobs = {}
    for name, blob in content.blobs.items():
        keyed_id = cipher.keyed_id(name)
        blobs[keyed_id] = cipher.encrypt(blob, keyed_id.encode())
    return Content.stored(encrypted, [cipher.keyed_id(name) for name in refs], blobs)


def _with_contents(rows: Iterable[Row], run: str, made: Callable[[Content, bytes], Content]) -> list[Row]:
    """Rows of a run with what is made of their contents, which are those of a location."""
    return [
        row if row.content is None else row._replace(content=made(row.content, _location(run, row.seq, "row")))
        for row in rows
    ]


def _location(run: str, seq: int, kind: str) -> bytes:
    return f"{kind}/{seq} of run {run}".encode()


def _derive_key(key: bytes, purpose: bytes) -> bytes:
    """A key of 64 bytes for one purpose: two uses of one key must not be the same key."""
    return hmac.new(key, b"dspyer store " + purpose, hashlib.sha512).digest()


def _keys_of(key: CipherKey | Iterable[CipherKey] | None) -> tuple[Cipher, ...]:
    if key is None:
        return ()
    return tuple([Cipher(each) for each in ([key] if isinstance(key, str | bytes) else key)])
