"""``martlet health``: check brokers and lookup daemons; report by exit code and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from martlet.cli.admin.inventory import Inventory, InventoryOptions, show_inventory
from martlet.cli.broker_http import BrokerHttpClient, Fields, NoHttpAnswer

DESCRIPTION = (
    "Check each broker that is named, or each lookup daemon and all brokers that it knows,"
    " by /ping, and show the answers. The exit code is 0 if all are healthy, and 1 if"
    " one is not, or does not answer."
)


def main(argv: Sequence[str]) -> int:
    """Check the servers; return the exit code of the process."""
    return show_inventory(
        "health", "brokers", DESCRIPTION, InventoryOptions, health, health_lines, argv
    )


async def health(inventory: Inventory) -> list[Fields]:
    """Check each broker, and each named lookup daemon."""
    async with BrokerHttpClient(inventory.options) as client:

        async def ask(url: str) -> Fields:
            try:
                answer = (await client.text(url, "/ping")).strip()
            except NoHttpAnswer as error:
                answer = error.why
            return {"server": url, "is_healthy": answer == "OK", "health": answer}

        urls = client.daemons()
        try:
            urls = urls + await client.brokers("")
        except NoHttpAnswer as error:
            inventory.failed.append(error)
        return await inventory.answers(list(dict.fromkeys(urls)), ask)


def health_lines(found: Iterable[Fields]) -> list[str]:
    """Write a line of each server's health."""
    return [f"{each['server']}: {each['health']}" for each in found]
