"""Measures a link: round trips and rate of a TCP connection between two machines."""

from __future__ import annotations

import socket
import threading
import time

from bench.wan.network import Network, on_machine

PORT, TURNS, WAIT_SECONDS = 7999, 20, 60.0
MESSAGE = bytes(50)


def round_trips_ms(net: Network, turns: int = TURNS) -> list[float]:
    """Milliseconds of each of some exchanges of 50 bytes."""
    client, server = _connection(net)

    def echo() -> None:
        for _ in range(turns):
            server.sendall(server.recv(len(MESSAGE)))

    with client, server:
        answering = threading.Thread(target=echo)
        answering.start()
        times = []
        for _ in range(turns):
            started = time.perf_counter()
            client.sendall(MESSAGE)
            client.recv(len(MESSAGE))
            times.append((time.perf_counter() - started) * 1e3)
        answering.join()
    return times


def rate_mbit(net: Network, megabytes: float) -> float:
    """Mbit/s of payload, once the transfer has got going (its first fifth isn't counted)."""
    client, server = _connection(net)
    total = int(megabytes * 1e6)
    with client, server:
        sending = threading.Thread(target=client.sendall, args=(bytes(total),))
        sending.start()
        received, started, skipped = 0, 0.0, 0
        while received < total:
            received += len(server.recv(1 << 18))
            if not started and received > total // 5:
                started, skipped = time.perf_counter(), received
        seconds = time.perf_counter() - started
        sending.join()
    return (received - skipped) * 8 / seconds / 1e6


def _connection(net: Network) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection from machine 0 to machine 1."""
    address = (net.address(1), PORT)
    listener = on_machine(net.namespaces[1], lambda: socket.create_server(address))
    with listener:
        client = on_machine(net.namespaces[0], lambda: socket.create_connection(address))
        server, _ = listener.accept()
    for end in (client, server):
        end.settimeout(WAIT_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, server
