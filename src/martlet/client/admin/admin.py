"""`Admin`: inspect and change brokers, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

from martlet.client.admin.channels import ChannelAdmin
from martlet.client.admin.declared import (
    DeadLetterAdmin,
    DelayedAdmin,
    GroupAdmin,
    TraceAdmin,
    TransactionAdmin,
)
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.messages import MessageAdmin
from martlet.client.admin.nodes import LookupAdmin, NodeAdmin, ReplicaAdmin
from martlet.client.admin.settings import AdminOptions, AdminSettings
from martlet.client.admin.topics import TopicAdmin
from martlet.client.keywords import apply_options


class Admin:
    """Inspect and change brokers: named ones, or all that lookup daemons know.

    ::

        async with Admin("127.0.0.1:4151") as admin:
            answers = await admin.channels.list("orders")
            for broker, channels in answers.values.items():
                ...

    Methods about one topic ask the brokers that have it, all others every broker. They answer with
    `Answers`: a value or an error of each broker.

    Attributes:
        topics: a `TopicAdmin`.
        channels: a `ChannelAdmin`.
        messages: a `MessageAdmin`.
        groups: a `GroupAdmin`.
        dead_letters: a `DeadLetterAdmin`.
        delayed: a `DelayedAdmin`.
        transactions: a `TransactionAdmin`.
        trace: a `TraceAdmin`.
        nodes: a `NodeAdmin`.
        lookup: a `LookupAdmin`.
        replicas: a `ReplicaAdmin`.
    """

    def __init__(
        self,
        nsqd_http_addresses: str | Iterable[str] = (),
        *,
        lookup: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        settings: AdminSettings | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        """Take the settings; the requests need ``async with``.

        Args:
            nsqd_http_addresses: of brokers, as ``"host:4151"`` or URLs.
            lookup: of lookup daemons instead, as ``"host:4161"`` or URLs.
            lookupd_http_addresses: NSQ's name for ``lookup``.
            settings: time limits, token and TLS.
            options: fields of `AdminSettings`.

        Raises:
            ValueError: not exactly one kind of addresses is given, or a setting is out of its
            limits.
        """
        brokers, daemons = _several(nsqd_http_addresses), _several(lookup or lookupd_http_addresses)
        if bool(brokers) == bool(daemons):
            raise ValueError(
                "say which brokers to ask: give their HTTP addresses, or those of lookup daemons as"
                " lookup="
            )
        (applied,) = apply_options(Admin, options, settings or AdminSettings())
        self._use(AdminHttp(brokers, daemons, applied))

    @property
    def http(self) -> AdminHttp:
        """The way to the servers, for requests that have no method here."""
        return self._http

    def _use(self, http: AdminHttp) -> None:
        self._http = http
        self.topics = TopicAdmin(http)
        self.channels = ChannelAdmin(http)
        self.messages = MessageAdmin(http)
        self.groups = GroupAdmin(http)
        self.dead_letters = DeadLetterAdmin(http)
        self.delayed = DelayedAdmin(http)
        self.transactions = TransactionAdmin(http)
        self.trace = TraceAdmin(http)
        self.nodes = NodeAdmin(http)
        self.lookup = LookupAdmin(http)
        self.replicas = ReplicaAdmin(http)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def at(self, broker: str, *others: str) -> Admin:
        """Return an `Admin` of one broker alone, or of some: it shares the connections of this one.

        Args:
            broker, others: their URLs, as in `Answers`.
        """
        one = object.__new__(type(self))
        one._use(self._http.at(broker, *others))
        return one

    async def close(self) -> None:
        """Close the connections."""
        await self._http.__aexit__()


def _several(addresses: str | Iterable[str]) -> Sequence[str]:
    return [addresses] if isinstance(addresses, str) else list(addresses)
