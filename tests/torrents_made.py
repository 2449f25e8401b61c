"""Torrents made by the tests, and the web seed that serves their content on loopback."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import torf

from tests.origin import Asked, Origin, Say, Then, answer

PIECE = 16 * 1024
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)\Z")


@dataclass(frozen=True)
class Made:
    """A torrent of one file."""

    file: bytes
    info_hash: str
    magnet: str
    content: bytes
    name: str


def make(directory: Path, name: str, content: bytes, web_seed: str | None = None) -> Made:
    """A v1 torrent, private so that nobody is asked for peers."""
    path = directory / name
    path.write_bytes(content)
    torrent = torf.Torrent(path=path, private=True, piece_size=PIECE, webseeds=[web_seed] if web_seed else None)
    torrent.generate()
    return Made(torrent.dump(), str(torrent.infohash), str(torrent.magnet()), content, name)


def bencode(value: object) -> bytes:
    match value:
        case int():
            return b"i%de" % value
        case str():
            return bencode(value.encode())
        case bytes():
            return b"%d:%s" % (len(value), value)
        case list():
            return b"l%se" % b"".join(map(bencode, value))
        case dict():
            return b"d%se" % b"".join(bencode(key) + bencode(value[key]) for key in sorted(value))
        case _:
            raise TypeError(value)


def modern(name: str, content: bytes, *, hybrid: bool, web_seed: str | None = None) -> bytes:
    """A v2 torrent, or a hybrid, of one file that fits into one block, so that its root is one hash (BEP 52)."""
    assert 0 < len(content) <= PIECE
    root = hashlib.sha256(content).digest()
    info: dict[str, object] = {
        "file tree": {name: {"": {"length": len(content), "pieces root": root}}},
        "meta version": 2,
        "name": name,
        "piece length": PIECE,
        "private": 1,
    }
    if hybrid:
        info |= {"length": len(content), "pieces": hashlib.sha1(content, usedforsecurity=False).digest()}
    meta: dict[str, object] = {"info": info, "piece layers": {}}
    if web_seed is not None:
        meta["url-list"] = web_seed
    return bencode(meta)


class WebSeed:
    """Serves content by ranges; while the gate is shut, only what lies before `hold_at`."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._gates: list[threading.Event] = []

    def put(self, name: str, content: bytes, hold_at: int | None = None) -> tuple[str, threading.Event]:
        """Answers the URL and the gate."""
        gate = threading.Event()
        self._gates.append(gate)

        def script(asked: Asked) -> Say:
            found = _RANGE.match(asked.headers.get("range", ""))
            start = int(found[1]) if found else 0
            end = int(found[2]) + 1 if found and found[2] else len(content)
            if hold_at is not None and end > hold_at:
                gate.wait()
            body = content[start:end]
            if found is None:
                return Say(answer(200, body))
            return Say(answer(206, body, f"Content-Range: bytes {start}-{end - 1}/{len(content)}"), Then.KEEP)

        return self._origin.on(f"/{name}", script), gate

    def open_all(self) -> None:
        """Let every waiting answer go, so that the server can end."""
        for gate in self._gates:
            gate.set()
