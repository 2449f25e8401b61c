"""Planted mutants of what a server brings: whether it is the file, how fast it comes, and in how many answers."""

from __future__ import annotations

from ops.mutant import Mutant

_RANGES = "dlpipe/core/ranges.py"
_MEDIA = "dlpipe/core/media.py"
_PACE = "dlpipe/pipeline/stages/pace.py"
_BODY = "dlpipe/pipeline/stages/body.py"
_FETCH = "dlpipe/pipeline/stages/fetch.py"
_SEGMENTS = "dlpipe/pipeline/stages/segments.py"
_HEAD = "dlpipe/pipeline/stages/head.py"
_PACES = "tests/unit/pipeline/test_pace.py"
_SNIFFS = "tests/unit/pipeline/test_sniff.py"
_JUDGED = "tests/unit/core/test_ranges.py"

BODIES = (
    # ── 200 with a Content-Range (rows 13 and 54) ──
    Mutant(
        "part-on-200-taken", "a 200 with the Content-Range of a part is taken for the file", _RANGES,
        "(full is None or not _is_all(full, length))", "False", (_JUDGED, "-k", "13"),
    ),
    Mutant(
        "full-range-on-200-refused", "a 200 with the Content-Range of all of the file is refused", _RANGES,
        "(full is None or not _is_all(full, length))", "True", (_JUDGED, "-k", "54"),
    ),
    Mutant(
        "full-range-belied", "a chunked 200 may be shorter than its Content-Range", _RANGES,
        "    length = full.total if full is not None else length  # row 54: then the body must have as many\n", "",
        ("tests/unit/pipeline/test_joining.py", "-k", "belies"),
    ),
    # ── one pace over all answers of a server (row 47) ──
    Mutant(
        "window-anew-with-each-answer", "the window of the least rate, and the deadline, begin anew with each answer",
        _PACE,
        "        if self._began == math.inf:\n", "        if True:\n", (_PACES, "-k", "together"),
    ),
    Mutant(
        "requests-unbounded", "a server may bring a file in as many answers as it likes", _PACE,
        "        if self._asked > allowed:\n", "        if False:\n", (_PACES, "-k", "byte_each"),
    ),
    Mutant(
        "held-bytes-count-again", "bytes that were held already make an answer larger", _BODY,
        "            pace.reach(part.offset)\n", "            pace.gain(size)\n", (_PACES, "-k", "held_already"),
    ),
    Mutant(
        "pieces-uncounted", "requests for pieces over several connections are not counted", _SEGMENTS,
        "            self._pace.ask()\n", "", (_PACES, "-k", "several_connections"),
    ),
    Mutant(
        "pieces-have-their-own-pace", "what several connections took does not count for the one that follows",
        _SEGMENTS,
        "        pace = self._pace\n", "        pace = Pace(self._deps.policy.stream, self._deps.clock)\n",
        (_PACES, "-k", "follows_several"),
    ),
    Mutant(
        "mirror-pays", "a mirror pays for the answers and the time of the server before it", _FETCH,
        "            self._pace = Pace(self._policy, self._deps.clock)\n", "", (_PACES, "-k", "mirror"),
    ),
    Mutant(
        "our-own-time-counts", "time in which a file is hashed again is held against the server", _FETCH,
        "        self._pace.skip()\n", "", (_PACES, "-k", "ours"),
    ),
    # ── a page in place of a file (row 43) ──
    Mutant(
        "path-expects-nothing", "a page is stored under an address that ends in .pdf", _MEDIA,
        '    for text in (ext or "", name):', '    for text in (ext or "",):', (_SNIFFS, "-k", "declares and pdf"),
    ),
    Mutant(
        "declared-type-first", "what the server declares counts before what the address ends in", _MEDIA,
        "        if suffix in _NO_PAGES:\n            return Expected(suffix)\n",
        '        if suffix in _NO_PAGES and plain(content_type) != "text/html":\n            return Expected(suffix)\n',
        (_SNIFFS, "-k", "declares and pdf"),
    ),
    Mutant(
        "page-that-was-asked-for-refused", "an .html that was asked for does not come", _MEDIA,
        "        if suffix in _MAYBE_PAGES:\n            return None\n", "", (_SNIFFS, "-k", "asked_for_comes"),
    ),
    Mutant(
        "page-in-utf-16-passes", "a page in UTF-16 is taken for the file", _MEDIA,
        'head.replace(b"\\x00", b"").lstrip', "head.lstrip", ("tests/unit/core/test_media.py", "-k", "page_is_told"),
    ),
    Mutant(
        "page-behind-a-comment-passes", "a page that begins with a comment is taken for the file", _MEDIA,
        "rest = text[begins.end() :] if begins else text", "rest = text",
        ("tests/unit/core/test_media.py", "-k", "page_is_told"),
    ),
    Mutant(
        "short-page-passes", "a page shorter than what is looked at is taken for the file", _FETCH,
        "                pass\n        self._sniff.look(at_end=True)\n", "                pass\n",
        (_SNIFFS, "-k", "declares and pdf"),
    ),
    Mutant(
        "left-page-passes", "a page that another job has left whole is taken for the file", _FETCH,
        "                self._sniff.look(at_end=True)\n                if self._has",
        "                if self._has", (_SNIFFS, "-k", "another_job_left"),
    ),
    Mutant(
        "known-page-linked", "a known page is linked where a file is expected", _HEAD,
        "not (self._looks_right(job, blob) or ", "not (True or ", (_SNIFFS, "-k", "known_page"),
    ),
    Mutant(
        "sniffing-off-for-all", "one host without sniffing is all of them", "dlpipe/wiring.py",
        "hosts.of(host).sniff", "all(one.sniff for one in hosts.hosts.values())", ("tests/unit/net/test_limits.py",),
    ),
)  # fmt: skip
