"""The limit for Python: one GET over a bare socket, a hash thread, the same durability as ours, and nothing else.

Run as `python -m ops.bench.peers.limit HOST PORT PATH FOLDER`; prints seconds, digest and path as JSON. It receives
into a ring of reused blocks, preallocates, writes at offsets, has the kernel write out early, fsyncs the file, links
it under its hash, and fsyncs both directories. No ledger, no lease, no sidecar, no resume, no limits.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path

_KEEP_SIZE, _WRITE = 1, 2
_WRITE_OUT = 32 << 20
_BLOCK, _BLOCKS = 1 << 20, 8
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def fetch(host: str, port: int, path: str, folder: Path) -> tuple[str, Path]:
    part, store = folder / "part", folder / "store"
    store.mkdir(exist_ok=True)
    digest = hashlib.sha256()
    free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    filled: queue.SimpleQueue[tuple[memoryview, int] | None] = queue.SimpleQueue()
    for _ in range(_BLOCKS):
        free.put(memoryview(mmap.mmap(-1, _BLOCK)))

    def hash_all() -> None:
        while (given := filled.get()) is not None:
            block, size = given
            digest.update(block[:size])
            free.put(block)

    hashing = threading.Thread(target=hash_all)
    hashing.start()
    fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with socket.create_connection((host, port)) as line:
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            total, early = _head(line)
            _libc.fallocate(fd, _KEEP_SIZE, 0, total)
            at = sent_out = 0
            while at < total:
                block = free.get()
                have = len(early)
                block[:have], early = early, b""
                want = min(_BLOCK, total - at)
                while have < want:
                    got = line.recv_into(block[have:want])
                    if not got:
                        raise ConnectionError(f"the body ended after {at + have} of {total} bytes")
                    have += got
                filled.put((block, have))
                _write(fd, block[:have], at)
                at += have
                if at - sent_out >= _WRITE_OUT:
                    _libc.sync_file_range(fd, sent_out, at - sent_out, _WRITE)
                    sent_out = at
    finally:
        filled.put(None)
        hashing.join()
    os.fsync(fd)
    os.fchmod(fd, 0o444)
    os.close(fd)
    final = store / digest.hexdigest()
    os.link(part, final)
    part.unlink()
    for each in (store, folder):
        _fsync_folder(each)
    return digest.hexdigest(), final


def _head(line: socket.socket) -> tuple[int, bytes]:
    """The length of the body, and what of it came with the head."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = line.recv(4096)
        if not piece:
            raise ConnectionError("no answer")
        got += piece
    head, _, early = got.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    if " 200 " not in first:
        raise ConnectionError(first)
    lengths = [
        value for name, _, value in (field.partition(":") for field in fields) if name.lower() == "content-length"
    ]
    return int(lengths[0]), early


def _write(fd: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(fd, data, at)
        data, at = data[done:], at + done


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def main(host: str, port: str, path: str, folder: str) -> None:
    began = time.monotonic()
    sha256, final = fetch(host, int(port), path, Path(folder))
    print(json.dumps({"seconds": time.monotonic() - began, "sha256": sha256, "path": str(final)}))


if __name__ == "__main__":
    main(*sys.argv[1:5])
