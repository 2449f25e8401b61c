"""Disks that remember what was written to them and in which order, so that a power cut can be had at any moment.

A disk is a file behind a loop device. Its file system (FUSE, served here by a process of its own) writes down each
write and each flush, of all its disks in one order, and only then answers. What a real disk may do when the power goes
is then built from that record: what was written before the last flush is there; of what came after, in its volatile
cache, any part may be there or not, down to single sectors.

Linux, root, /dev/fuse and loop devices; only for what runs in a mount namespace of its own (tests/mounts.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType

import pytest

from tests import mounts

SECTOR = 512
_ROOT = 1
_MAX_WRITE = 128 << 10
_BUFFER = _MAX_WRITE + 4096
_IN = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT = struct.Struct("<IiQ")
_RECORD = struct.Struct("<BBQI")  # disk, kind, offset, size
_WRITE, _FLUSH = 1, 2


class _Op(IntEnum):
    """What the kernel asks of a FUSE server, as linux/fuse.h numbers it."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    BATCH_FORGET = 42


_SILENT = (_Op.FORGET, _Op.BATCH_FORGET)


def need() -> None:
    mounts.need_disks()
    if not Path("/dev/fuse").exists():
        pytest.skip("this kernel has no FUSE, which the recording disk is made of")


class Recorder:
    """Serves the disks; run as a process of its own: `python -m tests.disks PLACE SIZE NAME…`."""

    def __init__(self, place: Path, size: int, names: Sequence[str]) -> None:
        self._names = list(names)
        self._size = size
        self._files = [os.open(place / name, os.O_RDWR) for name in names]
        self._log = os.open(place / "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mount(self, at: Path) -> None:
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"disks", os.fsencode(at), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), "mounting the recording disks failed")

    def serve(self) -> None:
        while True:
            try:
                asked = os.read(self._fuse, _BUFFER)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return  # unmounted
            _, opcode, unique, node, *_ = _IN.unpack_from(asked)
            if opcode in _SILENT:
                continue
            answer = self._answer(opcode, node, asked[_IN.size :])
            code, data = (answer, b"") if isinstance(answer, int) else (0, answer)
            os.write(self._fuse, _OUT.pack(_OUT.size + len(data), -code, unique) + data)

    def _answer(self, opcode: int, node: int, body: bytes) -> int | bytes:
        match opcode:
            case _Op.INIT:
                # Version 7.31, no options: no cache of writes, so each one comes here before it is answered.
                return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, _MAX_WRITE, 1, 32, 0, 0)
            case _Op.LOOKUP:
                name = body.rstrip(b"\0").decode()
                if name not in self._names:
                    return errno.ENOENT
                number = self._names.index(name) + 2
                return struct.pack("<QQQQII", number, 0, 3600, 3600, 0, 0) + self._attributes(number)
            case _Op.GETATTR | _Op.SETATTR:
                return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
            case _Op.OPEN:
                return struct.pack("<QII", node, 0, 0)
            case _Op.READ:
                _, offset, size = struct.unpack_from("<QQI", body)
                return os.pread(self._files[node - 2], size, offset)
            case _Op.WRITE:
                _, offset, size = struct.unpack_from("<QQI", body)
                return self._write(node - 2, offset, body[40 : 40 + size])
            case _Op.FSYNC:
                self._note(node - 2, _FLUSH, 0, b"")
                return b""
            case _Op.STATFS:
                return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 20, 1 << 20, 16, 16, 4096, 255, 4096, 0)
            case _Op.RELEASE | _Op.FLUSH:
                return b""
            case _:
                return errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o600
        size = 0 if node == _ROOT else self._size
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // SECTOR, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _write(self, disk: int, offset: int, data: bytes) -> bytes:
        os.pwrite(self._files[disk], data, offset)
        self._note(disk, _WRITE, offset, data)
        return struct.pack("<II", len(data), 0)

    def _note(self, disk: int, kind: int, offset: int, data: bytes) -> None:
        os.writev(self._log, [_RECORD.pack(disk, kind, offset, len(data)), data])


