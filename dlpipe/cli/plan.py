"""`dlpipe plan`: write down what to fetch, and return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output, records
from dlpipe.cli.inputs import inputs, requests
from dlpipe.core.urls import redact


@click.command(
    epilog="""\b
Examples:
  dlpipe plan https://example.org/a.pdf --work W1 --artifact fulltext
  dlpipe plan -i works.csv              (columns: url, work_id, artifact_id, sha256, …)
  zcat urls.jsonl.gz | dlpipe plan -i - --json
  dlpipe plan -i works.csv --refresh    (what is done already is asked for again; see dlpipe refresh --help)

\b
Planning the same again changes nothing and answers the same job. Exit status: 0 all planned, 1 some lines
were refused, 2 wrong use.
"""
)
@inputs
@click.option("--not-before", help="Do not fetch before this time (ISO 8601).")
@click.option("--mirror", "mirrors", multiple=True, help="Another URL of the same bytes; may be repeated.")
@click.option("--refresh", is_flag=True, help="Ask the server again for files that are done, or failed for good.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per request.")
def plan(
    urls: tuple[str, ...], files: tuple[str, ...], format_: str, as_json: bool, mirrors: tuple[str, ...],
    refresh: bool, **common: Any,
) -> int:  # fmt: skip
    """Write down what to fetch; workers do the rest.

    The jobs are in the ledger when this returns. Workers that run take them at once, others when they start.
    """
    from dlpipe.pipeline.planner import PlanSummary, Refusal, plan_each
    from dlpipe.tasks import deps

    wanted = requests(urls, files, format_, mirrors=list(mirrors) or None, refresh=refresh or None, **common)
    summary = PlanSummary()
    given: dict[int, Any] = {}

    def remembered() -> Iterator[dict[str, Any]]:
        for position, fields in enumerate(wanted, start=1):
            given[position] = fields.get("url")
            yield fields

    for answered in plan_each(deps(), remembered()):
        url = given.pop(answered.position)
        if isinstance(answered, Refusal):
            summary.refuse(answered)
            shown = output.safe(redact(url)) if isinstance(url, str) else "without a URL"
            output.note(
                f"refused: no. {answered.position} {shown}: {answered.message} [{answered.code}] {answered.hint}"
            )
            if as_json:
                told = records.as_given(answered, url)
                output.as_json({"url": told, "outcome": "refused", "job_id": None, **asdict(answered)})
            continue
        summary.add(answered.answer)
        if as_json:
            output.as_json({"url": url, **asdict(answered.answer)})
        elif answered.answer.hint:
            output.note(f"{answered.answer.job_id}: {answered.answer.hint}")
    if not as_json:
        counts = {
            "planned": summary.created, "due again": summary.refreshed, "on their way": summary.known,
            "done before": summary.skipped, "failed before": summary.failed, "canceled before": summary.canceled,
            "refused": summary.refused_count,
        }  # fmt: skip
        click.echo(", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing to plan")
        _say_who_works()
    return EXIT_FAILED if summary.refused_count else EXIT_OK


def _say_who_works() -> None:
    from dlpipe import wiring
    from dlpipe.embedded import stack

    chosen = wiring.settings()
    if chosen.private_redis and stack.running(chosen.home_dir) is None:
        output.note("no worker runs on this data directory; start one with: dlpipe up")
