"""Progress that is kept in a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class FakeProgress:
    """The port `Progress`."""

    def __init__(self) -> None:
        self.shown: dict[str, tuple[int, int | None]] = {}

    def report(self, job_id: str, done: int, total: int | None) -> None:
        self.shown[job_id] = (done, total)

    def clear(self, job_id: str) -> None:
        self.shown.pop(job_id, None)

    def get(self, job_ids: Sequence[str]) -> Mapping[str, tuple[int, int | None]]:
        return {job_id: self.shown[job_id] for job_id in job_ids if job_id in self.shown}
