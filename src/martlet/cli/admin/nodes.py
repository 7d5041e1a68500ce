"""``martlet nodes``: list the brokers that lookup daemons know, or named ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from martlet.cli.admin.inventory import Inventory, InventoryOptions, look, show_inventory
from martlet.cli.broker_http import BrokerHttpClient, Fields
from martlet.cli.text import laid_out

DESCRIPTION = (
    "List the brokers that lookup daemons know: their addresses, their numbers of topics, which"
    " daemons know them, and which of their topics are hidden from lookups. With"
    " --nsqd-http-address, list those brokers as they describe themselves."
)


def main(argv: Sequence[str]) -> int:
    """List brokers; return the exit code of the process."""
    return show_inventory(
        "nodes", "brokers", DESCRIPTION, InventoryOptions, nodes, node_lines, argv
    )


async def nodes(inventory: Inventory) -> list[Fields]:
    """Return the brokers that lookup daemons know, with the daemons that know each; or named ones,
    as each describes itself.
    """
    async with BrokerHttpClient(inventory.options) as client:
        if not client.daemons():

            async def ask(url: str) -> Fields:
                info, stats = await client.get(url, "/info", {}), await look(client, url)
                names = [each["topic_name"] for each in stats["topics"] or ()]
                return _node(info, names) | {"lookup_daemons": []}

            return await inventory.answers(await client.brokers(""), ask)

        async def known(url: str) -> tuple[str, list[Fields]]:
            producers = (await client.get(url, "/nodes", {}))["producers"] or ()
            return url, [_node(each, each["topics"], each["tombstones"]) for each in producers]

        found: dict[tuple[str, int], Fields] = {}
        for daemon, brokers in await inventory.answers(client.daemons(), known):
            for node in brokers:
                place = (node["broadcast_address"], node["tcp_port"])
                found.setdefault(place, node | {"lookup_daemons": []})
                found[place]["lookup_daemons"].append(daemon)
        return [found[place] for place in sorted(found)]


def _node(info: Fields, topics: Sequence[str], tombstones: Sequence[bool] = ()) -> Fields:
    hidden = [topic for topic, is_hidden in zip(topics, tombstones, strict=False) if is_hidden]
    return {
        **{name: info[name] for name in ("broadcast_address", "tcp_port", "http_port", "hostname")},
        "version": info.get("martlet_version") or info["version"],
        "topics": list(topics),
        "tombstones": hidden,
    }


def node_lines(found: Iterable[Fields]) -> list[str]:
    """Format brokers as text."""
    rows: list[tuple[str, ...]] = [
        ("ADDRESS", "TCP", "HTTP", "VERSION", "TOPICS", "HOST", "KNOWN TO", "HIDDEN TOPICS")
    ]
    for each in found:
        ports = str(each["tcp_port"]), str(each["http_port"])
        known = " ".join(each["lookup_daemons"]) or "-"
        hidden = " ".join(each["tombstones"]) or "-"
        version, topics = each["version"], str(len(each["topics"]))
        rows.append(
            (each["broadcast_address"], *ports, version, topics, each["hostname"], known, hidden)
        )
    return laid_out(rows, (1, 2, 4))
