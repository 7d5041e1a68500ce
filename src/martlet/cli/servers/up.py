"""``martlet up``: the brokers, the lookup daemon and the admin page of one machine, in one command.

Exit codes: 0 after a clean stop, 2 when the command line or a config file is wrong, 1 when a server
cannot start or does not stay up, with the reason as the last log line.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from martlet.cli import start, tool
from martlet.cli.servers import admin, broker, lookup, service
from martlet.options import BrokerOptions, LookupOptions, OptionError
from martlet.options.admin import AdminOptions
from martlet.private_files import make_private_folder
from martlet.replica.note import NAME as REPLICA_NOTE
from martlet.server.data_folder import refusal
from martlet.server.observability.log_stream import replace_standard_streams
from martlet.server.replication.trust import make_secret
from martlet.supervisor.child import Child
from martlet.supervisor.options import UpOptions
from martlet.supervisor.plan import Planned, ServerPlan, plan
from martlet.supervisor.supervisor import Supervisor
from martlet.text import how_to_install

DESCRIPTION = (
    "Run brokers, a lookup daemon and the admin page on this machine, restart any that die, and"
    " stop all with one Ctrl-C. What follows -- are flags for every broker:"
    " martlet up --workers=2 --data-path=data -- --max-msg-size=4MiB"
)
_OURS = (
    *("data-path", "tcp-address", "http-address", "https-address", "broadcast-address"),
    *("metadata", "replica-name", "replica-address", "replica-set", "initial-replicas"),
)
"""The flags of a broker that this command sets, and that must not follow ``--``."""

SECRET = "replica-secret"
"""The file in the data folder by whose secret replicas know each other."""

_log = logging.getLogger(start.ROOT)


def main(argv: Sequence[str]) -> int:
    """Run the servers; return the exit code of the process."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    options = tool.options("up", DESCRIPTION, UpOptions, argv[:at], "[-- --FLAG=VALUE ...]")
    replace_standard_streams()
    if options.admin and find_spec("jinja2") is None:
        _log.warning("the admin page is not started: %s", how_to_install("admin"))
        options = options.replace(admin=False)
    try:
        secret = _replica_secret(options, argv[at + 1 :])
        added = [f"--replica-secret-file={secret}"] if secret else []
        servers = plan(options, (*added, *argv[at + 1 :]))
        _check(servers, argv[at + 1 :])
        _check_replicas(options, servers)
        for server in servers.brokers:
            _make(server.folder)
        if secret:
            make_secret(secret)
    except (OptionError, OSError) as error:
        _log.critical("%s", error)
        return start.WRONG if isinstance(error, OptionError) else 1
    for folder in _not_served(Path(options.data_path), servers):
        _log.warning("%s holds messages of a broker that is not started: see --workers", folder)
    with tempfile.TemporaryDirectory(prefix="martlet-up-") as sockets:
        supervisor = _supervisor(options, servers, Path(sockets))
        code = tool.run(supervisor.run, supervisor.stop)
    if code == 0:
        _log.info("bye")
    return code


def _replica_secret(options: UpOptions, added: Sequence[str]) -> Path | None:
    """Return the file of the secret of the replicas, which keeps other users of this machine from
    their ports; None where they need none, or have their own or certificates.

    Raises OptionError: the flags or the config file of the brokers are wrong.
    """
    if options.replicas == 1:
        return None
    config = [f"--config={options.broker_config}"] if options.broker_config else []
    values, _ = broker.arguments().read([*config, *added])
    if values.get("replica_secret_file") or values.get("replica_tls_cert"):
        return None
    return Path(options.data_path) / SECRET


def _make(folder: Path) -> None:
    try:
        make_private_folder(folder.parent)
        make_private_folder(folder)
    except OSError as error:
        raise refusal(folder, error) from error


def _supervisor(options: UpOptions, servers: ServerPlan, sockets: Path) -> Supervisor:
    width = max(len(server.name) for server in servers.servers)
    start.set_up_logging(options.log_level, f"{'up':<{width}} | {options.log_prefix}")

    def show(name: str, line: bytes) -> None:
        # Where the log is not read, the servers must not wait for that.
        sys.stderr.write(f"{name:<{width}} | {line.decode(errors='backslashreplace')}\n")

    def child(server: Planned) -> Child:
        command = [sys.executable, "-m", "martlet.cli.servers.supervised", str(os.getpid())]
        arguments = [*command, *server.arguments]
        return Child(
            server.name, arguments, show, sockets, options.max_restarts, server.flag_prefix
        )

    return Supervisor(
        [list(map(child, group)) for group in (servers.lookup, servers.brokers, servers.admin)],
        options.stop_timeout_ns / 1e9,
        lambda: _print_ready(options, servers),
        lambda: service.notify(service.STOPPING),
    )


def _print_ready(options: UpOptions, servers: ServerPlan) -> None:
    rows = [["", "TCP", "HTTP", "data"]]
    for server in servers.servers:
        folder = str(server.folder) if server in servers.brokers else ""
        rows.append([server.name, server.tcp_address, server.http_address, folder])
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lines = []
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    lines += [f"the admin page is at http://{server.http_address}/" for server in servers.admin]
    if options.replicas > 1:
        lines.append(f"martlet replicas show --metadata={options.metadata_address}")
    print(*lines, "ready; Ctrl-C stops all", sep="\n", flush=True)
    service.notify(service.READY)


def _check(servers: ServerPlan, added: Sequence[str]) -> None:
    """Check the servers' arguments before any is started. Raises OptionError: they are invalid."""
    if any(word.startswith("-") and _name_of(word) == "config" for word in added):
        raise OptionError("--config after --: name the brokers' config file with --broker-config")
    values, _ = broker.arguments().read(added)
    for name in _OURS:
        if BrokerOptions.flags()[name].field in values:
            raise OptionError(f"--{name} after -- is a flag of martlet up: put it before the --")
    for server in servers.brokers:
        values, _ = broker.arguments().read(server.arguments[1:])
        BrokerOptions(**values)
    command = start.arguments("lookup", lookup.DESCRIPTION, LookupOptions)
    for server in servers.lookup:
        values, _ = command.read(server.arguments[1:])
        LookupOptions(**values)
    command = start.arguments("admin", admin.DESCRIPTION, AdminOptions)
    for server in servers.admin:
        values, _ = command.read(server.arguments[1:])
        AdminOptions(**values)


def _check_replicas(options: UpOptions, servers: ServerPlan) -> None:
    """Check that no broker with replicas is started without them. Raises OptionError."""
    for server in servers.brokers:
        if options.replicas == 1 and (server.folder / REPLICA_NOTE).exists():
            others = len(list(server.folder.parent.glob(f"{server.folder.name}.?")))
            raise OptionError(
                f"{server.folder} is a replica of a broker: give --replicas={others + 1}, as when"
                " it was started last"
            )


def _name_of(argument: str) -> str:
    return argument.lstrip("-").partition("=")[0]


def _not_served(folder: Path, servers: ServerPlan) -> list[Path]:
    """Return folders with the log of a broker that is not started."""
    served = {server.folder for server in servers.brokers}
    folders = [folder, *sorted(folder.glob("broker-*"))]
    return [folder for folder in folders if folder not in served and (folder / "log").is_dir()]
