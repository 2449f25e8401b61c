"""Which redirects are followed (row 41)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlpipe.core.errors import Permanent
from dlpipe.core.remote import Headers
from dlpipe.net import redirects, urls
from dlpipe.net.policy import NetPolicy

POLICY = NetPolicy(max_redirects=3)
HERE = urls.address("https://a.example/dir/file?token=s3cret")


def _refused(*locations: str, hops: int = 0, policy: NetPolicy = POLICY) -> Permanent:
    headers = Headers(("Location", location) for location in locations)
    with pytest.raises(Permanent) as caught:
        redirects.follow(HERE, headers, hops, policy)
    assert "s3cret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "locations",
    [(), ("",), ("/a", "/b"), ("/a", "/a"), ("http://[",), ("ftp://b.example/",), ("file:///etc/passwd",),
     ("https://user:s3cret@b.example/",), ("https:///",), ("data:text/plain,x",),
     ("https://b.example/" + "x" * 9000,),
     ("http://a.example/dir/file",)],
)  # fmt: skip
def test_refused(locations: tuple[str, ...]) -> None:
    assert _refused(*locations).code == "redirect_refused"


def test_leaving_https_is_allowed_by_a_setting_only() -> None:
    headers = Headers([("Location", "http://b.example/")])
    lenient = replace(POLICY, allow_https_to_http=True)
    assert redirects.follow(HERE, headers, 0, lenient).origin == "http://b.example"


def test_redirects_are_counted() -> None:
    headers = Headers([("Location", "/next")])
    assert redirects.follow(HERE, headers, 2, POLICY).target == "/next"
    assert _refused("/next", hops=3).code == "too_many_redirects"


def test_fragment_is_not_sent() -> None:
    headers = Headers([("Location", "//b.example/x?y#z")])
    assert redirects.follow(HERE, headers, 0, POLICY).target == "/x?y"
