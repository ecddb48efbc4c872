"""Encryption at rest: a store around a store, which sees sealed contents alone.

What somebody wrote is sealed: patches, values, answers, results, errors, snapshots, large values. What holds the
history together stays readable for the store: names of threads and nodes, kinds, order, routes, times, sizes. So a lost
key loses the values, and not the structure.

Contents are sealed with AES-SIV (RFC 5297), which needs no random numbers: the same content at the same place gives the
same bytes, so a repeated write is known as one, and the same content at another place gives others. A content that was
moved to another place, or changed, does not open. Ids of large values are keyed: without the key nobody can tell
whether a known value is among them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from dspyer.errors import StoreError
from dspyer.stores.address import open_store
from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.content import Content, Fetch

VARIABLE = "DSPYER_STORE_KEY"
"""The environment variable that a store without a key looks at."""

MARK = b"\x00sealed1"
"""What sealed bytes begin with: no JSON and no compressed data does."""

CipherKey = str | bytes
_REF = 16


class Cipher:
    """Seals and opens with one key.

    Args:
        key: 32 bytes, as they are or as URL-safe base64.

    Raises:
        ValueError: for anything else.
    """

    def __init__(self, key: CipherKey) -> None:
        raw = key
        if len(raw) != 32:
            try:
                raw = base64.urlsafe_b64decode(key)
            except ValueError:
                raw = b""
        if isinstance(raw, str) or len(raw) != 32:
            raise ValueError("a key has 32 bytes, as they are or as URL-safe base64: make one with Encrypted.new_key()")
        self._siv = AESSIV(_derived(raw, b"content"))
        self._id_key = _derived(raw, b"id")

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Seals bytes for one place."""
        return MARK + self._siv.encrypt(data, [place])

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Opens what was sealed for this place.

        Raises:
            InvalidTag: if the key is another one, or the bytes are not those that were sealed for this place.
        """
        return self._siv.decrypt(sealed[len(MARK) :], [place])

    def keyed(self, name: str) -> str:
        """The id under which the store knows a large value."""
        return hmac.new(self._id_key, name.encode(), hashlib.sha256).hexdigest()[: 2 * _REF]


class Encrypted(Store):
    """A store whose contents are encrypted.

    A pickle of it holds no key, and looks for one in the environment again.

    Args:
        store: where the runs are kept: a store or its address, as `compile(store=...)` takes it.
        key: what `Encrypted.new_key()` gave. Of several the first one seals, and all open: put a new key in front of
            the old ones, which go on being needed for what they have sealed. Without any, the environment variable
            `DSPYER_STORE_KEY` has it, several with commas between them.

    Raises:
        ValueError: for what is no key.
        StoreError: (by the first use) without any key.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("shout", lambda state: {"loud": state["text"].upper()})
        >>> store = Encrypted(":memory:", key=Encrypted.new_key())
        >>> t = graph.add_path(START, "shout", END).compile(store=store).thread("t-42")
        >>> t.run({"text": "secret"}).state["loud"]
        'SECRET'
    """

    def __init__(
        self, store: Store | str | os.PathLike[str], key: CipherKey | Sequence[CipherKey] | None = None
    ) -> None:
        self.store = open_store(store)
        self._keys = _keys_of(key)

    @staticmethod
    def new_key() -> str:
        """A new key, as URL-safe base64. Keep it apart from the store: without it the values are lost."""
        return base64.urlsafe_b64encode(os.urandom(32)).decode()

    @property
    def address(self) -> str:
        """Where the store around which this is put is."""
        return self.store.address

    def __repr__(self) -> str:
        return f"Encrypted({self.store!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Encrypted, (self.store,)

    def write(self, change: Change) -> int:
        """Applies a change, sealed."""
        return self.store.write(self._sealed(change))

    def write_now(self, change: Change) -> bool:
        """Applies a change, sealed, if that needs no waiting for others."""
        return self.store.write_now(self._sealed(change))

    def thread(self, name: str) -> ThreadRow | None:
        """Where a thread stands."""
        return self.store.thread(name)

    def threads(self) -> list[str]:
        """The names of all threads, sorted."""
        return self.store.threads()

    def run(self, run: str) -> RunRow | None:
        """A run by its id."""
        return self.store.run(run)

    def runs(self, thread: str) -> list[RunRow]:
        """The runs that were made for a thread."""
        return self.store.runs(thread)

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run in order; their contents are opened when somebody reads them."""
        return [
            row if row.content is None else row._replace(content=self._opened(row.content, _at(run, row.seq, "row")))
            for row in self.store.rows(run, first, last)
        ]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """The large values by id."""
        found: dict[str, bytes] = {}
        for cipher in self._ciphers():
            keyed = {cipher.keyed(name): name for name in ids if name not in found}
            for sealed_name, sealed in self.store.blobs(list(keyed)).items() if keyed else ():
                found[keyed[sealed_name]] = self._open(sealed, sealed_name.encode(), "a large value")[1]
        return found

    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot of a run at or before a row."""
        found = self.store.snapshot(at)
        if found is None:
            return None
        return Snapshot(found.at, self._opened(found.content, _at(found.at.run, found.at.seq, "snapshot")))

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        """Removes threads, and all that they had and nothing else reaches."""
        return self.store.delete(threads, epochs)

    def delete_unreachable(self, thread: str) -> DeletionReport:
        """Removes what was made for a thread and lies outside of what it reaches from its head."""
        return self.store.delete_unreachable(thread)

    def drop_snapshots(self) -> None:
        """Removes all snapshots but those at the roots of threads."""
        self.store.drop_snapshots()

    def vacuum(self) -> None:
        """Gives the space of what was removed back to the system."""
        self.store.vacuum()

    def close(self) -> None:
        """Ends the use of the store."""
        self.store.close()

    def _ciphers(self) -> tuple[Cipher, ...]:
        if not self._keys:
            self._keys = _keys_of(os.environ.get(VARIABLE, "").split(",") if os.environ.get(VARIABLE) else None)
        if not self._keys:
            raise StoreError(
                f"the store {self.address!r} is encrypted, and there is no key: give Encrypted(store, key=...), or set "
                f"the environment variable {VARIABLE}. Names, order and times of what is in it can be read without one"
            )
        return self._keys

    def _sealed(self, change: Change) -> Change:
        if not change.rows and change.snapshot is None:
            return change
        cipher = self._ciphers()[0]
        rows = [
            row
            if row.content is None
            else row._replace(content=_seal(row.content, _at(change.rows_of, row.seq, "row"), cipher))
            for row in change.rows
        ]
        snapshot = change.snapshot
        if snapshot is not None:
            place = _at(snapshot.at.run, snapshot.at.seq, "snapshot")
            snapshot = Snapshot(snapshot.at, _seal(snapshot.content, place, cipher))
        return change._replace(rows=rows, snapshot=snapshot)

    def _opened(self, content: Content, place: bytes) -> Content:
        return _DecryptedContent(content.data, lambda sealed: self._unsealed(sealed, place))

    def _unsealed(self, sealed: bytes, place: bytes) -> _Parts:
        """Refs and bytes of a content."""
        data = self._open(sealed, place, f"row {place.decode().partition('/')[2]}")[1]
        count = int.from_bytes(data[:4])
        end = 4 + count
        refs = tuple(filter(None, data[4:end].decode().split(",")))
        return _Parts(refs, data[end:])

    def _open(self, sealed: bytes, place: bytes, what: str) -> tuple[Cipher, bytes]:
        if not sealed.startswith(MARK):
            raise StoreError(
                f"{what} in the store {self.address!r} is not encrypted: it was written without Encrypted(...). Read "
                "it with the store itself; to encrypt it, export its threads and load them into an encrypted store"
            )
        for cipher in self._ciphers():
            try:
                return cipher, cipher.open(sealed, place)
            except InvalidTag:
                continue
        raise StoreError(
            f"{what} in the store {self.address!r} cannot be opened: the key is not the one that has sealed it, or it "
            "was changed since. Give the right key, Encrypted(store, key=...), or all keys there ever were, the newest "
            "one first"
        )


class _Parts(NamedTuple):
    refs: tuple[str, ...]
    data: bytes


class _DecryptedContent(Content):
    """A content from the store, opened when somebody reads it: who reads the structure alone needs no key."""

    __slots__ = ("_open", "_sealed")

    def __init__(self, sealed: bytes, unseal: Callable[[bytes], _Parts]) -> None:
        super().__init__(None)
        self._sealed = sealed
        self._open = unseal

    @property
    def is_encoded(self) -> bool:
        return True

    @property
    def data(self) -> bytes:
        if self._data is None:
            self._refs, self._data = self._open(self._sealed)
        return self._data

    def value(self, fetch: Fetch, decode: Callable[[Any], Any] | None = None) -> Any:
        stored = Content.stored(self.data, self._refs)
        return stored.value(fetch) if decode is None else stored.value(fetch, decode)


def _seal(content: Content, place: bytes, cipher: Cipher) -> Content:
    """A content for the store: its ids inside, their keyed forms outside."""
    data, refs = content.data, content.refs
    names = ",".join(refs).encode()
    sealed = cipher.seal(len(names).to_bytes(4) + names + data, place)
    blobs = _sealed_blobs(content.blobs, cipher) if content.blobs else {}
    return Content.stored(sealed, [cipher.keyed(name) for name in refs], blobs)


def _sealed_blobs(blobs: Mapping[str, bytes], cipher: Cipher) -> dict[str, bytes]:
    found = {}
    for name, data in blobs.items():
        keyed = cipher.keyed(name)
        found[keyed] = cipher.seal(data, keyed.encode())
    return found


def _at(run: str, seq: int, kind: str) -> bytes:
    return f"{kind}/{seq} of run {run}".encode()


def _derived(key: bytes, purpose: bytes) -> bytes:
    """A key of 64 bytes for one purpose."""
    return hmac.new(key, b"dspyer store " + purpose, hashlib.sha512).digest()


def _keys_of(key: CipherKey | Iterable[CipherKey] | None) -> tuple[Cipher, ...]:
    if key is None:
        return ()
    return tuple([Cipher(each) for each in ([key] if isinstance(key, str | bytes) else key)])
