"""The plan: which servers ``martlet up`` runs, each with its arguments and its addresses."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from martlet.addresses import Address, is_host
from martlet.http_requests import TOKEN_FLAG, TRUSTED_FLAG
from martlet.options import LogLevel
from martlet.supervisor.options import (
    EVERYWHERE,
    PORT_STEP,
    REPLICA_PORT_STEP,
    UpOptions,
    host_of,
    port_of,
    replica_name,
)


@dataclass(frozen=True)
class Planned:
    """One server."""

    name: str
    """``broker-0``, ``broker-0.a`` for a replica, ``lookup``, ``admin``."""
    arguments: tuple[str, ...]
    """Those of its command, whose name is the first."""
    tcp_address: str
    """Where it will listen; empty for the admin page."""
    http_address: str
    folder: Path = Path()
    """A broker's data folder."""
    flag_prefix: str = ""
    """The beginning of its address flags in ``martlet up``, such as ``admin-``."""


@dataclass(frozen=True)
class ServerPlan:
    """All servers: the lookup daemon, which starts first and stops last, the brokers, and the
    admin page.
    """

    lookup: tuple[Planned, ...]
    brokers: tuple[Planned, ...]
    admin: tuple[Planned, ...] = ()

    @property
    def servers(self) -> tuple[Planned, ...]:
        """All of them."""
        return self.lookup + self.brokers + self.admin


def plan(options: UpOptions, broker_arguments: tuple[str, ...]) -> ServerPlan:
    """Plan the servers to run.

    Args:
        broker_arguments: further arguments of every broker.

    Raises:
        OSError: there are no free ports where any are wanted.
    """
    with _Ports() as ports:
        lookup = (_lookup(options, ports),) if options.lookup else ()
        lookup_flags = tuple(
            f"--lookupd-tcp-address={_reached(daemon.tcp_address)}" for daemon in lookup
        )
        token_file = options.operator_token_file
        tokens = (f"--{TOKEN_FLAG}={token_file}",) if token_file else ()
        arguments = (*lookup_flags, *tokens, *broker_arguments)
        brokers = [
            broker
            for number in range(options.workers)
            for broker in _replicas(options, ports, number, arguments)
        ]
        admin = (_admin(options, ports, lookup, brokers),) if options.admin else ()
        return ServerPlan(lookup, tuple(brokers), admin)


def _lookup(options: UpOptions, ports: _Ports) -> Planned:
    tcp = ports.of(options.lookup_tcp_address, "lookup-tcp-address")
    http = ports.of(options.lookup_http_address, "lookup-http-address")
    arguments = (
        *("lookup", *_shared(options, options.lookup_config)),
        *(f"--tcp-address={tcp}", f"--http-address={http}"),
    )
    return Planned("lookup", arguments, tcp, http, flag_prefix="lookup-")


def _admin(
    options: UpOptions, ports: _Ports, lookup: Sequence[Planned], brokers: Sequence[Planned]
) -> Planned:
    """Plan the admin page, which asks the lookup daemon for brokers if there is one."""
    http = ports.of(options.admin_http_address, "admin-http-address")
    token_file = options.operator_token_file
    kind, servers = ("lookupd", lookup) if lookup else ("nsqd", brokers)
    arguments = (
        *("admin", *_logged(options, options.admin_config), f"--http-address={http}"),
        *(f"--{kind}-http-address={_reached(server.http_address)}" for server in servers),
        *([f"--{TOKEN_FLAG}={token_file}"] if token_file else []),
        # The lookup daemon may name others, too.
        *(f"--{TRUSTED_FLAG}={server}" for server in _registered(options, brokers) if lookup),
    )
    return Planned("admin", arguments, "", http, flag_prefix="admin-")


def _replicas(
    options: UpOptions, ports: _Ports, number: int, more: tuple[str, ...]
) -> list[Planned]:
    """Plan a broker: one process, or one for each of its replicas."""
    if options.replicas == 1:
        return [_broker(options, ports, number, 0, more)]
    addresses = {
        replica_name(replica): ports.of(options.replica_address, "replica-address", number, replica)
        for replica in range(options.replicas)
    }
    initial = ",".join(f"{name}={address}" for name, address in addresses.items())
    shared = (
        f"--metadata={options.metadata_address}",
        f"--replica-set=broker-{number}",
        f"--initial-replicas={initial}",
    )
    return [
        _broker(
            options,
            ports,
            number,
            replica,
            (f"--replica-name={name}", f"--replica-address={address}", *shared, *more),
        )
        for replica, (name, address) in enumerate(addresses.items())
    ]


def _broker(
    options: UpOptions, ports: _Ports, number: int, replica: int, more: tuple[str, ...]
) -> Planned:
    tcp = ports.of(options.tcp_address, "tcp-address", number, replica)
    http = ports.of(options.http_address, "http-address", number, replica)
    https = ports.of(options.https_address, "https-address", number, replica)
    # The folder of a broker without replicas becomes that of its first one.
    folder = Path(options.data_path) / f"broker-{number}"
    if replica:
        folder = folder.with_name(f"{folder.name}.{replica_name(replica)}")
    arguments = (
        *("broker", *_shared(options, options.broker_config), f"--data-path={folder}"),
        *(f"--tcp-address={tcp}", f"--http-address={http}", f"--https-address={https}"),
        *more,
    )
    return Planned(options.broker_name(number, replica), arguments, tcp, http, folder)


def _shared(options: UpOptions, config: str) -> list[str]:
    """The arguments of brokers and the lookup daemon."""
    return [*_logged(options, config), f"--broadcast-address={options.broadcast_name}"]


def _logged(options: UpOptions, config: str) -> list[str]:
    """The arguments of all servers."""
    return [
        *([f"--config={config}"] if config else []),
        *(
            [f"--log-level={options.log_level.name.lower()}"]
            if options.log_level is not LogLevel.INFO
            else []
        ),
    ]


_PORTS = range(61_000, 65_536)
"""Where any will do: above those that Linux gives to outgoing connections by default."""


class _Ports(ExitStack):
    """Chooses ports where any will do, no two the same, and holds them until the exit."""

    def of(self, address: str, flag: str, number: int = 0, replica: int = 0) -> str:
        """Return the address of one replica of one broker, from that of the first broker."""
        host, port = host_of(address), port_of(address, flag)
        if port:
            port += PORT_STEP * number + REPLICA_PORT_STEP * replica
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = self.enter_context(socket.socket(family))
            # As the server does, so that ports in TIME_WAIT can be bound.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = _bind_to_any(sock, host)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind_to_any(sock: socket.socket, host: str) -> int:
    """Bind to a port that no outgoing connection takes before the server starts. Raises OSError."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError):
            sock.bind((host, port))
            return port
    sock.bind((host, 0))  # It is the host that is wrong, or these ports are all taken.
    return int(sock.getsockname()[1])


def _registered(options: UpOptions, brokers: Sequence[Planned]) -> list[str]:
    """Return the HTTP addresses under which brokers register."""
    name = options.broadcast_name
    if not is_host(name):
        return []
    return [str(Address(name, port_of(broker.http_address, "http-address"))) for broker in brokers]


def _reached(address: str) -> str:
    """Return how a server of this machine reaches one that listens at an address."""
    host = host_of(address)
    if host not in EVERYWHERE:
        return address
    port = address.rpartition(":")[2]
    return f"[::1]:{port}" if host == "::" else f"127.0.0.1:{port}"
