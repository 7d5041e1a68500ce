"""Brokers and lookup daemons themselves: list them, their health, counts and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from martlet.client.admin.answers import Answers
from martlet.client.admin.decode import Described
from martlet.client.admin.errors import AdminError
from martlet.client.admin.methods import OperationGroup, target
from martlet.client.admin.stats import NodeStats, node_stats
from martlet.client.copied_folder import Copies, Process, confirmed, copies_in


@dataclass(frozen=True, kw_only=True)
class Node:
    """A broker.

    Attributes:
        broadcast_address, tcp_port, http_port: where clients reach it.
        hostname: of its machine.
        version: of Martlet, or of nsqd.
        topics: the names of its topics.
        tombstones: those of them that lookup daemons hide.
        lookup_daemons: the URLs of the daemons that know it.
    """

    broadcast_address: str
    tcp_port: int
    http_port: int
    hostname: str
    version: str
    topics: tuple[str, ...]
    tombstones: tuple[str, ...] = ()
    lookup_daemons: tuple[str, ...] = ()


def _node(
    answer: Mapping[str, Any], topics: Sequence[str], tombstones: Sequence[bool] = ()
) -> Node:
    return Node(
        broadcast_address=str(answer["broadcast_address"]),
        tcp_port=int(answer["tcp_port"]),
        http_port=int(answer["http_port"]),
        hostname=str(answer["hostname"]),
        version=str(answer.get("martlet_version") or answer["version"]),
        topics=tuple(topics),
        tombstones=tuple(
            topic for topic, is_hidden in zip(topics, tombstones, strict=False) if is_hidden
        ),
    )


def _known_nodes(answer: Any) -> tuple[Node, ...]:
    return tuple(
        _node(producer, producer["topics"], producer["tombstones"])
        for producer in answer["producers"] or ()
    )


def distinct_nodes(answers: Answers[tuple[Node, ...]]) -> list[Node]:
    """Return each broker that lookup daemons know once, with all daemons that know it."""
    nodes_by_address: dict[tuple[str, int], Node] = {}
    for daemon, nodes in answers.values.items():
        for node in nodes:
            address = node.broadcast_address, node.tcp_port
            node = nodes_by_address.get(address, node)
            nodes_by_address[address] = replace(node, lookup_daemons=(*node.lookup_daemons, daemon))
    return [nodes_by_address[address] for address in sorted(nodes_by_address)]


@dataclass(frozen=True, kw_only=True)
class NodeHealth:
    """The health of a broker or a lookup daemon.

    Attributes:
        is_healthy: whether it answers ``OK``.
        health: ``OK``, why it is unhealthy, or why it does not answer.
    """

    is_healthy: bool
    health: str


class NodeAdmin(OperationGroup):
    """Brokers and lookup daemons: `Admin.nodes`."""

    async def list(self) -> Answers[tuple[Node, ...]]:
        """List brokers: by each lookup daemon those that it knows, or named ones as each describes
        itself. Raises AdminError if no server answered.
        """
        http = self._http
        if http.daemons:
            return await http.each(
                http.daemons, lambda url: http.get(url, "/nodes", {}, _known_nodes)
            )

        async def describe(url: str) -> tuple[Node, ...]:
            topics = [topic.topic for topic in (await node_stats(http, url)).topics]
            return (await http.get(url, "/info", {}, lambda answer: _node(answer, topics)),)

        return await http.each(await http.brokers(), describe)

    async def copies(self) -> Sequence[Copies]:
        """Return the brokers that have one id, since a data folder was copied.

        Of brokers that do not answer nothing is known. Raises AdminError: none answers.
        """
        http = self._http

        async def processes(urls: Sequence[str]) -> Mapping[str, Process]:
            answers = await http.each(urls, lambda url: http.get(url, "/info", {}, Process.of))
            return answers.values

        before = await processes(await http.brokers())
        urls = [url for copies in copies_in(before) for url in copies.addresses]
        return confirmed(before, await processes(urls)) if urls else []

    async def stats(
        self, *, include_clients: bool = False, time_limit_s: float | None = None
    ) -> Answers[NodeStats]:
        """Return the counts of each broker, with its topics and channels.

        Args:
            include_clients: whether to list the consumers of channels.
            time_limit_s: how long to wait for a broker, in seconds, where that is less than the
                client's request timeout.

        Raises:
            AdminError: no broker answered.
        """
        http = self._http

        async def ask(url: str) -> NodeStats:
            try:
                async with asyncio.timeout(time_limit_s):
                    return await node_stats(http, url, include_clients=include_clients)
            except TimeoutError:
                raise AdminError(url, "no answer in time") from None

        return await http.each(await http.brokers(), ask)

    async def health(self) -> Answers[NodeHealth]:
        """Check lookup daemons and brokers. A server that does not answer is not healthy; an error
        is only there if the brokers could not be found.
        """
        http = self._http

        async def check(url: str) -> NodeHealth:
            try:
                health = (await http.text(url, "/ping")).strip()
            except AdminError as error:
                health = error.why
            return NodeHealth(is_healthy=health == "OK", health=health)

        errors: dict[str, AdminError] = {}
        urls = [*http.daemons]
        try:
            urls += await http.brokers()
        except AdminError as error:
            errors[error.url] = error
        answers = await http.each(list(dict.fromkeys(urls)), check)
        return Answers(answers.values, errors)

    async def tombstone(self, topic: str, node: str) -> Answers[None]:
        """Hide a broker from lookups of a topic for some seconds, at each lookup daemon.

        Args:
            node: the broker, as ``broadcast_address:http_port`` of `Node`.

        Raises:
            ValueError: no lookup daemon is named. AdminError: none answered.
        """
        http = self._http
        if not http.daemons:
            raise ValueError("tombstones are at lookup daemons: give lookup=")
        arguments = {**target(topic), "node": node}
        return await http.each(
            http.daemons, lambda url: http.post(url, "/topic/tombstone", arguments)
        )


@dataclass(frozen=True, kw_only=True)
class ReplicaState(Described):
    """A replica, as another one or itself sees it.

    Attributes:
        address: where other replicas reach it.
        is_in_sync: whether it is in sync.
        tcp_address, http_address: where clients reach it; empty if that is unknown.
        is_connected: whether the primary has a connection to it; None if that is unknown.
        lag_bytes, lag_ms: how far it is behind; None if that is unknown.
    """

    address: str
    is_in_sync: bool
    tcp_address: str = ""
    http_address: str = ""
    is_connected: bool | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaReport(Described):
    """The state of a replica, as it sees it.

    Attributes:
        replica, replica_set: its name, and that of its replica set.
        role: ``primary``, ``candidate``, ``standby`` or ``waiting``.
        epoch: of its replica set.
        end_position, confirmed_position: the ends of its log, and of what enough replicas have.
        is_whole: whether it has all that it ever acknowledged.
        problem: what is wrong; empty if nothing is.
        primary: the name of the primary; None if there is none.
        in_sync: the names of replicas in sync.
        copies, wanted_copies, min_in_sync: how many replicas have each message, how many shall, and
            below how many in sync messages are refused.
        last_failover_s: when the epoch began, in seconds since 1970.
        replicas: the replicas by name.
    """

    replica: str
    replica_set: str
    role: str
    epoch: int
    end_position: int
    confirmed_position: int
    is_whole: bool
    problem: str = ""
    primary: str | None = None
    in_sync: tuple[str, ...] = ()
    copies: int = 0
    wanted_copies: int = 0
    min_in_sync: int = 0
    last_failover_s: float = field(default=0, metadata={"name": "last_failover"})
    replicas: Mapping[str, ReplicaState] = field(default_factory=dict)


class ReplicaAdmin(OperationGroup):
    """The replicas of brokers: `Admin.replicas`."""

    async def show(self) -> Answers[ReplicaReport]:
        """Show each replica's state, as it sees it: its role, epoch and lag.

        Lookup daemons know only primaries: name the HTTP addresses of all replicas.

        Raises:
            AdminError: no replica answered.
        """
        http = self._http
        return await http.each(
            await http.brokers(), lambda url: http.get(url, "/replica", {}, ReplicaReport.read)
        )


class LookupAdmin(OperationGroup):
    """The lookup daemons: `Admin.lookup`. Without any, all is empty."""

    async def create_topic(self, topic: str) -> Answers[None]:
        """Register a topic that no broker has yet. Raises AdminError: no daemon did it."""
        http = self._http
        return await http.each(
            http.daemons, lambda url: http.post(url, "/topic/create", target(topic))
        )

    async def inactive_topics(self) -> dict[str, list[str]]:
        """Return topics that no broker has, with their channels. Raises AdminError: no answer."""
        http = self._http
        if not http.daemons:
            return {}
        topics = await self._names("topics")
        nodes = await http.each(http.daemons, lambda url: http.get(url, "/nodes", {}, _known_nodes))
        inactive = sorted(topics.difference(*(node.topics for node in nodes.joined())))
        channels = await asyncio.gather(
            *(self._names("channels", topic=topic) for topic in inactive)
        )
        return dict(zip(inactive, map(sorted, channels), strict=True))

    async def _names(self, kind: str, **arguments: str) -> set[str]:
        """Return the names that all daemons have of a kind. Raises AdminError: none answered."""
        http = self._http

        def read(answer: Any) -> tuple[str, ...]:
            return tuple(map(str, answer[kind] or ()))

        return set(
            (
                await http.each(
                    http.daemons, lambda url: http.get(url, f"/{kind}", arguments, read)
                )
            ).joined()
        )
