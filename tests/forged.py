"""What a process that may write into the staging folder can put there: parts whose sidecars fit, and odd things."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlpipe.core.layout import part_slug
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging
from tests.world import sha256


def forge(
    root: Path, url: str, data: bytes, *, tenant: str = "default", total: int | None = None, etag: str = '"v1"'
) -> Path:
    """A part with every checksum right, as if these bytes had come of that file; whole, unless `total` says more."""
    remote = RemoteFacts(200, sha256(url.encode()), etag=etag, content_length=total or len(data))
    with LocalStaging(root).claim(tenant, url, "forged", 1) as made:
        made.begin(remote)
        made.write(data)
        if total is None:
            made.finish()
        else:
            made.flush()
    return path_of(root, url, tenant)


def path_of(root: Path, url: str, tenant: str = "default") -> Path:
    return root / ".staging" / tenant / f"{part_slug(tenant, url)}.part"


def restate(part: Path, **fields: Any) -> None:
    """Write these into the sidecar, whatever they are, under checksums that fit."""
    beside = part.with_suffix(".json")
    body = json.loads(json.loads(beside.read_bytes().splitlines()[0])["body"])
    text = json.dumps(body | fields)
    beside.write_text(json.dumps({"body": text, "sha256": sha256(text.encode())}) + "\n")


def imprint_again(part: Path, digest: str) -> None:
    """As the sidecar once said that a file is as it was when it was hashed."""
    found, boot = part.stat(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    times = {"mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns}
    of = {"sha256": digest, "size": found.st_size, "device": found.st_dev, "inode": found.st_ino}
    restate(part, imprint=of | times | {"boot": boot})


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def fifo(path: Path) -> None:
    clear(path)
    os.mkfifo(path)


def folder(path: Path) -> None:
    clear(path)
    path.mkdir()


def full_folder(path: Path) -> None:
    folder(path)
    (path / "x").write_bytes(b"x")


def symlink(path: Path) -> None:
    clear(path)
    path.symlink_to(os.devnull)


def lost_symlink(path: Path) -> None:
    clear(path)
    path.symlink_to("nowhere")


def unix_socket(path: Path) -> None:
    clear(path)
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself may be longer than a socket's may be
    finally:
        os.close(here)


def device(path: Path) -> None:
    clear(path)
    os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero: never at its end


KINDS: tuple[Callable[[Path], None], ...] = (fifo, folder, full_folder, symlink, lost_symlink, unix_socket, device)
"""Of what may stand where a file belongs. A device needs root's rights."""
