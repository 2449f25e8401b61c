"""Real web servers: each with a configuration of its own, on a free loopback port, ended by its pid.

What every one serves: `/name` as it is, `/plain/name` without ranges, `/moved/name` by a redirect, and 429 for
everything while the file `busy` stands beside the documents. What a server cannot be told is not in its `can`,
and the tests do it in front of the server (tests/front.py).
"""

from __future__ import annotations

import gzip as gz
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dlpipe.embedded.process import birth
from tests.certificates import NAME, Certificate
from tests.servers import free_port, wait_until

_NOBODY = 65534
_NPM_SERVE = Path(sys.prefix) / "npm" / "node_modules" / "serve" / "build" / "main.js"
RETRY_AFTER_S = 7


@dataclass(frozen=True)
class Site:
    """Where a server finds its documents and may write."""

    folder: Path
    port: int
    gzip: bool
    tls: Certificate | None = None
    down: str | None = None
    """Where `/down` is redirected to."""

    @property
    def documents(self) -> Path:
        return self.folder / "documents"

    @property
    def busy(self) -> Path:
        return self.folder / "busy"

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True)
class Kind:
    name: str
    binary: str
    package: str
    start: Callable[[Site], list[str]]
    can: frozenset[str]
    """Of `plain`, `moved`, `busy`: what it does by itself."""
    resumes: bool
    """Does it give ranges under a strong validator?"""
    reload: signal.Signals | None = None
    """What tells it to read its configuration again, and to end what is under way in peace."""
    drops_root: bool = True
    """Servers are run as nobody by root. Interpreters are not: theirs may live where only root gets to."""

    def missing(self) -> str:
        if shutil.which(self.binary) is None:
            return f"no {self.binary} to download from: install the Debian package {self.package}"
        if self.name == "serve" and not _NPM_SERVE.exists():
            return "no `serve` of npm to download from: run make setup with node and npm installed"
        return ""


def nginx(site: Site) -> list[str]:
    config = f"""
daemon off; worker_processes 1; pid {site.folder}/pid; error_log {site.folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; default_type text/plain; sendfile on; absolute_redirect off;
  client_body_temp_path {site.folder}/t1; proxy_temp_path {site.folder}/t2; fastcgi_temp_path {site.folder}/t3;
  uwsgi_temp_path {site.folder}/t4; scgi_temp_path {site.folder}/t5;
  gzip {"on" if site.gzip else "off"}; gzip_types *; gzip_min_length 1; gzip_proxied any;
  server {{
    listen 127.0.0.1:{site.port}{" ssl" if site.tls else ""}; root {site.documents};
    {_nginx_tls(site, site.tls) if site.tls else ""}
    {f"location /down {{ return 302 {site.down}; }}" if site.down else ""}
    if (-f {site.busy}) {{ return 429; }}
    error_page 429 @busy;
    location @busy {{ add_header Retry-After {RETRY_AFTER_S} always; return 429; }}
    location /plain/ {{ alias {site.documents}/; max_ranges 0; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
  }}
}}
"""
    return ["nginx", "-e", f"{site.folder}/error.log", "-p", str(site.folder), "-c", site.write("nginx.conf", config)]


def _nginx_tls(site: Site, tls: Certificate) -> str:
    """What is not asked for by the one name, in the handshake as in the request, is misdirected."""
    return f"""
    ssl_certificate {site.write("chain.pem", tls.chain)}; ssl_certificate_key {site.write("key.pem", tls.key)};
    if ($ssl_server_name != {NAME}) {{ return 421; }}
    if ($host != {NAME}) {{ return 421; }}
"""


def apache(site: Site) -> list[str]:
    modules = "mpm_event authz_core mime filter deflate headers rewrite alias"
    loads = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in modules.split())
    config = f"""
ServerRoot {site.folder}
ServerName 127.0.0.1
Listen 127.0.0.1:{site.port}
PidFile {site.folder}/pid
ErrorLog {site.folder}/error.log
{loads}
Mutex file:{site.folder} default
DefaultRuntimeDir {site.folder}
TypesConfig /dev/null
AddType text/plain .txt
DocumentRoot {site.documents}
Alias /plain {site.documents}
RedirectMatch 302 ^/moved/(.*)$ /$1
<Location /plain>
  MaxRanges none
</Location>
{"SetOutputFilter DEFLATE" if site.gzip else ""}
RewriteEngine on
RewriteCond {site.busy} -f
RewriteRule ^ - [R=429,L]
Header always set Retry-After {RETRY_AFTER_S} "expr=%{{REQUEST_STATUS}} == 429"
"""
    return ["apache2", "-d", str(site.folder), "-f", site.write("apache.conf", config), "-DFOREGROUND"]


def caddy(site: Site) -> list[str]:
    config = f"""
{{
  admin off
  auto_https off
}}
{f"https://{NAME}" if site.tls else "http://127.0.0.1"}:{site.port} {{
  bind 127.0.0.1
  {f"tls {site.write('chain.pem', site.tls.chain)} {site.write('key.pem', site.tls.key)}" if site.tls else ""}
  {"encode gzip" if site.gzip else ""}
  root * {site.documents}
  @busy file {{
    root {site.folder}
    try_files /busy
  }}
  handle @busy {{
    header Retry-After {RETRY_AFTER_S}
    respond 429
  }}
  handle_path /moved/* {{
    redir {{uri}} 302
  }}
  handle_path /plain/* {{
    request_header -Range
    file_server
  }}
  handle {{
    file_server
  }}
}}
"""
    return ["caddy", "run", "--adapter", "caddyfile", "--config", site.write("Caddyfile", config)]


