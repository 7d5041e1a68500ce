"""``martlet nodes``: list the brokers that lookup daemons know, or named ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from martlet.cli import tool
from martlet.cli.operations.inventory import Fields, Inventory, InventoryOptions, show_inventory
from martlet.cli.text import laid_out
from martlet.client.admin import Admin, AdminError, distinct_nodes
from martlet.client.copied_folder import Copies

DESCRIPTION = (
    "List the brokers that lookup daemons know: their addresses, their numbers of topics, which"
    " daemons know them, and which of their topics are hidden from lookups. With"
    " --address, list those brokers as they describe themselves. The exit code is 1 if a server"
    " does not answer, or two brokers have one id, as where a data folder was copied."
)


def main(argv: Sequence[str]) -> int:
    """List brokers; return the exit code of the process."""
    return show_inventory(
        "nodes", "brokers", DESCRIPTION, InventoryOptions, nodes, node_lines, argv
    )


async def nodes(options: InventoryOptions) -> Inventory:
    """Return the brokers that lookup daemons know, with the daemons that know each; or named ones,
    as each describes itself.
    """
    async with options.admin() as admin:
        answers = await tool.settled(admin.nodes.list())
        copies = await copies_of(admin)
    has_daemons = bool(options.lookupd_http_addresses)
    nodes = distinct_nodes(answers) if has_daemons else answers.joined()
    return Inventory([*map(asdict, nodes)], [*answers.errors.values()], copies)


async def copies_of(admin: Admin) -> Sequence[Copies]:
    """Return the brokers that have one id; none where no broker answers."""
    try:
        return await admin.nodes.copies()
    except AdminError:
        return []  # Lookup daemons may know none, or only such as have ended.


def node_lines(nodes: Iterable[Fields]) -> list[str]:
    """Format brokers as text."""
    rows: list[tuple[str, ...]] = [
        ("ADDRESS", "TCP", "HTTP", "VERSION", "TOPICS", "HOST", "KNOWN TO", "HIDDEN TOPICS")
    ]
    for node in nodes:
        ports = str(node["tcp_port"]), str(node["http_port"])
        daemons = " ".join(node["lookup_daemons"]) or "-"
        hidden = " ".join(node["tombstones"]) or "-"
        version, topics = node["version"], str(len(node["topics"]))
        rows.append(
            (node["broadcast_address"], *ports, version, topics, node["hostname"], daemons, hidden)
        )
    return laid_out(rows, (1, 2, 4))
