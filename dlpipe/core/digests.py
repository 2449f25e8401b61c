"""The digests that a server declares of what it sends (RFC 9530): Content-Digest and Repr-Digest.

Pure. Values are structured-field dictionaries of byte sequences (RFC 8941), read strictly: a field
that does not parse is as if absent, as the RFC demands. Only sha-256 and sha-512 count.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dlpipe.core.remote import Headers

SIZES: Mapping[str, int] = {"sha-256": 32, "sha-512": 64}
_MEMBER = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):\Z")


@dataclass(frozen=True, slots=True)
class Digest:
    algorithm: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Expected:
    """`content`: of this message's content (row 44). `whole`: of the whole file (row 45)."""

    content: tuple[Digest, ...] = ()
    whole: tuple[Digest, ...] = ()

    def of_file(self, status: int) -> tuple[Digest, ...]:
        """What the finished file must hash to; the content of a 200, and only of a 200, is the whole file."""
        return self.whole + self.content if status == 200 else self.whole


def expected_digests(headers: Headers) -> Expected:
    return Expected(_parse(headers.all("content-digest")), _parse(headers.all("repr-digest")))


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


def _decode(text: str) -> bytes | None:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    # Two spellings of the same bytes would be one too many: only the canonical one is taken.
    return value if base64.b64encode(value).decode("ascii") == text else None
