"""The first bytes of a file against what is expected of it (STREAM-4)."""

from __future__ import annotations

from collections.abc import Callable

from dlpipe.core import media
from dlpipe.core.errors import Permanent
from dlpipe.core.media import Expected
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Part
from dlpipe.pipeline.deps import Deps


def expectation(deps: Deps, job: ArtifactJob, url: str, content_type: str | None) -> Expected | None:
    """What the job expects of a file that comes from this URL; None: any, or nothing is looked at for its host."""
    if not deps.policy.stream.sniff:
        return None
    at = deps.parse_url(url)
    if at is not None and not deps.sniffs(at.host):
        return None
    return media.expected(job.expected_media_type, job.ext, job.canonical_url, content_type)


class Sniff:
    def __init__(self, part: Part, expected: Callable[[], Expected | None]) -> None:
        """`expected` is asked when there are bytes to look at: what the server declares is known by then."""
        self._part, self._expected = part, expected
        self._done = False

    def again(self) -> None:
        """The file begins anew, or is gone on with from another server."""
        self._done = False

    def look(self, *, at_end: bool) -> None:
        """Once there are bytes enough; Permanent when they are of something else."""
        if self._done or (self._part.offset < media.SNIFF_BYTES and not at_end):
            return
        self._done = True
        what = self._expected()
        if what is not None and (wrong := media.wrong(what, self._part.read(0, media.SNIFF_BYTES))):
            raise mismatch(wrong)


def mismatch(wrong: str) -> Permanent:
    return Permanent(
        wrong,
        code="media_type_mismatch",
        hint="Open the address in a browser: often it is a login or an error page. To take the page, plan it as "
        "another artifact with the extension .html; for a whole host, sniff = false in net.limits_file does that.",
    )
