"""Take requests in: check, write them down, and only then send the hint (PLAN-3, PLAN-8)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import DlpipeError, InvalidInput
from dlpipe.core.model import JobSpec, PlanAnswer, job_spec
from dlpipe.core.ports import Unit
from dlpipe.pipeline import dispatch
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.settling import settle

log = logging.getLogger(__name__)

BATCH = 5_000
BATCH_CHARACTERS = 32 << 20
"""Of URLs and mirrors: of requests that are as long as they may be, fewer are in memory."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not planned: where it stood in the input, and why."""

    position: int
    code: str
    message: str
    hint: str


@dataclass(slots=True)
class PlanSummary:
    """What a bulk plan came to."""

    created: int = 0
    known: int = 0
    skipped: int = 0
    failed: int = 0
    canceled: int = 0
    refreshed: int = 0
    refused: list[Refusal] = field(default_factory=list)
    refused_count: int = 0

    KEPT_REFUSALS = 1_000

    def add(self, answer: PlanAnswer) -> None:
        setattr(self, answer.outcome, getattr(self, answer.outcome) + 1)

    def refuse(self, refusal: Refusal) -> None:
        self.refused_count += 1
        if len(self.refused) < self.KEPT_REFUSALS:
            self.refused.append(refusal)


def spec(deps: Deps, fields: Mapping[str, Any]) -> JobSpec:
    """Check one request; InvalidInput says what is wrong with it."""
    unknown = fields.keys() - _FIELDS
    if not isinstance(fields.get(REFRESH, False), bool):
        raise InvalidInput(
            "refresh must be true or false", code="refresh_invalid", hint="Correct this field and plan again."
        )
    if unknown or "url" not in fields:
        what = f"unknown field {min(unknown)!r}" if unknown else "no url"
        raise InvalidInput(
            f"the request has {what}",
            code="fields_invalid",
            hint=f"Known fields: {', '.join(sorted(SPEC_FIELDS | {REFRESH}))}.",
        )
    if REFRESH in fields:
        fields = {name: value for name, value in fields.items() if name != REFRESH}
    made = job_spec(deps.parse_url, **fields)
    if reason := deps.forbidden(made.url.host, made.url.port):
        raise InvalidInput(
            f"requests to {made.url.host} are not allowed: {reason}",
            code="egress_forbidden",
            hint="Set DLPIPE_ALLOW_PRIVATE=1 if files on this machine or in this network are meant.",
        )
    return made


SPEC_FIELDS = frozenset(
    "url work_id artifact_id tenant_id project_id ext sha256 media_type max_bytes mirrors priority "
    "not_before request_id".split()
)
REFRESH = "refresh"
"""A field of the request, and not of the job: a job that is done, or failed for good, is due again (PLAN-6)."""
_FIELDS = SPEC_FIELDS | {REFRESH}


def plan(deps: Deps, fields: Mapping[str, Any]) -> PlanAnswer:
    """Plan one file. The job is on record when this returns, whatever becomes of the message."""
    made = spec(deps, fields)

    def write(unit: Unit) -> PlanAnswer:
        answer = unit.jobs.plan_if_absent([made])[0]
        if fields.get(REFRESH):
            answer = _refreshed(unit, made, answer)
        crash_point("plan.writing")
        return answer

    answer = settle(deps.database, write)
    crash_point("plan.written")
    if answer.outcome in ("created", "known", "refreshed"):
        nudge(deps)
    return answer


def _refreshed(unit: Unit, made: JobSpec, answer: PlanAnswer) -> PlanAnswer:
    if answer.outcome not in ("skipped", "failed"):
        return answer
    status = unit.owned(made.scope).refresh(made.job_id)
    return replace(answer, outcome="refreshed", status=status or answer.status, hint="")


def plan_many(deps: Deps, requests: Iterable[Mapping[str, Any]]) -> PlanSummary:
    """Plan any number of files in bounded memory; a bad request is reported and the others are planned."""
    summary = PlanSummary()
    for answered in plan_each(deps, requests):
        if isinstance(answered, Refusal):
            summary.refuse(answered)
        else:
            summary.add(answered.answer)
    return summary


@dataclass(frozen=True, slots=True)
class Planned:
    position: int
    spec: JobSpec
    answer: PlanAnswer


def plan_each(deps: Deps, requests: Iterable[Mapping[str, Any]]) -> Iterator[Planned | Refusal]:
    """Plan in batches, and say of each request, in no strict order, what became of it.

    While a batch is written, the next one is checked: two batches are in memory at the most.
    """
    numbered = enumerate(requests, start=1)
    with ThreadPoolExecutor(1, "dlpipe-plan") as writer:
        written: Future[list[Planned]] | None = None
        more = True
        while more:
            batch: list[_Checked] = []
            more, size = False, 0
            try:
                # Checked as they come: what is refused, however large, is not kept until its batch is full.
                for position, fields in islice(numbered, BATCH):
                    more = True
                    try:
                        made = spec(deps, fields)
                    except InvalidInput as error:
                        yield Refusal(position, error.code, error.message, error.hint)
                        continue
                    batch.append((position, made, bool(fields.get(REFRESH))))
                    size += len(made.url.request) + sum(map(len, made.mirrors))
                    if size > BATCH_CHARACTERS:
                        break
            except GeneratorExit:
                raise
            except BaseException:
                # The input broke off, or somebody interrupts: what stands by now is answered all the same.
                if written is not None:
                    yield from written.result()
                raise
            if written is not None:
                yield from written.result()
            written = writer.submit(_write_batch, deps, batch) if batch else None


def _write_batch(deps: Deps, batch: Sequence[_Checked]) -> list[Planned]:
    answers = settle(deps.database, partial(_write, batch))
    crash_point("plan.batch_written")
    nudge(deps)
    return [Planned(position, made, answer) for (position, made, _), answer in zip(batch, answers, strict=True)]


_Checked = tuple[int, JobSpec, bool]
"""Where it stood in the input, what is wanted, and whether it is to be refreshed."""


def _write(specs: Sequence[_Checked], unit: Unit) -> list[PlanAnswer]:
    answers = unit.jobs.plan_if_absent([made for _, made, _ in specs])
    return [
        _refreshed(unit, made, answer) if refresh else answer
        for (_, made, refresh), answer in zip(specs, answers, strict=True)
    ]


def nudge(deps: Deps) -> None:
    """Send what is due now rather than at the next beat. The plan stands even when nobody can be told."""
    try:
        dispatch.dispatch(deps)
    except DlpipeError as error:
        log.info("planned, not sent yet: %s", error.code)
