"""The plan: which servers ``martlet up`` runs, each with its arguments and its addresses."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from martlet.options import LogLevel
from martlet.options.up import EVERYWHERE, PORT_STEP, UpOptions, host_of, port_of

LOOKUP = "lookup"


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
class Plan:
    """All servers: the lookup daemon, which starts first and stops last, and the brokers."""

    lookup: Planned
    brokers: tuple[Planned, ...]

    @property
    def servers(self) -> tuple[Planned, ...]:
        """All of them."""
        return (self.lookup, *self.brokers)


def plan(options: UpOptions, broker_arguments: tuple[str, ...]) -> Plan:
    """What is to be run.

    Args:
        options: where.
        broker_arguments: further arguments of every broker.

    Raises:
        OSError: there are no free ports where any are wanted.
    """
    ports = _Ports()
    with ports:
        lookup_tcp = ports.of(options.lookup_tcp_address, "lookup-tcp-address")
        lookup_http = ports.of(options.lookup_http_address, "lookup-http-address")
        doors = [
            [
                ports.of(getattr(options, name), name.replace("_", "-"), number)
                for name in ("tcp_address", "http_address", "https_address")
            ]
            for number in range(options.workers)
        ]
    asked = options.log_level is not LogLevel.INFO
    levels = [f"--log-level={options.log_level.name.lower()}"] if asked else []
    name = options.broadcast_name
    config = [f"--config={options.lookup_config}"] if options.lookup_config else []
    lookup = Planned(
        LOOKUP,
        (
            *("lookup", *config, *levels, f"--tcp-address={lookup_tcp}"),
            *(f"--http-address={lookup_http}", f"--broadcast-address={name}"),
        ),
        lookup_tcp,
        lookup_http,
    )
    config = [f"--config={options.broker_config}"] if options.broker_config else []
    brokers = []
    for number, (tcp, http, https) in enumerate(doors):
        folder = Path(options.data_path) / f"broker-{number}"
        own = [
            *(f"--tcp-address={tcp}", f"--http-address={http}", f"--https-address={https}"),
            *(f"--data-path={folder}", f"--broadcast-address={name}"),
            f"--lookupd-tcp-address={_reached(lookup_tcp)}",
        ]
        arguments = ("broker", *config, *levels, *own, *broker_arguments)
        brokers.append(Planned(f"broker-{number}", arguments, tcp, http, folder))
    return Plan(lookup, tuple(brokers))


class _Ports:
    """Chooses ports where any will do, no two the same."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> None:
        self._held.__enter__()

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
            # As the server will: what it leaves in TIME_WAIT must not stand in its way.
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
