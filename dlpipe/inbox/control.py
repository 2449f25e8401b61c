"""Commands to workers from `celery inspect` and `celery control`, which anything that reaches the broker can send.

What is malformed is dropped. What is well formed is carried out, `shutdown` among it: who may write to the broker
runs the workers (docs/operations.md says how to keep others off it).
"""

from __future__ import annotations

from typing import Any

from celery.app import control
from kombu.matcher import MatcherRegistry
from kombu.pidbox import Mailbox, Node

from dlpipe.core.messages import Fault
from dlpipe.inbox.drops import dropped
from dlpipe.inbox.transport import BAD_DATA


class _Node(Node):
    def handle_message(self, body: Any, message: Any = None) -> Any:
        """Celery's answer to an exception is a traceback, and a new channel."""
        try:
            return super().handle_message(body, message)
        except (*BAD_DATA, MatcherRegistry.MatcherNotInstalled):
            dropped(Fault.HANDLING)
            return None


class _Mailbox(Mailbox):
    node_cls = _Node


class Control(control.Control):
    Mailbox = _Mailbox
