"""What the file of hosts says beside rates and slots, which test_limiter.py has."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlpipe import wiring
from dlpipe.core.errors import Misconfigured
from dlpipe.net import limits
from dlpipe.net.limits import Bounds
from tests.fakes.publisher import FakePublisher


def read(folder: Path, text: str) -> limits.HostLimits:
    file = folder / "limits.toml"
    file.write_text(text)
    return limits.read(file, Bounds(100.0, 32))


def test_sniffing_is_turned_off_for_a_host_and_for_no_other(tmp_path: Path) -> None:
    found = read(tmp_path, '[hosts."odd.example.org"]\nsniff = false\n[hosts."*.example.org"]\nslots = 2\n')
    assert not found.of("ODD.example.org").sniff
    assert found.of("odd.example.org") == Bounds(100.0, 32, sniff=False)
    for other in ("example.org", "even.example.org", "odd.example.org.invalid"):
        assert found.of(other).sniff


@pytest.mark.parametrize("value", ["0", '"no"', "[]", "1.0"])
def test_sniffing_is_true_or_false(tmp_path: Path, value: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        read(tmp_path, f"[hosts.a]\nsniff = {value}\n")
    assert (caught.value.code, "sniff" in caught.value.message) == ("limits_invalid", True)


def test_what_the_file_says_of_sniffing_reaches_the_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read(tmp_path, '[hosts."odd.example.org"]\nsniff = false\n')
    monkeypatch.setenv("DLPIPE_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("DLPIPE_NET_LIMITS_FILE", str(tmp_path / "limits.toml"))
    for cached in (wiring.loaded, wiring.database):
        cached.cache_clear()
    try:
        made = wiring._build(wiring.settings(), FakePublisher())
        assert (made.sniffs("odd.example.org"), made.sniffs("even.example.org")) == (False, True)
    finally:
        for cached in (wiring.loaded, wiring.database):
            cached.cache_clear()
