"""qBittorrent's Web API as any of its versions, or something that is none, would answer it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from werkzeug import Request, Response

from dlpipe.sources.qbittorrent import QBittorrent

V1, OTHER = "a1" * 20, "b2" * 20
MAGNET = f"magnet:?xt=urn:btih:{V1}&tr=https%3A%2F%2Ftracker.example%2Fpasskey-1234%2Fannounce"
SECRETS = ("hunter2-secret", "passkey-1234", "qbt_apikey")

Answer = Response | Callable[[], Response]


def entry(name: str, **more: object) -> dict[str, object]:
    return {
        "hash": name, "infohash_v1": name, "infohash_v2": "", "state": "stalledDL", "progress": 0.5, "size": 100,
        "completed": 50, "save_path": "/d", "name": "book", **more,
    }  # fmt: skip


def listed(*entries: dict[str, object]) -> Response:
    return Response(json.dumps(entries), content_type="application/json")


@dataclass
class WebApi:
    """Answers each method of the Web API as told, the last answer for ever; logins succeed unless told otherwise."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def on(self, method: str, *answers: Answer) -> None:
        self.answers[method] = list(answers)

    def count(self, method: str) -> int:
        return sum(name == method for name, _, _ in self.asked)

    def answer(self, request: Request) -> Response:
        method = request.path.removeprefix("/api/v2/")
        form = parse_qs(request.get_data(as_text=True)) or {k: request.form.getlist(k) for k in request.form}
        self.asked.append((method, dict(request.headers), form))
        told = self.answers.get(method, [Response("nothing here", 404)])
        answer = told.pop(0) if len(told) > 1 else told[0]
        return answer() if callable(answer) and not isinstance(answer, Response) else answer

    def hang(self) -> Response:
        self.ending.wait(30)
        return Response("late")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def add(client: QBittorrent, source: str | bytes = MAGNET) -> str:
    return client.add(source, save_path="/d", tag="dlpipe")
