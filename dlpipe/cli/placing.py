"""Files under readable names, for `fetch --out`: linked to the store where possible, else copied."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_UNWANTED = re.compile(r"[^\w.,()+=@-]+")
MAX_NAME_BYTES = 180


def place_in(folder: Path, record: dict[str, Any]) -> Path:
    """Put the record's file there; the same file is there once, another of the same name gets its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(record["path"])
    name = readable(record["url"], source.suffix or "")
    stem, suffix = os.path.splitext(name)
    for candidate in (name, f"{stem}-{record['sha256'][:12]}{suffix}"):
        target = folder / candidate
        if _put(source, target) or _same(source, target):
            return target
    return source


def readable(url: str, suffix: str) -> str:
    """A file name from the last part of a URL: no separators, no leading dot, never empty."""
    last = unquote(url.split("?", 1)[0].split("#", 1)[0].rstrip("/").rpartition("/")[2])
    name = _UNWANTED.sub("_", last).strip("._ ") or "file"
    stem, ext = os.path.splitext(name)
    if not ext and suffix:
        ext = suffix
    room = MAX_NAME_BYTES - len(ext.encode())
    return stem.encode()[:room].decode(errors="ignore") + ext


def _put(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(source, temporary)
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    return True


def _same(source: Path, target: Path) -> bool:
    try:
        return target.is_file() and (os.path.samefile(source, target) or _bytes_equal(source, target))
    except OSError:
        return False


def _bytes_equal(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as a, other.open("rb") as b:
        while block := a.read(1 << 20):
            if block != b.read(1 << 20):
                return False
    return True
