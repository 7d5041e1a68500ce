"""``martlet transactions``: those that have not ended, listed, shown, committed or rolled back."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from martlet.apps import tool
from martlet.options.transaction_tool import TransactionToolOptions
from martlet.tools.door import NoHttpAnswer
from martlet.tools.standard_output import StandardOutput
from martlet.tools.transactions import TransactionTool, done, line, rows, shown

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
