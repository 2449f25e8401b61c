"""Where a redirect leads, and which ones are not followed. Pure; each hop is guarded like any request."""

from __future__ import annotations

from dlpipe.core.errors import InvalidInput
from dlpipe.core.remote import Headers
from dlpipe.net import failures, urls
from dlpipe.net.policy import NetPolicy
from dlpipe.net.urls import Address

STATUSES = frozenset({301, 302, 303, 307, 308})


def follow(at: Address, headers: Headers, hops: int, policy: NetPolicy) -> Address:
    """The next address (row 41), `hops` being how many redirects were followed before this one."""
    if hops >= policy.max_redirects:
        raise failures.too_many_redirects(at.host, policy.max_redirects)
    locations = headers.all("location")
    if len(locations) != 1 or not locations[0]:
        raise failures.redirect_refused(at.host, "it does not name exactly one Location")
    url = urls.join(at, locations[0])
    if url is None:
        raise failures.redirect_refused(at.host, "the Location cannot be read")
    try:
        target = urls.address(url.partition("#")[0])
    except InvalidInput as error:
        raise failures.redirect_refused(at.host, f"the Location may not be asked ({error.code})") from None
    if at.scheme == "https" and target.scheme == "http" and not policy.allow_https_to_http:
        raise failures.redirect_refused(at.host, "it leads from https to plain http")
    return target
