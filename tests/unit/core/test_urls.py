"""Which URLs may be planned, the one spelling of each, and what of them may be shown (PLAN-4, SAFE-2)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlpipe.core.errors import InvalidInput
from dlpipe.core.urls import MAX_URL_LENGTH, ParsedUrl, PlannedUrl, origin_of, plan_url, redact
from dlpipe.net.urls import address, parse


def planned(raw: str) -> PlannedUrl:
    return plan_url(raw, parse)


SAME = [
    pytest.param("HTTPS://EXAMPLE.com/A", "https://example.com/A", id="case of scheme and host, never of the path"),
    pytest.param("http://example.com:80/", "http://example.com/", id="the default port of http"),
    pytest.param("https://example.com:443/", "https://example.com/", id="the default port of https"),
    pytest.param("http://example.com:443/", "http://example.com:443/", id="a default port of the other scheme stays"),
    pytest.param("https://example.com:08443/", "https://example.com:8443/", id="a port with a leading zero"),
    pytest.param("https://example.com:/", "https://example.com/", id="an empty port"),
    pytest.param("https://example.com", "https://example.com/", id="no path is the root"),
    pytest.param("https://example.com?a=1", "https://example.com/?a=1", id="a query without a path"),
    pytest.param("https://example.com/a/./b/../c", "https://example.com/a/c", id="dot segments"),
    pytest.param("https://example.com/../../a", "https://example.com/a", id="dot segments do not leave the root"),
    pytest.param("https://example.com/%2E%2e/a", "https://example.com/a", id="escaped dots are dots"),
    pytest.param("https://example.com/a//b/", "https://example.com/a//b/", id="empty segments mean something"),
    pytest.param("https://example.com/%7Euser/%61", "https://example.com/~user/a", id="escapes of plain characters"),
    pytest.param("https://example.com/%2f%3f%23", "https://example.com/%2F%3F%23", id="other escapes stay, upper case"),
    pytest.param(
        "https://example.com/a%25zz%", "https://example.com/a%25zz%", id="a percent sign that escapes nothing"
    ),
    pytest.param("https://example.com/%7%65?%%34%31", "https://example.com/%7%65?%%341", id="none is put together"),
    pytest.param("https://example.com/ü?ü", "https://example.com/%C3%BC?%C3%BC", id="UTF-8 is escaped"),
    pytest.param("https://example.com/a#b?c", "https://example.com/a", id="the fragment never leaves the browser"),
    pytest.param("https://example.com/?b=2&a=1&b=1&a=", "https://example.com/?b=2&a=1&b=1&a=", id="query as it came"),
    pytest.param("https://example.com/?a=%41%2b+", "https://example.com/?a=A%2B+", id="escapes within the query"),
    pytest.param("https://example.com/?", "https://example.com/?", id="an empty query is a query"),
    pytest.param("https://MÜNCHEN.example/", "https://xn--mnchen-3ya.example/", id="IDNA"),
    pytest.param("https://faß.example/", "https://xn--fa-hia.example/", id="IDNA 2008 keeps the sharp s"),
    pytest.param("https://example。com/", "https://example.com/", id="an ideographic full stop"),
    pytest.param("http://[2001:DB8:0:0::1]/", "http://[2001:db8::1]/", id="IPv6"),
    pytest.param("http://0300.0250.1/", "http://192.168.0.1/", id="octal parts of an address"),
    pytest.param(" https://example.com/a ", "https://example.com/a", id="blanks around it"),
    pytest.param("https:example.com/a", "https://example.com/a", id="as browsers mend it"),
    pytest.param("https:\\\\example.com\\a", "https://example.com/a", id="backslashes, as browsers mend them"),
]

REFUSED = [
    pytest.param("", "url_empty", id="nothing"),
    pytest.param("   ", "url_empty", id="blanks"),
    pytest.param("ftp://example.com/a", "url_scheme", id="ftp"),
    pytest.param("file:///etc/passwd", "url_scheme", id="a file of ours"),
    pytest.param("data:text/plain,a", "url_scheme", id="data"),
    pytest.param("javascript:alert(1)", "url_scheme", id="script"),
    pytest.param("magnet:?xt=urn:btih:a", "url_scheme", id="magnet"),
    pytest.param("https://user@example.com/", "url_userinfo", id="a user"),
    pytest.param("https://user:pw@example.com/", "url_userinfo", id="user and password"),
    pytest.param("https://:pw@example.com/", "url_userinfo", id="a password alone"),
    pytest.param("https:user:pw@example.com/", "url_userinfo", id="userinfo without slashes"),
    pytest.param("https://example.com%40evil.example@h/", "url_userinfo", id="an escaped at sign"),
    pytest.param("https://", "url_invalid", id="no host"),
    pytest.param("https:///?a", "url_invalid", id="no host but a query"),
    pytest.param("https://?a", "url_invalid", id="a query in place of the host"),
    pytest.param("/etc/passwd", "url_invalid", id="a path"),
    pytest.param("example.com/a", "url_invalid", id="no scheme"),
    pytest.param("//example.com/a", "url_invalid", id="relative to a scheme"),
    pytest.param("https://example.com:65536/", "url_invalid", id="no such port"),
    pytest.param("https://exa%00mple.com/", "url_invalid", id="a NUL in the host"),
    pytest.param("https://1.2.3.256/", "url_invalid", id="no such address"),
    pytest.param("https://a b/", "url_control_character", id="a blank inside"),
    pytest.param("https://example.com/\r\nHost: evil", "url_control_character", id="a header of its own"),
    pytest.param("https://example.com/\t", "url_control_character", id="a tab, which browsers drop"),
    pytest.param("https://example.com/\x00", "url_control_character", id="NUL"),
    pytest.param("https://example.com/\x1b[2J", "url_control_character", id="escape"),
    pytest.param("https://example.com/\x7f", "url_control_character", id="delete"),
    pytest.param("https://example.com/\x85", "url_control_character", id="next line"),
    pytest.param("https://example.com/\u2028", "url_control_character", id="a line separator"),
    pytest.param("https://example.com/\ud800", "url_control_character", id="half a surrogate pair"),
    pytest.param("https://example.com/" + "a" * MAX_URL_LENGTH, "url_too_long", id="too long"),
]


@pytest.mark.parametrize(("raw", "canonical"), SAME)
def test_equal_addresses_have_one_spelling(raw: str, canonical: str) -> None:
    assert planned(raw).canonical == canonical


@pytest.mark.parametrize(("raw", "code"), REFUSED)
def test_what_may_not_be_planned_is_refused_with_its_reason(raw: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        planned(raw)
    assert refusal.value.code == code
    assert refusal.value.hint


def test_a_host_of_no_name_is_refused_whatever_the_parser() -> None:
    with pytest.raises(InvalidInput) as refusal:
        plan_url(
            "https://x/", lambda _: ParsedUrl("https", has_userinfo=False, host="", port=None, path="/", query=None)
        )
    assert refusal.value.code == "url_no_host"


def test_the_longest_url_is_planned() -> None:
    raw = "https://example.com/"
    raw += "a" * (MAX_URL_LENGTH - len(raw))
    assert planned(raw).canonical == raw


@pytest.mark.parametrize("raw", ["https://user:hunter2@example.com/", "https://example.com/\nhunter2", "x:hunter2"])
def test_no_refusal_repeats_the_url(raw: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        planned(raw)
    assert "hunter2" not in f"{refusal.value} {refusal.value.hint}"


def test_the_request_keeps_the_callers_spelling_without_the_fragment() -> None:
    found = planned(" HTTPS://Example.com:443/%7ea/../b?sig=%2b&sig=#frag ")
    assert found.request == "HTTPS://Example.com:443/%7ea/../b?sig=%2b&sig="
    assert (found.host, found.port) == ("example.com", 443)


@pytest.mark.parametrize(
    ("raw", "port"), [("http://h/", 80), ("https://h/", 443), ("http://h:8080/", 8080), ("https://h:80/", 80)]
)
def test_the_port_is_the_one_that_will_be_connected_to(raw: str, port: int) -> None:
    assert planned(raw).port == port


addresses = st.builds(
    "{}://{}{}/{}{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(["Example.COM", "münchen.example", "0x7f.1", "[::1]", "a_b.example", "xn--fa-hia.example"]),
    st.sampled_from(["", ":80", ":443", ":8080"]),
    st.text(st.sampled_from("ab/.%27eE\\~ü+;=[]|^{}'\"@:&"), max_size=20),
    st.just("") | st.text(st.sampled_from("ab=&%27eE~ü+;?/[]|'\"@"), max_size=20).map("?{}".format),
)


@given(addresses)
@example("https://example.com/%7%65")
@example("https://example.com/a/%2%65%2%65/")
@example("https://example.com/?%%34%31")
def test_the_canonical_spelling_of_a_canonical_spelling_is_itself(raw: str) -> None:
    once = planned(raw)
    again = planned(once.canonical)
    assert (again.canonical, again.host, again.port) == (once.canonical, once.host, once.port)


@given(addresses)
def test_the_request_and_the_canonical_spelling_name_the_same_address(raw: str) -> None:
    found = planned(raw)
    assert planned(found.request) == found


SECRET = "s3cr3t"
LONG = "AbCd0123-_~." * 3

HIDDEN = [
    pytest.param(f"https://h/a?token={SECRET}", id="by its name"),
    pytest.param(f"https://h/a?x=1&Access_Token={SECRET}&y=2", id="case and prefix"),
    pytest.param(f"https://h/a?X-Amz-Signature={SECRET}", id="Amazon"),
    pytest.param(f"https://h/a?X-Goog-Credential={SECRET}", id="Google"),
    pytest.param(f"https://h/a?sv=1&sig={SECRET}", id="Azure"),
    pytest.param(f"https://h/a?Policy={SECRET}&Key-Pair-Id=x", id="CloudFront"),
    pytest.param(f"https://h/a?api_key={SECRET}", id="an API key"),
    pytest.param(f"https://h/a?apikey={SECRET}", id="in one word"),
    pytest.param(f"https://h/a?accessToken={SECRET}", id="in camel case"),
    pytest.param(f"https://h/a?%74oken={SECRET}", id="with an escaped name"),
    pytest.param(f"https://h/a?tok%65n={SECRET}", id="with an escape inside the name"),
    pytest.param(f"https://h/a?token=a={SECRET}", id="with an equals sign in the value"),
    pytest.param(f"https://h/a?a=1;token={SECRET}", id="after a semicolon"),
    pytest.param(f"https://h/a?next=https://i/?token={SECRET}", id="in a URL within the URL"),
    pytest.param(f"https://h/a?next=https%3A%2F%2Fi%2F%3Ftoken%3D{SECRET}", id="in an escaped URL within the URL"),
    pytest.param(f"https://h/a?token[]={SECRET}", id="as a list"),
    pytest.param(f"https://h/a?id={LONG}{SECRET}", id="by its look: long, and a token's characters"),
    pytest.param(f"https://h/a?{LONG}{SECRET}", id="the same without a name"),
    pytest.param(f"https://h/a?id={LONG}%3D{SECRET}%2F", id="the same, escaped"),
    pytest.param(f"https://h/a?x#token={SECRET}", id="in the fragment"),
    pytest.param(f"https://h/a?x#{SECRET}", id="as the fragment"),
    pytest.param(f"https://user:{SECRET}@h/a", id="as a password"),
    pytest.param(f"https://{SECRET}@h/a", id="as a user"),
    pytest.param(f"https://u:p@x@{SECRET}@h/a", id="after another at sign"),
    pytest.param(f"https:user:{SECRET}@h/a", id="as a password, without slashes"),
    pytest.param(f"https:\\\\user:{SECRET}@h/a", id="as a password, with backslashes"),
    pytest.param(f"https://user:{SECRET}@h\\@i/a", id="before a backslash, which ends the host"),
    pytest.param(f"https://user:{SECRET}@h?x", id="before a query"),
    pytest.param(f"https://h/a;jsessionid={SECRET}?x", id="as a session in the path"),
]


@pytest.mark.parametrize("url", HIDDEN)
def test_a_secret_is_not_shown(url: str) -> None:
    assert SECRET not in redact(url)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("https://example.com/a/b.pdf", id="no query"),
        pytest.param("https://example.com/a?page=2&sort=-date", id="harmless parameters"),
        pytest.param("https://example.com/a?b&c=&=d", id="odd pairs"),
        pytest.param("https://example.com/a@b/c", id="an at sign in the path"),
        pytest.param("https://example.com/?monkey=1&author=x&keyword=y&design=z", id="names that only contain one"),
        pytest.param("https://example.com/?url=https://i/?page=1;2", id="a URL within the URL"),
        pytest.param("https://example.com/a;v=1/b?x", id="a parameter in the path"),
        pytest.param("https://example.com/?", id="an empty query"),
    ],
)
def test_what_is_no_secret_is_shown_as_it_is(url: str) -> None:
    assert redact(url) == url


def test_what_is_hidden_leaves_its_name() -> None:
    assert redact("https://h/a?x=1&sig=abc&y=2") == "https://h/a?x=1&sig=REDACTED&y=2"


def test_control_characters_are_escaped() -> None:
    assert redact("https://h/\x1b[2J\n?a=\u2028") == "https://h/\\x1b[2J\\x0a?a=\\x2028"


secret_names = st.sampled_from(["token", "X-Amz-Signature", "api_key", "refresh-token", "client.secret", "SIG", "code"])
others = st.lists(st.text("abc=", max_size=5), max_size=3)


@given(secret_names, st.text(st.characters(exclude_characters="#&;?"), min_size=1), others, others)
def test_the_value_of_a_secret_name_is_never_shown(name: str, value: str, before: list[str], after: list[str]) -> None:
    shown = redact("https://h/?" + "&".join([*before, f"{name}={value}", *after]))
    assert shown == "https://h/?" + "&".join([*before, f"{name}=REDACTED", *after])


@given(st.text("abc", min_size=1, max_size=4), st.text("AbZ09-_.~%+/=", min_size=24).map(lambda v: "x" + v))
def test_a_value_that_looks_like_a_token_is_never_shown(name: str, value: str) -> None:
    assert value not in redact(f"https://h/?{name}={value}")


@given(st.text(max_size=60))
def test_redacting_twice_changes_nothing_and_never_fails(text: str) -> None:
    once = redact(f"https://h/{text}")
    assert redact(once) == once


@pytest.mark.parametrize(
    ("canonical", "expected"),
    [
        ("https://e.org/a", "https://e.org"),
        ("http://e.org/a", "http://e.org"),
        ("https://e.org:8443/a", "https://e.org:8443"),
        ("https://e.org:443/a", "https://e.org"),  # the default port is no other origin
        ("https://E.org./a", "https://e.org"),  # nor is another spelling of the host
        ("http://[::1]:8080/a:1", "http://[::1]:8080"),
        ("http://e.org?x=http://f.org", "http://e.org"),
        ("ftp://e.org/a", ""),
        ("", ""),
    ],
)
def test_an_origin_is_scheme_host_and_port(canonical: str, expected: str) -> None:
    assert origin_of(canonical) == expected


@pytest.mark.parametrize(("raw", "canonical"), SAME)
def test_the_origin_that_a_request_counts_for_is_that_of_its_job(raw: str, canonical: str) -> None:
    assert address(raw).origin == origin_of(canonical)
