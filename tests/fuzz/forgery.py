"""Messages as nothing of ours would send them: a seeded stream of mutations of a good one, and of plain noise.

`frames` are the bytes that lie in a list of Redis, or are published there; RabbitMQ is given the same by its protocol.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NO_JOB = "0" * 32
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_STEP = {"task": "dlpipe.resume_decide", "args": [NO_JOB, 1], "kwargs": {}, "options": {}, "immutable": True}
CALLS: tuple[tuple[str, list[Any]], ...] = (
    ("dlpipe.head", [[NO_JOB, 1], {}, {**_EMBED, "chain": [_STEP]}]),
    ("dlpipe.finalize", [[NO_JOB, 1], {}, _EMBED]),
    ("dlpipe.register_download", [[NO_JOB], {}, _EMBED]),
    ("dlpipe.plan", [[], {"url": "nonsense://"}, _EMBED]),
)
COMMANDS: tuple[dict[str, Any], ...] = (
    {"method": "ping", "arguments": {}, "destination": None},
    {"method": "ping", "reply_to": {"exchange": "reply.none.pidbox", "routing_key": "x"}, "ticket": "t"},
    {"method": "rate_limit", "arguments": {"task_name": "dlpipe.none", "rate_limit": "5/s"}},
    {"type": "worker-heartbeat", "hostname": "h", "timestamp": 1.0, "clock": 1, "utcoffset": 0, "pid": 1},
)
_JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "\x00", "\n\x1b[31m\u202e", "\ud800", "a" * 70_000, "None", "2999-01-01", "9999-12-31T23:59:59.9+14:00",
    "0001-01-01T00:00:00+00:00", "application/x-python-serialize", "application/x-yaml", "application/data", "zlib",
    [], [None], [[]], ["x", "y"], [1, 2, 3], [None, "x"], {}, {"": None}, {"task": 5}, {"__type__": "datetime"},
    {"__type__": "datetime", "__value__": "never"}, {"__type__": "decimal", "__value__": "1e999999"},
)  # fmt: skip
_DEEP = (100, 900, 5_000, 200_000)


@dataclass(frozen=True)
class Forged:
    """`frame` is None where RabbitMQ's protocol has the parts in places of their own."""

    raw: bytes
    frame: dict[str, Any] | None = None
    body: bytes = b""
    kind: str = field(default="", compare=False)


def forged(seed: int, count: int) -> Iterator[Forged]:
    """For the queues of tasks."""
    draw = random.Random(seed)
    return (_one(draw, *draw.choice(CALLS)) for _ in range(count))


def commands(seed: int, count: int) -> Iterator[Forged]:
    """For what is sent to all workers: commands, and events of other workers."""
    draw = random.Random(seed)
    return (_one(draw, "", draw.choice(COMMANDS)) for _ in range(count))


def _one(draw: random.Random, task: str, payload: Any) -> Forged:
    kind = draw.choice(("noise", "cut", "body", "body", "frame", "frame", "frame", "headers", "headers"))
    if kind == "noise":
        raw = _noise(draw)
        return Forged(raw, None, raw, kind)
    payload = copy.deepcopy(payload)
    if kind == "body":
        for _ in range(draw.choice((1, 1, 3))):
            payload = _changed(draw, payload)
    frame = good(task, payload, f"forged-{draw.getrandbits(64):x}")
    body = base64.b64decode(frame["body"])
    if kind == "body" and draw.random() < 0.4:
        body = _noise(draw)
        frame["body"] = draw.choice((base64.b64encode(body).decode(), body.decode("latin-1")))
    if kind == "headers":
        frame["headers"] = _changed(draw, frame["headers"])
    if kind == "frame":
        for _ in range(draw.choice((1, 1, 2))):
            frame = _changed(draw, frame)
    raw = json.dumps(frame).encode()
    if kind == "cut":
        at = draw.randrange(len(raw))
        raw = draw.choice((raw[:at], raw[:at] + bytes([draw.randrange(256)]) + raw[at + 1 :]))
        return Forged(raw, None, raw, kind)
    return Forged(raw, frame if isinstance(frame, dict) else None, body, kind)


def good(task: str, payload: Any, name: str) -> dict[str, Any]:
    """A message as kombu frames it for Redis."""
    headers: dict[str, Any] = {
        "lang": "py", "task": task, "id": name, "shadow": None, "eta": None, "expires": None, "group": None,
        "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": name, "parent_id": None,
        "argsrepr": "()", "kwargsrepr": "{}", "origin": "1@elsewhere", "ignore_result": True,
        "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
    }  # fmt: skip
    return {
        "body": base64.b64encode(json.dumps(payload).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers if task else {"hostname": "h", "clock": 1},
        "properties": {
            "correlation_id": name, "reply_to": None, "delivery_mode": 2, "body_encoding": "base64", "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": "dlpipe.net"}, "delivery_tag": name,
        },
    }  # fmt: skip


def _noise(draw: random.Random) -> bytes:
    match draw.randrange(5):
        case 0:
            return draw.randbytes(draw.randrange(1, 200))
        case 1:
            return json.dumps(draw.choice(_JUNK)).encode()
        case 2:
            depth = draw.choice(_DEEP)
            return draw.choice((b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
        case 3:
            return b"9" * draw.choice((20, 5_000))
        case _:
            return draw.choice((b"[]", b"null", b"{}", b'""', b"5", b"\xff\xfe", b"gASVCgAAAAAAAAB9lC4=", b" "))


def _changed(draw: random.Random, value: Any) -> Any:
    """One place in it, at any depth, is missing, is another value, or is there twice."""
    if isinstance(value, dict | list) and value and draw.random() < 0.85:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        match draw.randrange(6):
            case 0:
                del value[key]
            case 1 if isinstance(value, list):
                value.insert(draw.randrange(len(value) + 1), draw.choice(_JUNK))
            case 1 if isinstance(value, dict):
                value[draw.choice(("compression", "chain", "clock", "__class__", "self"))] = draw.choice(_JUNK)
            case _:
                value[key] = _changed(draw, value[key])
        return value
    return copy.deepcopy(draw.choice(_JUNK))
