"""``martlet replicas``: show and change the replicas of a broker, through their metadata store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from martlet.cli import tool
from martlet.cli.text import age, json_line, laid_out, printable
from martlet.options import LogOptions
from martlet.options.checks import require_action, require_names
from martlet.options.flag import OptionError, option
from martlet.options.replication import MetadataOptions
from martlet.replica.replica_set import (
    LOST_REPLICA_SET,
    BadReplicaSet,
    Presence,
    ReplicaSet,
    Seen,
    no_replica_set,
)
from martlet.server.metadata.address import BadStoreAddress, open_store
from martlet.server.metadata.store import MetadataStore, StoreUnreachable
from martlet.server.replication.operations import OperationRefused, Operations
from martlet.text import SECOND_NS, counted
from martlet.unreachable import reason

_CONNECT_S = 1.0
"""How long `show` waits for a replica to take a connection, in seconds."""
_ABSENT = "it is not running, still reads its log, or does not reach the metadata store"
_COUNTS = {
    "show": (0, 0),
    "create": (1, 15),
    "add": (1, 1),
    "remove": (1, 1),
    "hand-over": (0, 1),
    "force": (1, 1),
    "recreate": (1, 15),
    "set": (0, 0),
}
"""How many replicas each action takes."""
DESCRIPTION = """Show or change the replicas of a broker:
 show (their roles and lag); create NAME ... (make the replica set of running replicas, from the log
 of the first one); add NAME; remove NAME; hand-over [NAME] (make it the primary, without losing a
 message); set --copies=N --min-in-sync=N; force NAME --accept-loss (make it the primary though the
 others, which may have more, are gone); recreate NAME ... (after the metadata store was lost)."""


@dataclass(frozen=True, kw_only=True)
class ReplicasOptions(MetadataOptions, LogOptions):
    """The options of ``martlet replicas``."""

    replica_set: str = option(
        "", "the name of the replica set (default: the only one in the metadata store)"
    )
    action: str = option("show", f"one of {', '.join(_COUNTS)}", section="what to do")
    replicas: tuple[str, ...] = option(
        (), "the name of a replica; may be given several times", name="replica"
    )
    copies: int | None = option(
        None,
        "how many replicas must have a message, the primary included (default: more than half)",
        limits=(1, 15),
    )
    min_in_sync: int | None = option(
        None,
        "refuse messages while fewer replicas are in sync (default: as many as --copies)",
        limits=(1, 15),
    )
    accept_loss: bool = option(
        False, "with force: what the other replicas have beyond this one's log is lost"
    )
    timeout_ns: int = option(
        30 * SECOND_NS, "how long to wait for the replicas", limits=(SECOND_NS // 10, None)
    )
    json: bool = option(False, "a line of JSON", section="output")

    def __post_init__(self) -> None:
        LogOptions.__post_init__(self)
        require_action(self.action, tuple(_COUNTS))
        if not self.metadata:
            raise OptionError(
                "the metadata store is missing: give --metadata=etcd:HOST:2379,HOST:2379 or"
                " --metadata=sqlite:PATH, as the replicas have it"
            )
        if self.replica_set:
            require_names("replica-set", [self.replica_set])
        require_names("replica", self.replicas)
        min_count, max_count = _COUNTS[self.action]
        if not min_count <= len(self.replicas) <= max_count:
            expected = {0: "no replica", 1: "one replica"}.get(
                max_count, "the names of the replicas"
            )
            raise OptionError(f"{self.action} takes {expected}, not {len(self.replicas)}")
        if self.action == "set" and self.copies is None and self.min_in_sync is None:
            raise OptionError("set what: give --copies or --min-in-sync")
        if self.action == "force" and not self.accept_loss:
            raise OptionError(
                "force makes a replica the primary whatever its log lacks: see `martlet replicas"
                " show` for what the others have, and give --accept-loss"
            )


def main(argv: Sequence[str]) -> int:
    """Show or change replicas; return the exit code of the process."""
    flags, words = tool.split(ReplicasOptions, argv)
    named = [f"--action={words[0]}"] if words else []
    named += [f"--replica={word}" for word in words[1:]]
    options = tool.options(
        "replicas", DESCRIPTION, ReplicasOptions, [*flags, *named], "ACTION [NAME ...]"
    )
    return tool.run_alone(lambda: _run(options))


async def _run(options: ReplicasOptions) -> None:
    store = await _open(options)
    try:
        if options.replica_set and options.action != "create":
            await _require_set(store, options.replica_set)
        operations = Operations(store, options.timeout_ns / SECOND_NS)
        lines = await _do(options, operations)
    except OperationRefused as error:
        raise OSError(str(error)) from error
    finally:
        await store.close()
    await tool.show(lines)


async def _require_set(store: MetadataStore, name: str) -> None:
    """Name the replica sets that there are, where the one that is asked for is none of them, and no
    replica waits for it. Raises OSError.
    """
    try:
        names = await store.names()
        if names and name not in names and not (await store.read()).presences:
            raise OSError(f"there is no replica set {name}; there is {', '.join(names)}")
    except BadReplicaSet as error:
        raise OSError(f"the replica set {name} cannot be read: {error}") from error
    except StoreUnreachable as error:
        raise OSError(str(error)) from error


async def _open(options: ReplicasOptions) -> MetadataStore:
    """Open the store, for the named replica set or the only one. Raises OSError."""
    kind, _, path = options.metadata.partition(":")
    if kind == "sqlite" and not Path(path).exists():
        raise OSError(
            f"--metadata={options.metadata}: there is no such file: give the path that the replicas"
            " have, as `martlet up` prints it"
        )
    try:
        if options.replica_set:
            return open_store(options.metadata, options.replica_set)
        store = open_store(options.metadata, "martlet")
    except BadStoreAddress as error:
        raise OSError(f"--metadata={error}") from error
    try:
        names = await store.names()
    except StoreUnreachable as error:
        await store.close()
        raise OSError(str(error)) from error
    if names in ([], ["martlet"]):
        return store
    await store.close()
    if len(names) > 1:
        raise OSError(f"there are several replica sets, {', '.join(names)}: give --replica-set")
    return open_store(options.metadata, names[0])


async def _do(options: ReplicasOptions, operations: Operations) -> list[str]:
    """Do what is asked; return the lines of the result. Raises OperationRefused."""
    names = options.replicas
    if options.action == "show":
        seen = await operations.read()
        silent = await unreachable(seen)
        if options.json:
            return [json_line(_fields(seen, silent))]
        return show_lines(seen, silent, time.time())
    before = (await operations.read()).replica_set
    if options.action == "create":
        replica_set = await operations.create(
            names, copies=options.copies, min_in_sync=options.min_in_sync
        )
        done = f"made the replica set of {', '.join(names)}"
    elif options.action == "add":
        replica_set = await operations.add(names[0])
        done = f"added {names[0]}: it comes into sync once it has copied the log"
    elif options.action == "remove":
        replica_set = await operations.remove(names[0])
        done = f"removed {names[0]}: stop its process, and delete its data folder"
    elif options.action == "hand-over":
        replica_set = await operations.hand_over(*names)
        done = f"{replica_set.primary} is the primary"
    elif options.action == "force":
        replica_set = await operations.force(names[0])
        done = f"{names[0]} becomes the primary"
        if before is not None and before.min_in_sync > replica_set.min_in_sync:
            done += (
                ", and takes messages alone: once others are in sync, give `martlet replicas set"
                f" --min-in-sync={before.min_in_sync}`"
            )
    elif options.action == "recreate":
        replica_set = await operations.recreate(names, min_in_sync=options.min_in_sync)
        await operations.until_primary(replica_set)
        done = f"made the replica set of {', '.join(names)} anew, and it has a primary"
    else:
        replica_set = await operations.set(copies=options.copies, min_in_sync=options.min_in_sync)
        done = "set"
    if options.json:
        return [json_line(_fields(Seen(replica_set, 0, {}), {}))]
    return changed_lines(done, before, replica_set)


def changed_lines(done: str, before: ReplicaSet | None, after: ReplicaSet) -> list[str]:
    """Say what was done to a replica set, and what it has changed in how many replicas count."""
    was = before or after

    def moved(old: int, new: int) -> str:
        return str(new) if old == new else f"{old} -> {new}"

    count = len(after.replicas)
    replicas = "replica" if count == 1 else "replicas"
    copies = "copy" if after.wanted_copies == 1 else "copies"
    lines = [
        f"{done}; {moved(len(was.replicas), count)} {replicas},"
        f" {moved(was.wanted_copies, after.wanted_copies)} {copies},"
        f" at least {moved(was.min_in_sync, after.min_in_sync)} in sync"
    ]
    (alone,) = after.in_sync if len(after.in_sync) == 1 else ("",)
    spare = len(after.in_sync) - after.min_in_sync
    if spare < 0:
        lines.append(
            f"warning: messages are refused until {after.min_in_sync} replicas are in sync, now it"
            f" is {', '.join(sorted(after.in_sync)) or 'none'}"
        )
    elif after.min_in_sync == count > 1:
        lines.append(
            "warning: the loss of any one replica makes the broker refuse messages: add one, or"
            f" `martlet replicas set --min-in-sync={count - 1}`"
        )
    elif count == 1:
        lines.append(
            f"warning: {alone} is the only replica: its loss stops the broker, and may lose"
            " messages; add another one with `martlet replicas add`"
        )
    elif alone:
        lines.append(
            f"warning: {alone} alone is in sync: until another one is, its loss stops the broker,"
            " and may lose messages"
        )
    elif spare == 0:
        lines.append(
            f"warning: until another replica than {', '.join(sorted(after.in_sync))} is in sync,"
            " the loss of one of them makes the broker refuse messages"
        )
    return lines


async def unreachable(seen: Seen) -> dict[str, str]:
    """Connect to each replica that says that it runs. Returns why that failed, by name: a killed
    replica's presence lasts for 3 s.
    """
    addresses = {
        name: presence.address
        for name, presence in seen.presences.items()
        if presence.address and presence.broker  # It does not listen before it knows its broker.
    }
    reasons = await asyncio.gather(*map(_why_unreachable, addresses.values()))
    return {name: why for name, why in zip(addresses, reasons, strict=True) if why}


async def _why_unreachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"{address} does not answer this machine within {_CONNECT_S:g} s"
    except ConnectionRefusedError:
        return f"nothing listens at {address}: it is just starting, or has just ended"
    except OSError as error:
        return f"{address} is not reachable from this machine: {reason(error)}"
    writer.close()
    return ""


def _fields(seen: Seen, silent: Mapping[str, str]) -> dict[str, object]:
    replica_set = seen.replica_set
    return {
        "broker_id": replica_set.broker if replica_set else None,
        "epoch": replica_set.epoch if replica_set else None,
        "primary": replica_set.primary if replica_set else None,
        "wanted_copies": replica_set.wanted_copies if replica_set else None,
        "min_in_sync": replica_set.min_in_sync if replica_set else None,
        "replicas": [
            {
                "replica": name,
                "address": replica_set.replicas.get(name, "") if replica_set else "",
                "is_member": replica_set is not None and name in replica_set.replicas,
                "is_in_sync": replica_set is not None and name in replica_set.in_sync,
                "is_running": name in seen.presences and name not in silent,
                **(
                    {
                        "role": presence.role,
                        "epoch": presence.epoch,
                        "is_whole": presence.is_whole,
                        "end_position": presence.end_position,
                        "confirmed_position": presence.confirmed_position,
                        "tcp_address": presence.tcp_address,
                        "http_address": presence.http_address,
                        "problem": silent.get(name) or presence.problem,
                    }
                    if (presence := seen.presences.get(name)) is not None
                    else {}
                ),
            }
            for name in _names(seen)
        ],
    }


def _names(seen: Seen) -> list[str]:
    members = seen.replica_set.replicas if seen.replica_set is not None else {}
    return sorted({*members, *seen.presences})


def show_lines(seen: Seen, silent: Mapping[str, str], now_s: float) -> list[str]:
    """Format a replica set as text."""
    replica_set = seen.replica_set
    head = _head(seen, silent, now_s)
    rows: list[tuple[str, ...]] = [
        ("REPLICA", "ROLE", "IN SYNC", "EPOCH", "LAG", "ADDRESS", "PROBLEM")
    ]
    primary = seen.presences.get(replica_set.primary or "") if replica_set is not None else None
    for name in _names(seen):
        presence = seen.presences.get(name)
        is_member = replica_set is not None and name in replica_set.replicas
        address = replica_set.replicas[name] if replica_set is not None and is_member else ""
        is_in_sync = "yes" if replica_set is not None and name in replica_set.in_sync else "no"
        if is_in_sync == "yes" and (presence is None or name in silent):
            is_in_sync = "not reachable"
        if presence is None:
            rows.append((name, "-", is_in_sync, "-", "-", address, _ABSENT))
            continue
        lag = "-"
        if primary is not None and presence.role == "standby":
            lag = f"{max(0, primary.end_position - presence.end_position)} B"
        problem = silent.get(name) or presence.problem or _hindrance(replica_set, name, presence)
        rows.append(
            (
                *(name, presence.role, is_in_sync, str(presence.epoch), lag),
                *(address or presence.address, "" if problem == head else printable(problem)),
            )
        )
    return [head, "", *laid_out(rows, (3, 4))]


def _hindrance(replica_set: ReplicaSet | None, name: str, presence: Presence) -> str:
    """Say why a replica that sees no problem does not count; empty where it counts."""
    if replica_set is None:
        return ""
    if name not in replica_set.replicas:
        return "it is not in the replica set"
    if name in replica_set.leaving:
        return (
            f"its removal was begun: finish it with `martlet replicas remove {name}`, or keep it"
            f" with `martlet replicas add {name}`"
        )
    if not presence.is_whole:
        return "it catches up"
    if name in replica_set.in_sync:
        return ""
    return "the primary does not hear from it, or waits until it has the whole log"


def _head(seen: Seen, silent: Mapping[str, str], now_s: float) -> str:
    replica_set = seen.replica_set
    if replica_set is None:
        if any(presence.epoch for presence in seen.presences.values()):
            return LOST_REPLICA_SET
        return no_replica_set(seen.presences)
    primary = seen.presences.get(replica_set.primary or "")
    running = replica_set.in_sync & seen.presences.keys() - silent.keys()
    if primary is None or primary.role != "primary" or replica_set.primary in silent:
        return (
            f"broker {replica_set.broker}: no primary in epoch {replica_set.epoch};"
            f" {len(running)} of {len(replica_set.in_sync)} replicas that were in sync are running,"
            f" and {replica_set.quorum.answers_needed} are needed to elect one"
        )
    lost = sorted(replica_set.in_sync - running)
    but = f" ({', '.join(lost)} not reachable)" if lost else ""
    since = f" for {age(now_s - primary.began_s)}" if primary.began_s else ""
    return (
        f"broker {replica_set.broker}: {replica_set.primary or 'no replica'} is primary of epoch"
        f" {replica_set.epoch}{since}; {len(replica_set.in_sync)} of {len(replica_set.replicas)} in"
        f" sync{but}, {counted(replica_set.wanted_copies, 'copy', 'copies')} of each message,"
        f" at least {replica_set.min_in_sync} in sync"
    )
