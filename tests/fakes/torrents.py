"""A torrent client in memory: takes what it is given, and does with it what a test tells it to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlpipe.core import metainfo
from dlpipe.core.errors import InvalidInput, Permanent, TorrentOutage, TorrentRefused
from dlpipe.core.seen import Seen, seen
from dlpipe.core.torrents import Torrent, TorrentFile


@dataclass
class Held:
    """One torrent, as the client has it."""

    torrent: Torrent
    files: tuple[TorrentFile, ...] = ()
    tags: set[str] = field(default_factory=set)
    unlisted_looks: int = 0


class FakeTorrentClient:
    """The port `TorrentClient`. `outage` and `refusal` are raised by every call, by every `add`, while they are set."""

    def __init__(self, pages: Mapping[str, bytes] | None = None) -> None:
        self.pages = dict(pages or {})
        """The .torrent files behind URLs."""
        self.held: dict[str, Held] = {}
        self.requests: list[tuple[str, ...]] = []
        """Each call with the hashes that it named."""
        self.outage: TorrentOutage | None = None
        self.refusal: TorrentRefused | None = None
        self.unlisted_looks = 0
        """How many looks a new torrent stays out of the list, as real ones do for a moment."""
        self.free: int | None = 1 << 40

    # ── what a test makes happen ──────────────────────────────────────────────────────────────────

    def say(self, info_hash: str, state: str, done_bytes: int | None = None) -> None:
        """From now on the torrent is reported in this state."""
        torrent = self.held[info_hash].torrent
        done = torrent.done_bytes if done_bytes is None else done_bytes
        progress = done / torrent.size if torrent.size else 0.0
        self.held[info_hash].torrent = replace(torrent, state=state, done_bytes=done, progress=progress)

    def complete(self, info_hash: str, files: Mapping[str, bytes], state: str = "stalledUP") -> None:
        """Put the files into the save path and report the end of the download."""
        held = self.held[info_hash]
        for path, content in files.items():
            target = Path(held.torrent.save_path) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # A file that the store shares by now is read-only, and complete.
            if not target.exists() or target.read_bytes() != content:
                target.write_bytes(content)
        size = sum(map(len, files.values()))
        held.files = tuple(TorrentFile(path, len(content), True) for path, content in files.items())
        held.torrent = replace(held.torrent, state=state, progress=1.0, size=size, done_bytes=size)

    def remove(self, info_hash: str) -> Held:
        """Somebody removed it; give the answer to `put_back` to undo that."""
        return self.held.pop(info_hash)

    def put_back(self, held: Held) -> None:
        self.held[held.torrent.info_hash] = held

    # ── the port ──────────────────────────────────────────────────────────────────────────────────

    def add(self, source: str | bytes, *, save_path: str, tag: str) -> str:
        if isinstance(source, str) and source.lower().startswith(("http:", "https:")):
            if source not in self.pages:
                raise Permanent("the .torrent was answered with status 404", code="torrent_fetch_failed")
            source = self.pages[source]
        hashes = metainfo.of_magnet(source) if isinstance(source, str) else metainfo.of_file(source)
        name = hashes.names[0]
        self._asked("add", name)
        if self.refusal is not None:
            raise self.refusal
        if name not in self.held:
            torrent = Torrent(name, "metaDL", 0.0, 0, 0, save_path, name)
            self.held[name] = Held(torrent, unlisted_looks=self.unlisted_looks)
        self.held[name].tags.add(tag)
        return name

    def torrents(self, hashes: Collection[str]) -> Mapping[str, Torrent]:
        asked = [_checked(name) for name in hashes]
        if not asked:
            return {}
        self._asked("torrents", *asked)
        found = {}
        for name in asked:
            held = self.held.get(name)
            if held is not None and held.unlisted_looks > 0:
                held.unlisted_looks -= 1
            elif held is not None:
                found[name] = held.torrent
        return found

    def files(self, info_hash: str) -> list[TorrentFile]:
        self._asked("files", _checked(info_hash))
        if info_hash not in self.held:
            raise TorrentRefused("the torrent client does not have it", code="torrent_not_found")
        return list(self.held[info_hash].files)

    def stop(self, info_hash: str) -> None:
        self._asked("stop", _checked(info_hash))
        if info_hash in self.held:
            ended = seen(self.held[info_hash].torrent.state) is Seen.COMPLETE
            self.say(info_hash, "stoppedUP" if ended else "stoppedDL")

    def start(self, info_hash: str) -> None:
        self._asked("start", _checked(info_hash))
        if info_hash in self.held:
            ended = seen(self.held[info_hash].torrent.state) is Seen.COMPLETE
            self.say(info_hash, "stalledUP" if ended else "stalledDL")

    def delete(self, info_hash: str, *, with_files: bool) -> None:
        self._asked("delete", _checked(info_hash))
        held = self.held.pop(info_hash, None)
        if held is not None and with_files:
            for file in held.files:
                (Path(held.torrent.save_path) / file.path).unlink(missing_ok=True)

    def free_space(self) -> int | None:
        self._asked("free_space")
        return self.free

    def version(self) -> str:
        self._asked("version")
        return "fake 1"

    def _asked(self, *request: str) -> None:
        self.requests.append(request)
        if self.outage is not None:
            raise self.outage


def _checked(info_hash: str) -> str:
    if len(info_hash) != 40 or not set(info_hash) <= set("0123456789abcdef"):
        raise InvalidInput("an info hash has 40 lowercase hex digits", code="info_hash_invalid")
    return info_hash
