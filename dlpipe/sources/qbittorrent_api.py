"""How we talk to qBittorrent's Web API: one attempt a call, no proxies, few logins, errors without secrets.

The library repeats requests, logs in again by itself, follows redirects and reads proxies from the environment;
all of that is turned off here, so that what a call did is known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import qbittorrentapi
from qbittorrentapi import exceptions as qb
from qbittorrentapi.request import QbittorrentSession
from requests import RequestException, Response

from dlpipe.core.errors import Misconfigured, TorrentOutage

CONNECT_S, READ_S = 5.0, 30.0
LOGIN_PAUSE_S = 900.0
_API_KEY = re.compile(r"[\x21-\x7e]+\Z")


class LoginPaused(qb.LoginFailed):
    """The last login was refused a short time ago: the next one would only bring a ban nearer."""


class NoUse(qb.APIConnectionError):
    """An answer that is none of qBittorrent's own, or a failure of the server."""


class Gate:
    """Shut for a while after our credentials were refused; qBittorrent bans who insists."""

    def __init__(self, pause_s: float, monotonic_s: Callable[[], float]) -> None:
        self._pause_s, self._monotonic_s = pause_s, monotonic_s
        self._shut_until_s: float | None = None

    def check(self) -> None:
        if self._shut_until_s is not None and self._monotonic_s() < self._shut_until_s:
            raise LoginPaused
        self._shut_until_s = None

    def shut(self) -> None:
        self._shut_until_s = self._monotonic_s() + self._pause_s


class Api(qbittorrentapi.Client):
    """The library's client, restrained."""

    def __init__(
        self,
        url: str,
        *,
        username: str,
        password: str,
        api_key: str,
        ca_file: str | None,
        read_s: float,
        login_pause_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._trust: bool | str = ca_file or True
        self._gate = Gate(login_pause_s, monotonic_s)
        super().__init__(
            host=url,
            username=username,
            password=password,
            api_key=api_key,
            REQUESTS_ARGS={"timeout": (CONNECT_S, read_s), "allow_redirects": False},
            FORCE_SCHEME_FROM_HOST=True,
            SIMPLE_RESPONSES=True,
            DISABLE_LOGGING_DEBUG_OUTPUT=True,
        )

    @property
    def _session(self) -> QbittorrentSession:
        if self._http_session is None:
            # A key is shown with each request, a password only when we log in.
            session = _Session(self._gate if self._api_key else None)
            session.trust_env = False  # neither proxies nor .netrc
            session.verify = self._trust
            if self._api_key:
                session.headers["Authorization"] = f"Bearer {self._api_key}"
            self._http_session = session
        return self._http_session

    def auth_log_in(self, username: str | None = None, password: str | None = None, **kwargs: Any) -> None:
        """Log in, which the library does whenever a request is answered 403; but not soon after a refusal."""
        self._gate.check()
        try:
            super().auth_log_in(username, password, **kwargs)
        except (qb.LoginFailed, qb.HTTP403Error, qb.HTTP401Error):
            self._gate.shut()
            raise


class _Session(QbittorrentSession):
    """Answers are taken as they come; the library repeats what fails otherwise, logins among it."""

    def __init__(self, gate: Gate | None) -> None:
        super().__init__()
        self._gate = gate

    def request(self, method: str, url: str, **kwargs: Any) -> Response:  # type: ignore[override]
        if self._gate is not None:
            self._gate.check()
        try:
            response = super().request(method, url, **kwargs)
        except RequestException as error:
            raise NoUse(f"did not answer ({type(error).__name__})") from None
        if self._gate is not None and response.status_code in (401, 403):
            self._gate.shut()
        if 300 <= response.status_code < 400 or response.status_code >= 500:
            raise NoUse(f"answered with status {response.status_code}")
        return response


@contextmanager
def asking(host: str) -> Iterator[None]:
    """Turn what the library raises into an outage of ours. What a caller can make sense of, it catches inside."""
    try:
        yield
    except LoginPaused:
        raise _refused(f"the torrent client at {host} refused us a short time ago, so we wait") from None
    except qb.LoginFailed:
        raise _refused(f"the torrent client at {host} refused our user name and password") from None
    except (qb.HTTP401Error, qb.HTTP403Error):
        raise _refused(f"the torrent client at {host} refused us, perhaps after too many failed logins") from None
    except NoUse as error:
        raise TorrentOutage(f"the torrent client at {host} {error}") from None
    except (qb.APIError, KeyError, TypeError, ValueError):
        raise TorrentOutage(f"what answers at {host} does not answer as qBittorrent does") from None


def _refused(message: str) -> TorrentOutage:
    return TorrentOutage(
        message,
        code=TorrentOutage.login_refused,
        hint="Check the user name and password, or the API key; a ban ends by itself, or when qBittorrent restarts.",
    )


def make(
    url: str,
    username: str = "",
    password: str = "",
    api_key: str = "",
    ca_file: str | None = None,
    read_s: float = READ_S,
    login_pause_s: float = LOGIN_PAUSE_S,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Api:
    """Raises Misconfigured when the address or the credentials cannot be used."""
    _check(url, username, password, api_key)
    return Api(
        url,
        username=username,
        password=password,
        api_key=api_key,
        ca_file=ca_file,
        read_s=read_s,
        login_pause_s=login_pause_s,
        monotonic_s=monotonic_s,
    )


def host_of(url: str) -> str:
    """Host and port, for messages."""
    return urlsplit(url).netloc


def _check(url: str, username: str, password: str, api_key: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        plain = parts.username is None and parts.password is None and not parts.query and not parts.fragment
    except ValueError:
        usable = plain = False
    if not (usable and plain):
        raise Misconfigured(
            "the address of qBittorrent cannot be used",
            code="torrent_url_invalid",
            hint="It looks like http://127.0.0.1:8080, with no user name or password in it.",
        )
    if api_key and (username or password or not _API_KEY.match(api_key)):
        raise Misconfigured(
            "the API key of qBittorrent cannot be used",
            code="torrent_credentials_invalid",
            hint="Give either an API key or a user name with its password.",
        )
