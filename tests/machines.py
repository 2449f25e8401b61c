"""Machines that can be cut off: each in a network and a process namespace of its own, where that is allowed.

Where it is not, a machine is a loopback address whose way to the broker and the ledger can be stopped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Protocol

from tests.link import Link


class Machine(Protocol):
    name: str
    within: list[str]
    """What a command is to be run by, to be run on it."""

    def reach(self, socket: str) -> str:
        """The address, as HOST:PORT, by which this machine gets to the server behind that socket."""

    def cut(self) -> None:
        """Nothing gets in or out any more."""

    def mend(self) -> None: ...


def separate() -> str | None:
    """Why no namespaces can be made here; None when they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces are for root with iproute2 and unshare"
    name = f"dlpipe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "the kernel gives no network namespaces here"
    probe = ["unshare", "--pid", "--fork", "--mount-proc", "ip", "netns", "exec", name, "true"]
    works = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    _ip("netns", "del", name)
    return None if works else "no process namespaces within network namespaces here"


class Separate:
    """A network with one address for all servers, and a line from it to each machine."""

    def __init__(self, *names: str) -> None:
        self._stack = ExitStack()
        self._net = os.getpid() % 200 + 20
        self.host = f"10.213.{self._net}.254"
        self._links: dict[str, Link] = {}
        self.machines = [_Space(self, number, name) for number, name in enumerate(names)]

    def __enter__(self) -> Separate:
        try:
            _ip("addr", "add", f"{self.host}/32", "dev", "lo")
            self._stack.callback(_ip_if_there, "addr", "del", f"{self.host}/32", "dev", "lo")
            for machine in self.machines:
                machine.connect(self._stack, self._net)
        except BaseException:
            self._stack.close()
            raise
        return self

    def link(self, socket: str) -> str:
        if socket not in self._links:
            self._links[socket] = self._stack.enter_context(Link(socket, self.host))
        return f"{self.host}:{self._links[socket].port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class _Space:
    def __init__(self, network: Separate, number: int, name: str) -> None:
        self._network, self._number = network, number
        self.name = name
        self._space = f"dl{os.getpid()}{name}"
        self._line = f"dl{os.getpid() % 100_000}{number}h"
        unshared = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.within = ["ip", "netns", "exec", self._space, *unshared]

    def connect(self, stack: ExitStack, net: int) -> None:
        here, there = (f"10.213.{net}.{4 * self._number + end}" for end in (1, 2))
        inner = self._line[:-1] + "n"
        _ip("netns", "add", self._space)
        stack.callback(_ip_if_there, "netns", "del", self._space)
        _ip("link", "add", self._line, "type", "veth", "peer", "name", inner, "netns", self._space)
        stack.callback(_ip_if_there, "link", "del", self._line)
        _ip("addr", "add", f"{here}/30", "dev", self._line)
        _ip("link", "set", self._line, "up")
        for words in (f"addr add {there}/30 dev {inner}", f"link set {inner} up", "link set lo up"):
            _ip("-n", self._space, *words.split())
        _ip("-n", self._space, "route", "add", "default", "via", here)

    def reach(self, socket: str) -> str:
        return self._network.link(socket)

    def cut(self) -> None:
        _ip("link", "set", self._line, "down")

    def mend(self) -> None:
        _ip("link", "set", self._line, "up")


class Together:
    """All on this machine, each with ways of its own to the broker and the ledger."""

    def __init__(self, *names: str) -> None:
        self.host = "127.0.0.1"
        self.machines = [_Ways(name) for name in names]

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines:
            machine.close()


class _Ways:
    def __init__(self, name: str) -> None:
        self.name = name
        self.within: list[str] = []
        self._links: dict[str, Link] = {}

    def reach(self, socket: str) -> str:
        if socket not in self._links:
            self._links[socket] = Link(socket)
        return f"127.0.0.1:{self._links[socket].port}"

    def cut(self) -> None:
        for link in self._links.values():
            link.stall()

    def mend(self) -> None:
        for link in self._links.values():
            link.mend()

    def close(self) -> None:
        for link in self._links.values():
            link.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def _ip_if_there(*words: str) -> None:
    with suppress(subprocess.CalledProcessError):
        _ip(*words)
