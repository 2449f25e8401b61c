"""What can be said against an address before anything is connected to, and how each library spells it."""

from __future__ import annotations

import pytest

from dlpipe.core.addresses import for_celery, for_redis, is_redis, objection

GOOD = (
    "redis://h",
    "redis://h:6379/0",
    "redis://user:p%40ss@h/15?socket_timeout=3",
    "rediss://[::1]:6380/1",
    "sentinel://a:26379/0;sentinel://b:26379",
    "unix:///run/redis.sock?db=1",
    "unix://:secret@/run/redis.sock",
    "redis+socket:///run/redis.sock?virtual_host=1",
    "amqp://u:p@h//",
    "amqp://a//;amqp://b:5673//",
    "memory://",
    "postgresql+psycopg:///name",
    "postgresql+psycopg://u@/d?host=a:1&host=b:2",
    "sqlite:////home/a b/100%.db",
    *("redis://:pa%ss@h", "rediss://:100%@h/0", "redis://:%4@h/0", "amqp://u:pa%ss@h//", "amqp://u:p@h/my room"),
    *("postgresql+psycopg://u:50%@h/d", "postgresql+psycopg://u:a b@h/d%b", "sentinel://:pa%ss@a;sentinel://b"),
    *("unix:///home/my name/redis.sock", "redis+socket:///50%/my name.sock?virtual_host=1", "redis://[fe80::1%eth0]/0"),
)
BAD = {
    "port": (
        "redis://h:port/0",
        "redis://h:99999/0",
        "redis://h:-1/0",
        "redis://h:0/0",
        "redis://h:٣/0",
        "amqp://h:x//",
    ),
    "host": (
        "redis://[::1/0",
        "redis://[::1]x/0",
        "redis://[zz]/0",
        "redis:///0",
        "redis://",
        "amqp://",
        "rediss://u:p@/0",
        f"redis://{'h' * 64}/0",
        "redis://a..b/0",
        "sentinel://a;sentinel://:1",
        "redis://h%zz/0",
        "redis://h /0",
    ),
    "UTF-8": ("redis://:%ff@h/0", "amqp://u:%c3@h//"),
    "number": (
        "redis://h/%zz",
        "redis://h/notanumber",
        "rediss://h/notanumber",
        "redis://h/-1",
        "redis://h/0/1",
        "redis://h/" + "9" * 30,
    ),
    "socket": ("unix://", "unix:///", "unix://h/0", "redis+socket://h/0"),
    "scheme": ("h", "h:6379", "redis", ""),
    "character": ("redis://h\n/0", "unix:///home/a\tb", "redis://\ud800/0", "redis://h/0\0"),
    "question mark": ("sentinel://a/0?db=1",),
}


@pytest.mark.parametrize("url", GOOD)
def test_an_address_that_can_be_used_meets_no_objection(url: str) -> None:
    assert objection(url) is None


@pytest.mark.parametrize(("word", "url"), [(word, url) for word, urls in BAD.items() for url in urls])
def test_an_address_that_cannot_be_used_is_told_with_the_reason(word: str, url: str) -> None:
    assert word in (objection(url) or "")


def test_each_library_gets_its_own_spelling() -> None:
    assert for_redis("redis+socket:///s?virtual_host=1") == "unix:///s?db=1"
    assert for_celery("unix:///s?db=1") == "redis+socket:///s?virtual_host=1"
    assert for_celery("rediss://h/0") == "rediss://h/0?ssl_cert_reqs=required"
    assert [is_redis(url) for url in ("sentinel://h", "amqp://h")] == [True, False]
