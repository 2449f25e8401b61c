"""`dlpipe plan`: write down what to fetch, and return."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output, records
from dlpipe.cli.inputs import Entry, Inputs, inputs


@click.command(
    epilog="""\b
Examples:
  dlpipe plan https://example.org/a.pdf --work W1 --artifact fulltext
  dlpipe plan -i works.csv              (columns: url, work_id, artifact_id, sha256, …)
  dlpipe plan -i list.csv.gz --map url=link --map work_id=doi --ignore-unknown
  dlpipe plan -i works.csv --rejects bad.csv    (mend bad.csv, then: dlpipe plan -i bad.csv)
  dlpipe plan -i works.jsonl --strict
  cat urls.jsonl.gz | dlpipe plan -i - --json
  dlpipe plan -i works.csv --refresh    (what is done already is asked for again; as dlpipe refresh does)

\b
Fields of a CSV or JSONL: url, and where wanted work_id, artifact_id, sha256, media_type, max_bytes, ext, priority,
not_before, mirrors (in a CSV parted by blanks), refresh, request_id, tenant_id, project_id. What a line does not
say, the options say for it. A bad line is reported with its number and reason, and the others are planned.

\b
Planning the same again changes nothing and answers the same job, so an interrupted plan is simply repeated.
Exit status: 0 all planned, 1 some requests were refused, 2 wrong use, or refused as a whole (nothing was planned),
130 interrupted.
"""
)
@inputs
@click.option("--not-before", help="Do not fetch before this time (ISO 8601).")
@click.option("--mirror", "mirrors", multiple=True, help="Another URL of the same bytes; may be repeated.")
@click.option("--refresh", is_flag=True, help="Ask the server again for files that are done, or failed for good.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per request.")
def plan(
    wanted: Inputs, not_before: str | None, mirrors: tuple[str, ...], refresh: bool, as_json: bool
) -> int:  # fmt: skip
    """Write down what to fetch; workers do the rest.

    The jobs are in the ledger when this returns. Workers that run take them at once, others when they start.
    """
    own = {"not_before": not_before, "mirrors": list(mirrors) or None, "refresh": refresh or None}
    wanted.given |= {name: value for name, value in own.items() if value is not None}
    wanted.check()

    from dlpipe.cli.planning import Planning
    from dlpipe.pipeline.planner import PlanSummary, Refusal
    from dlpipe.tasks import deps

    summary = PlanSummary()

    def refused(entry: Entry, refusal: Refusal) -> None:
        summary.refuse(refusal)
        if as_json:
            told = {"url": records.as_given(refusal, entry.url), "outcome": "refused", "job_id": None}
            output.as_json({**told, **asdict(refusal), **_place(entry)})

    for entry, planned in Planning(deps(), wanted, refused).run():
        summary.add(planned.answer)
        if as_json:
            output.as_json({"url": entry.url, **asdict(planned.answer), **_place(entry)})
        elif planned.answer.hint:
            output.note(f"{planned.answer.job_id}: {planned.answer.hint}")
    if not as_json:
        counts = {
            "planned": summary.created, "due again": summary.refreshed, "on their way": summary.known,
            "done before": summary.skipped, "failed before": summary.failed, "canceled before": summary.canceled,
            "refused": summary.refused_count,
        }  # fmt: skip
        output.say(", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing to plan")
    if summary.created or summary.refreshed or summary.known:
        output.say_who_works()
    return EXIT_FAILED if summary.refused_count else EXIT_OK


def _place(entry: Entry) -> dict[str, Any]:
    return {} if entry.file is None else {"file": entry.file, "line": entry.line}
