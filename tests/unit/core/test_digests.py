"""RFC 9530 digests, HTTP.md rows 44 and 45."""

from __future__ import annotations

import base64
import hashlib

import pytest

from dlpipe.core.digests import Digest, Expected, agree, expected_digests
from dlpipe.core.remote import Headers

BODY = b'{"hello": "world"}\n'
SHA256 = hashlib.sha256(BODY).digest()
SHA512 = hashlib.sha512(BODY).digest()
B256 = base64.b64encode(SHA256).decode()
B512 = base64.b64encode(SHA512).decode()
MD5 = hashlib.md5(BODY, usedforsecurity=False).digest()
BMD5 = base64.b64encode(MD5).decode()
LOOSE = B256[:-2] + chr(ord(B256[-2]) + 1) + "="


def _repr(*values: str) -> tuple[Digest, ...]:
    return expected_digests(Headers(("Repr-Digest", value) for value in values)).whole


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([f"sha-256=:{B256}:"], {"sha-256": SHA256}, id="one"),
        pytest.param([f"sha-256=:{B256}:, sha-512=:{B512}:"], {"sha-256": SHA256, "sha-512": SHA512}, id="two"),
        pytest.param([f"sha-512=:{B512}:", f"sha-256=:{B256}:"], {"sha-256": SHA256, "sha-512": SHA512}, id="lines"),
        pytest.param([f"md5=:AAAA:, sha-256=:{B256}:"], {"sha-256": SHA256}, id="unknown algorithms are passed over"),
        pytest.param([f"sha-256=:AAAA:, sha-256=:{B256}:"], {"sha-256": SHA256}, id="of two the last counts"),
        pytest.param(["sha-256=:AAAA:"], {}, id="too short to be one"),
        pytest.param([f"sha-512=:{B256}:"], {}, id="the length is of another algorithm"),
        pytest.param([f"sha-256={B256}"], {}, id="the old Digest syntax is not this one"),
        pytest.param([f"SHA-256=:{B256}:"], {}, id="keys are lower case"),
        pytest.param([f"sha-256=:{B256[:-1]}:"], {}, id="padding is missing"),
        pytest.param([f"sha-256=:{LOOSE}:"], {}, id="bits in the padding: a second spelling"),
        pytest.param([f"sha-256=:{B256[:10]} {B256[10:]}:"], {}, id="a blank inside"),
        pytest.param([f"sha-256=:{B256}"], {}, id="no closing colon"),
        pytest.param([f"sha-256=:{B256}:,"], {}, id="a comma at the end"),
        pytest.param([f"sha-256 =:{B256}:"], {}, id="a blank before the equals sign"),
        pytest.param([f"sha-256=:{B256}:, x"], {}, id="one bad member voids the field"),
        pytest.param([""], {}, id="empty"),
    ],
)  # fmt: skip
def test_repr_digest_is_read_strictly(values: list[str], expected: dict[str, bytes]) -> None:
    assert {digest.algorithm: digest.value for digest in _repr(*values)} == expected


def test_content_digest_of_a_200_is_of_the_whole_file_and_that_of_a_206_is_not() -> None:
    expected = expected_digests(
        Headers([("Content-Digest", f"sha-256=:{B256}:"), ("Repr-Digest", f"sha-512=:{B512}:")])
    )
    assert expected == Expected((Digest("sha-256", SHA256),), (Digest("sha-512", SHA512),))
    assert {d.algorithm for d in expected.of_file(200)} == {"sha-256", "sha-512"}
    assert {d.algorithm for d in expected.of_file(206)} == {"sha-512"}
    assert {d.algorithm for d in expected.of_range(206)} == {"sha-256"}
    assert expected.of_range(200) == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([("Content-MD5", BMD5)], [MD5], id="md5"),
        pytest.param([("Content-MD5", MD5.hex())], [], id="md5 in hex"),
        pytest.param([("Content-MD5", BMD5), ("Content-MD5", BMD5)], [], id="md5 twice"),
        pytest.param([("x-goog-hash", f"crc32c=AAAAAA==,md5={BMD5}")], [MD5], id="google"),
        pytest.param([("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-hash", f"md5={BMD5}")], [MD5], id="google, lines"),
        pytest.param([("x-goog-hash", "crc32c=AAAAAA==")], [], id="google, crc32c alone"),
        pytest.param([("x-goog-hash", f"md5={BMD5}, md5={BMD5}")], [], id="google, twice"),
        pytest.param(
            [("x-goog-hash", f"md5={BMD5}"), ("x-goog-stored-content-encoding", "gzip")], [], id="google, stored coded"
        ),
        pytest.param(
            [("x-goog-hash", f"md5={BMD5}"), ("x-goog-stored-content-encoding", "identity")], [MD5], id="google, plain"
        ),
        pytest.param([("x-amz-checksum-sha256", B256)], [SHA256], id="amazon"),
        pytest.param([("x-amz-checksum-sha256", f"{B256}-3")], [], id="amazon, composite"),
        pytest.param(
            [("x-amz-checksum-sha256", B256), ("x-amz-checksum-type", "COMPOSITE")], [], id="amazon, composite by type"
        ),
        pytest.param([("ETag", f'"{MD5.hex()}"')], [], id="an ETag is none"),
    ],
)
def test_older_fields_count_where_they_are_plainly_of_the_whole_file(
    lines: list[tuple[str, str]], expected: list[bytes]
) -> None:
    found = expected_digests(Headers(lines))
    assert [digest.value for digest in found.of_file(200)] == expected
    assert found.of_file(206) == found.of_range(206) == ()


def test_agree_compares_what_it_can_and_says_so_when_that_is_nothing() -> None:
    declared = (Digest("sha-256", SHA256), Digest("sha-512", SHA512))
    assert agree(declared, {"sha-256": SHA256}) is True
    assert agree(declared, {"sha-256": SHA256, "sha-512": b"other"}) is False
    assert agree(declared, {}) is None
    assert agree((), {"sha-256": SHA256}) is None
