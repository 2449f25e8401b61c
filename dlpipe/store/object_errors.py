"""What an object store says, as failures with a code. Its own texts hold addresses and keys: none is passed on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure

AWAY_AGAIN_S = 30.0
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")

GONE = (NotFoundError, FileNotFoundError)
TAKEN = (AlreadyExistsError, PreconditionError)
"""Somebody was first: the name has bytes now, or others than a moment ago."""
_FIX = "Correct it, then: dlpipe retry --code {}"


def _postponed(code: str, what: str, hint: str) -> Callable[[], StageFailure]:
    # It says nothing about the job, and may last longer than a job has attempts.
    return lambda: Postponed(what, code=code, after_s=AWAY_AGAIN_S, hint=hint)


def _permanent(code: str, what: str, hint: str) -> Callable[[], StageFailure]:
    return lambda: Permanent(what, code=code, hint=f"{hint} {_FIX.format(code)}")


_CREDENTIALS = _permanent(
    "store_credentials",
    "the object store does not take the credentials",
    "Look at the keys, their region, and store.credentials_file.",
)
_NO_CREDENTIALS = _postponed(
    "store_credentials",
    "no credentials for the object store are to be had",
    "Set them in the environment or in store.credentials_file.",
)
_DENIED = _permanent(
    "store_denied",
    "the object store does not allow it",
    "Reading, writing, listing and deleting below the prefix must be allowed.",
)
_NO_BUCKET = _permanent("store_bucket_missing", "the bucket does not exist", "Make it, or correct store.url.")
_ELSEWHERE = _permanent(
    "store_address_wrong", "the bucket is at another address", "Correct store.region or store.endpoint."
)
_CLOCK = _postponed(
    "store_clock", "this machine's clock and that of the object store differ too much", "Let NTP set the clock."
)
_BUSY = _postponed("store_busy", "the object store is too busy", "Nothing to do: it is tried again.")
_AWAY = _postponed(
    "store_unreachable", "the object store does not answer", "Look at the network and store.endpoint; it goes on then."
)
_FULL = _postponed("no_space", "the object store is full", "Free some space; the job goes on by itself.")
_BY_CODE: dict[str, Callable[[], StageFailure]] = {
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "AuthorizationHeaderMalformed",
         "InvalidToken", "ExpiredToken", "TokenRefreshRequired"),
        _CREDENTIALS,
    ),
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), _NO_BUCKET),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), _CLOCK),
    **dict.fromkeys(("SlowDown", "ServerBusy", "ServiceUnavailable", "RequestLimitExceeded"), _BUSY),
    **dict.fromkeys(("QuotaExceeded", "XMinioStorageFull"), _FULL),
    **dict.fromkeys(("PermanentRedirect", "IllegalLocationConstraintException"), _ELSEWHERE),
    **dict.fromkeys(
        ("XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "BadDigest", "InvalidDigest"),
        lambda: Retryable(
            "the bytes did not reach the object store as they were sent", code="store_upload_damaged",
            hint="Nothing to do: they are sent again.",
        ),
    ),
}  # fmt: skip
_BY_STATUS = {
    301: _ELSEWHERE, 401: _CREDENTIALS, 403: _DENIED, 429: _BUSY, 500: _BUSY, 502: _AWAY, 503: _BUSY, 504: _AWAY,
    507: _FULL,
}  # fmt: skip


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what the store says into a failure with a code."""
    try:
        yield
    except (BaseError, *GONE) as error:
        raise as_failure(error) from None  # its text is not for logs


def as_failure(error: BaseException) -> StageFailure:
    text = str(error)
    code, status = _CODE.search(text), _STATUS.search(text)
    if code is not None and code[1] in _BY_CODE:
        return _BY_CODE[code[1]]()
    if status is not None:
        if int(status[1]) in _BY_STATUS:
            return _BY_STATUS[int(status[1])]()
        return _other(f"it answered {status[1]}")
    if "redential" in text or "metadata/" in text:
        return _NO_CREDENTIALS()
    if "HTTP error" in text or "error sending request" in text or "imed out" in text or "TimedOut" in text:
        return _AWAY()
    return _other(type(error).__name__)


def _other(what: str) -> StageFailure:
    return Retryable(f"the object store refused ({what})", code="store_error", hint="See the object store's own log.")
