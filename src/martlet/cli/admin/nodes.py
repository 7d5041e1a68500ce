"""``martlet nodes``: which brokers lookup daemons know, or what brokers say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.cli.admin import manage
from martlet.cli.admin.inventory import Inventory, InventoryOptions, node_lines

DESCRIPTION = (
    "List the brokers that lookup daemons know: where they are, how many topics they have, which"
    " daemons know them, and which of their topics are hidden from those who look them up. With"
    " --nsqd-http-address, what those brokers say of themselves."
)


def main(argv: Sequence[str]) -> int:
    """List them; the result is the exit code of the process."""
    return manage.inventory(
        "nodes", "brokers", DESCRIPTION, InventoryOptions, Inventory.nodes, node_lines, argv
    )
