"""Which parameters of a URL are credentials, by their names and by their look (SAFE-2). Pure, and one list.

To be on it costs little: the value is not shown. So short names are on it that mean something else on other servers.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

PIECES = (
    "token", "secret", "passw", "passphrase", "passcode", "signature", "credential", "apikey", "accesskey", "passkey",
    "sessionid", "sessid", "authorization", "authcode", "userpass",
)  # fmt: skip
"""Anywhere in a name, whatever stands around them: `accesstoken`, `X-Plex-Token`, `phpsessid`."""
WORDS = frozenset(
    # what is known or signed
    "pass pwd pw psw pin otp key keys sig sign hmac md5 hash sha1 nonce policy sas jwt"
    # what was given for it
    " auth oauth code cred creds bearer cookie csrf xsrf sess session sid ticket samlresponse samlart assertion"
    " hdnts hdnea hdntl".split()
)
"""As one of the words of a name, with or without a number behind it: `client-auth`, `pass2`, `sessionKey`."""
NAMES = frozenset(
    # Azure: a shared access signature and what it was made of
    "sv ss srt sp se st spr sr sip si sdd saoid suoid scid skoid sktid skt ske sks skv ses rscc rscd rsce rscl rsct"
    # CloudFront, S3 version 2, Google version 2, nginx
    " expires expiry googleaccessid".split()
)
"""As the whole name."""
FAMILIES = ("x-amz-", "x-goog-", "x-ms-", "x-oss-", "x-cos-", "x-obs-", "x-bce-", "x-tos-", "q-")
"""As the beginning of a name: of signed requests everything is hidden, as what each is for differs by the server."""

LONG = 24
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_APART = re.compile(r"[^a-z0-9]+")
_NUMBER = re.compile(r"[0-9]+\Z")
_TOKEN = re.compile(r"[A-Za-z0-9+/=_.~%-]+\Z")
_DOI = re.compile(r"10\.[0-9]{4,9}/(?!.*[A-Za-z0-9+=%]{24})[^/]")


def is_secret(name: str, value: str) -> bool:
    return names_secret(name) or is_token(value)


def names_secret(name: str) -> bool:
    """Is the value of a parameter of this name kept to itself?"""
    plain = unquote(name).strip()
    lower = plain.lower()
    if lower in NAMES or lower.replace("_", "-").startswith(FAMILIES):
        return True
    squeezed = _APART.sub("", lower)
    if any(piece in squeezed for piece in PIECES):
        return True
    words = _APART.split(_HUMP.sub("-", plain).lower())
    return any(word in WORDS or _NUMBER.sub("", word) in WORDS for word in words)


def is_token(text: str) -> bool:
    """Does it look like one: long, and of the characters that tokens are made of? A DOI is not meant."""
    return len(text) >= LONG and _TOKEN.match(text) is not None and _DOI.match(unquote(text)) is None
