"""``martlet transactions``: list, show, commit or roll back transactions that have not ended.

The command calls each broker (see `martlet.server.rpc.transactions`). A transaction is at one
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
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import age, json_line, laid_out, local_time, printable
from martlet.client.admin import Admin, AdminError, Answers, Described
from martlet.durations import MILLISECOND_NS
from martlet.options.checks import require_action
from martlet.options.flag import OptionError, Size, option
from martlet.plural import counted

Fields = Mapping[str, Any]
ACTIONS = ("list", "show", "commit", "rollback")
_STATES = ("open", "silent", "prepared", "in-doubt", "set-aside")


@dataclass(frozen=True, kw_only=True)
class TransactionToolOptions(BrokerHttpOptions):
    """The options of ``martlet transactions``."""

    action: str = option("", f"one of {', '.join(ACTIONS)}", section="what to do")
    ids: tuple[str, ...] = option((), "the transaction; may be given several times", name="id")
    state: str = option(
        "", f"list only those in this state: {', '.join(_STATES)}", section="which of them"
    )
    group: str = option("", "list only those of this group")
    limit: int = option(
        100,
        "maximum transactions to list, or messages to show, of each broker",
        limits=(1, 1000),
        section="output",
    )
    max_body_bytes: Size = option(1024, "maximum bytes of a body to show", limits=(0, 8 << 20))
    json: bool = option(False, "lines of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_action(self.action, ACTIONS)
        if self.state and self.state not in _STATES:
            raise OptionError(f"--state is {self.state!r}; it must be one of {', '.join(_STATES)}")
        if self.action == "list" and self.ids:
            raise OptionError("'list' takes no --id: 'show' is for one transaction")
        if self.action != "list" and not self.ids:
            raise OptionError(
                f"the transaction is missing: martlet transactions {self.action} ID, as 'list'"
                " shows it"
            )


_DONE = {"commit": "committed", "rollback": "rolled back"}


async def open_transactions(options: TransactionToolOptions) -> list[Fields]:
    """List the transactions of all brokers, with ``broker`` in each. Raises AdminError."""
    async with options.admin() as admin:
        answers = await admin.transactions.list(
            state=options.state, group=options.group, limit=options.limit
        )
    found = answers.check().values.items()
    return [{"broker": url, **each.fields} for url, several in found for each in several]


async def act(options: TransactionToolOptions) -> AsyncIterator[Fields | AdminError]:
    """Show or decide the named transactions; yield each broker's answer, or why there is none.

    A transaction is at one broker: those that do not know it are skipped, if another does.
    """
    async with options.admin() as admin:
        for each in options.ids:
            answers = await tool.settled(_act_on(admin, options, each))
            for url, answer in answers.values.items():
                yield {"broker": url, "id": each, **answer.fields}
            for error in answers.failures.values():
                yield error
            if not answers.values and not answers.failures:
                yield next(iter(answers.errors.values()))


async def _act_on(
    admin: Admin, options: TransactionToolOptions, transaction_id: str
) -> Answers[Described]:
    if options.action == "show":
        return await admin.transactions.show(
            transaction_id, limit=options.limit, max_body_bytes=options.max_body_bytes
        )
    if options.action == "commit":
        return await admin.transactions.commit(transaction_id)
    return await admin.transactions.rollback(transaction_id)


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
        found = await open_transactions(options)
        lines = list(map(json_line, found)) if options.json else rows(found, _now_ms())
        await output.print(lines)
        if not (lines or options.json):
            of = f" of group {options.group}" if options.group else ""
            log.info("no transaction%s is %s", of, options.state or "open or set aside")

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
