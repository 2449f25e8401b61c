"""Planted mutants of the queues that a worker takes from: those of the release before, and those of a command."""

from __future__ import annotations

from ops.mutant import Mutant

_QUEUES = "tests/unit/inbox/test_queues.py"
_LIVE = "tests/integration/test_malformed_messages.py"

QUEUES = (
    Mutant(
        "old-queue-untried", "a key of another project called `beat` keeps workers from starting",
        "dlpipe/inbox/transport.py", " if taken.can_take(name, channel)]", "]", (_QUEUES,),
    ),
    Mutant(
        "old-queue-unmeasured", "a key of another project called `beat` hides the length of all queues",
        "dlpipe/celery.py", " and queue not in old:", ":", (_LIVE, "-k", "key_of_another_type_is_passed_over"),
    ),
    Mutant(
        "old-queue-declared-only", "a worker ends where its user may declare an old queue, and not take from it",
        "dlpipe/inbox/queues.py", "if not isinstance(channel, virtual.Channel):", "if False:",
        (_LIVE, "-k", "may_not_use"),
    ),
    Mutant(
        "add-consumer-bare", "`celery control add_consumer net` listens where nothing is sent to",
        "dlpipe/inbox/consumer.py", "        if not found:\n", "        if True:\n", (_QUEUES,),
    ),
)  # fmt: skip
