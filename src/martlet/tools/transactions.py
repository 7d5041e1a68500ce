"""Transactions that have not ended, as an operator sees them and decides about them.

Each broker is asked by calls (see `martlet.server.rpc.transactions`).  A transaction is at one
broker; where several are named, those that do not know it are passed over.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any

from martlet.options.transaction_tool import TransactionToolOptions
from martlet.plural import counted
from martlet.tools.columns import laid_out, printable
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer

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
