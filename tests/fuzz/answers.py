"""The fuzzer of answers: whatever a server says, no URL gets bytes that are not its own, and no innocent one fails.

The stages that ask, on the real client, against mutated answers: heads, framings, ranges, surplus at once and late. Of
each URL it is known what the server holds and what it said, read by code of the oracle's own (`reading.py`).
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dlpipe.net import direct
from tests.fuzz.cases import ALONE, Case, Step
from tests.fuzz.client import Client, Ended
from tests.fuzz.reading import justified
from tests.fuzz.wire import Hang, Network

KEPT = Path("build") / "fuzz"
CASES_PER_CLIENT = 500
WAITS_S = 200.0
"""So long a download may wait in all, by the clock of the case, which moves only then."""
REQUESTS = 80
REAL_S = 60
"""So long a case may take in truth: it needs some milliseconds."""
DIRECT_BYTES = 400


@dataclass
class Tally:
    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.counts += other.counts
        self.violations += other.violations


def judge(case: Case, step: Step, ended: Ended) -> tuple[str, str]:
    """How a download ended, and what is wrong with that; empty when nothing is."""
    target, codes = step.target, ", ".join(ended.codes)
    whose = "hostile" if target.hostile else "innocent"
    if ended.file is not None:
        # An innocent URL leads nowhere else, and the server has only said of it what it holds.
        why = justified(
            ended.file, case.truth if target.hostile else target.truth, case.readings if target.hostile else ()
        )
        if not why and target.tenant == ALONE:
            return f"{whose}: forged within one tenant", ""
        if not why:
            return f"{whose}: wrong bytes", f"wrong bytes for {target.path}: {ended.file[:60]!r}"
        if not target.hostile and not target.flaky and codes:
            return f"{whose}: set back", f"innocent failure: {target.path} cost an attempt ({codes})"
        return f"{whose}: {why}", ""
    if target.hostile:
        return f"hostile: {'refused' if ended.for_good else 'retryable'}: {ended.codes[-1]}", ""
    return f"innocent: {codes}", f"innocent failure: {target.path} ended with {codes}"


def play(case: Case, client: Client, network: Network) -> Tally:
    tally, connections = Tally(1), network.connections
    network.answers = case.answer
    network.transcript.clear()
    direct.LEAST_BYTES = DIRECT_BYTES if case.direct else 256 << 10
    for step in case.steps:
        case.begin()
        network.begin()
        ended = Ended(None, ())
        try:
            ended = client.download(f"http://{case.host}{step.target.path}", step.target.tenant, head=step.head)
            how, wrong = judge(case, step, ended)
        except Hang as error:
            how, wrong = "hang", f"hang: {step.target.path}, {error}"
        except Exception:  # any at all: in a worker it would be an internal_error
            how, wrong = "unexpected error", f"unexpected error for {step.target.path}\n{traceback.format_exc()}"
        tally.counts[how] += 1
        tally.counts.update(f"run failed: {code}" for code in ended.codes)
        if wrong:
            tally.violations.append(wrong)
    tally.counts["requests"] += case.requests
    tally.counts["requests on a connection used before"] += case.reused
    tally.counts["connections"] += network.connections - connections
    tally.counts["late surplus"] += case.surplus
    return tally


def keep(case: Case, tally: Tally, network: Network) -> Path:
    """The case for a look: what is wrong, and every byte in its order."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"answers-{case.seed}-{case.number}.txt"
    lines = [*tally.violations, ""]
    lines += [
        f"{one.path} {one.tenant} hostile={one.hostile} flaky={one.flaky} {one.content[:40]!r}" for one in case.targets
    ]
    lines += [f"asks {step.target.path}{' after HEAD' if step.head else ''}" for step in case.steps]
    lines += [f"{number} {sign} {data!r}" for number, sign, data in network.transcript]
    file.write_text("\n".join(lines) + "\n")
    return file


@contextmanager
def _memory() -> Iterator[Path]:
    """A folder in memory where there is one: parts are made durable, which takes a disk its time."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="dlfuzz", dir=fast if fast.is_dir() else None) as folder:
        yield Path(folder)


def watched(seed: int, numbers: range, ends_at: float) -> Tally:
    """Like `run`, in a process of its own: a case that never ends, and is at nothing that the network sees, is over."""

    def late(*_: object) -> None:
        raise Hang(f"it has taken {REAL_S} s")

    signal.signal(signal.SIGALRM, late)
    return run(seed, numbers, ends_at, lambda: signal.alarm(REAL_S))


def run(seed: int, numbers: range, ends_at: float, case_begins: Callable[[], object] = lambda: None) -> Tally:
    """Play these cases, as far as the time goes; `ends_at` by the monotonic clock."""
    total = Tally()
    logging.disable(logging.WARNING)  # each surplus is told of
    try:
        return _run(total, seed, numbers, ends_at, case_begins)
    finally:
        logging.disable(logging.NOTSET)


def _run(total: Tally, seed: int, numbers: range, ends_at: float, case_begins: Callable[[], object]) -> Tally:
    for at in range(0, len(numbers), CASES_PER_CLIENT):
        network = Network(waits_s=WAITS_S, requests=REQUESTS)
        with _memory() as root:
            client = Client(network, root)
            for number in numbers[at : at + CASES_PER_CLIENT]:
                if time.monotonic() > ends_at:
                    client.close()
                    return total
                case_begins()
                case = Case(seed, number)
                tally = play(case, client, network)
                if tally.violations:
                    file = keep(case, tally, network)
                    tally.violations = [f"case {number}: {line}  ({file})" for line in tally.violations]
                total.add(tally)
            total.counts += client.counts
            client.close()
    return total


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.answers", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, help="the same cases again")
    parser.add_argument("--case", type=int, help="that one alone")
    parser.add_argument("--seconds", type=float, default=600.0, help="fewer cases if they take longer than this")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(argv)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    first, last = (0, asked.cases) if asked.case is None else (asked.case, asked.case + 1)
    began = time.monotonic()
    # Dealt out in turns, so that what the time cuts off is the last cases of all.
    shares = [range(first + n, last, asked.processes) for n in range(asked.processes)]
    total = Tally()
    context = multiprocessing.get_context("forkserver")
    with context.Pool(asked.processes) as pool:
        for tally in pool.starmap(watched, [(seed, share, began + asked.seconds) for share in shares]):
            total.add(tally)
    for name, count in sorted(total.counts.items()):
        print(f"  {count:>9,}  {name}")
    for line in total.violations[:50]:
        print(f"VIOLATION {line}")
    kinds = Counter(line.partition(": ")[2].partition(" ")[0] for line in total.violations)
    print(
        f"seed {seed}: {total.cases:,} cases in {time.monotonic() - began:.0f} s: {kinds['wrong']} wrong bytes, "
        f"{kinds['innocent']} innocent failures, {kinds['hang:']} hangs, {kinds['unexpected']} unexpected errors"
    )
    if total.violations:
        print(f"one of them again: python -m tests.fuzz.answers --seed {seed} --case N")
    if total.cases < last - first:
        print(f"the time was over before all {last - first:,} cases were played")
    return 1 if total.violations or total.cases < last - first else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
