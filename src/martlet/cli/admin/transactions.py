"""``martlet transactions``: those that have not ended, listed, shown, committed or rolled back.

Each broker is asked by calls (see `martlet.server.rpc.transactions`).  A transaction is at one
broker; where several are named, those that do not know it are passed over.
"""

from __future__ import annotations

import json
import logging
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpClients, DoorOptions, NoHttpAnswer
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import laid_out, printable
from martlet.options.flag import OptionError, Size, option
from martlet.plural import counted

ACTIONS = ("list", "show", "commit", "rollback")
_STATES = ("open", "silent", "prepared", "in-doubt", "set-aside")


@dataclass(frozen=True, kw_only=True)
class TransactionToolOptions(DoorOptions):
    """What ``martlet transactions`` is started with.

    Raises:
        OptionError: there is no such action or state, or it is not said which transaction.
    """

    action: str = option("", f"one of {', '.join(ACTIONS)}", section="what to do")
    ids: tuple[str, ...] = option((), "the transaction; may be given several times", name="id")
    state: str = option(
        "", f"list only those in this state: {', '.join(_STATES)}", section="which of them"
    )
    group: str = option("", "list only those of this group")
    limit: int = option(
        100,
        "list so many transactions, or show so many messages, of each broker",
        limits=(1, 1000),
        section="output",
    )
    max_body_bytes: Size = option(1024, "show no more of a body", limits=(0, 8 << 20))
    json: bool = option(False, "lines of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        if self.state and self.state not in _STATES:
            raise OptionError(f"--state is {self.state!r}; it must be one of {', '.join(_STATES)}")
        if self.action == "list" and self.ids:
            raise OptionError("'list' takes no --id: 'show' tells of one transaction")
        if self.action != "list" and not self.ids:
            raise OptionError(
                f"which transaction? martlet transactions {self.action} ID, as 'list' tells it"
            )


Fields = dict[str, Any]
_NOT_THERE = 404
_DONE = {"commit": "committed", "rollback": "rolled back"}


class TransactionTool:
    """Does what the flags say.

    Args:
        options: as the flags give them.
    """

    def __init__(self, options: TransactionToolOptions) -> None:
        self._options = options

    async def found(self) -> list[Fields]:
        """The transactions of all brokers, with ``broker`` in each. Raises NoHttpAnswer."""
        options = self._options
        wanted = {"state": options.state, "group": options.group}
        fields = {name: value for name, value in wanted.items() if value}
        found: list[Fields] = []
        async with BrokerHttpClients(options) as doors:
            for url in await doors.brokers(""):
                told = await doors.call(url, "transaction.list", {**fields, "limit": options.limit})
                found += [{"broker": url} | each for each in told["transactions"]]
        return found

    async def act(self) -> AsyncIterator[Fields | NoHttpAnswer]:
        """What each broker tells of each transaction that is named, or that none knows it."""
        options = self._options
        fields: Fields = {}
        if options.action == "show":
            fields = {"limit": options.limit, "max_body_bytes": options.max_body_bytes}
        async with BrokerHttpClients(options) as doors:
            urls = await doors.brokers("")
            for id in options.ids:
                missing: list[NoHttpAnswer] = []
                for url in urls:
                    try:
                        told = await doors.call(
                            url, f"transaction.{options.action}", {"id": id, **fields}
                        )
                        yield {"broker": url, "id": id} | told
                    except NoHttpAnswer as error:
                        if error.status == _NOT_THERE:
                            missing.append(error)
                        else:
                            yield error
                if len(missing) == len(urls):
                    yield missing[0]


def rows(transactions: Iterable[Fields], now: datetime) -> list[str]:
    """Transactions for people, a line each."""
    table = [("ID", "STATE", "GROUP", "AGE", "CHECKS", "MESSAGES", "TOPICS")]
    for told in transactions:
        topics = ", ".join(f"{name} {count}" for name, count in sorted(told["topics"].items()))
        table.append(
            (
                printable(told["id"]),
                told["state"],
                printable(told["group"]) or "-",
                _age(told, now),
                str(told["checks"]),
                str(told["messages"]),
                topics,
            )
        )
    return laid_out(table, (3, 4, 5))


def shown(told: Fields, now: datetime) -> list[str]:
    """One transaction for people, with its messages."""
    lines = [f"{printable(told['id'])}  {told['state']}  at {told['broker']}"]
    if "messages" not in told:
        ended = datetime.fromtimestamp(told["ended_at_ms"] / 1000, UTC).astimezone()
        return [*lines, f"  ended at {ended.isoformat(timespec='seconds')}"]
    checks = counted(told["checks"], "time")
    group = f"group {printable(told['group'])}" if told["group"] else "no group"
    lines.append(f"  {group}, begun {_age(told, now)} ago, asked about {checks}")
    for message in told["messages"]:
        if "lost" in message:
            lines.append(f"  {message['topic']}: lost: {message['lost']}")
            continue
        notes = [f"tag {message['tag']}"] if "tag" in message else []
        notes += [f"keys {', '.join(message['keys'])}"] if "keys" in message else []
        notes += [f"order key {message['order_key']}"] if "order_key" in message else []
        notes += [f"{name}={value}" for name, value in message.get("headers", {}).items()]
        beside = f" ({printable('; '.join(notes))})" if notes else ""
        body, size = b64decode(message["body_base64"]), counted(message["body_bytes"], "byte")
        lines.append(f"  {message['topic']}{beside}: {size}: {_text(body)}")
    return lines


def done(action: str, told: Fields) -> str:
    """What became of one that was decided."""
    return f"{printable(told['id'])} is {_DONE[action]} at {told['broker']}"


def line(told: Fields) -> str:
    """As a line of JSON."""
    return json.dumps(told, ensure_ascii=False)


def _text(body: bytes) -> str:
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return repr(body)[2:-1]


def _age(told: Fields, now: datetime) -> str:
    seconds = max(0, int(now.timestamp() - told["begun_at_ms"] / 1000))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


DESCRIPTION = (
    "List transactions that have not ended, show one with its messages, which nobody has seen yet,"
    " or decide it: commit has everybody see them, rollback nobody ever. What to do and the"
    " transaction may stand without their flags: martlet transactions commit ID. Those that are"
    " set-aside wait for that: no producer could tell what is to become of them."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Do it; the result is the exit code of the process."""
    found = tool.named(TransactionToolOptions, argv, "action", "id")
    options = tool.options(
        "transactions", DESCRIPTION, TransactionToolOptions, found, "ACTION [ID]"
    )
    work = TransactionTool(options)
    failed: list[NoHttpAnswer] = []

    async def list_all(output: StandardOutput) -> None:
        transactions = await work.found()
        now = datetime.now(UTC)
        lines = [line(t) for t in transactions] if options.json else rows(transactions, now)
        if lines:
            await output.show([f"{each}\n".encode() for each in lines])
        elif not options.json:
            log.info("there are no such transactions")

    async def act(output: StandardOutput) -> None:
        async for told in work.act():
            if isinstance(told, NoHttpAnswer):
                failed.append(told)
                log.error("%s", told)
            elif options.json:
                await output.show([f"{line(told)}\n".encode()])
            elif options.action == "show":
                lines = shown(told, datetime.now(UTC))
                await output.show([f"{each}\n".encode() for each in lines])
            else:
                await tool.show([done(options.action, told)])

    async def run() -> None:
        output = StandardOutput(sys.stdout.fileno())
        await (list_all(output) if options.action == "list" else act(output))

    code = tool.run_alone(run)
    return 1 if failed else code
