"""The plan: which servers ``martlet up`` runs, each with its arguments and its addresses."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from martlet.options import LogLevel
from martlet.supervisor.options import EVERYWHERE, PORT_STEP, UpOptions, host_of, port_of


@dataclass(frozen=True)
class Planned:
    """One server.

    Attributes:
        name: ``broker-0``, ``lookup``.
        arguments: those of its command, whose name is the first.
        tcp_address, http_address: where it will listen.
        folder: a broker's data folder.
    """

    name: str
    arguments: tuple[str, ...]
    tcp_address: str
    http_address: str
    folder: Path = Path()


@dataclass(frozen=True)
class ServerPlan:
    """All servers: the lookup daemon, which starts first and stops last, and the brokers."""

    lookup: tuple[Planned, ...]
    brokers: tuple[Planned, ...]

    @property
    def servers(self) -> tuple[Planned, ...]:
        """All of them."""
        return self.lookup + self.brokers


def plan(options: UpOptions, broker_arguments: tuple[str, ...]) -> ServerPlan:
    """Plan the servers to run.

    Args:
        options: where.
        broker_arguments: further arguments of every broker.

    Raises:
        OSError: there are no free ports where any are wanted.
    """
    with _Ports() as ports:
        lookup = (_lookup(options, ports),) if options.lookup else ()
        lookup_flags = tuple(
            f"--lookupd-tcp-address={_reached(each.tcp_address)}" for each in lookup
        )
        arguments = (*lookup_flags, *broker_arguments)
        numbers = range(options.workers)
        return ServerPlan(
            lookup, tuple(_broker(options, ports, each, arguments) for each in numbers)
        )


def _lookup(options: UpOptions, ports: _Ports) -> Planned:
    tcp = ports.of(options.lookup_tcp_address, "lookup-tcp-address")
    http = ports.of(options.lookup_http_address, "lookup-http-address")
    arguments = (
        *("lookup", *_shared(options, options.lookup_config)),
        *(f"--tcp-address={tcp}", f"--http-address={http}"),
    )
    return Planned("lookup", arguments, tcp, http)


def _broker(options: UpOptions, ports: _Ports, number: int, more: tuple[str, ...]) -> Planned:
    tcp = ports.of(options.tcp_address, "tcp-address", number)
    http = ports.of(options.http_address, "http-address", number)
    https = ports.of(options.https_address, "https-address", number)
    folder = Path(options.data_path) / f"broker-{number}"
    arguments = (
        *("broker", *_shared(options, options.broker_config), f"--data-path={folder}"),
        *(f"--tcp-address={tcp}", f"--http-address={http}", f"--https-address={https}"),
        *more,
    )
    return Planned(f"broker-{number}", arguments, tcp, http, folder)


def _shared(options: UpOptions, config: str) -> list[str]:
    """The arguments of servers of both kinds."""
    return [
        *([f"--config={config}"] if config else []),
        *(
            [f"--log-level={options.log_level.name.lower()}"]
            if options.log_level is not LogLevel.INFO
            else []
        ),
        f"--broadcast-address={options.broadcast_name}",
    ]


class _Ports:
    """Chooses ports where any will do, no two the same."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def of(self, address: str, flag: str, number: int = 0) -> str:
        """The address of the server of that number, when this is the first's."""
        host, port = host_of(address), port_of(address, flag)
        if port:
            port += PORT_STEP * number
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = self._held.enter_context(socket.socket(family))
            # As the server does, so that ports in TIME_WAIT can be bound.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, 0))
            port = sock.getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reached(address: str) -> str:
    """Where a server of this machine reaches one that listens there."""
    host = host_of(address)
    if host not in EVERYWHERE:
        return address
    port = address.rpartition(":")[2]
    return f"[::1]:{port}" if host == "::" else f"127.0.0.1:{port}"
