"""The planted mutants of the guards that give each wait an end."""

from __future__ import annotations

from ops.mutant import Mutant

_WAITS = "dlpipe/core/waits.py"
_ROOM = "dlpipe/pipeline/stages/room.py"
_RUNNER = "dlpipe/pipeline/runner.py"
_QUOTA_TEST = ("tests/unit/pipeline/test_quota.py", "--timeout", "60")
_CLOCKS_TEST = ("tests/contract/test_waiting.py", "-k", "sqlite")
_RUNNER_TEST = ("tests/unit/pipeline/test_runner_stopped.py",)

WAITS = (
    Mutant(
        "wait-without-end", "a job is put off for ever", _WAITS,
        "    if left_s(failure.code, waited, policy) >= 0:\n", "    if True:\n", ("tests/unit/core/test_waits.py",),
    ),
    Mutant(
        "wait-for-some-codes-only", "only what servers ask for has an end", _WAITS,
        "    if left_s(failure.code, waited, policy) >= 0:\n",
        "    if failure.code not in ASKED_BY_SERVERS or left_s(failure.code, waited, policy) >= 0:\n",
        ("tests/unit/core/test_waits.py",),
    ),
    Mutant(
        "wait-for-room-as-for-all", "a job waits for room for a week", _WAITS,
        "    return min(in_all, policy.room_max_s - waited.room_s) if code == ROOM else in_all\n",
        "    return in_all\n",
        ("tests/unit/core/test_waits.py",),
    ),
    Mutant(
        "wait-not-counted", "the clock of a wait starts again at each run", "dlpipe/db/waiting.py",
        "        return sa.func.coalesce(clock, now())\n", "        return now()\n", _CLOCKS_TEST,
    ),
    Mutant(
        "wait-counted-while-due", "a job pays for the line before its host", "dlpipe/db/waiting.py",
        "sa.case((since < now(), clock + (now() - since)), else_=clock)", "clock", _CLOCKS_TEST,
    ),
    Mutant(
        "outage-counted-at-a-lost-worker", "a job that was under way pays for an outage", "dlpipe/db/backlog.py",
        "                **when_idle(_T.lease_until),\n", "", _CLOCKS_TEST,
    ),
    Mutant(
        "outage-counted-on-a-node", "a job pays for the silence of the node that had it", "dlpipe/db/nodes.py",
        ", **when_idle(_T.published_at))", ")", _CLOCKS_TEST,
    ),
    Mutant(
        "outage-counted-between-stages", "a job whose run stood still pays for it", "dlpipe/db/waiting.py",
        "sa.func.coalesce(_T.due_at, _T.lease_until, _T.published_at)", "_T.due_at", _CLOCKS_TEST,
    ),
    Mutant(
        "room-counted-with-other-waits", "a wait for a host counts as one for room", "dlpipe/db/waiting.py",
        "return clock if write.due_after_s is None else after(write.due_after_s) - (now() - clock)", "return clock",
        _CLOCKS_TEST,
    ),
    Mutant(
        "never-fits-waits", "a file that the volume could never hold waits for room", _ROOM,
        "        if quota.never_fits(room, need, policy):\n", "        if False:\n", _QUOTA_TEST,
    ),
    Mutant(
        "head-ends-a-job", "a length that HEAD alone declares fails a job", _ROOM,
        "        except Permanent:\n            return False\n", "", _QUOTA_TEST,
    ),
    Mutant(
        "head-ends-a-wait", "a wait for room ends by the length that HEAD declares", _ROOM,
        "waits.given_up(refusal, waited, retry) is None:\n", "True:\n", _QUOTA_TEST,
    ),
    Mutant(
        "room-of-head-begins-the-day-anew", "the wait for room begins anew by a length that HEAD declares", _ROOM,
        "anew=total is not None and total == self._total", "anew=self.first is not None", _QUOTA_TEST,
    ),
    Mutant(
        "room-that-was-there-forgotten", "the time for which a job streamed counts as one without room", _ROOM,
        "        if self._waited and total is not None:\n", "        if False:\n", _QUOTA_TEST,
    ),
    Mutant(
        "room-of-head-ends-the-wait", "the wait for room ends by a length that HEAD declares", _ROOM,
        "            self._ask(total)\n        except Permanent:\n",
        "            self.ask(total)\n        except Permanent:\n", _QUOTA_TEST,
    ),
    Mutant(
        "filled-volume-kept", "a body that has filled the volume stays on it", "dlpipe/pipeline/stages/fetch.py",
        "    return never_fits or failure.code in _WORTHLESS", "    return failure.code in _WORTHLESS", _QUOTA_TEST,
    ),
    Mutant(
        "forged-fence-never-ends", "a sidecar's fence hands its job back at once, for ever", _RUNNER,
        "    if isinstance(lost, Overtaken) and work.lease.may_go_on():\n", "    if False:\n", _RUNNER_TEST,
    ),
    Mutant(
        "handed-back-without-end", "a job whose lease is lost each time is handed back for ever", _RUNNER,
        "    if waited_s > deps.policy.retry.postpone_max_s:\n", "    if False:\n", _RUNNER_TEST,
    ),
    Mutant(
        "hand-back-not-counted", "the time of a job that is handed back is not counted", "dlpipe/db/jobs.py",
        "**waiting.when_handed_back(waits=waits)", "**waiting.when_handed_back(waits=False)", _CLOCKS_TEST,
    ),
    Mutant(
        "end-of-a-worker-counted", "each start of a worker anew puts its jobs off", _RUNNER,
        "waits=not isinstance(lost, WorkerEnding))", "waits=True)", _RUNNER_TEST,
    ),
    Mutant(
        "passed-on-without-end", "a job that no node takes is passed on for ever", "dlpipe/db/jobs.py",
        "        ends = write.due_after_s is None\n", "        ends = False\n",
        ("tests/contract/test_nodes.py", "-k", "sqlite"),
    ),
    Mutant(
        "silent-node-waited-for", "a node that is silent keeps its jobs for ever", "dlpipe/core/nodes.py",
        "any(too_long or not one.drains for one in steady)", "any(not one.drains for one in steady)",
        ("tests/unit/core/test_nodes.py",),
    ),
    Mutant(
        "nodes-gone-after-an-outage", "the first node that is back after a week takes the others for gone",
        "dlpipe/core/nodes.py",
        "any(too_long or not one.drains for one in steady)", "(too_long or any(not one.drains for one in steady))",
        ("tests/unit/core/test_nodes.py",),
    ),
    Mutant(
        "hung-holder-renewed", "a lease is renewed for as long as the process lives", "dlpipe/lease/held.py",
        "        elif self._lost is None and self._clock() >= self._ends:\n", "        elif False:\n",
        ("tests/unit/lease/test_heartbeat.py",),
    ),
)  # fmt: skip
