"""The drill: a cluster under load, of which each host in turn is killed, cut off, and stopped.

::

    python -m tests.cluster.drill                  # prints the table; about four minutes
    python -m tests.cluster.drill --deeds=kill --json

What was answered OK must be handled; what the clients know is in their ledgers.  For each deed the
table shows how long the host was away (until it answered, for a server that was killed); how long
after its return it was in use again (a broker: by every consumer; a lookup daemon: by every broker;
a client: at all, its start included); the longest time in which nobody handled anything, or had
anything answered; and how late the latest message was handled that was answered meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.cluster.client import CHANNEL, TOPIC
from tests.cluster.hosts import Host, Network, enter, until
from tests.ledger import Ledger

TCP, HTTP, LOOKUP_TCP, LOOKUP_HTTP = 4150, 4151, 4160, 4161
CALM_S = 0.5
"""How long all is left alone before and after each deed."""
PYTHON = (sys.executable, "-m")
ROLES = ("broker", "lookup", "consumer", "producer")


@dataclass(frozen=True)
class Deed:
    """An action on a host, and its effects."""

    host: str
    deed: str
    away_ms: int
    again_ms: int
    """From its return until it was in use again."""
    handled_gap_ms: int
    answered_gap_ms: int
    latest_ms: int
    """From OK to the handling of the message that was handled last, of those answered then."""


class Drill:
    """The cluster and the actions on it.

    Args:
        network: makes the hosts.
        folder: for data, logs and ledgers.
        counts: how many there are of each role.
        poll_s: how often consumers ask lookup daemons.
    """

    def __init__(
        self, network: Network, folder: Path, counts: dict[str, int], poll_s: float
    ) -> None:
        self._folder = folder
        self._network = network
        self._poll_s = poll_s
        self._away: list[Host] = []
        self._by_role = {
            role: [network.make(f"{role}-{number + 1}") for number in range(count)]
            for role, count in counts.items()
        }

    def begin(self) -> None:
        """Start all hosts, and wait until messages go through all of them."""
        self._start_lookups()
        self._start_brokers()
        addresses = [f"{host.address}:{LOOKUP_HTTP}" for host in self._by_role["lookup"]]
        self._start_clients(addresses)
        for host in self._network.hosts:
            until(self._in_use(host), host.name)

    def _start_lookups(self) -> None:
        for host in self._by_role["lookup"]:
            host.run(
                *(*PYTHON, "martlet.cli.main", "lookup", "--log-level=warn"),
                f"--tcp-address={host.address}:{LOOKUP_TCP}",
                f"--http-address={host.address}:{LOOKUP_HTTP}",
                f"--broadcast-address={host.address}",
            )

    def _start_brokers(self) -> None:
        brokers = self._by_role["broker"]
        for host in brokers:
            (self._folder / host.name).mkdir()
            host.run(
                *(*PYTHON, "martlet.cli.main", "broker", "--log-level=warn"),
                f"--tcp-address={host.address}:{TCP}",
                f"--http-address={host.address}:{HTTP}",
                f"--broadcast-address={host.address}",
                f"--data-path={self._folder / host.name}",
                "--msg-timeout=5s",
                *self._lookup_flags(),
            )
        for host in brokers:
            until(lambda: get(f"http://{self._http_address(host)}/ping"), host.name)  # noqa: B023

    def _lookup_flags(self) -> list[str]:
        return [
            f"--lookupd-tcp-address={host.address}:{LOOKUP_TCP}" for host in self._by_role["lookup"]
        ]

    def _start_clients(self, addresses: Sequence[str]) -> None:
        """Start producers and consumers, which find brokers at these addresses."""
        for role, verb in (("producer", "produce"), ("consumer", "consume")):
            for host in self._by_role[role]:
                settings = [host.name, str(self._ledger(host).path), str(self._poll_s), *addresses]
                host.run(*PYTHON, "tests.cluster.client", verb, *settings)

    def leave(self, names: Sequence[str]) -> None:
        """Have hosts be of no use to others until all come back."""
        self._away = [host for host in self._network.hosts if host.name in names]
        for host in self._away:
            host.leave()

    def come_back(self) -> None:
        """Have them be of use again."""
        for host in self._away:
            host.come_back()
        self._away = []

    def do(self, deed: str, host: Host, away_s: float) -> Deed:
        """Do it, undo it after a while, and wait until the host is in use again."""
        time.sleep(CALM_S)
        do, undo = self._deed(deed, host)
        began_ns = time.time_ns()
        do()
        time.sleep(away_s)
        in_use = self._in_use(host)
        undo()
        if (address := self._http_address(host)) and deed in ("kill", "term"):
            until(lambda: get(f"http://{address}/ping"), host.name)
        back_ns = time.time_ns()
        until(in_use, f"{host.name} after {deed}")
        again_ns = time.time_ns()
        time.sleep(CALM_S)
        handled, answered = self._read("consumer"), self._read("producer")
        first = _first(handled)
        meanwhile = [(at, body) for at, body in answered if began_ns <= at <= back_ns]
        return Deed(
            host.name,
            deed,
            away_ms=(back_ns - began_ns) // 1_000_000,
            again_ms=(again_ns - back_ns) // 1_000_000,
            handled_gap_ms=gap_ms(handled, began_ns, again_ns),
            answered_gap_ms=gap_ms(answered, began_ns, again_ns),
            latest_ms=max((first.get(b, time.time_ns()) - at for at, b in meanwhile), default=0)
            // 1_000_000,
        )

    def _deed(self, deed: str, host: Host) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return what does a deed to a host, and what undoes it."""
        return {
            "kill": (host.kill, host.run_again),
            "cut": (host.leave, host.come_back),
            "stop": (host.stop, host.go_on),
            "term": (host.end, host.run_again),
        }[deed]

    def finish(self) -> dict[str, int]:
        """End the load, let all be handled, and count."""
        for host in self._by_role["producer"]:
            assert host.end() == 0, host.name
        answered = {body for _, body in self._read("producer")}
        missing = set(answered)

        def all_is_handled() -> bool:
            missing.difference_update(body for _, body in self._read("consumer"))
            return not missing

        try:
            until(all_is_handled, "what was answered")
        except TimeoutError:
            print("lost:", *sorted(missing)[:10], file=sys.stderr)
        times = Counter(body for _, body in self._read("consumer"))
        again = sum(1 for count in times.values() if count > 1)
        return {"answered": len(answered), "lost": len(missing), "handled_again": again}

    @staticmethod
    def _http_address(host: Host) -> str:
        """Where a server answers HTTP."""
        port = {"broker": HTTP, "lookup": LOOKUP_HTTP}.get(host.name.partition("-")[0])
        return f"{host.address}:{port}" if port else ""

    def _in_use(self, host: Host) -> Callable[[], object]:
        role = host.name.partition("-")[0]
        if role == "broker":
            consumers = self._here("consumer")
            url = f"http://{self._http_address(host)}/stats?format=json&topic={TOPIC}&channel={CHANNEL}"
            return lambda: _consumers(get(url)) >= consumers
        if role == "lookup":
            brokers = self._here("broker")
            url = f"http://{self._http_address(host)}/lookup?topic={TOPIC}"
            return lambda: len(json.loads(get(url))["producers"]) >= brokers
        ledger = self._ledger(host)
        count = len(ledger.lines())
        return lambda: len(ledger.lines()) > count

    def _here(self, role: str) -> int:
        return sum(host not in self._away for host in self._by_role[role])

    def _ledger(self, host: Host) -> Ledger:
        return Ledger(self._folder / f"{host.name}.ledger")

    def _read(self, role: str) -> list[tuple[int, bytes]]:
        """All lines of a role's ledgers."""
        return [
            (int(at), body)
            for host in self._by_role[role]
            for at, _, body in (line.partition(b" ") for line in self._ledger(host).lines())
        ]


