"""Loopback sockets for the testbed: listening, resetting a connection, and ports that stay ours between two owners."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import socket
import struct
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_LINGER_ZERO = struct.pack("ii", 1, 0)
_PORTS = range(
    20_000, 32_000
)  # below Linux's range for outgoing connections (32768 and up), which would take a port in a restart


def listen(port: int = 0, *, shared: bool = False) -> socket.socket:
    """A listening TCP socket on 127.0.0.1; a fixed port can be taken again right after its last owner closed.

    Raises OSError when the port is taken.
    """
    listener = bind(port, shared=shared)
    listener.listen(256)
    return listener


def bind(port: int = 0, *, shared: bool = False) -> socket.socket:
    """A bound socket on 127.0.0.1 that does not listen: connections to it are refused.

    `shared` sockets may bind one port together. Raises OSError when the port is taken.
    """
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it on, an answer in two writes waits 40 ms for an ACK.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def reset(transport: asyncio.WriteTransport) -> None:
    """Ends a TCP connection with RST, dropping what was not sent yet."""
    raw = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the peer may have ended it already; a unix socket has no RST
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


class ReservedPort:
    """A free port for a server that starts and stops several times; other users of this class keep off it meanwhile."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"stratus-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for port in random.sample(_PORTS, 200):
            lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                bind(port).close()
            except OSError:
                os.close(lock)
                continue
            self.number = port
            self._lock = lock
            return
        raise OSError("no free port between 20000 and 32000")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
