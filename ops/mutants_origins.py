"""The planted mutants of what is kept for each origin: waits, cool-downs, circuits, and who is sent first."""

from __future__ import annotations

from ops.mutant import Mutant

_GATE = "dlpipe/net/gate.py"
_LIMITER = "dlpipe/net/limiter.py"
_BREAKER = "dlpipe/net/breaker.py"
_GATES = "tests/contract/test_gate.py"
_CIRCUITS = "tests/contract/test_circuits.py"
_OF_LIMITER = "tests/unit/net/test_limiter.py"
_OF_BREAKER = "tests/unit/net/test_breaker.py"

ORIGINS = (
    # ── busy answers ──
    Mutant(
        "one-busy-url-cools-its-origin", "one URL that is always busy holds up all others of its origin", _GATE,
        "MEANT = 3\n", "MEANT = 1\n", (_OF_LIMITER, "-k", "others_of_its_origin_go_on"),
    ),
    Mutant(
        "repeats-of-one-url-count", "one URL that is busy often enough cools its origin down", _GATE,
        "redis.call('ZADD', KEYS[3], now, ARGV[2])", "redis.call('ZADD', KEYS[3], now, ARGV[2] .. math.random())",
        (_GATES, "-k", "one_url_that_is_busy_again"),
    ),
    Mutant(
        "answers-between-not-seen", "busy answers count together although others were answered between", _GATE,
        "redis.call('DEL', KEYS[1], unpack(KEYS, 3))", "redis.call('DEL', KEYS[1])",
        (_GATES, "-k", "answer_in_between"),
    ),
    Mutant(
        "answers-not-told", "a URL's waits never begin at the first again", _LIMITER,
        "            if status < 500:  # a server that fails has not answered\n", "            if False:\n",
        (_OF_LIMITER, "-k", "longer_each_time or answered_in_between"),
    ),
    Mutant(
        "failures-are-answers", "a server that fails between busy answers counts as having answered", _LIMITER,
        "            if status < 500:  # a server that fails has not answered\n", "            if True:\n",
        (_OF_LIMITER, "-k", "fails_has_not_answered"),
    ),
    Mutant(
        "waits-do-not-grow", "a URL that stays busy is asked as often as it says", _GATE,
        "if ends <= now then last = last * 2 end\n", "", (_GATES, "-k", "twice_as_long"),
    ),
    Mutant(
        "waits-without-bound", "a URL that stays busy is never asked again", _GATE,
        "math.min(most, math.max(asked, first, last))", "math.max(asked, first, last)",
        (_GATES, "-k", "up_to_the_most"),
    ),
    Mutant(
        "cool-down-cut-short", "an answer that was under way ends what the server has asked for", _GATE,
        "else redis.call('HDEL', KEYS[2], 'wait') end", "else redis.call('DEL', KEYS[2]) end",
        (_GATES, "-k", "next_cool_down"),
    ),
    Mutant(
        "head-speaks-for-get", "a server whose HEAD answers never cools down for GET", _GATE,
        '("HEAD",) if self.method == "HEAD" else ("GET", "HEAD")', '("GET", "HEAD")',
        (_GATES, "-k", "says_nothing_of_get or wait_for_themselves"),
    ),
    Mutant(
        "head-keeps-get-waiting", "a server that cannot do HEAD now is not asked for its files", _LIMITER,
        '        if target.method == "HEAD" and status == 503 and not is_long:\n', "        if False:\n",
        (_OF_LIMITER, "-k", "head_that_a_server_cannot_do"),
    ),
    Mutant(
        "ports-share-limits", "an origin holds up the same host at another port", "dlpipe/core/urls.py",
        'if port in (None, _PORTS.get(scheme)) else f"{scheme}://{name}:{port}"', "if True else name",
        (_OF_LIMITER, "tests/unit/core/test_urls.py", "-k", "mean_their_origin or origin_is"),
    ),
    # ── the circuit ──
    Mutant(
        "busy-url-opens-the-circuit", "one URL that always answers 503 opens its origin's circuit", _BREAKER,
        'ask.url if reply.status_code == 503 else ""', '""', (_OF_BREAKER, "-k", "always_busy"),
    ),
    Mutant(
        "url-counts-each-time", "what was counted for a URL counts again", _BREAKER,
        "if ARGV[6] ~= '' and redis.call(", "if false and redis.call(", (_CIRCUITS, "-k", "counts_once"),
    ),
    Mutant(
        "believed-after-a-failure", "a circuit is believed to be closed after a failure", _BREAKER,
        "        self._closed.pop(origin, None)\n", "", (_OF_BREAKER, "-k", "after_a_failure"),
    ),
    Mutant(
        "believed-for-ever", "a circuit that was closed once is closed for good", _BREAKER,
        "if now < self._closed.get(origin, now):", "if origin in self._closed:", (_OF_BREAKER, "-k", "for_a_moment"),
    ),
    # ── the order of dispatch ──
    Mutant(
        "put-off-jobs-first", "a job that was put off keeps one waiting that never was", "dlpipe/db/due.py",
        "sorted(rows, key=lambda row: row.postponed_since is not None)", "rows",
        ("tests/contract/test_dispatch.py", "-k", "no_server_has_put_off and sqlite"),
    ),
    Mutant(
        "put-off-jobs-never", "jobs that were put off wait as long as there are others", "dlpipe/db/due.py",
        'self._rows("ix_artifact_jobs_due", AHEAD * want, *lane)',
        'self._rows("ix_artifact_jobs_due", 100 * want, *lane)',
        ("tests/contract/test_dispatch.py", "-k", "not_kept_out and sqlite"),
    ),
)  # fmt: skip
