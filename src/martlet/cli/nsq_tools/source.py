"""Tools that pass messages on: the flags of their source, and the pipe from there to a sink.

::

    consumer of each topic -> batch -> sink -> stored: finished; the others: requeued
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from martlet.cli.nsq_tools.client_options import (
    ClientOptions,
    client_options,
    consumer_settings,
    retry,
    without_effect,
)
from martlet.client import Batch, ClientError, Consumer, SharedRate
from martlet.client.consumer.waiters import check_rate
from martlet.options.addresses import (
    HOW_TO_NAME,
    address_option,
    fill_in_addresses,
    lookup_option,
)
from martlet.options.checks import require_addresses, require_names
from martlet.options.flag import Flag, OptionError, option
from martlet.options.options import LogOptions

_INFO_TIMEOUT_S = 5.0
_MAX_INFO_BYTES = 1 << 16
Follow = Callable[[str], Coroutine[Any, Any, None]]
"""Passes the messages of a topic on."""
Store = Callable[[str, Batch], Awaitable[NDArray[np.bool_]]]
_KEEPS = {"max_attempts": "a message comes again until it is finished"}


@dataclass(frozen=True, kw_only=True)
class SourceOptions(LogOptions):
    """The source of a tool's messages. Raises OptionError: no broker is named, or no topic."""

    gives_up: ClassVar[bool] = False
    """Whether the tool supports ``max_attempts`` of ``--consumer-opt``."""
    topics: tuple[str, ...] = option(
        (), "a topic; may be given several times", name="topic", section="messages"
    )
    nsqd_http_addresses: tuple[str, ...] = address_option()
    lookupd_http_addresses: tuple[str, ...] = lookup_option()
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker's NSQ protocol, in place of --address; may be given several"
        " times",
        name="nsqd-tcp-address",
    )
    max_in_flight: int = option(200, "maximum messages in flight", limits=(1, 2**31 - 1))
    consumer_opts: tuple[str, ...] = option(
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
        name="consumer-opt",
    )

    @property
    def client(self) -> ClientOptions:
        """The options that ``--consumer-opt`` sets."""
        return client_options("consumer-opt", self.consumer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """List options without effect, as `Options` does."""
        also = {} if self.gives_up else _KEEPS
        return super().without_effect() + without_effect("consumer-opt", self.client, also)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.client
        if not (self.nsqd_tcp_addresses or self.lookupd_http_addresses):
            fill_in_addresses(self)
        brokers = self.nsqd_tcp_addresses or self.nsqd_http_addresses
        if bool(brokers) == bool(self.lookupd_http_addresses):
            raise OptionError(f"name the source of the messages, {HOW_TO_NAME}")
        require_names("topic", self.topics)
        require_names("channel", filter(None, [getattr(self, "channel", "")]))
        require_addresses("--nsqd-tcp-address", self.nsqd_tcp_addresses)

    @cached_property
    def broker_addresses(self) -> tuple[str, ...]:
        """The TCP addresses of the brokers, none with lookup daemons.

        Raises ClientError: a broker that is named by its HTTP address cannot be asked.
        """
        return self.nsqd_tcp_addresses + tcp_addresses(self.nsqd_http_addresses)


@dataclass(frozen=True, kw_only=True)
class LimitedSourceOptions(SourceOptions):
    """The source of a tool that can be slowed down. Raises OptionError: the rate is none."""

    channel: str = option("", "the channel")
    rate: float = option(
        0.0,
        "maximum messages a second, of all topics together, with bursts of a tenth of that; 0: no"
        " limit",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate:
            try:
                check_rate(self.rate, 0)
            except ValueError as error:
                raise OptionError(str(error).replace("rate_per_s", "--rate")) from None


def tcp_addresses(http_addresses: Iterable[str]) -> tuple[str, ...]:
    """Ask brokers for the addresses of their TCP listeners.

    Args:
        http_addresses: of their HTTP listeners, as ``host:4151`` or URLs.

    Raises:
        ClientError: a broker does not answer, or what answers is no broker.
    """
    return tuple(map(_tcp_address, http_addresses))


def _tcp_address(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    # A proxy of the environment is for other hosts than brokers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/info", timeout=_INFO_TIMEOUT_S) as answer:
            port = json.loads(answer.read(_MAX_INFO_BYTES))["tcp_port"]
            if type(port) is not int or not 0 < port < 1 << 16:
                raise ValueError(f"its TCP port is {port!r}")
    except urllib.error.URLError as error:
        reason = error.reason if isinstance(error.reason, str) else str(error.reason)
        raise ClientError(f"--address={address}: {reason}") from None
    except (
        *(OSError, http.client.HTTPException),
        *(ValueError, KeyError, TypeError, RecursionError),
    ) as error:
        raise ClientError(
            f"--address={address} is not the HTTP address of a broker, such as 127.0.0.1:4151"
            f" ({str(error) or type(error).__name__}); --nsqd-tcp-address takes that of its NSQ"
            " protocol"
        ) from None
    host = urlsplit(url).hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TopicConsumers:
    """The consumers of topics, whose messages a tool passes on. Raises ClientError: a broker that
    is named by its HTTP address cannot be asked.
    """

    def __init__(
        self, command: str, options: SourceOptions, channel: str, max_in_flight: int | None = None
    ) -> None:
        self._command = command
        self._source = options
        self._channel = channel
        self._max_in_flight = max_in_flight or options.max_in_flight
        rate = options.rate if isinstance(options, LimitedSourceOptions) else 0
        self._rate = SharedRate(rate) if rate else 0
        self._retry = retry(options.client)
        self._consumers: dict[str, Consumer] = {}
        self._add(options.topics)

    def _add(self, topics: Iterable[str]) -> list[str]:
        """Make the consumers of further topics, not connected yet; return those topics."""
        new = [topic for topic in dict.fromkeys(topics) if topic not in self._consumers]
        for topic in new:
            self._consumers[topic] = Consumer(
                topic,
                self._channel,
                self._source.broker_addresses or None,
                lookup=self._source.lookupd_http_addresses or None,
                max_in_flight=self._max_in_flight,
                rate_per_s=self._rate,
                **consumer_settings(self._source.client),
            )
        return new

    async def follow_all(self, follow: Follow) -> None:
        """Pass messages of all topics on until stopped.

        Raises:
            ClientError: a broker refuses the client.
            OSError: the sink cannot store anything.
        """
        async with asyncio.TaskGroup() as group:
            self._begin(group, self._consumers, follow)

    def _begin(self, group: asyncio.TaskGroup, topics: Iterable[str], follow: Follow) -> None:
        for topic in topics:
            group.create_task(follow(topic), name=f"martlet {self._command} {topic}")

    def stop(self) -> None:
        """Take no more messages; those received are passed on."""
        for consumer in self._consumers.values():
            consumer.stop()

    def _delay_ms(self, attempts: int) -> int:
        """Return the delay of a message that failed, by its attempts."""
        return round(1000 * self._retry.delay_s(attempts))


class Pipe(TopicConsumers):
    """Passes batches of messages on to a sink.

    Args:
        store: hands a batch of a topic to the sink; returns which of its messages are stored there.
    """

    max_messages = 10_000
    """The maximum size of a batch."""
    max_wait_ms = 0
    """The maximum wait for a batch to fill."""
    is_concurrent = False
    """Whether the sink takes batches while others are on their way."""

    def __init__(
        self,
        store: Store,
        command: str,
        options: SourceOptions,
        channel: str,
        max_in_flight: int | None = None,
    ) -> None:
        super().__init__(command, options, channel, max_in_flight)
        self._store = store

    async def run(self) -> None:
        """Pass messages on, as `follow_all`."""
        await self.follow_all(self._follow)

    async def _follow(self, topic: str) -> None:
        source = self._consumers[topic]
        batches = source.batches(max_messages=self.max_messages, max_wait_ms=self.max_wait_ms)
        async with source, asyncio.TaskGroup() as group:
            async for batch in batches:
                if self.is_concurrent:
                    group.create_task(self._pass(topic, batch))
                else:
                    await self._pass(topic, batch)

    async def _pass(self, topic: str, batch: Batch) -> None:
        stored = await self._store(topic, batch)
        if stored.all():
            await batch.finish()
            return
        if stored.any():
            await batch.finish(stored)
        await self._requeue(batch, stored)

    async def _requeue(self, batch: Batch, stored: NDArray[np.bool_]) -> None:
        """Requeue the messages that are not stored."""
        await batch.requeue(backoff=False)
