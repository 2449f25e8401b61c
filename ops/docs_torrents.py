"""Draws the tables of docs/torrents.md from the code, between their marks; `--check` says whether they are fresh."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from dlpipe.core.downloads import STATUS
from dlpipe.core.seen import SEEN, Seen
from dlpipe.core.torrents import ACTIVE, TABLE, TERMINAL, DownloadStatus
from dlpipe.settings import Settings, Torrents, names

PAGE = Path(__file__).resolve().parent.parent / "docs" / "torrents.md"
_BLOCK = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_SEEN = {
    Seen.DOWNLOADING: ("at work on it, whether bytes come or not", "queued → downloading"),
    Seen.WAITING: ("it will be, when its own queue allows", "queued → downloading"),
    Seen.COMPLETE: ("all that is wanted is on disk", "queued → downloading, and its files are registered"),
    Seen.STOPPED: ("somebody stopped it before its end", "nothing; it stays ours"),
    Seen.BUSY: ("it checks or moves files", "nothing; what it was before, it will say again"),
    Seen.ERROR: ("it reports an error", "→ failed, `torrent_error`"),
    Seen.MISSING_FILES: ("files have vanished", "→ failed, `missing_files`"),
    Seen.UNKNOWN: ("it does not know itself", "nothing; it is reported"),
}

_MEANING = {
    "url": "where qBittorrent's Web API is; unset: there is none, and nothing is followed",
    "user": "how to log in",
    "password": "its password",
    "api_key": "instead of both, where qBittorrent has API keys",
    "ca_file": "certificates to trust instead of the system's",
    "save_path": "the download folder as qBittorrent sees it",
    "local_path": "the same folder as the workers see it; unset: the same path",
    "every_s": "how often to look",
    "batch": "downloads looked at in one round, in one request",
    "grace_s": "how long a torrent may be absent from a client that answers",
    "stall_s": "after how long without a byte a download is reported as stalled",
    "stalled_max_s": "after how long without a byte it has failed, with `torrent_stalled`",
    "attempts": "tries to hand a torrent over before the download fails",
    "register_attempts": "tries to bring a complete torrent's files into the store; about a week of them",
    "base_s": "the first pause between two tries; it doubles",
    "cap_s": "the longest pause",
    "removal": "what becomes of the torrent of a canceled download: `keep`, `remove`, `remove_with_files`",
    "sharing": "how files get into the store: `link`, `clone`, `copy` (ADR 18)",
    "max_files": "a torrent with more files is refused",
}


def diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {DownloadStatus.QUEUED}"
    for source, target in TABLE:
        yield f"    {source} --> {target}"
    for state in (one for one in DownloadStatus if one in TERMINAL):
        yield f"    {state} --> [*]"
    yield "```"


def states() -> Iterator[str]:
    yield from _table(
        ["state", "status of the job", "may become", "one per user, book and medium"],
        ((_code(one), _code(STATUS[one]), _next(one), "yes" if one in ACTIVE else "no") for one in DownloadStatus),
    )


def _next(state: DownloadStatus) -> str:
    return ", ".join(_code(target) for source, target in TABLE if source is state) or "nothing: it never changes"


def words() -> Iterator[str]:
    rows = []
    for kind, (meaning, comes) in _SEEN.items():
        said = ", ".join(_code(name) for name, seen in SEEN.items() if seen is kind)
        rows.append((said, meaning, comes))
    yield from _table(["qBittorrent says", "which means", "what comes of it"], rows)


def settings() -> Iterator[str]:
    rows = []
    for name in Torrents.model_fields:
        default: Any = getattr(Settings().torrents, name)
        shown = "none" if default is None or isinstance(default, SecretStr) else _code(str(default))
        env = names()[f"torrents.{name}"]
        rows.append((_code(f"torrents.{name}"), _code(env), shown, _MEANING[name]))
    yield from _table(["setting", "variable", "default", "meaning"], rows)


BLOCKS: dict[str, Callable[[], Iterable[str]]] = {
    "diagram": diagram, "states": states, "words": words, "settings": settings,
}  # fmt: skip


def render(page: str) -> str:
    """The page with every block drawn anew; a block that is not there, or not known, is an error."""
    found = [name for _, name, _ in _BLOCK.findall(page)]
    if sorted(found) != sorted(BLOCKS):
        raise ValueError(f"the page has the blocks {found}, and should have {sorted(BLOCKS)}")
    return _BLOCK.sub(lambda match: match[1] + "".join(f"{line}\n" for line in BLOCKS[match[2]]()) + match[3], page)


def _code(text: str) -> str:
    return f"`{text}`"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (headers, ["---"] * len(headers), *rows):
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    options: Any = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--check", action="store_true", help="change nothing; fail when the page is stale")
    check: bool = options.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    drawn = render(page)
    if check:
        print(f"{PAGE.name} is {'fresh' if drawn == page else 'stale; run: make docs'}")
        return 0 if drawn == page else 1
    PAGE.write_text(drawn, encoding="utf-8")
    print(f"{PAGE.name} {'was fresh' if drawn == page else 'is written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
