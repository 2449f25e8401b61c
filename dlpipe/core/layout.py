"""Where bytes live, as relative path parts made of hex digests, checked ids and listed extensions only."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from dlpipe.core.errors import InvalidInput

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_POINTER = re.compile(
    r"(?P<space>local|s3|gs|az):(?P<tenant>[A-Za-z0-9][A-Za-z0-9._-]{0,63})/(?P<project>[A-Za-z0-9][A-Za-z0-9._-]{0,63})/"
    r"(?:(?P<shard>[0-9a-f]{1,8})/)?(?P<name>[0-9a-f]{64}(?:\.[a-z0-9]{1,8}){0,2})\Z"
)
LOCAL = "local"
SPACES = (LOCAL, "s3", "gs", "az")
"""What pointers begin with: which kind of store keeps the bytes."""
EXTENSIONS = frozenset(
    ".7z .aac .avi .azw3 .bib .bin .bmp .bz2 .cbr .cbz .cif .csv .djvu .doc .docx .epub .fasta .flac .gif .gz "
    ".h5 .htm .html .ipynb .iso .jpeg .jpg .json .jsonl .m4a .m4b .m4v .md .mkv .mobi .mov .mp3 .mp4 .nc .nt "
    ".odp .ods .odt .ogg .opus .parquet .pdf .png .ppt .pptx .ps .rar .rdf .rtf .svg .tar .tar.bz2 .tar.gz "
    ".tar.xz .tar.zst .tex .tgz .tif .tiff .tsv .ttl .txt .warc .warc.gz .wav .webm .webp .xls .xlsx .xml .xz "
    ".zip .zst".split()
)
_BY_MEDIA_TYPE = {
    "application/epub+zip": ".epub",
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/xml": ".xml",
    "application/zip": ".zip",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/plain": ".txt",
    "text/xml": ".xml",
}


def is_id(value: str) -> bool:
    return _ID.match(value) is not None


def check_id(kind: str, value: str) -> str:
    """A tenant or project id: it becomes a folder name, so it is plain by rule."""
    if not is_id(value):
        raise InvalidInput(
            f"the {kind} id is not usable",
            code=f"{kind}_invalid",
            hint="Use 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit.",
        )
    return value


def check_extension(value: str) -> str:
    ext = value.lower() if value.startswith(".") or not value else f".{value.lower()}"
    if ext and ext not in EXTENSIONS:
        raise InvalidInput(
            "the extension is not on the list of known ones",
            code="extension_unknown",
            hint=f"Leave it out, or use one of: {' '.join(sorted(EXTENSIONS))}",
        )
    return ext


def extension_for(url_path: str, media_type: str | None) -> str:
    """The extension a file gets when nobody asked for one: from the URL, else from the media type, else none."""
    name = url_path.rpartition("/")[2].lower()
    for parts in (2, 1):
        pieces = name.rsplit(".", parts)
        if len(pieces) == parts + 1 and pieces[0]:
            ext = "." + ".".join(pieces[1:])
            if ext in EXTENSIONS:
                return ext
    return _BY_MEDIA_TYPE.get((media_type or "").partition(";")[0].strip().lower(), "")


class Equal(StrEnum):
    """What a store makes of bytes that it has in the same dedupe scope already."""

    LINK = "link"
    """A file of their own, which then shares the other one's bytes, as far as the disk can do that."""
    POINTER = "pointer"
    """None, within a tenant: they are at the other one's place."""
    COPY = "copy"
    """A copy, made by the store itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """The final place of a blob under one project, in one kind of store."""

    tenant: str
    project: str
    sha256: str
    ext: str = ""
    shard_width: int = 2
    space: str = LOCAL

    def __post_init__(self) -> None:
        check_id("tenant", self.tenant)
        check_id("project", self.project)
        check_extension(self.ext)
        if not _SHA256.match(self.sha256) or not 0 <= self.shard_width <= 8 or self.space not in SPACES:
            raise ValueError("a place is made of a sha256, a shard width of 0 to 8, and a kind of store")

    @property
    def folders(self) -> tuple[str, ...]:
        shard = (self.sha256[: self.shard_width],) if self.shard_width else ()
        return (self.tenant, self.project, *shard)

    @property
    def name(self) -> str:
        return self.sha256 + self.ext

    @property
    def path(self) -> str:
        """Below the root of a folder, or the prefix of a bucket."""
        return "/".join((*self.folders, self.name))

    @property
    def pointer(self) -> str:
        return f"{self.space}:{self.path}"


def place_of(pointer: str, space: str = LOCAL) -> Place:
    """The place that a pointer of this kind of store names; anything else is refused."""
    match = _POINTER.match(pointer)
    if match is None or match["space"] != space:
        raise _no_place(space)
    name = match["name"]
    place = Place(match["tenant"], match["project"], name[:64], name[64:], len(match["shard"] or ""), space)
    if place.pointer != pointer:
        raise _no_place(space)
    return place


def space_of(pointer: str) -> str:
    """Which kind of store a pointer is of, and the artifact with it (JOB-3)."""
    return pointer.partition(":")[0]


def _no_place(space: str) -> InvalidInput:
    return InvalidInput(f"the pointer does not name a place in the {space} store", code="pointer_invalid")


def part_slug(tenant: str, canonical_url: str) -> str:
    """The name under which bytes of a URL are staged: shared by all jobs of a tenant that want it."""
    return hashlib.sha256(f"{tenant}\n{canonical_url}".encode()).hexdigest()[:16]
