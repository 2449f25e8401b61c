"""Places are made of digests, plain ids and listed extensions, and nothing else is a place (FINAL-1, SAFE-3)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core.errors import InvalidInput
from dlpipe.core.layout import EXTENSIONS, Place, check_extension, check_id, extension_for, part_slug, place_of

SHA = "0123456789abcdef" * 4


@pytest.mark.parametrize("value", ["a", "A", "0", "default", "a.b", "a-b_c", "a..b", "a.", "x" * 64])
def test_plain_ids_are_usable(value: str) -> None:
    assert check_id("tenant", value) == value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("x" * 65, id="too long"),
        pytest.param(".", id="here"),
        pytest.param("..", id="above"),
        pytest.param(".hidden", id="begins with a dot, as .staging does"),
        pytest.param("-rf", id="an option"),
        pytest.param("_x", id="begins with an underscore"),
        pytest.param("a/b", id="a folder"),
        pytest.param("a\\b", id="a folder elsewhere"),
        pytest.param("a:b", id="the sign of a pointer"),
        pytest.param("a\x00b", id="NUL"),
        pytest.param("a\n", id="a line break at the end"),
        pytest.param("a b", id="a blank"),
        pytest.param("ä", id="beyond ASCII"),
        pytest.param("٣", id="another script's digit"),
    ],
)
@pytest.mark.parametrize("kind", ["tenant", "project"])
def test_other_ids_are_refused(kind: str, value: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_id(kind, value)
    assert refusal.value.code == f"{kind}_invalid"


@pytest.mark.parametrize(
    ("value", "ext"),
    [
        (".pdf", ".pdf"),
        ("pdf", ".pdf"),
        ("PDF", ".pdf"),
        (".Tar.GZ", ".tar.gz"),
        ("", ""),  # no extension, on purpose
    ],
)
def test_listed_extensions_are_usable_however_they_are_written(value: str, ext: str) -> None:
    assert check_extension(value) == ext


@pytest.mark.parametrize(
    "value", [".", "..", ".exe", "exe", "pdf/", "../pdf", ".pdf\n", ".pdf\x00", ".pdf.pdf", " pdf"]
)
def test_other_extensions_are_refused(value: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_extension(value)
    assert refusal.value.code == "extension_unknown"


@pytest.mark.parametrize(
    ("path", "media_type", "ext"),
    [
        ("/a/paper.pdf", None, ".pdf"),
        ("/a/PAPER.PDF", None, ".pdf"),
        ("/a/x.tar.gz", None, ".tar.gz"),  # both parts are one extension
        ("/a/x.pdf.gz", None, ".gz"),  # these are not
        ("/a/v1.2.pdf", None, ".pdf"),
        ("/a.pdf/b", None, ""),  # a folder's name says nothing
        ("/a/.pdf", None, ""),  # a name without a stem
        ("/a/.tar.gz", None, ".gz"),
        ("/a/x.exe", None, ""),
        ("/a/x.exe", "application/pdf", ".pdf"),
        ("/a/x.txt", "application/pdf", ".txt"),  # the URL goes first
        ("/a/x", "Application/PDF; charset=binary", ".pdf"),
        ("/a/x", "application/octet-stream", ""),
        ("/a/", "text/html;", ".html"),
        ("", None, ""),
        ("/a/x.", "", ""),
    ],
)
def test_the_extension_when_nobody_asked_for_one(path: str, media_type: str | None, ext: str) -> None:
    assert extension_for(path, media_type) == ext


@given(st.text(max_size=40), st.none() | st.text(max_size=40))
def test_whatever_a_server_says_the_extension_is_a_listed_one(path: str, media_type: str | None) -> None:
    assert extension_for(path, media_type) in EXTENSIONS | {""}


ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", fullmatch=True)
places = st.builds(
    Place,
    ids,
    ids,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.sampled_from(["", *sorted(EXTENSIONS)]),
    st.integers(0, 8),
)


@given(places)
def test_a_pointer_names_its_place(place: Place) -> None:
    assert place_of(place.pointer) == place


@given(places)
def test_a_place_never_leaves_its_project(place: Place) -> None:
    assert place.folders[:2] == (place.tenant, place.project)
    for part in (*place.folders, place.name):
        assert part not in ("", ".", "..")
        assert not set(part) & set("/\\\x00")


@pytest.mark.parametrize(
    ("width", "ext", "folders", "name"),
    [
        (2, ".pdf", ("t", "p", "01"), SHA + ".pdf"),
        (4, "", ("t", "p", "0123"), SHA),
        (0, ".tar.gz", ("t", "p"), SHA + ".tar.gz"),  # sharding off
    ],
)
def test_a_place_is_spread_by_the_first_digits(width: int, ext: str, folders: tuple[str, ...], name: str) -> None:
    place = Place("t", "p", SHA, ext, width)
    assert (place.folders, place.name) == (folders, name)
    assert place.pointer == "local:" + "/".join((*folders, name))


@pytest.mark.parametrize(
    ("sha256", "width"),
    [(SHA[1:], 2), (SHA.upper(), 2), (SHA + "\n", 2), ("../" + SHA[3:], 2), (SHA, -1), (SHA, 9)],
)
def test_a_place_needs_a_digest_and_a_sensible_width(sha256: str, width: int) -> None:
    with pytest.raises(ValueError, match="sha256"):
        Place("t", "p", sha256, "", width)


@pytest.mark.parametrize(
    ("tenant", "project", "ext", "code"),
    [
        ("..", "p", "", "tenant_invalid"),
        ("t", "a/b", "", "project_invalid"),
        ("t", "p", ".exe", "extension_unknown"),
    ],
)
def test_a_place_is_made_of_checked_parts(tenant: str, project: str, ext: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Place(tenant, project, SHA, ext)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    "pointer",
    [
        pytest.param("", id="empty"),
        pytest.param(f"t/p/01/{SHA}", id="no store"),
        pytest.param(f"s3:t/p/01/{SHA}", id="another store"),
        pytest.param(f"LOCAL:t/p/01/{SHA}", id="another case"),
        pytest.param(f"local:/t/p/01/{SHA}", id="an absolute path"),
        pytest.param("local:/etc/passwd", id="a file of ours"),
        pytest.param(f"local:../p/01/{SHA}", id="above, as tenant"),
        pytest.param(f"local:t/../01/{SHA}", id="above, as project"),
        pytest.param(f"local:t/p/../{SHA}", id="above, as shard"),
        pytest.param(f"local:t/p/01/../{SHA}", id="above, further down"),
        pytest.param(f"local:t/./01/{SHA}", id="here"),
        pytest.param(f"local:.staging/p/01/{SHA}", id="the staging folder"),
        pytest.param(f"local:t//01/{SHA}", id="an empty part"),
        pytest.param(f"local:t/p/ff/{SHA}", id="a shard that is not of the digest: a link's way in"),
        pytest.param(f"local:t/p/012345678/{SHA}", id="a shard too wide"),
        pytest.param(f"local:t/p/01/{SHA}/x", id="below the file"),
        pytest.param(f"local:t/p/01/{SHA}.exe/..", id="below and back"),
        pytest.param(f"local:t/p/01/{SHA[:-1]}", id="a digest too short"),
        pytest.param(f"local:t/p/01/{SHA.upper()}", id="a digest in upper case"),
        pytest.param(f"local:t/p/01/{SHA}\n", id="a line break at the end"),
        pytest.param(f"local:t/p/01/{SHA}\x00.pdf", id="NUL"),
        pytest.param(f"local:t\x00/p/01/{SHA}", id="NUL in the tenant"),
        pytest.param(f"local:t/p/01/{SHA}.exe", id="an unlisted extension"),
        pytest.param(f"local:t/p/01/{SHA}.PDF", id="an extension in upper case"),
        pytest.param(f"local:t/p/01/{SHA}.pdf~", id="a draft of another program"),
        pytest.param(f"local:t/p/01/{SHA}.tar.gz.pdf", id="three extensions"),
        pytest.param(f"local:ä/p/01/{SHA}", id="beyond ASCII"),
        pytest.param(f"local:t\\p/p/01/{SHA}", id="a backslash"),
    ],
)
def test_what_names_no_place_is_refused(pointer: str) -> None:
    with pytest.raises(InvalidInput):
        place_of(pointer)


@given(st.text(st.sampled_from("local:tp/.\x000aF\\~"), max_size=90))
def test_no_text_names_a_place_that_it_does_not_spell(text: str) -> None:
    try:
        place = place_of(text)
    except InvalidInput:
        return
    assert place.pointer == text


def test_jobs_of_a_tenant_share_the_part_of_a_url_and_tenants_do_not() -> None:
    url = "https://example.com/a"
    assert part_slug("t", url) == hashlib.sha256(f"t\n{url}".encode()).hexdigest()[:16]
    assert len({part_slug("t", url), part_slug("u", url), part_slug("t", url + "b")}) == 3
