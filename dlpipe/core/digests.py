"""The digests that a server declares of what it sends (HTTP.md, rows 44 to 46). Pure.

Content-Digest and Repr-Digest (RFC 9530) are structured-field dictionaries of byte sequences (RFC 8941),
read strictly: a field that does not parse is as if absent, as the RFC demands. Only sha-256 and sha-512
count there. Content-MD5, x-goog-hash and x-amz-checksum-sha256 are read as strictly, where they are plainly
of the whole file. An ETag is never a digest.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dlpipe.core.remote import Headers

SIZES: Mapping[str, int] = {"sha-256": 32, "sha-512": 64}
HASHES: Mapping[str, str] = {"sha-256": "sha256", "sha-512": "sha512", "md5": "md5"}
"""What hashlib calls them. md5 counts only in the older fields."""
_MD5_SIZE = 16
_MEMBER = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):\Z")


@dataclass(frozen=True, slots=True)
class Digest:
    algorithm: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Expected:
    """`content`: of this message's content (row 44). `whole`: of the whole file (row 45).

    `older`: of the whole file when the message brings all of it, else of nobody knows what (row 46).
    """

    content: tuple[Digest, ...] = ()
    whole: tuple[Digest, ...] = ()
    older: tuple[Digest, ...] = ()

    def of_file(self, status: int) -> tuple[Digest, ...]:
        """What the finished file must hash to; the content of a 200, and only of a 200, is the whole file."""
        return self.whole + self.content + self.older if status == 200 else self.whole

    def of_range(self, status: int) -> tuple[Digest, ...]:
        """What the bytes of this message must hash to when they are a part of the file."""
        return self.content if status == 206 else ()


def expected_digests(headers: Headers) -> Expected:
    return Expected(
        _parse(headers.all("content-digest")),
        _parse(headers.all("repr-digest")),
        _one("md5", _MD5_SIZE, headers.all("content-md5")) + _google(headers) + _amazon(headers),
    )


def agree(expected: tuple[Digest, ...], computed: Mapping[str, bytes]) -> bool | None:
    """Whether every digest that we computed matches what was declared; None when none can be compared."""
    compared = [computed[digest.algorithm] == digest.value for digest in expected if digest.algorithm in computed]
    return all(compared) if compared else None


def _parse(values: tuple[str, ...]) -> tuple[Digest, ...]:
    found: dict[str, bytes] = {}
    if not values:
        return ()
    # Several lines of one field are one list (RFC 9110 §5.3). A comma cannot stand inside base64.
    for member in ",".join(values).split(","):
        match = _MEMBER.match(member.strip(" \t"))
        if match is None:
            return ()
        algorithm, text = match.groups()
        value = _decode(text)
        if value is None:
            return ()
        found[algorithm] = value  # of two members with one key the last counts (RFC 8941 §3.2)
    return tuple(Digest(algorithm, value) for algorithm, value in found.items() if len(value) == SIZES.get(algorithm))


def _google(headers: Headers) -> tuple[Digest, ...]:
    """`crc32c=…,md5=…`, in one line or several. What was stored coded and is sent plain has other bytes."""
    if any(coding.lower() != "identity" for coding in headers.all("x-goog-stored-content-encoding")):
        return ()
    members = [
        member.strip(" \t").partition("=") for value in headers.all("x-goog-hash") for member in value.split(",")
    ]
    return _one("md5", _MD5_SIZE, tuple(text for name, _, text in members if name == "md5"))


def _amazon(headers: Headers) -> tuple[Digest, ...]:
    """A composite value is a hash of hashes; it ends with `-N`, or its type says so."""
    if any(kind.upper() != "FULL_OBJECT" for kind in headers.all("x-amz-checksum-type")):
        return ()
    return _one("sha-256", SIZES["sha-256"], headers.all("x-amz-checksum-sha256"))


def _one(algorithm: str, size: int, texts: tuple[str, ...]) -> tuple[Digest, ...]:
    """The digest of a field that has to be there once."""
    value = _decode(texts[0]) if len(texts) == 1 else None
    return (Digest(algorithm, value),) if value is not None and len(value) == size else ()


def _decode(text: str) -> bytes | None:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    # Two spellings of the same bytes would be one too many: only the canonical one is taken.
    return value if base64.b64encode(value).decode("ascii") == text else None
