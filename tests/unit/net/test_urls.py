"""URLs as the planner, the guard and the wire see them: from one parse (PLAN-4)."""

from __future__ import annotations

import ada_url
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core.errors import InvalidInput
from dlpipe.core.urls import plan_url
from dlpipe.net import urls


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("HTTP://Example.COM:80/a/./b/../c", "http://example.com/a/c"),
        ("https://example.com:443", "https://example.com/"),
        ("https://example.com:8443/", "https://example.com:8443/"),
        ("https://example.com/%7Euser/%e2%82%ac#part", "https://example.com/~user/%E2%82%AC"),
        ("https://example.com/a//b?b=2&a=1&a=", "https://example.com/a//b?b=2&a=1&a="),
        ("https://example.com/?", "https://example.com/?"),
        ("https://example.com/?#x", "https://example.com/?"),
        ("https://example.com/#?x", "https://example.com/"),
        ("https://münchen.example/ü?ü", "https://xn--mnchen-3ya.example/%C3%BC?%C3%BC"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://[0:0:0:0:0:0:0:1]:8080/", "http://[::1]:8080/"),
        ("http://ex%41mple.com/", "http://example.com/"),
        ("https://example.com/%2e%2e/a", "https://example.com/a"),
    ],
)
def test_canonical_spelling(raw: str, canonical: str) -> None:
    assert plan_url(raw, urls.parse).canonical == canonical
    assert plan_url(canonical, urls.parse).canonical == canonical


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("example.com/a", "url_invalid"),
        ("https://", "url_invalid"),
        ("http://h:99999/", "url_invalid"),
        ("http://[::1/", "url_invalid"),
        ("http://a b/", "url_control_character"),
        ("http://a/\r\nX: y", "url_control_character"),
        ("http://a/\ud800", "url_control_character"),
        ("ftp://example.com/", "url_scheme"),
        ("file:///etc/passwd", "url_scheme"),
        ("javascript:alert(1)", "url_scheme"),
        ("https://user@example.com/", "url_userinfo"),
        ("https://:secret@example.com/", "url_userinfo"),
        ("https://example.com\\@evil.example/", None),
    ],
)
def test_what_may_not_be_asked(raw: str, code: str | None) -> None:
    if code is None:
        assert urls.address(raw).host == "example.com"  # as browsers see it: the rest is a path
        return
    with pytest.raises(InvalidInput) as caught:
        urls.address(raw)
    assert caught.value.code == code


def test_address_keeps_the_callers_spelling_of_path_and_query_byte_for_byte() -> None:
    at = urls.address("https://example.com:8443/%7Ea/b%2fc?sig=%2B%zz&x=100%&[y]=|")
    assert (at.scheme, at.host, at.port) == ("https", "example.com", 8443)
    assert at.target == "/%7Ea/b%2fc?sig=%2B%zz&x=100%&[y]=|"


def test_address_shows_neither_path_nor_query() -> None:
    assert "secret" not in repr(urls.address("https://example.com/secret?secret=secret"))


def test_address_digest_is_of_the_canonical_spelling() -> None:
    one, two = urls.address("HTTPS://Example.com:443/%7ea#x"), urls.address("https://example.com/~a")
    assert one.sha256 == two.sha256 != urls.address("https://example.com/a").sha256


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/x", "https://example.com/x"),
        ("x?y", "https://example.com/a/x?y"),
        ("?y", "https://example.com/a/b?y"),
        ("//other.example/x", "https://other.example/x"),
        ("../../x", "https://example.com/x"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("/\u00c3\u00bc", "https://example.com/%C3%BC"),  # UTF-8 on the wire, read as Latin-1
        ("/\u00fc", None),  # Latin-1 on the wire: nobody can tell what is meant
        ("http://[", None),
    ],
)
def test_join_reads_a_location_as_browsers_do(location: str, expected: str | None) -> None:
    assert urls.join(urls.address("https://example.com/a/b?c"), location) == expected


@given(st.text(max_size=80))
def test_no_text_makes_the_parser_fail_in_another_way_than_by_saying_no(text: str) -> None:
    urls.parse(text)
    urls.parse(f"https://{text}")
    urls.parse(f"https://example.com/{text}")


HOSTS = [
    "example.com",
    "EXAMPLE.com.",
    "münchen.example",
    "0x7f.1",
    "[::1]",
    "[2001:DB8::8:800:200C:417A]",
    "a_b",
    "1.2",
]
MARKS = st.text(st.sampled_from("/?#@:[]\\%;.&= aü\t"), max_size=8)


@pytest.mark.parametrize("scheme", ["http", "HTTPS", "ftp", "file", "ws", "mailto"])
@given(st.sampled_from(HOSTS) | MARKS, st.sampled_from(["", ":80", ":443", ":8080", ":0", ":"]), MARKS, MARKS)
def test_what_is_read_from_the_parsers_spelling_is_what_the_parser_answers(
    scheme: str, host: str, port: str, user: str, rest: str
) -> None:
    for raw in (f"{scheme}://{host}{port}/{rest}", f"{scheme}://{user}@{host}{port}{rest}", f"{scheme}:{host}{rest}"):
        try:
            asked = ada_url.URL(raw)
        except ValueError:
            assert urls.parse(raw) is None
        else:
            assert urls.parse(raw) == urls._asked(asked, asked.href)


@pytest.mark.parametrize("raw", ["https://example.com:8443/a;b@c:d?e/f?g#h?i", "http://[::1]:8080/?", "http://1.2"])
def test_usual_addresses_cost_one_answer_of_the_parser(raw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = urls._asked(ada_url.URL(raw), ada_url.URL(raw).href)
    monkeypatch.setattr(urls, "_asked", None)
    assert urls.parse(raw) == expected


SIGNED = frozenset({"x-amz-signature", "expires"})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example/f?X-Amz-Signature=1", "https://a.example/f?X-Amz-Signature=2", True),
        ("https://a.example/f?id=7&expires=1", "https://a.example/f?Expires=2&id=7", True),
        ("https://a.example/f?id=7&expires=1", "https://a.example/f?id=8&expires=1", False),
        ("https://a.example/f?expires=1", "https://a.example/g?expires=1", False),
        ("https://a.example/f?expires=1", "https://b.example/f?expires=1", False),
        ("https://a.example/f?token=1", "https://a.example/f?token=2", False),
        ("https://a.example/f", "https://a.example/f", True),
    ],
)
def test_row_42_only_listed_parameters_say_nothing_about_the_file(one: str, other: str, same: bool) -> None:
    left, right = (urls.identity(urls.address(raw), SIGNED) for raw in (one, other))
    assert (left == right) is same


def test_without_such_parameters_an_address_is_told_by_all_of_it() -> None:
    at = urls.address("https://a.example/f?id=7")
    assert urls.identity(at, SIGNED) == urls.identity(at, frozenset()) == at.sha256
