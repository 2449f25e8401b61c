"""A line that is encrypted: TLS in front of a server that speaks plainly, as a terminator in front of Redis does."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType

from tests.certificates import Certificate

_PIECE = 65_536


class TlsFront:
    """Listens on a loopback port of its own; hands on to a unix socket (a path) or a loopback port."""

    def __init__(self, behind: str | int, certificate: Certificate, folder: Path) -> None:
        self._context = certificate.serving(folder)
        self._behind = behind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.refused = 0
        """Clients that broke off the handshake, as they did not trust us."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            client = self._context.wrap_socket(plain, server_side=True)
        except (OSError, ssl.SSLError):
            self.refused += 1
            plain.close()
            return
        try:
            with client, self._connect() as server:
                self._relay(client, server)
        except OSError:
            pass  # one of them has gone

    def _connect(self) -> socket.socket:
        if isinstance(self._behind, int):
            return socket.create_connection(("127.0.0.1", self._behind))
        found = socket.socket(socket.AF_UNIX)
        found.connect(self._behind)
        return found

    def _relay(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        """In one thread, as an SSL socket is not to be read and written by two."""
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    source, sink = (client, server) if key.fileobj is client else (server, client)
                    while piece := source.recv(_PIECE):
                        sink.sendall(piece)
                        if not (source is client and client.pending()):
                            break
                    if not piece:
                        return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> TlsFront:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