def get(url: str) -> bytes:
    """Return the answer to a GET. Raises OSError."""
    with urllib.request.urlopen(url, timeout=1) as answer:
        body: bytes = answer.read()
    return body


def _consumers(stats: bytes) -> int:
    for topic in json.loads(stats)["topics"] or ():
        for channel in topic["channels"] or ():
            return len(channel["clients"])
    return 0


def _first(lines: list[tuple[int, bytes]]) -> dict[bytes, int]:
    first_at: dict[bytes, int] = {}
    for at, body in sorted(lines):
        first_at.setdefault(body, at)
    return first_at


def gap_ms(lines: list[tuple[int, bytes]], began_ns: int, ended_ns: int) -> int:
    """Return the longest time without a line of a ledger, in milliseconds."""
    times = [began_ns, *sorted(at for at, _ in lines if began_ns < at < ended_ns), ended_ns]
    return max(after - before for before, after in pairwise(times)) // 1_000_000


def run(arguments: argparse.Namespace, *, namespaces: bool, folder: Path) -> dict[str, Any]:
    """The whole drill; what came of it."""
    network = Network(folder, namespaces=namespaces)
    try:
        counts = {role: getattr(arguments, f"{role}s") for role in ROLES}
        drill = Drill(network, folder, counts, arguments.poll_s)
        drill.begin()
        drill.leave(arguments.without.split(","))
        deeds = [
            drill.do(deed, host, arguments.away_s)
            for deed in arguments.deeds.split(",")
            for host in network.hosts
            if (deed != "cut" or host.can_be_cut)
            and host.name.startswith(tuple(arguments.hosts.split(",")))
        ]
        drill.come_back()
        return {
            "network": "namespaces" if namespaces else "loopback",
            "poll_s": arguments.poll_s,
            "deeds": [asdict(deed) for deed in deeds],
            **drill.finish(),
        }
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(encoding='utf-8')[-2000:]}", file=sys.stderr)
        raise
    finally:
        network.close()


