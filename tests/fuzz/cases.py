"""One case: an origin with ten URLs of some tenants, some of them hostile, and in which order they are asked.

All of it comes from the seed and the case's number: what the server answers to the n-th request for a URL as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.drafts import CHANGES, Draft, garbled
from tests.fuzz.reading import Reading, read
from tests.fuzz.wire import End, Request, Said, When
from tests.late_bytes import FORGES_A_FILE, SURPLUS

TENANTS = ("anna", "bert", "cleo")
ALONE = "dora"
"""Of hostile URLs alone: within a tenant a forged answer is only told from a true one by a digest (docs/faults.md)."""
_URLS = 10
_FILE = re.compile(rb"HTTP/1\.[01][ \t]+2")
_SIZES = (0, 1, 17, 200, 200, 700, 3_000)


@dataclass
class Target:
    path: str
    tenant: str
    content: bytes
    hostile: bool = False
    flaky: bool = False
    """Honest, but its first answer breaks off."""
    stubborn: bool = False
    """Hostile in the same way each time."""
    later: bytes | None = None
    """What the file becomes after its first answer."""
    framing: str = "length"
    asked: int = 0

    @property
    def truth(self) -> set[bytes]:
        return {self.content} if self.later is None else {self.content, self.later}


@dataclass(frozen=True)
class Step:
    target: Target
    head: bool
    """HEAD first."""


@dataclass
class Case:
    """Answers as the server of this case."""

    seed: int
    number: int
    readings: list[Reading] = field(default_factory=list)
    """What the server said to the requests of the present step, each read as the answer to that request."""
    requested: set[str] = field(default_factory=set)
    requests: int = 0
    reused: int = 0
    surplus: int = 0

    def __post_init__(self) -> None:
        chance = self.chance()
        self.host = f"h{self.number}.example"
        hostile = chance.sample(range(_URLS), chance.choice((1, 2, 2, 3)))
        self.targets = [self._target(chance, n, n in hostile) for n in range(_URLS)]
        self.direct = chance.random() < 0.1
        """Longer bodies are read past the parser."""
        self.steps = [Step(target, chance.random() < 0.4) for target in self._order(chance)]

    def chance(self, *more: object) -> Random:
        return Random(":".join(map(str, (self.seed, self.number, *more))))

    def _target(self, chance: Random, number: int, hostile: bool) -> Target:
        made = Target(f"/{number}", TENANTS[number % len(TENANTS)], b"", hostile)
        name = b"%d/%d:" % (self.number, number)
        size = chance.choice(_SIZES)
        made.content = (name + chance.randbytes(size)) if size > 1 else name[:size]
        made.framing = chance.choice(("length", "length", "chunked", "close"))
        if hostile:
            made.tenant = ALONE if chance.random() < 0.3 else made.tenant
            made.stubborn = chance.random() < 0.3
            if made.framing == "length" and chance.random() < 0.3:
                made.later = name + chance.randbytes(chance.choice((size, size, 500)))
        else:
            # Of a body that ends with the connection nothing tells that it was cut.
            made.flaky = chance.random() < 0.1 and made.framing != "close"
        return made

    def _order(self, chance: Random) -> list[Target]:
        bad = [one for one in self.targets if one.hostile]
        good = [one for one in self.targets if not one.hostile]
        order = []
        for one in bad[: chance.choice((1, 1, 1, 2))]:
            near = [other for other in good if other.tenant == one.tenant] or good
            order += [chance.choice(near)] if chance.random() < 0.3 else []
            order += [one, chance.choice(near if chance.random() < 0.7 else good)]
        return [*order, chance.choice(good)]

    def begin(self) -> None:
        """A step begins: what was said before is no word on its URL."""
        self.readings.clear()
        self.requested.clear()

    @property
    def truth(self) -> set[bytes]:
        """The files of all paths that were asked for in this step: where a hostile one was led."""
        return {file for one in self.targets if one.path in self.requested for file in one.truth}

    def answer(self, request: Request) -> Said:
        self.requests += 1
        self.reused += request.reused
        found = next((one for one in self.targets if one.path == request.path.partition("?")[0]), None)
        if found is None:
            return Said((b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",))
        self.requested.add(found.path)
        chance = self.chance(found.path, request.method if found.stubborn else self.requests)
        said = self._said(found, request, chance)
        found.asked += request.method == "GET"
        self.surplus += bool(said.late)
        if request.method == "GET":
            reading = read(said.data, closed=said.end is End.CLOSE)
            if reading is not None:
                self.readings.append(reading)
        return said

    def _said(self, target: Target, request: Request, chance: Random) -> Said:
        draft = honest(target, request, chance)
        if not target.hostile:
            return self._well_said(draft, target, chance)
        if not target.stubborn and chance.random() < 0.15 * target.asked:
            return self._well_said(draft, target, chance)
        if target.later is not None and request.method == "GET" and chance.random() < 0.7:
            data = draft.render(chance)
            return Said((data,)) if target.asked else Said((data[: len(data) - len(draft.content) // 2],), End.CLOSE)
        plain = Said((draft.render(chance),))
        if chance.random() < 0.85:
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                chance.choice(CHANGES)(draft, chance)
        before, draft.before = draft.before, b""
        data = draft.render(chance)
        if chance.random() < 0.25:
            data = garbled(data, chance)
        if chance.random() < 0.1:
            data = data[: chance.randrange(len(data) + 1)]
        late, when = b"", When.ASKED
        if chance.random() < 0.4:
            late, when = _surplus(chance, target.tenant == ALONE), chance.choice((When.ASKED, When.ASKED, When.IDLE))
            if chance.random() < 0.2:
                data, late = data + late, b""
        if request.method == "GET" and target.tenant != ALONE and (_FILE.search(data, 6) or _FILE.search(late)):
            return plain
        ends = (
            (End.CLOSE, End.CLOSE, End.RESET) if draft.framing == "close" else (*[End.KEEP] * 7, End.CLOSE, End.RESET)
        )
        end = End.KEEP if late else chance.choice(ends)
        return Said(self._pieces(before + data, chance), end, late, when, chance.random() < 0.5)

    def _well_said(self, draft: Draft, target: Target, chance: Random) -> Said:
        data = draft.render(chance)
        if target.flaky and not target.asked and not draft.bodyless:
            return Said(
                (data[: len(data) - chance.randint(1, max(1, len(draft.content)))],),
                chance.choice((End.CLOSE, End.RESET)),
            )
        return Said(self._pieces(data, chance), End.CLOSE if draft.framing == "close" else End.KEEP)

    def _pieces(self, data: bytes, chance: Random) -> tuple[bytes, ...]:
        """Mostly all at once; else a piece for each read of the parser."""
        if self.direct or chance.random() < 0.75 or len(data) < 2:
            return (data,)
        cuts = sorted({chance.randrange(1, len(data)) for _ in range(chance.choice((1, 1, 2, 5)))})
        return tuple(data[a:b] for a, b in zip((0, *cuts), (*cuts, len(data)), strict=True))


def honest(target: Target, request: Request, chance: Random) -> Draft:
    """As a server answers that does everything right."""
    content, etag = target.content, b'"v1"'
    if target.later is not None and target.asked:
        content, etag = target.later, b'"v2"'
    fields = [b"ETag: " + etag, b"Accept-Ranges: bytes", b"Content-Type: application/octet-stream", b"Server: a"]
    chance.shuffle(fields)
    draft = Draft(chance.choice((b"HTTP/1.1 200 OK", b"HTTP/1.1 200 ", b"HTTP/1.1 200 Very well")), fields, content)
    draft.framing = target.framing
    if chance.random() < 0.1:
        draft.before = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * chance.choice((1, 2, 3))
    if request.method == "HEAD":
        draft.bodyless = True
        draft.framing = "length" if target.framing == "close" else target.framing
        return draft
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    # One whose file has changed takes no notice of If-Range: what it sends must not be joined to what came before.
    holds = target.later is not None or request.headers.get("if-range", etag.decode()) == etag.decode()
    if asked and int(asked[1]) < len(content) and holds:
        first, last = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
        draft.status, draft.content, draft.framing = b"HTTP/1.1 206 Partial", content[first : last + 1], "length"
        fields.append(b"Content-Range: bytes %d-%d/%d" % (first, last, len(content)))
    return draft


def _surplus(chance: Random, may_forge: bool) -> bytes:
    if may_forge and chance.random() < 0.4:
        return SURPLUS[FORGES_A_FILE]
    data = chance.choice(tuple(SURPLUS.values()))
    return garbled(data, chance) if chance.random() < 0.4 else data
