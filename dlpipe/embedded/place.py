"""Where a data directory's sockets are; looks, and creates nothing. It is light: every command asks it first."""

from __future__ import annotations

import os

SOCKET_PATH_BYTES = 100  # the kernel's limit is 108, macOS' 104, and a temporary name must fit as well
_URL_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~/-")


def socket_in(home: str, name: str) -> str:
    """A path too long for a socket, or one that needs quoting in a URL, is replaced by one in a short directory."""
    home = os.path.realpath(home)
    path = os.path.join(home, "run", name)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES and _URL_SAFE.issuperset(path):
        return path
    import hashlib

    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return os.path.join(_short_base(), f"dlpipe-{os.geteuid()}-{digest}", name)


def _short_base() -> str:
    # /run/user/UID is what XDG_RUNTIME_DIR says in a login session: cron must come to the same answer.
    for text in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        if text.startswith("/") and len(text) <= 40 and _URL_SAFE.issuperset(text) and os.access(text, os.W_OK):
            return text
    return "/tmp"  # noqa: S108 - the directory made in it is checked for owner and mode
