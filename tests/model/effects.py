"""What a stage does to files, in steps, and how a run fails: staging, store, and the guarded writes on the job's row.

Each step ends with the look at the lease (`lease.check()`); a worker that is stopped before a step and wakes up later
does that one step all the same, which is what a late write is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlpipe.core import flow, recovery
from dlpipe.core.errors import Retryable
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import Moment, State
from tests.model import table
from tests.model.explorer import Step
from tests.model.guards import Guard, Never
from tests.model.world import EMPTY, WHOLE, Part, Worker, World

NAMES = "AB"
POLICY = RetryPolicy(max_attempts=2)
EFFECTS = ("open", "write", "probe", "hash", "link", "unlink")


class Effects:
    def __init__(self, guards: frozenset[Guard]) -> None:
        self._guards = guards

    def has(self, guard: Guard) -> bool:
        return guard in self._guards

    def counts(self, w: World, worker: Worker, allowed: frozenset[State]) -> bool:
        """`guarded` (db/guards.py)."""
        row = w.row
        return (
            (row.fence == worker.fence or not self.has(Guard.FENCE))
            and ((row.owner is not None and not row.due) or not self.has(Guard.LET_GO))
            and (row.state in allowed or not self.has(Guard.RECORD_STATE))
        )

    @staticmethod
    def key(worker: Worker) -> tuple[str, Any]:
        """The op that it works on, by its run where the network is asked, and else by its content (LEDGER-2)."""
        stage = flow.stage(worker.stage)
        return stage.op.value, worker.run if stage.name in ("head", "resume_decide", "stream") else worker.sha

    def fails(self, w: World, me: int, why: str) -> Step[World]:
        """`_fail` (pipeline/runner.py), `after_failure` (core/recovery.py); `SqlLedger.fail`, `SqlJobs.fail` (db)."""
        worker, row = w.workers[me], w.row
        left = w.with_worker(me, worker._replace(at="leave", file=-1))
        text = f"{NAMES[me]}: {why}"
        if not self.counts(w, worker, table.sources(State.FAILED, Moment.FAIL)):
            return Step(f"{text}; and it may not say so: its fence was overtaken", left)
        write = recovery.after_failure(Retryable(why, code="failed"), row.state, row.attempts, "", 0.0, POLICY)
        waits = write.due_after_s is not None
        state = row.state if waits and write.keeps_state else State.FAILED
        op = w.op(self.key(worker))
        if op is not None and not op.done and op.fence == worker.fence:
            left = left.with_op(op._replace(failed=True))
        failed = row._replace(
            state=state, owner=None, live=False, published=False, due=waits, attempts=row.attempts + write.uses_attempt
        )
        broken = Never.OVERTAKEN if w.holder != me else ""
        then = left._replace(row=failed, holder=None)
        return Step(f"{text}: {state}, {'a new run is due' if waits else 'for good'}", then, broken=broken)

    # ── effects ───────────────────────────────────────────────────────────────────────────────────

    def _checked(self, text: str, then: World, me: int, broken: str = "") -> Step[World]:
        """`HeldLease.check` (lease/held.py) after a step."""
        worker = then.workers[me]
        if worker.lost and self.has(Guard.CHECK):
            return Step(text, then.with_worker(me, worker._replace(at="giveup", file=-1)), broken=broken)
        if worker.lost == 2:
            return Step(text, then, broken=broken or Never.STOPS)
        if worker.lost and worker.at in EFFECTS:
            return Step(text, then.with_worker(me, worker._replace(lost=2)), broken=broken)
        return Step(text, then, broken=broken)

    def _locked(self, w: World, me: int) -> tuple[World, str, str] | None:
        """`PartFile.lock` (store/partfile.py); None: a later holder of this job has the part."""
        worker, part, broken = w.workers[me], w.part, ""
        how = "opens the part"
        if part is not None:
            later = part.fence > worker.fence
            if later and self.has(Guard.PART_FENCE):
                return None
            if later:
                broken = Never.PART
            if w.workers[1 - me].file == part.file and self.has(Guard.PART_LOCK):
                if not self.has(Guard.OVERTAKE):
                    return w, "busy", broken
                how, part = "finds the part locked by an earlier holder, unlinks it, and begins another", None
        if part is None:
            w, file = w.new_file()
            part = Part(file, worker.fence)
        part = part._replace(fence=worker.fence)
        return w._replace(part=part).with_worker(me, worker._replace(file=part.file)), how, broken

    def _lost_part(self, w: World, me: int) -> Step[World]:
        worker = w.workers[me]._replace(at="giveup", file=-1)
        return Step(f"{NAMES[me]} finds that a later holder has the part", w.with_worker(me, worker))

    def _held_up(self, w: World, me: int) -> Step[World]:
        step = self.fails(w, me, "the part is locked")
        return step._replace(broken=step.broken or (Never.HELD_UP if w.workers[1 - me].stopped else ""))

    def _open(self, w: World, me: int) -> Iterator[Step[World]]:
        """`Stream.perform` up to the first byte: lock, verify what is held, ask, begin anew or go on."""
        locked = self._locked(w, me)
        if locked is None:
            yield self._lost_part(w, me)
            return
        w, how, broken = locked
        if how == "busy":
            yield self._held_up(w, me)
            return
        part, worker = w.part, w.workers[me]
        assert part is not None
        sealed = any(file == part.file for _, file in w.finals)
        held = part.vouched if w.files[part.file][: len(part.vouched)] == part.vouched else ()
        if sealed and len(held) < WHOLE:
            held = ()
        name = NAMES[me]
        if len(held) == WHOLE:
            whole = w.with_worker(me, worker._replace(at="record", sha=held, file=-1))
            yield self._checked(f"{name} {how}, and all of it is held", whole, me, broken)
            return
        if held:
            on = w._replace(part=part._replace(vouched=held))
            mine = worker._replace(at="write", sha=held, version=w.server)
            yield self._checked(f"{name} {how} and goes on after what is held", on.with_worker(me, mine), me, broken)
        if not held or held[0] != w.server:
            fresh, file = (w, part.file) if w.files[part.file] == EMPTY else w.new_file()
            fresh = fresh._replace(part=Part(file, worker.fence))
            mine = worker._replace(at="write", sha=(), version=w.server, file=file)
            yield self._checked(f"{name} {how} and begins at the first byte", fresh.with_worker(me, mine), me, broken)

    def _write(self, w: World, me: int) -> Step[World]:
        """`LocalPart.write` and its checkpoint (store/part.py); after the last piece `finish`."""
        worker, part = w.workers[me], w.part
        file, piece = worker.file, len(worker.sha)
        bytes_ = list(w.files[file])
        bytes_[piece] = worker.version
        files = tuple(tuple(bytes_) if n == file else held for n, held in enumerate(w.files))
        then = w._replace(files=files)
        broken = ""
        if any(known == file for _, known in w.finals):
            broken = Never.REPLACED
        elif w.workers[1 - me].file == file:
            broken = Never.WRITERS
        text = f"{NAMES[me]} writes piece {piece + 1}"
        if part is None or part.file != file:
            lost = worker._replace(at="giveup", file=-1)
            return Step(f"{text} into a file without a name", then.with_worker(me, lost), broken=broken)
        got = (*worker.sha, worker.version)
        then = then._replace(part=part._replace(vouched=got))
        done = len(got) == WHOLE
        mine = worker._replace(sha=got, at="record" if done else "write", file=-1 if done else file)
        return self._checked(text, then.with_worker(me, mine), me, broken)

    def _probe(self, w: World, me: int) -> Step[World]:
        """`Finalize.probe` (pipeline/stages/finalize.py): a holder before us may have named the file."""
        worker = w.workers[me]
        if not w.is_right(worker.sha):
            text = f"{NAMES[me]} probes: the file is not in its place"
            return self._checked(text, w.with_worker(me, worker._replace(at="hash")), me)
        locked = self._locked(w, me)
        if locked is None:
            return self._lost_part(w, me)
        w, how, broken = locked
        if how == "busy":
            return self._held_up(w, me)
        then = w._replace(part=None).with_worker(me, w.workers[me]._replace(at="record", file=-1))
        return self._checked(f"{NAMES[me]} probes: the file is in its place", then, me, broken)

    def _hash(self, w: World, me: int) -> Step[World]:
        """`Finalize.perform`, and `LocalBlobStore.publish` (store/local.py) up to the name."""
        locked = self._locked(w, me)
        if locked is None:
            return self._lost_part(w, me)
        w, how, broken = locked
        if how == "busy":
            return self._held_up(w, me)
        worker = w.workers[me]
        if w.files[worker.file] != worker.sha and self.has(Guard.REHASH):
            step = self.fails(w, me, "the part does not hash to what was streamed")
            again = Never.AGAIN if worker.placed and not worker.robbed else ""
            return step._replace(broken=step.broken or again)
        text = f"{NAMES[me]} {how} and hashes it: right" if self.has(Guard.REHASH) else f"{NAMES[me]} {how}"
        return self._checked(text, w.with_worker(me, worker._replace(at="link")), me, broken)

    def _link(self, w: World, me: int) -> Step[World]:
        """`name_new` (store/links.py) within `LocalBlobStore.publish`."""
        worker, name = w.workers[me], NAMES[me]
        file = worker.file
        named = (w.part is not None and w.part.file == file) or any(known == file for _, known in w.finals)
        if not self.has(Guard.BY_HANDLE):
            named, file = w.part is not None, w.part.file if w.part else file
        if not named:
            lost = w.with_worker(me, worker._replace(at="giveup", file=-1))
            return Step(f"{name} cannot name its file: it has been unlinked", lost)
        broken, standing = "", w.final(worker.sha)
        text = f"{name} gives the file its final name"
        finals = w.finals
        if standing is None or not w.is_right(worker.sha) or not self.has(Guard.NO_OVERWRITE):
            if standing is not None and w.is_right(worker.sha) and standing != file:
                text, broken = f"{name} puts its file in the place of the one that has the name", Never.REPLACED
            finals = tuple(sorted([*(f for f in finals if f[0] != worker.sha), (worker.sha, file)]))
        else:
            text = f"{name} finds the final name taken by the right bytes"
        then = w._replace(finals=finals)
        if not then.is_right(worker.sha):
            broken = Never.BYTES
        return Step(text, then.with_worker(me, worker._replace(at="unlink")), broken=broken)

    def _unlink(self, w: World, me: int) -> Step[World]:
        """`LocalPart.remove` (store/part.py)."""
        worker = w.workers[me]
        ours = w.part is not None and w.part.file == worker.file
        then = w._replace(part=None) if ours else w
        text = f"{NAMES[me]} takes the part's name away" if ours else f"{NAMES[me]} finds another part, and leaves it"
        return self._checked(text, then.with_worker(me, worker._replace(at="record", file=-1)), me)
