"""Files under readable names, for `fetch --out`: linked to the store where possible, else copied."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

_UNWANTED = re.compile(r"[^\w.,()+=@-]+")
_FRONT = "._-+=@, "
"""Hidden, an option, a file of arguments, or expanded by a shell, if a name began with it."""
_DEVICE = re.compile(r"(con|prn|aux|nul|conin|conout|clock|(com|lpt)[0-9¹²³])(\..*)?", re.IGNORECASE)
"""What Windows takes for a device, whatever ending it has; folders are shared with it."""
MAX_NAME_BYTES = 180
"""With a hash beside it still less than the 255 that file systems take."""
MAX_ENDING_BYTES = 24
_BLOCK = 1 << 20


def prepare(folder: Path) -> None:
    """Make the folder and try to write there, before anything is fetched for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".dlpipe-", dir=folder)
        os.close(handle)
        os.unlink(probe)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise click.UsageError(f"--out {folder} is not a folder that can be written: {reason}.") from None


def place_in(folder: Path, record: dict[str, Any]) -> Path:
    """Put the record's file there; the same file is there once, another of the same name gets its hash.

    OSError when it cannot be put there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(record["path"])
    name = readable(record["url"], source.suffix or "")
    stem, suffix = os.path.splitext(name)
    for candidate in (name, f"{stem}-{record['sha256'][:12]}{suffix}", f"{stem}-{record['sha256']}{suffix}"):
        target = folder / candidate
        if _put(source, target) or _same(source, target):
            return target
    raise FileExistsError(errno.EEXIST, "its names are taken by other files")


def readable(url: str, suffix: str) -> str:
    """A file name from the last part of a URL, safe on any system: one plain name, whatever the URL says.

    In one normal form, so that two spellings of a name are one name wherever it is looked at.
    """
    last = unquote(url.split("?", 1)[0].split("#", 1)[0].rstrip("/").rpartition("/")[2])
    name = _UNWANTED.sub("_", unicodedata.normalize("NFC", last)).lstrip(_FRONT).rstrip("._ ") or "file"
    stem, ext = os.path.splitext(f"_{name}" if _DEVICE.fullmatch(name) else name)
    if len(ext.encode()) > MAX_ENDING_BYTES:
        stem, ext = stem + ext, ""
    ext = ext or suffix
    stem = stem.encode()[: MAX_NAME_BYTES - len(ext.encode())].decode(errors="ignore").rstrip(".")
    return stem + ext


def _put(source: Path, target: Path) -> bool:
    """Link or copy, and never over what is there; False when the name is taken."""
    with contextlib.suppress(OSError):
        os.link(source, target)
        return True
    if os.path.lexists(target):
        return False
    handle, temporary = tempfile.mkstemp(prefix=".dlpipe-", dir=target.parent)
    try:
        with open(handle, "wb") as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy, _BLOCK)
            _seal(copy.fileno())
        return _named(Path(temporary), target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _named(temporary: Path, target: Path) -> bool:
    """Give a copy its name: by link where the file system has links, else by copying once more."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:
        return _copied(temporary, target)
    return True


def _copied(source: Path, target: Path) -> bool:
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        with open(handle, "wb") as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy, _BLOCK)
            _seal(copy.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise
    return True


def _seal(handle: int) -> None:
    """Read-only, as the store's own files are; some file systems know no modes."""
    with contextlib.suppress(OSError):
        os.fchmod(handle, 0o444)


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