class Disks:
    """Recording disks of that size, mounted as ext4 under `place/<name>`, as long as the block lasts."""

    def __init__(self, place: Path, names: Sequence[str], size: int) -> None:
        self.place, self.names, self.size = place, list(names), size
        self.record = place / "backing" / "record"
        self._loops: list[str] = []

    def __enter__(self) -> Disks:
        backing, fuse = self.place / "backing", self.place / "fuse"
        backing.mkdir(parents=True)
        fuse.mkdir()
        for name in self.names:
            with (backing / name).open("wb") as file:
                file.truncate(self.size)
            _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(backing / name))
            _run("cp", "--sparse=always", str(backing / name), str(self.place / f"{name}.before"))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.disks", str(backing), str(self.size), str(fuse), *self.names],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._server.stdout is not None
        assert self._server.stdout.readline().strip() == "ready"
        for name in self.names:
            loop = _run("losetup", "--find", "--show", str(fuse / name)).strip()
            self._loops.append(loop)
            mounts.mount("ext4", self.place / name, device=loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.names:
            subprocess.run(["umount", str(self.place / name)], check=False, capture_output=True)
        for loop in self._loops:
            subprocess.run(["losetup", "-d", loop], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(self.place / "fuse")], check=False, capture_output=True)
        self._server.kill()
        self._server.wait(10)
        assert self._server.stdout is not None
        self._server.stdout.close()

    def position(self) -> int:
        """How far the record reaches; a cut at a later place finds all that was flushed by now."""
        return self.record.stat().st_size

    def cut(self, position: int, chance: random.Random, to: Path) -> list[Path]:
        """Write the disks as they may be found when the power goes at that place of the record."""
        held: list[list[tuple[int, bytes]]] = [[] for _ in self.names]
        images = []
        for name in self.names:
            images.append(to / f"{name}.img")
            _run("cp", "--sparse=always", str(self.place / f"{name}.before"), str(images[-1]))
        files = [os.open(image, os.O_RDWR) for image in images]
        try:
            for disk, kind, offset, data in self._entries(position):
                if kind == _WRITE:
                    held[disk].append((offset, data))
                elif kind == _FLUSH:
                    for at, piece in held[disk]:
                        os.pwrite(files[disk], piece, at)
                    held[disk].clear()
            for file, volatile in zip(files, held, strict=True):
                _survivors(file, volatile, chance)
        finally:
            for file in files:
                os.close(file)
        return images

    def _entries(self, position: int) -> Iterator[tuple[int, int, int, bytes]]:
        with self.record.open("rb") as record:
            while record.tell() + _RECORD.size <= position and (head := record.read(_RECORD.size)):
                disk, kind, offset, size = _RECORD.unpack(head)
                data = record.read(size)
                if record.tell() <= position:
                    yield disk, kind, offset, data


def _survivors(file: int, volatile: Sequence[tuple[int, bytes]], chance: random.Random) -> None:
    """What is left of a disk's cache: all, nothing, what came first, any writes, or any sectors."""
    manner = chance.choice(["all", "none", "first", "any", "sectors"])
    pieces = list(volatile)
    if manner == "none":
        pieces = []
    elif manner == "first":
        pieces = pieces[: chance.randint(0, len(pieces))]
    elif manner == "any":
        pieces = [piece for piece in pieces if chance.random() < 0.5]
    elif manner == "sectors":
        split = [(at + n, data[n : n + SECTOR]) for at, data in pieces for n in range(0, len(data), SECTOR)]
        pieces = [piece for piece in split if chance.random() < 0.5]
    # In their order: of one sector a disk never keeps an older write over a newer one.
    for offset, data in pieces:
        os.pwrite(file, data, offset)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    backing, size, at, *disks = sys.argv[1:]
    recorder = Recorder(Path(backing), int(size), disks)
    recorder.mount(Path(at))
    print("ready", flush=True)
    recorder.serve()