def table(outcome: dict[str, Any]) -> str:
    """The table for people."""
    lines = [
        "| host | deed | away | in use again | nobody handled | nobody was answered | latest |",
        "|---|---|---|---|---|---|---|",
    ]
    for deed in outcome["deeds"]:
        times = [f"{deed[f'{name}_ms']:,} ms" for name in _TIMES]
        lines.append(" | ".join([f"| {deed['host']}", deed["deed"], *times]) + " |")
    lines.append(
        f"\n{outcome['answered']:,} messages answered OK, {outcome['lost']} lost,"
        f" {outcome['handled_again']:,} handled more than once; hosts are {outcome['network']},"
        f" consumers ask every {outcome['poll_s']:g} s"
    )
    return "\n".join(lines)


_TIMES = ("away", "again", "handled_gap", "answered_gap", "latest")


def main() -> int:
    """Run the drill as the arguments say, in a network of its own if it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for role, count in zip(ROLES, (3, 2, 4, 2), strict=True):
        parser.add_argument(f"--{role}s", type=int, default=count, metavar="N")
    parser.add_argument("--deeds", default="kill,cut,stop", help="(default: %(default)s)")
    parser.add_argument("--hosts", default=",".join(ROLES), help="whose names begin with these")
    parser.add_argument("--without", default="", metavar="HOSTS", help="away during all deeds")
    parser.add_argument("--away-s", type=float, default=4.0, help="(default: %(default)s)")
    parser.add_argument("--poll-s", type=float, default=3.0, help="(default: %(default)s)")
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    namespaces = not arguments.loopback and enter()
    with tempfile.TemporaryDirectory(prefix="martlet-drill-") as folder:
        outcome = run(arguments, namespaces=namespaces, folder=Path(folder))
    print(json.dumps(outcome) if arguments.json else table(outcome))
    return 1 if outcome["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
