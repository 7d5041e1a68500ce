"""The options of ``martlet up``: where the servers of one machine are."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from martlet.options.flag import OptionError, option
from martlet.options.options import LogOptions
from martlet.text import SECOND_NS

REPLICA_PORT_STEP = 30
"""The distance of a replica's ports from those of the one before: 4150, 4180, 4210."""
MAX_REPLICAS = 9
PORT_STEP = 100
"""The distance of a broker's ports from those of the one before: 4150, 4250, 4350."""
EVERYWHERE = frozenset({"", "0.0.0.0", "::", "[::]"})
_HIGHEST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class UpOptions(LogOptions):
    """The options of ``martlet up``."""

    workers: int = option(
        1, "how many brokers; one uses one core", limits=(1, 256), section="brokers"
    )
    data_path: str = option(
        "",
        "the folder in which each broker has one of its own: broker-0, broker-1, ..."
        " (default: the current folder)",
    )
    tcp_address: str = option(
        "127.0.0.1:4150",
        "<addr>:<port> of the first broker for NSQ's TCP clients; each further one has a port that"
        f" is {PORT_STEP} higher (port 0: any free ones)",
    )
    http_address: str = option(
        "127.0.0.1:4151",
        "<addr>:<port> of the first broker for HTTP; the further ones as with --tcp-address",
    )
    https_address: str = option(
        "127.0.0.1:4152",
        "<addr>:<port> of the first broker for HTTPS, served only with a certificate; the further"
        " ones as with --tcp-address",
    )
    broadcast_address: str = option(
        "",
        "the name under which clients reach this machine (default: the <addr> of --tcp-address, or"
        " the host's name where that is every address)",
    )
    replicas: int = option(
        1,
        "how many replicas each broker has, each with a folder and ports of its own, which are"
        f" {REPLICA_PORT_STEP} higher than those of the one before; a message is answered OK when"
        " more than half of them have it",
        limits=(1, MAX_REPLICAS),
        section="replicas",
    )
    replica_address: str = option(
        "127.0.0.1:4153",
        "<addr>:<port> of the first replica of the first broker for the others; the further ones as"
        " with --tcp-address",
    )
    metadata: str = option(
        "",
        "where replicas agree on who is primary (default: the file replicas.db in --data-path)",
    )
    operator_token_file: str = option(
        "",
        "the file of the tokens that operators send to brokers over HTTP, one a line (default:"
        " clients on this machine are operators)",
    )
    broker_config: str = option("", "a TOML file with further options of every broker")
    lookup: bool = option(
        True,
        "run a lookup daemon; without, tell brokers of others: -- --lookupd-tcp-address=HOST:4160",
        section="lookup",
    )
    lookup_tcp_address: str = option(
        "127.0.0.1:4160", "<addr>:<port> of the lookup daemon for brokers"
    )
    lookup_http_address: str = option(
        "127.0.0.1:4161", "<addr>:<port> of the lookup daemon for HTTP"
    )
    lookup_config: str = option("", "a TOML file with further options of the lookup daemon")
    admin: bool = option(
        True, "run the admin page, which shows the brokers in a browser", section="admin page"
    )
    admin_http_address: str = option(
        "127.0.0.1:4171", "<addr>:<port> of the admin page for browsers"
    )
    admin_config: str = option("", "a TOML file with further options of the admin page")
    max_restarts: int = option(
        0,
        "how often in a row a server that ends is started again; if it still does not stay up, all"
        " are stopped (0: for ever, at most twice a minute)",
        limits=(0, None),
        section="supervision",
    )
    stop_timeout_ns: int = option(
        30 * SECOND_NS,
        "how long the brokers may take to stop, and then the lookup daemon, before they are killed",
        limits=(1, None),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        taken: dict[int, str] = {}
        for flag, port in self._ports():
            if not 0 <= port <= _HIGHEST_PORT:
                raise OptionError(
                    f"{flag} would be port {port}, and the highest is {_HIGHEST_PORT}: begin lower,"
                    " or have fewer --workers"
                )
            if port and taken.setdefault(port, flag) != flag:
                raise OptionError(f"{flag} and {taken[port]} are both port {port}")

    @property
    def broadcast_name(self) -> str:
        """The name under which clients reach this machine."""
        host = host_of(self.tcp_address)
        return self.broadcast_address or (socket.gethostname() if host in EVERYWHERE else host)

    @property
    def metadata_address(self) -> str:
        """The metadata store of the replicas."""
        return self.metadata or f"sqlite:{Path(self.data_path) / 'replicas.db'}"

    def _ports(self) -> list[tuple[str, int]]:
        """List the ports to listen on, each with its flag."""
        ports = []
        if self.lookup:
            ports = [
                ("--lookup-tcp-address", port_of(self.lookup_tcp_address, "lookup-tcp-address")),
                ("--lookup-http-address", port_of(self.lookup_http_address, "lookup-http-address")),
            ]
        if self.admin:
            address = self.admin_http_address
            ports.append(("--admin-http-address", port_of(address, "admin-http-address")))
        names = ["tcp-address", "http-address", "https-address"]
        if self.replicas > 1:
            names.append("replica-address")
        for name in names:
            first = port_of(getattr(self, name.replace("-", "_")), name)
            ports += [
                (f"--{name} of {server}", first and first + step)
                for server, step in self.broker_names().items()
            ]
        return ports

    def broker_names(self) -> dict[str, int]:
        """The name of each process, and how much higher its ports are than those of the first."""
        return {
            self.broker_name(number, replica): PORT_STEP * number + REPLICA_PORT_STEP * replica
            for number in range(self.workers)
            for replica in range(self.replicas)
        }

    def broker_name(self, number: int, replica: int) -> str:
        """The name of a process: ``broker-0``, or ``broker-0.a`` where it has replicas."""
        return f"broker-{number}" + (f".{replica_name(replica)}" if self.replicas > 1 else "")


def replica_name(number: int) -> str:
    """The name of a replica: a, b, c."""
    return "abcdefghi"[number]


def host_of(address: str) -> str:
    """The host of ``host:port``, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str, flag: str) -> int:
    """The port of ``host:port``. Raises OptionError: it has none."""
    _, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise OptionError(f"--{flag}={address} must be <addr>:<port>")
    return int(port)
