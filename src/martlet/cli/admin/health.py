"""``martlet health``: whether brokers and lookup daemons are well, by exit code and in words."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.cli.admin import manage
from martlet.cli.admin.inventory import Inventory, InventoryOptions, health_lines

DESCRIPTION = (
    "Ask each broker that is named, or each lookup daemon and all brokers that it knows, whether"
    " it is well (/ping), and show what it says. The exit code is 0 where all are well, and 1 where"
    " one is not, or does not answer."
)


def main(argv: Sequence[str]) -> int:
    """Ask them; the result is the exit code of the process."""
    return manage.inventory(
        "health", "brokers", DESCRIPTION, InventoryOptions, Inventory.health, health_lines, argv
    )