def lighttpd(site: Site) -> list[str]:
    config = f"""
server.modules = ("mod_alias", "mod_redirect"{', "mod_deflate"' if site.gzip else ""})
server.document-root = "{site.documents}"
server.bind = "127.0.0.1"
server.port = {site.port}
server.stat-cache-engine = "disable"
server.errorlog = "{site.folder}/error.log"
mimetype.assign = (".txt" => "text/plain")
alias.url = ("/plain/" => "{site.documents}/")
url.redirect = ("^/moved/(.*)$" => "/$1")
url.redirect-code = 302
$HTTP["url"] =~ "^/plain/" {{ server.range-requests = "disable" }}
{'deflate.mimetypes = ("text/")' if site.gzip else ""}
{'deflate.allowed-encodings = ("gzip", "deflate")' if site.gzip else ""}
"""
    return ["lighttpd", "-D", "-f", site.write("lighttpd.conf", config)]


def busybox(site: Site) -> list[str]:
    config = site.write("httpd.conf", ".txt:text/plain\n")
    return ["busybox", "httpd", "-f", "-p", f"127.0.0.1:{site.port}", "-h", str(site.documents), "-c", config]


def python(site: Site) -> list[str]:
    return [
        sys.executable, "-m", "http.server", str(site.port), "--bind", "127.0.0.1",
        "--directory", str(site.documents), "--protocol", "HTTP/1.1",
    ]  # fmt: skip


def serve(site: Site) -> list[str]:
    config = site.write(
        "serve.json", '{"redirects": [{"source": "/moved/:name", "destination": "/:name", "type": 302}]}'
    )
    words = ["node", str(_NPM_SERVE), "-l", f"tcp://127.0.0.1:{site.port}", "-L", "-n", "--no-port-switching"]
    return [*words, "-c", config, *([] if site.gzip else ["-u"]), str(site.documents)]


KINDS = (
    Kind("nginx", "nginx", "nginx-light", nginx, frozenset({"plain", "moved", "busy"}), True, signal.SIGHUP),
    Kind("apache", "apache2", "apache2-bin", apache, frozenset({"plain", "moved", "busy"}), True, signal.SIGUSR1),
    Kind("caddy", "caddy", "caddy", caddy, frozenset({"plain", "moved", "busy"}), resumes=True),
    Kind("lighttpd", "lighttpd", "lighttpd", lighttpd, frozenset({"plain", "moved"}), True, signal.SIGUSR1),
    Kind("busybox", "busybox", "busybox", busybox, frozenset(), resumes=True),
    Kind("python", sys.executable, "python3", python, frozenset({"plain"}), resumes=False, drops_root=False),
    Kind("serve", "node", "nodejs", serve, frozenset({"moved"}), resumes=True, drops_root=False),
)


class WebServer:
    """One of them at work, until the block ends."""

    def __init__(self, kind: Kind, *, gzip: bool = False, tls: Certificate | None = None) -> None:
        self.kind = kind
        folder = Path(tempfile.mkdtemp(prefix="dlweb"))
        self.site = Site(folder, free_port(), gzip, tls)
        self.site.documents.mkdir()
        self._as_nobody = kind.drops_root and os.geteuid() == 0
        folder.chmod(0o755)

    def put(self, name: str, body: bytes, mtime: float) -> None:
        """Replace a document at once, as an upload does; whoever reads the old one reads on."""
        fresh = self.site.documents / f".{name}.new"
        for path, data in ((fresh, body), (Path(f"{fresh}.gz"), gz.compress(body))):
            path.write_bytes(data)
            os.utime(path, (mtime, mtime))
        # A compressed one beside it, for servers that look for one.
        os.replace(f"{fresh}.gz", self.site.documents / f"{name}.gz")
        os.replace(fresh, self.site.documents / name)

    def __enter__(self) -> WebServer:
        self._log = (self.site.folder / "log").open("wb")
        if self._as_nobody:
            for path in (self.site.folder, *self.site.folder.rglob("*")):
                os.chown(path, _NOBODY, _NOBODY)
        self._start()
        return self

    def _start(self) -> None:
        argv = self.kind.start(self.site)
        argv[0] = shutil.which(argv[0]) or argv[0]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self.site.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.site.folder), "NO_UPDATE_CHECK": "1"},
            user=_NOBODY if self._as_nobody else None,
            group=_NOBODY if self._as_nobody else None,
            extra_groups=[] if self._as_nobody else None,
        )
        try:
            wait_until(self._answers, f"{self.kind.name} to listen")
        except BaseException:
            self._end()
            raise

    @property
    def family(self) -> list[int]:
        """Its processes, the first of them before those that it started."""
        found = [self._process.pid]
        for pid in found:
            listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
            found.extend(int(word) for word in listed.stdout.split())
        return found

    def kill(self) -> None:
        """kill -9 of all of it, at once."""
        self._process.send_signal(signal.SIGSTOP)  # or it starts one more while they are counted, which keeps the port
        family = self.family
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)
        wait_until(lambda: not any(map(birth, family)), f"{self.kind.name} is dead")

    def kill_workers(self) -> None:
        """kill -9 of those that serve; the first process starts others."""
        for pid in self.family[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """After a kill, at the same place with the same documents."""
        (self.site.folder / "pid").unlink(missing_ok=True)
        self._start()

    def reload(self) -> None:
        assert self.kind.reload is not None
        self._process.send_signal(self.kind.reload)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            said = "".join(path.read_text() for path in self.site.folder.glob("*log"))
            raise RuntimeError(f"{self.kind.name} ended at its start:\n{said[-3000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.site.port), 1):
                return True
        except OSError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._log.close()
        shutil.rmtree(self.site.folder, ignore_errors=True)
