"""A relay that gives each connection so many bytes a second downstream, from its first byte on.

Run as `python -m ops.bench.throttle PORT TARGET_PORT BYTES_S`. nginx's own limit_rate lets each request have its first
second's bytes at once, so whoever asks for many small ranges would be given the file at full speed.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

_PIECE = 16 << 10
LATE_S = 0.1


def main(port: int, target: int, bytes_s: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=128) as server:
        while True:
            client, _ = server.accept()
            threading.Thread(target=_relay, args=(client, target, bytes_s), daemon=True).start()


def _relay(client: socket.socket, target: int, bytes_s: int) -> None:
    with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", target)) as server:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Small, so that what was not read yet is not far from what was asked to be slow.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _PIECE)
        up = threading.Thread(target=_pass_on, args=(client, server), daemon=True)
        up.start()
        free_at = time.monotonic()
        while piece := server.recv(_PIECE):
            # Idle time is not saved up, so a pause between two requests buys no burst; what is made good is that a
            # busy machine wakes us late.
            free_at = max(free_at, time.monotonic() - LATE_S) + len(piece) / bytes_s
            client.sendall(piece)
            time.sleep(max(0.0, free_at - time.monotonic()))


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := client.recv(_PIECE):
            server.sendall(piece)
        server.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
