"""``martlet health``: check brokers and lookup daemons; report by exit code and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from martlet.cli.operations.inventory import Fields, Inventory, InventoryOptions, show_inventory
from martlet.cli.operations.nodes import copies_of

DESCRIPTION = (
    "Check each broker that is named, or each lookup daemon and all brokers that it knows,"
    " by /ping, and show the answers. The exit code is 0 if all are healthy, and 1 if"
    " one is not, or does not answer, or two brokers have one id, as with a copied data folder."
)


def main(argv: Sequence[str]) -> int:
    """Check the servers; return the exit code of the process."""
    return show_inventory(
        "health", "brokers", DESCRIPTION, InventoryOptions, health, health_lines, argv
    )


async def health(options: InventoryOptions) -> Inventory:
    """Check each broker, and each named lookup daemon."""
    async with options.admin() as admin:
        answers = await admin.nodes.health()
        copies = await copies_of(admin)
    servers = [{"server": url} | asdict(answer) for url, answer in answers.values.items()]
    return Inventory(servers, [*answers.errors.values()], copies)


def health_lines(servers: Iterable[Fields]) -> list[str]:
    """Write a line of each server's health."""
    return [f"{server['server']}: {server['health']}" for server in servers]
