"""docs/model.md, written from the model: what it holds, and for each guard the shortest way to harm without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.model.guards import CASES, Case, Fault, Never
from tests.model.job import explored

_INTRO = """\
# The model: lease, fence, ledger and chain

Made by `make docs` from `tests/model`. Change that, not this page.

Tests try some orders of events. The model tries all of them: every order in which two workers, a broker, Redis, the
database, reconcile and people can take their steps with one job, and in each place everything that may go wrong. It
reads the transition table and the chain from `dlpipe/core/states.py` and `dlpipe/core/flow.py` and decides with
`dlpipe/core/recovery.py` itself; what the database, Redis and the file system do is restated in small guarded steps,
each naming the function that it mirrors. `tests/model/worker.py` and `effects.py` are what a worker does, `healing.py`
is dispatch and reconcile, `wishes.py` is what people want, `around.py` is all the rest.

**With all guards, no order of events breaks a property, whichever {most} things go wrong.** A fast test visits all
{fast} states for one thing that goes wrong, a slow one visits those for two. Take any one of the {guards} guards
away, and the model finds the shortest way to harm: those ways are the second half of this page, and a test asks for
each of them.
"""

_HOLDS = """\
## What is in it

- One job with all six stages and a file of two pieces, fetched, written, hashed, named and unlinked step by step. Two
  attempts, then the job has failed for good.
- Two workers, each of which may be stopped or killed between any two steps. Who was stopped and wakes up does the one
  step that it was about to do, and only then looks at its lease: that is the late write.
- What follows a stage is left to its message, or claimed in the same step by the worker that has recorded it (ADR 42).
  Which of the two depends on queues and on processes that end, so everywhere either may be. Both halves of that step
  must hold by themselves; and where its answer is lost, its worker owes both fences.
- Runs that take up a finished job again, because somebody wants it refreshed or because its file is gone; the wish for
  one that is taken back; and pauses.
- Messages in no order. Time is only "over" or "not yet"; a lease runs out whenever nobody renews it.
- Fences and file numbers count by their order, and the two workers are alike: worlds that differ only in such names
  are one state. Taking the lock and asking the ledger is one step, and so is recording and letting go, unless something
  goes wrong in between: what others do there they may as well do before or after.

A guard is one protection, also where several statements say it: the fence stands in the update of the row and in those
of its op, which are one transaction, and so `fence-on-record` is all of them. The row's alone would do; LEASE-2 wants
each late write to be refused by itself, and [mutants.md](mutants.md) shows that tests notice when the op's is gone.

That a job must not be paused is asked of the claim within such a step too (`_moved`, db/endings.py), and no guard here:
a pause lets go of the row under a fence of its own, and that alone refuses the step. So no paused job
ever has a holder, and each step is looked at for that.

What it leaves out: stages that go on record with the one in front of them, under its fence (here each has a claim of
its own); runs without the network (replay); files that go bad under their final name; a second job, except that it
publishes the same bytes; `head` finding a known URL; the bytes that `dedupe` shares; the parts of the queue that say
who comes first. The release of a provably dead worker's lease (ADR 5) is the same as that lease running out at once.
"""

_LIVES = """\
The last one is shown backwards: from the ends of the job the model walks all helpful steps in reverse, and every state
must be met. So from wherever faults may have led, once they cease, the job ends. Where a result is registered, it has
ended only when the file is there, or its loss is marked.
"""

_FOUND = """\
## What it found

With four things going wrong the first model left the promise in one place: a job that failed for good *after* its
result was registered, and was retried, began at `head` instead of with what remained. So it could be canceled although
its result was registered (against JOB-9), and it fetched the file again; if that had changed, the job had two results.
Since then `retry` reads from the table where such a job goes on.
"""


@cache
def steps_to_harm(case: Case) -> tuple[str, tuple[str, ...]]:
    """The property that breaks without the guard, and the shortest way there."""
    found = explored(case.most, [case.guard], case.faults).wrong
    if found is None:
        raise LookupError(f"nothing breaks without {case.guard}")
    return found.broken, found.steps


@cache
def states_of_one() -> int:
    return explored(1).states


def render() -> str:
    return "\n".join(
        [
            _INTRO.format(most="two", fast=f"{states_of_one():,}", guards=len(CASES)),
            _HOLDS,
            "## What may go wrong",
            "",
            *(f"- {_capital(fault)}" for fault in Fault),
            "",
            "## What must hold",
            "",
            *(f"- {_capital(never)}" for never in Never),
            "",
            _LIVES,
            "## The guards",
            "",
            "| guard | where | what breaks without it |",
            "| --- | --- | --- |",
            *(f"| [{c.guard}](#{c.guard}) | {c.where} | not: {steps_to_harm(c)[0]} |" for c in CASES),
            "",
            _FOUND,
            "## Without it",
            "",
            "The shortest way to harm, for each guard. What went before without incident is told in one line.",
            "",
            *(line for case in CASES for line in _case(case)),
        ]
    )


def _case(case: Case) -> Iterator[str]:
    broken, steps = steps_to_harm(case)
    yield f"### {case.guard}"
    yield ""
    yield f"{case.says} ({case.where})"
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(_told(steps), 1))
    yield ""
    yield f"**Broken:** {broken}."
    yield ""


_ONWARD = "; with it A"


def _told(steps: tuple[str, ...]) -> list[str]:
    """One stage after the other going well is one line: the harm is in what follows."""
    told: list[str] = []
    last = ""
    quiet = [n for n, step in enumerate(steps) if " records `" in step and ("is sent" in step or _ONWARD in step)]
    begun = next((number for number, step in enumerate(steps) if not _calm(step)), len(steps))
    calm = [number for number in quiet if number < begun]
    if len(calm) > 1:
        last = steps[calm[-1]].split(": ")[-1 if "; " not in steps[calm[-1]] else 1].split(";")[0]
        _, onward, claim = steps[calm[-1]].partition(_ONWARD)
        then = f"with the last of them it{claim}" if onward else "the message for the next one is sent"
        told.append(f"A alone does all stages up to {last}, and {then}")
        steps = steps[calm[-1] + 1 :]
    return [*told, *steps]


def _calm(step: str) -> bool:
    return (
        step.startswith(("A ", "dispatch sends"))
        and " B " not in step
        and not any(word in step for word in ("killed", "stopped", "wakes", "emptied", "answer"))
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
