"""Every guard that the model can be without, where dlpipe has it, and what breaks when it is gone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Never(StrEnum):
    """What must never happen, and what must always be possible."""

    OVERTAKEN = "whoever was overtaken, or has let go, changes nothing in the ledger"
    TWICE = "each stage is recorded once for its key, and what is recorded stays as it is"
    PUBLISHED = "a job publishes its outcome once, and another only in a further run that was wished for"
    BYTES = "a final name holds exactly the bytes that hash to it"
    REPLACED = "a file that has its final name is not replaced, and its bytes are not written"
    THERE = "what the ledger calls final is in its place"
    TABLE = "the state moves along the table, and a run's number only grows"
    OVER = "a run that is over is not gone on with"
    UNWANTED = "no run begins that is not due"
    PAUSED = "a paused job is not worked on"
    UNDER_WAY = "of a job that is at its end, or paused, nothing in the ledger counts as under way"
    ALONE = "nobody claims a job past a lock that is kept in Redis, or past a lease that lives in the row"
    ORPHAN = "nobody at work is taken for dead whose lease still lives, in Redis or in the row"
    TAKEN = "a job whose file is lost is not taken from a holder whose lease lives in the row"
    NEEDLESS = "what a run has brought since is not brought again"
    ONCE = "a job is reopened once for one loss"
    WISH = "a refresh that has not begun is not turned into a repair"
    FOREIGN = "a lease is extended and given back by its holder alone"
    OWN = "nobody takes the next claim of its own for somebody else's"
    EXPIRED = "a lease whose time is over at its holder is not extended"
    STOPS = "a worker that has lost its lease stops before its next step"
    WRITERS = "a part gets bytes from one writer at a time"
    PART = "the part of a later holder is not taken by an earlier one"
    AGAIN = "what is found done is not failed and done again"
    EARLY = "a message never speaks of what is not committed yet"
    CANCELED = "a job whose result is registered is not canceled, unless in a further run that was wished for"
    HELD_UP = "a worker that was stopped holds nobody up"
    LOST = "from everywhere the job can still come to its end, as long as one worker is awake"


class Fault(StrEnum):
    """What may go wrong, or be wished. Time that runs out, and heartbeats, are no faults: they cost nothing."""

    KILL = "a worker is killed"
    STOP = (
        "a worker is stopped for longer than its lease, and perhaps wakes up later: also in the middle of a heartbeat"
    )
    DOUBLE = "a message is doubled"
    LOSE = "a message is lost"
    EMPTY = "Redis is emptied"
    EARLY = "the lease in the row runs out early: the database cannot be reached, or its clock jumps"
    SLOW = "reconcile pauses between looking and acting"
    UNANSWERED = "the database does not answer to a commit, and may have carried it out"
    FAILURE = "the network or the disk fails a stage"
    MISTAKE = "a stage asks, by a programmer's mistake, for a state that is not its to enter"
    CHANGE = "the server's file changes, with or without saying so"
    DAMAGE = "the disk damages a part that nobody has open"
    GONE = "the disk loses a file that has its final name"
    TWIN = "another job publishes the same bytes"
    CANCEL = "somebody cancels, or takes back the wish for a further run"
    RETRY = "somebody retries what failed for good"
    REFRESH = "somebody wants a finished job, or one that failed for good, to be done again"
    PAUSE = "somebody pauses, and perhaps resumes"


EVERY_FAULT = frozenset(Fault)


class Guard(StrEnum):
    LOCK = "lock"
    LOCK_TOKEN = "lock-token-on-release"
    RENEW_TOKEN = "lock-token-on-renewal"
    RENEW_EXPIRED = "renewal-of-what-is-over"
    RENEW_FENCE = "fence-on-renewal"
    FENCE_CHANGES = "no-fence-while-it-changes"
    CHECK = "lease-check"
    FENCE_UP = "fence-up-on-claim"
    FENCE = "fence-on-record"
    RUN = "run-on-claim"
    DUE = "due-on-claim"
    DUE_START = "due-on-start"
    STATE = "state-on-claim"
    PAUSED = "paused-on-claim"
    LEASE_FREE = "lease-free-on-claim"
    RECORD_STATE = "state-on-record"
    LET_GO = "let-go"
    OWED_TOKEN = "token-on-hand-back"
    ONWARD_NEW = "onward-to-what-is-new"
    REPLAY = "replay"
    FIRST_RESULT = "first-result-stays"
    PROBE = "probe"
    ONE_TRANSACTION = "one-transaction"
    EFFECT_FIRST = "effect-before-record"
    COMMIT_FIRST = "commit-before-publish"
    RESEND = "resend"
    ORPHANS = "orphans"
    ORPHAN_REDIS = "orphan-asks-redis"
    ORPHAN_ROW = "orphan-asks-the-row"
    ORPHAN_COMPARE = "orphan-compares"
    ORPHAN_FENCE_UP = "orphan-fence-up"
    CANCEL_FENCE_UP = "cancel-fence-up"
    CANCEL_STATE = "cancel-state"
    PAUSE_FENCE_UP = "pause-fence-up"
    LOOK = "look-for-files"
    REOPEN_COMPARE = "reopen-compares"
    REOPEN_LEASE = "reopen-lease-free"
    REOPEN_WISH = "reopen-leaves-wishes"
    REOPEN_FENCE_UP = "reopen-fence-up"
    PART_LOCK = "part-lock"
    PART_FENCE = "part-fence"
    OVERTAKE = "overtaking"
    REHASH = "rehash"
    BY_HANDLE = "link-by-handle"
    NO_OVERWRITE = "no-overwrite"


ALL = frozenset(Guard)


@dataclass(frozen=True, slots=True)
class Case:
    """A guard that is not there, and what may go wrong while it is not."""

    guard: Guard
    where: str
    says: str
    most: int = 1
    faults: frozenset[Fault] = EVERY_FAULT


G, F = Guard, Fault
CASES = (
    Case(G.LOCK, "`RedisLeases.hold`, lease/lock.py", "One holder per job: `SET NX`.", 2),
    Case(G.LOCK_TOKEN, "`_GIVE_BACK`, lease/lock.py", "A lock is deleted only by whom its token names."),
    Case(G.RENEW_TOKEN, "`_EXTEND`, lease/lock.py", "A lock is extended only by whom its token names."),
    Case(G.RENEW_EXPIRED, "`Heartbeat.beat`, lease/heartbeat.py", "A lease that is lost here is not extended there."),
    Case(G.RENEW_FENCE, "`SqlJobs.renew`, db/jobs.py", "The row's lease is renewed under one's own fence only."),
    Case(
        G.FENCE_CHANGES, "`_Hand.ending`, pipeline/ending.py, and `Heartbeat.beat`, lease/heartbeat.py",
        "While its holder claims onward, a lease has no fence that a heartbeat could find overtaken.", 0,
    ),
    Case(G.CHECK, "`HeldLease.check`, lease/held.py", "After each step, a look whether the lease is still ours."),
    Case(
        G.FENCE_UP, "`SqlJobs.claim`, db/jobs.py, and `_moved`, db/endings.py", "Every claim raises the fence.",
    ),
    Case(
        G.FENCE, "`guarded`, db/guards.py, and with it `finishing`, db/ledger.py",
        "Every write of a stage says `WHERE fence = mine`, of the job's row and of the op.", 1, frozenset({F.STOP}),
    ),
    Case(G.LET_GO, "`guarded`, db/guards.py", "Who has recorded, failed or handed back writes no more."),
    Case(
        G.OWED_TOKEN, "`_HANDED_BACK`, db/jobs.py",
        "What is owed under either of two fences is handed back only if the row bears one's own token.",
    ),
    Case(
        G.ONWARD_NEW, "`_Hand._next`, pipeline/ending.py",
        "Only an op that nobody has begun is claimed with the end of the one in front of it.",
    ),
    Case(G.LEASE_FREE, "`lease_free` in `SqlJobs.claim`, db/jobs.py", "A claim wants the row's lease to be free."),
    Case(G.PAUSED, "`SqlJobs.claim`, db/jobs.py", "A claim wants the job not to be paused."),
    Case(G.RUN, "`SqlJobs.claim`, db/jobs.py", "A message counts for its own run only."),
    Case(G.DUE, "`SqlJobs.claim`, db/jobs.py", "Within a run, a claim wants no next run to be due."),
    Case(
        G.DUE_START, "`SqlJobs.claim`, db/jobs.py", "A new run begins only where one is due.",
        2, frozenset({F.REFRESH, F.CANCEL}),
    ),
    Case(G.STATE, "`SqlJobs.claim`, db/jobs.py", "A stage claims only in the states that the table gives it."),
    Case(
        G.RECORD_STATE, "`guarded`, db/guards.py", "A stage enters only the state that the table gives it.",
        1, frozenset({F.MISTAKE}),
    ),
    Case(G.REPLAY, "`_claim`, pipeline/runner.py", "What this run has recorded is not done again."),
    Case(
        G.FIRST_RESULT, "`finishing`, db/ledger.py", "A finished op keeps its first result.",
        1, frozenset({F.REFRESH}),
    ),
    Case(G.PROBE, "`Finalize.probe`, pipeline/stages/finalize.py", "A started op is first asked of the world."),
    Case(G.ONE_TRANSACTION, "`SqlEndings.end`, db/endings.py", "Result, registry and state are one transaction."),
    Case(G.EFFECT_FIRST, "`_carry_out`, pipeline/runner.py", "The effect comes before the record.", 0),
    Case(G.COMMIT_FIRST, "`_stage`, tasks.py", "The next message is sent after the commit.", 0),
    Case(G.RESEND, "`dispatch_lost`, pipeline/dispatch.py", "A message that must be lost is sent again."),
    Case(G.ORPHANS, "`silent`, pipeline/holders.py", "What a dead holder held becomes due again."),
    Case(G.ORPHAN_REDIS, "`after_silence`, core/recovery.py", "Dead is only who has no lock in Redis."),
    Case(G.ORPHAN_ROW, "`SqlBacklog.expired`, db/backlog.py", "Dead is only whose lease in the row is over."),
    Case(G.ORPHAN_COMPARE, "`SqlBacklog.orphan`, db/backlog.py", "It frees the holder that it has looked at.", 2),
    Case(
        G.ORPHAN_FENCE_UP, "`SqlBacklog.orphan`, db/backlog.py", "What a dead holder held is overtaken.",
        2, frozenset({F.KILL}),
    ),
    Case(G.CANCEL_STATE, "`grant`, db/wishes.py", "Only in states that the table lets be canceled."),
    Case(
        G.CANCEL_FENCE_UP, "`grant`, db/wishes.py", "Who works on a job that is canceled is overtaken.",
        1, frozenset({F.CANCEL}),
    ),
    Case(
        G.PAUSE_FENCE_UP, "`grant`, db/wishes.py", "Who works on a job that is paused is overtaken.",
        1, frozenset({F.PAUSE}),
    ),
    Case(G.LOOK, "`registered`, pipeline/blobs.py", "Registered files are looked for.", 1, frozenset({F.GONE})),
    Case(
        G.REOPEN_COMPARE, "`SqlBacklog.reopen`, db/backlog.py", "It reopens the job that it has looked at.",
        2, frozenset({F.GONE, F.SLOW}),
    ),
    Case(
        G.REOPEN_LEASE, "`SqlBacklog.reopen`, db/backlog.py", "It leaves a job to its holder.",
        1, frozenset({F.GONE}),
    ),
    Case(
        G.REOPEN_WISH, "`SqlBacklog.reopen`, db/backlog.py", "It leaves a finished job whose next run is due already.",
        2, frozenset({F.GONE, F.REFRESH}),
    ),
    Case(
        G.REOPEN_FENCE_UP, "`SqlBacklog.reopen`, db/backlog.py", "Who looked before is overtaken.",
        3, frozenset({F.GONE, F.SLOW, F.CANCEL}),
    ),
    Case(G.PART_LOCK, "`PartFile.lock`, store/partfile.py", "Who works on a part has it locked."),
    Case(G.PART_FENCE, "`PartFile.lock`, store/partfile.py", "The sidecar's fence keeps earlier holders out."),
    Case(G.OVERTAKE, "`_overtake_or_raise`, store/partfile.py", "A later holder leaves a stopped one its file.", 1),
    Case(G.REHASH, "`LocalBlobStore.publish`, store/local.py", "The bytes are hashed again from disk.", 1),
    Case(G.BY_HANDLE, "`name_new`, store/links.py", "The open file gets the name, not what bears the part's name."),
    Case(G.NO_OVERWRITE, "`name_new`, store/links.py", "A final name that is taken is never overwritten."),
)  # fmt: skip
