"""A certificate authority for a test, and what it signs; made by the program `openssl`."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import absent

NAME = "files.example"
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Certificate:
    """In PEM: whoever serves with it puts it where it may read it."""

    chain: str
    key: str

    def serving(self, folder: Path) -> ssl.SSLContext:
        """For a server of Python's; its two files are written into that folder."""
        chain, key = folder / "serving.pem", folder / "serving.key"
        chain.write_text(self.chain)
        key.write_text(self.key)
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(chain, key)
        return made


class Authority:
    def __init__(self, folder: Path, name: str = "an authority of the tests") -> None:
        if shutil.which("openssl") is None:
            absent("no openssl to make certificates with: install the Debian package openssl")
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.file, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.file, "-subj", f"/CN={name}", "-days", "2")

    def sign(self, name: str = NAME, *, days: int = 2) -> Certificate:
        """For that host name; with fewer than 0 days it has expired."""
        request, names, key, chain = (self._folder / name for name in ("request", "names", "server.key", "server.pem"))
        names.write_text(f"subjectAltName=DNS:{name}\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", "/CN=server")
        signer = ["-CA", self.file, "-CAkey", self._key, "-CAcreateserial"]
        _openssl("x509", "-req", "-in", request, *signer, "-days", days, "-extfile", names, "-out", chain)
        return Certificate(chain.read_text(), key.read_text())

    def self_signed(self, name: str = NAME) -> Certificate:
        key, chain = self._folder / "own.key", self._folder / "own.pem"
        more = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-days", "2"]
        _openssl("req", "-x509", *_KEY, "-keyout", key, "-out", chain, *more)
        return Certificate(chain.read_text(), key.read_text())


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
