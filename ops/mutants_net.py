"""The planted mutants of the network layer."""

from __future__ import annotations

from ops.mutant import Mutant

_POOL = "dlpipe/net/pool.py"
_CONNECTION = "dlpipe/net/connection.py"
_REUSED = "tests/integration/test_reused_connections.py"

NET: tuple[Mutant, ...] = (
    # ── the circuit ──
    Mutant(
        "believed-after-a-failure", "a circuit is believed to be closed after a failure", "dlpipe/net/breaker.py",
        "        self._closed.pop(host, None)\n", "",
        ("tests/unit/net/test_breaker.py", "-k", "after_a_failure"),
    ),
    Mutant(
        "believed-for-ever", "a circuit that was closed once is closed for good", "dlpipe/net/breaker.py",
        "if now < self._closed.get(host, now):", "if host in self._closed:",
        ("tests/unit/net/test_breaker.py", "-k", "for_a_moment"),
    ),
    # ── connections that are used again ──
    Mutant(
        "head-connection-carries-get", "a connection that answered HEAD is used for a GET", _CONNECTION,
        'self._pool.take(Use(tenant, origin, method == "HEAD")', "self._pool.take(Use(tenant, origin, False)",
        (_REUSED, "-k", "head_connection"),
    ),
    Mutant(
        "connection-of-another-tenant", "a connection is used again for whichever tenant asks next", _CONNECTION,
        "self._pool.take(Use(tenant, origin,", 'self._pool.take(Use("", origin,',
        (_REUSED, "-k", "one_tenant"),
    ),
    Mutant(
        "surplus-not-marked", "surplus closes its connection and is forgotten", _POOL,
        "        self.mark(connection, SURPLUS)\n        return True\n", "        return True\n",
        (_REUSED, "-k", "same_segment"),
    ),
    Mutant(
        "idle-surplus-unseen", "bytes that came while a connection was idle are not looked for", "dlpipe/net/wire.py",
        "surplus is not None and (surplus > 0 or self._has_arrived())", "surplus is not None and surplus > 0",
        (_REUSED, "-k", "was_idle"),
    ),
    Mutant(
        "malformed-head-believed", "a malformed head on a reused connection fails the job", _CONNECTION,
        "if reused and isinstance(error, Permanent):", "if False:",
        (_REUSED, "-k", "asked_for_again"),
    ),
    Mutant(
        "unexpected-status-believed", "a status that was not asked for counts on a reused connection", _CONNECTION,
        "if reused and (doubt :=", "if False and (doubt :=",
        (_REUSED, "-k", "asked_for_again"),
    ),
    Mutant(
        "reused-answer-fails-the-job", "what a stage refuses of a reused connection is refused for good",
        "dlpipe/pipeline/stages/fetch.py", "            if not self._reused:\n                raise\n",
        "            raise\n", (_REUSED, "-k", "asked_for_again"),
    ),
)  # fmt: skip
