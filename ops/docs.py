"""Draws docs/state-machine.md from the tables in dlpipe.core: `make docs`, or `--check` to see whether it is fresh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dlpipe.core import flow, states
from dlpipe.core.states import Moment, State

PAGE = Path(__file__).resolve().parent.parent / "docs" / "state-machine.md"

_WHEN = {
    Moment.START: "a new run starts",
    Moment.CLAIM: "claims the job",
    Moment.FINISH: "is recorded",
    Moment.FAIL: "the run fails",
    Moment.CANCEL: "somebody cancels",
    Moment.REOPEN: "a further run is wanted",
    Moment.WITHDRAW: "a further run that has begun is taken back",
    Moment.RETRY: "somebody retries",
}

_INTRO = """\
# The states of an artifact job

Made by `make docs` from `TABLE` in `dlpipe/core/states.py` and `STAGES` in `dlpipe/core/flow.py`. Change those, not
this page: the guard in the database, the chain of messages and what a new run still has to do are read from them too.

A state is entered *after* what it names has happened: `HEAD_DONE` once the answer to HEAD is recorded. `STREAMING`
alone is entered when the stage claims the job, because it is the long one and people want to see it.
"""

_RUN = """\
## The way of a run

A new run needs a free lease, a due time on the job (which says that the run before is over) and a run number one
higher. It begins at `LEASED`, or, once the file has its final name, where the job is: then it does only what remains.
"""

_ENDS = """\
## The other ends

A job in `FAILED` with a due time waits for its next run; without one it has failed for good, until somebody retries it.
A failure after the file has its final name leaves the job where it is as long as a retry is due.
"""

_FURTHER = """\
## A further run

A job at a good end is due again when its owner wants a *refresh* (has the server something newer?), or when its file
is found missing or damaged and is to be brought back by a *repair*, or when its stages are to be done again from the
stored file by a *replay*, which passes through the same states and asks no server. Until the run starts, the job waits
in the state it has, its status is `pending`, and canceling takes the wish back. Canceling a further run that has begun
brings the job back to the end that it had, until the new file is in its place (`FINALIZED`); from there on it goes
through. A job that has a result is never `CANCELED`. A job that is not at its end goes on only with what remains, which
cannot bring a lost file back: such a job has failed, and is due from the start. The purpose stays with the job until it
comes to a good end, over failures and retries. `CANCELED` alone is never left.

What the job registered before stays registered and readable, whatever becomes of the further run.
"""


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            _INTRO,
            _RUN,
            *_diagram(Moment.START, Moment.CLAIM, Moment.FINISH),
            "",
            _ENDS,
            *_diagram(Moment.FAIL, Moment.CANCEL, Moment.RETRY),
            "",
            _FURTHER,
            *_diagram(Moment.REOPEN, Moment.WITHDRAW),
            "",
            "## Every step",
            "",
            *_table(["from", "to", "when"], _steps()),
            "",
            "## The stages",
            "",
            "`starts a run` lists the states in which this stage is the first of a new run.",
            "",
            *_table(["stage", "op", "queue", "progress", "claims in", "enters", "starts a run"], _stages()),
            "",
            "## State, status, and what remains",
            "",
            "The status of a job is derived from its state, in the same transaction.",
            "",
            *_table(["state", "status", "with a run due", "stages that a run has left"], _statuses()),
            "",
        ]
    )


def _diagram(*moments: Moment) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    if Moment.START in moments:
        yield f"    [*] --> {State.PLANNED}"
    for step in states.TABLE:
        if step.moment in moments and not _withdraws(step):
            yield f"    {step.source} --> {step.target}: {_label(step.moment, step.stage)}"
    for state in sorted({step.target for step in states.TABLE if step.moment in moments} & states.FINISHED):
        yield f"    {state} --> [*]"
    yield "```"


def _label(moment: Moment, stage: str) -> str:
    match moment:
        case Moment.START:
            return "new run"
        case Moment.FAIL:
            return "fails"
        case Moment.CANCEL:
            return "canceled"
        case Moment.REOPEN:
            return "reopened"
        case Moment.RETRY:
            return "retried"
        case Moment.WITHDRAW:
            return "withdrawn"
        case _:
            return f"{stage} {_WHEN[moment]}"


def _steps() -> Iterator[Sequence[str]]:
    for step in states.TABLE:
        who = f"`{step.stage}` " if step.stage else ""
        when = "the wish for a further run is taken back" if _withdraws(step) else _WHEN[step.moment]
        yield _code(step.source), _code(step.target), who + when


def _withdraws(step: states.Step) -> bool:
    return step.moment is Moment.CANCEL and step.source is step.target


def _stages() -> Iterator[Sequence[str]]:
    for row in flow.STAGES:
        entered = {step.target for step in states.TABLE if step.stage == row.name}
        yield (
            _code(row.name),
            _code(row.op),
            _code(row.queue),
            f"{row.progress} %",
            _listed(states.claimable(row.name)),
            _listed(entered),
            _listed(flow.startable(row.name)) or "none",
        )


def _statuses() -> Iterator[Sequence[str]]:
    for state in State:
        plain, due = (states.status_of(state, retry_due=retry_due) for retry_due in (False, True))
        left = ", ".join(row.name for row in flow.remaining(state))
        yield _code(state), _code(plain), "the same" if due is plain else _code(due), left or "none"


def _listed(found: Iterable[State]) -> str:
    wanted = set(found)
    return ", ".join(_code(state) for state in State if state in wanted)


def _code(text: str) -> str:
    return f"`{text}`"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (headers, ["---"] * len(headers), *rows):
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    options: Any = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--check", action="store_true", help="change nothing; fail when the page is stale")
    check: bool = options.parse_args().check
    page = render()
    fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page
    if check:
        print(f"{PAGE.name} is {'fresh' if fresh else 'stale; run: make docs'}")
        return 0 if fresh else 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.name} {'was fresh' if fresh else 'is written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
