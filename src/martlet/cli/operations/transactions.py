"""``martlet transactions``: list, show, commit or roll back transactions that have not ended.

The command calls each broker (see `martlet.schema.transactions`). A transaction is at one
broker; of several named brokers, those that do not know it are skipped.
"""

from __future__ import annotations

import logging
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from martlet.cli import tool
from martlet.cli.operation_flags import OperationOptions, with_flags_of
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import age, json_line, laid_out, local_time, printable
from martlet.client.admin import AdminError, TransactionAdmin
from martlet.client.admin.declared import ListedTransactions
from martlet.options.flag import OptionError, option
from martlet.schema import transactions as schema
from martlet.text import MILLISECOND_NS, counted

Fields = Mapping[str, Any]


@with_flags_of(list=schema.LIST, show=schema.SHOW, commit=schema.COMMIT, rollback=schema.ROLLBACK)
@dataclass(frozen=True, kw_only=True)
class TransactionToolOptions(OperationOptions):
    """The options of ``martlet transactions``."""

    id: tuple[str, ...] = option(
        (), "the transaction; may be given several times", section="what to do"
    )
    json: bool = option(False, "lines of JSON", section="output")

    def __post_init__(self) -> None:
        if self.action == "list" and self.id:
            raise OptionError("'list' takes no --id: 'show' is for one transaction")
        if self.action in self.operations and self.action != "list" and not self.id:
            raise OptionError(
                f"the transaction is missing: martlet transactions {self.action} ID, as 'list'"
                " shows it"
            )
        super().__post_init__()
        for one in self.id:
            self.request(schema.EndTransaction, id=one)

    def _values(self) -> dict[str, Any]:
        values = super()._values()
        return {**values, "id": self.id[0]} if self.id else values


_DONE = {"commit": "committed", "rollback": "rolled back"}


async def act(options: TransactionToolOptions) -> AsyncIterator[Fields | AdminError]:
    """Show or decide the named transactions; yield each broker's answer, or why there is none.

    A transaction is at one broker: those that do not know it are skipped, if another does.
    """
    method: Any = getattr(TransactionAdmin, options.action)
    kind = options.operations[options.action].request
    async with options.admin() as admin:
        for transaction_id in options.id:
            request = options.request(kind, id=transaction_id)
            answers = await tool.settled(method.run(admin.http, request))
            for url, answer in answers.values.items():
                yield {"broker": url, "id": transaction_id, **answer.fields}
            for error in answers.failures.values():
                yield error
            if not answers.values and not answers.failures:
                yield next(iter(answers.errors.values()))


def rows(transactions: Iterable[Fields], now_ms: int) -> list[str]:
    """Format transactions as text, a line each."""
    table = [("ID", "STATE", "GROUP", "AGE", "CHECKS", "MESSAGES", "TOPICS")]
    for transaction in transactions:
        topics = ", ".join(
            f"{name} {count}" for name, count in sorted(transaction["topics"].items())
        )
        table.append(
            (
                printable(transaction["id"]),
                transaction["state"],
                printable(transaction["group"]) or "-",
                _age(transaction, now_ms),
                str(transaction["checks"]),
                str(transaction["messages"]),
                topics,
            )
        )
    return laid_out(table, (3, 4, 5))


def shown(transaction: Fields, now_ms: int) -> list[str]:
    """Format a transaction with its messages as text."""
    lines = [f"{printable(transaction['id'])}  {transaction['state']}  at {transaction['broker']}"]
    if "messages" not in transaction:
        return [*lines, f"  ended at {local_time(transaction['ended_at_ms'])}"]
    checks = counted(transaction["checks"], "time")
    group = f"group {printable(transaction['group'])}" if transaction["group"] else "no group"
    lines.append(f"  {group}, begun {_age(transaction, now_ms)} ago, asked about {checks}")
    for message in transaction["messages"]:
        if "lost" in message:
            lines.append(f"  {message['topic']}: lost: {message['lost']}")
            continue
        notes = [f"tag {message['tag']}"] if "tag" in message else []
        notes += [f"keys {', '.join(message['keys'])}"] if "keys" in message else []
        notes += [f"order key {message['order_key']}"] if "order_key" in message else []
        notes += [f"{name}={value}" for name, value in message.get("headers", {}).items()]
        if "order_key_base64" in message:
            notes.append(f"order key, base64, {message['order_key_base64']}")
        coded = message.get("headers_base64", {})
        notes += [f"{name}, base64,={value}" for name, value in coded.items()]
        beside = f" ({printable('; '.join(notes))})" if notes else ""
        body, size = b64decode(message["body_base64"]), counted(message["body_bytes"], "byte")
        lines.append(f"  {message['topic']}{beside}: {size}: {_text(body)}")
    return lines


def _text(body: bytes) -> str:
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return repr(body)[2:-1]


def _age(transaction: Fields, now_ms: int) -> str:
    return age((now_ms - transaction["begun_at_ms"]) / 1000)


DESCRIPTION = (
    "List transactions that have not ended, show one with its messages, which no consumer sees yet,"
    " or decide it: commit makes them visible, rollback drops them. The action and the"
    " transaction may stand without their flags: martlet transactions commit ID. Those that are"
    " set-aside wait for that: no producer knew their outcome."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """List, show or decide transactions; return the exit code of the process."""
    options = tool.options(
        "transactions", DESCRIPTION, TransactionToolOptions, argv, "ACTION [ID]", ("action", "id")
    )
    failed: list[AdminError] = []

    async def list_all(output: StandardOutput) -> None:
        request = options.request(ListedTransactions)
        async with options.admin() as admin:
            answers = (await TransactionAdmin.list.run(admin.http, request)).check()
        listed = [
            {"broker": url, **one.fields} for url, some in answers.values.items() for one in some
        ]
        lines = list(map(json_line, listed)) if options.json else rows(listed, _now_ms())
        await output.print(lines)
        if not (lines or options.json):
            of = f" of group {request.group}" if request.group else ""
            log.info("no transaction%s is %s", of, request.state or "open or set aside")

    async def show_each(output: StandardOutput) -> None:
        async for answer in act(options):
            if isinstance(answer, AdminError):
                failed.append(answer)
                log.error("%s", answer)
            elif options.json:
                await output.print([json_line(answer)])
            elif options.action == "show":
                await output.print(shown(answer, _now_ms()))
            else:
                what = f"is {_DONE[options.action]} at {answer['broker']}"
                await output.print([f"{printable(answer['id'])} {what}"])

    async def run() -> None:
        await (list_all if options.action == "list" else show_each)(StandardOutput())

    code = tool.run_alone(run)
    return 1 if failed else code


def _now_ms() -> int:
    return time.time_ns() // MILLISECOND_NS
