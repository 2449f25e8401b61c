"""Torrents in qBittorrent, 4.5 to 5.3: the `core.ports.TorrentClient` over its Web API."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from qbittorrentapi import exceptions as qb

from dlpipe.core import metainfo
from dlpipe.core.errors import InvalidInput, TorrentRefused
from dlpipe.core.metainfo import InfoHashes
from dlpipe.core.torrents import Torrent, TorrentFile
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent_api import Api, asking

Fetch = Callable[[str], bytes]
"""Brings the .torrent behind a URL; StageFailure when it cannot."""

_NAME = re.compile(r"[0-9a-f]{40}\Z")
_TAG = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")
# A torrent that was just taken is listed a moment later, and until then nobody can stop or delete it.
_LISTED_WITHIN_S, _LOOK_EVERY_S = 5.0, 0.1
# It begins to measure its disk when it is first asked how much is free, and until then it says 0.
_MEASURED_WITHIN_S = 2.0


class QBittorrent:
    """One qBittorrent. May be shared by threads, which then wait for each other."""

    def __init__(self, api: Api, fetch: Fetch, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api, self._fetch, self._sleep = api, fetch, sleep
        self._host = qbittorrent_api.host_of(api.host)
        self._lock = threading.RLock()
        # The name that we were given for a torrent, to the one that qBittorrent uses, where they differ.
        self._renamed: dict[str, str] = {}

    def add(self, source: str | bytes, *, save_path: str, tag: str) -> str:
        if not _TAG.match(tag):
            raise InvalidInput("a tag has letters, digits and _.:-", code="tag_invalid")
        link, data = self._what(source)
        hashes = metainfo.of_magnet(link) if data is None else metainfo.of_file(data)
        with self._asking():
            taken = self._sent(link if data is None else None, data, save_path, tag)
            found = self._await_listed(hashes)
            if taken:
                return found or hashes.names[0]
            if found is None:
                raise TorrentRefused("the torrent client declines this torrent", code="torrent_rejected")
            self._api.torrents_add_tags(tags=tag, torrent_hashes=self._renamed.get(found, found))
            return found

    def torrents(self, hashes: Collection[str]) -> Mapping[str, Torrent]:
        asked = {_checked(name): self._renamed.get(name, name) for name in hashes}
        if not asked:
            return {}
        with self._asking():
            listed = self._list(asked.values())
            found = {name: listed[used] for name, used in asked.items() if used in listed}
            if len(found) < len(asked):
                found |= self._under_other_names(asked.keys() - found.keys())
            return {name: _torrent(name, entry) for name, entry in found.items()}

    def files(self, info_hash: str) -> list[TorrentFile]:
        with self._asking():
            try:
                entries = self._api.torrents_files(torrent_hash=self._used(info_hash))
            except qb.NotFound404Error:
                raise TorrentRefused("the torrent client does not have it", code="torrent_not_found") from None
            except qb.Conflict409Error:  # no metadata yet
                return []
            return [_file(entry) for entry in entries if entry["priority"] != 0]

    def stop(self, info_hash: str) -> None:
        with self._asking():
            self._api.torrents_stop(torrent_hashes=self._used(info_hash))

    def start(self, info_hash: str) -> None:
        with self._asking():
            self._api.torrents_start(torrent_hashes=self._used(info_hash))

    def delete(self, info_hash: str, *, with_files: bool) -> None:
        with self._asking():
            self._api.torrents_delete(delete_files=with_files, torrent_hashes=self._used(info_hash))

    def free_space(self) -> int | None:
        with self._asking():
            free = self._free()
            for _ in range(round(_MEASURED_WITHIN_S / _LOOK_EVERY_S)):
                if free != 0:
                    break
                self._sleep(_LOOK_EVERY_S)
                free = self._free()
            return free if free >= 0 else None

    def _free(self) -> int:
        """Where the default save path is; a negative number when it cannot tell."""
        data: Any = self._api.sync_maindata(rid=0)
        return int(data["server_state"]["free_space_on_disk"])

    def version(self) -> str:
        with self._asking():
            return f"qBittorrent {self._api.app_version()} (Web API {self._api.app_web_api_version()})"

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._lock, asking(self._host):
            yield

    # ── adding ────────────────────────────────────────────────────────────────────────────────────

    def _what(self, source: str | bytes) -> tuple[str, bytes | None]:
        """A magnet link, or the bytes of a .torrent; what a URL points to is fetched by us, through the guard."""
        if isinstance(source, bytes):
            return "", source
        scheme = source.partition(":")[0].lower()
        if scheme in ("http", "https"):
            return "", self._fetch(source)
        return source, None

    def _sent(self, link: str | None, data: bytes | None, save_path: str, tag: str) -> bool:
        """Hand the torrent over; False when qBittorrent would not take it, which it also says of one it has."""
        try:
            answer: Any = self._api.torrents_add(
                urls=link,
                torrent_files=data,
                save_path=save_path or None,
                tags=tag,
                # Its own settings must not decide where the files go, or whether it begins at all.
                is_stopped=False,
                use_auto_torrent_management=False,
                use_download_path=False,
                content_layout="Original",
                stop_condition="None",  # type: ignore[arg-type]
            )
        except qb.UnsupportedMediaType415Error:
            raise TorrentRefused("the torrent client cannot read this torrent", code="torrent_malformed") from None
        except qb.Conflict409Error:  # since 5.2
            return False
        if isinstance(answer, str):
            if answer not in ("Ok.", "Fails."):
                raise ValueError(answer)
            return answer == "Ok."
        return bool(answer["success_count"] or answer["pending_count"])

    def _await_listed(self, hashes: InfoHashes) -> str | None:
        for _ in range(round(_LISTED_WITHIN_S / _LOOK_EVERY_S)):
            listed = self._list(hashes.names)
            for name in hashes.names:
                if name in listed:
                    return name
            self._sleep(_LOOK_EVERY_S)
        return next(iter(self._under_other_names(hashes.names)), None)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def _list(self, names: Collection[str] | None) -> dict[str, dict[str, Any]]:
        """What it has of these, or all that it has, by its own names."""
        # An empty list of names would mean all.
        entries: Any = self._api.torrents_info(torrent_hashes=sorted(names) if names is not None else None)
        if not isinstance(entries, list):  # anything else that is empty would read as "has none of them"
            raise TypeError
        return {str(entry["hash"]): entry for entry in entries}

    def _under_other_names(self, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """A hybrid that was added by the v1 hash in a magnet is renamed once its metadata are there."""
        found: dict[str, dict[str, Any]] = {}
        for used, entry in self._list(None).items():
            for name in (str(entry.get("infohash_v1")), str(entry.get("infohash_v2"))[:40]):
                if name in names:
                    found[name] = entry
                    self._renamed[name] = used
        return found

    def _used(self, info_hash: str) -> str:
        """The name to act on. One that is not there stays as it is, and the call does nothing."""
        name = self._renamed.get(_checked(info_hash), info_hash)
        if name not in self._list([name]):
            self._under_other_names([info_hash])
        return self._renamed.get(info_hash, info_hash)


def _checked(info_hash: str) -> str:
    # qBittorrent reads the word `all` as every torrent it has.
    if not _NAME.match(info_hash):
        raise InvalidInput("an info hash has 40 lowercase hex digits", code="info_hash_invalid")
    return info_hash


def _torrent(name: str, entry: Mapping[str, Any]) -> Torrent:
    return Torrent(
        info_hash=name,
        state=str(entry["state"]),
        progress=float(entry["progress"]),
        size=max(0, int(entry["size"])),  # -1 before the metadata are there
        done_bytes=max(0, int(entry["completed"])),
        save_path=str(entry["save_path"]),
        name=str(entry["name"]),
    )


def _file(entry: Mapping[str, Any]) -> TorrentFile:
    path = str(entry["name"])
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise TorrentRefused("a file of the torrent lies outside its folder", code="torrent_path_unsafe")
    return TorrentFile(path=path, size=int(entry["size"]), complete=float(entry["progress"]) >= 1)
