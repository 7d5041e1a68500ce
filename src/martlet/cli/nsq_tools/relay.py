"""``martlet relay``: publish the messages of topics to other brokers.

Messages are published in batches. If a destination fails, the next working one is tried; if none
works, the messages are requeued, with a delay that grows with each attempt, and the consumer backs
off. If a destination refuses a message itself, such as one that is too large, the messages of its
batch are published one by one, so that it does not hold up the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from martlet.cli import tool
from martlet.cli.nsq_tools.client_options import (
    ClientOptions,
    client_options,
    producer_settings,
    without_effect,
)
from martlet.cli.nsq_tools.hosts import HostPool, Timings, mode_option, status_option
from martlet.cli.nsq_tools.source import LimitedSourceOptions, Pipe
from martlet.client import (
    BadBody,
    Batch,
    ClientError,
    ConnectRefused,
    Producer,
    PublishRefused,
)
from martlet.options.checks import require_addresses, require_names
from martlet.options.flag import Flag, OptionError, option
from martlet.text import counted
from martlet.unreachable import Outage


@dataclass(frozen=True, kw_only=True)
class RelayOptions(LimitedSourceOptions):
    """The options of ``martlet relay``."""

    channel: str = option("nsq_to_nsq", "the channel")
    destination_topic: str = option(
        "", "the topic to publish to (default: each message's own)", section="destination"
    )
    destination_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker to publish to; may be given several times",
        name="destination-nsqd-tcp-address",
    )
    mode: str = mode_option("destinations")
    producer_opts: tuple[str, ...] = option(
        (), "KEY,VALUE for the destinations, as --consumer-opt", name="producer-opt"
    )
    status_every: int = status_option("log publish times every N messages; 0: never")
    require_json_field: str = option(
        "",
        "publish only JSON objects with this field; others are finished and skipped",
        section="filter",
    )
    require_json_value: str = option("", "the required value of that field, a text or a number")
    whitelist_json_fields: tuple[str, ...] = option(
        (),
        "publish only this field of JSON objects; may be given several times",
        name="whitelist-json-field",
    )

    @property
    def producer(self) -> ClientOptions:
        """The options that ``--producer-opt`` sets."""
        return client_options("producer-opt", self.producer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """List options without effect, as `Options` does."""
        return super().without_effect() + without_effect("producer-opt", self.producer)

    @property
    def filters(self) -> bool:
        """True if messages are read as JSON."""
        return bool(self.require_json_field or self.whitelist_json_fields)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.producer
        if not self.topics or not self.channel:
            raise OptionError("--topic and --channel are needed: name the messages to relay")
        if not self.destination_addresses:
            raise OptionError(
                "--destination-nsqd-tcp-address is missing: name the broker to publish to"
            )
        require_names("destination-topic", filter(None, [self.destination_topic]))
        require_addresses("--destination-nsqd-tcp-address", self.destination_addresses)
        if self.require_json_value and not self.require_json_field:
            raise OptionError("--require-json-value needs a --require-json-field")
        if why := self.circle(self.nsqd_tcp_addresses):
            raise OptionError(why)

    def circle(self, sources: Iterable[str]) -> str:
        """Return why messages of these brokers would be relayed for ever; empty if they are not."""
        both = set(sources) & set(self.destination_addresses)
        if not both or (self.destination_topic and self.destination_topic not in self.topics):
            return ""
        return (
            f"messages would go round in a circle: {min(both)} is their source and their"
            " destination; give another --destination-topic"
        )


class JsonFilter:
    """A filter.

    Args:
        field: the required field; empty for none.
        value: its required value; empty for any.
        fields: the fields to keep; empty for all.
    """

    def __init__(self, field: str = "", value: str = "", fields: Sequence[str] = ()) -> None:
        self._field = field
        self._value = value
        self._fields = fields
        self._number = _number(value)

    def passes(self, body: bytes) -> bytes | None:
        """Return the filtered message; None to skip it.

        Raises:
            ValueError: it is not a JSON object.
        """
        fields = _read(body)
        if self._field and not (self._field in fields and self._fits(fields[self._field])):
            return None
        if not self._fields:
            return body
        left = {field: _plain(fields[field]) for field in self._fields if field in fields}
        return json.dumps(left, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    def _fits(self, value: object) -> bool:
        if not self._value or value == self._value:
            return True
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and value == self._number


def _read(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if value is None:  # nsq_to_nsq treats it as an object without fields
        return {}
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _plain(value: object) -> object:
    """Return a value as nsq_to_nsq writes it: a whole number without a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""The time limit for a destination to store messages, connecting included."""
_OWN_FAULT = ("E_BAD_MESSAGE", "E_BAD_BODY")
"""Refusals of a message itself, by a destination that may store others."""


class Destination:
    """A broker to publish to, connected at first use."""

    def __init__(self, address: str, options: RelayOptions) -> None:
        self._address = address
        self._options = options
        self._connecting: asyncio.Task[Producer] | None = None
        """One attempt to connect, shared by all that wait for it."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish, and wait until everything is stored. Raises ClientError."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connecting = self._connecting
        try:
            producer = await asyncio.shield(connecting)
        except ClientError:
            if self._connecting is connecting:
                self._connecting = None
            raise
        await producer.publish_many(topic, list(bodies))

    async def _connect(self) -> Producer:
        settings = producer_settings(self._options.producer)
        producer = Producer(self._address, timeout_s=TIMEOUT_S, **settings)
        return await producer.__aenter__()

    async def close(self) -> None:
        """Hang up."""
        connecting = self._connecting
        if connecting is None:
            return
        if not connecting.done():
            connecting.cancel()
            await asyncio.wait([connecting])
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close()


class Relay(Pipe):
    """Relay messages. Raises ClientError: they would go round in a circle."""

    max_messages = 2000
    is_concurrent = True

    def __init__(self, options: RelayOptions) -> None:
        if why := options.circle(options.broker_addresses):
            raise ClientError(why)
        super().__init__(self._publish_batch, "relay", options, options.channel)
        self._options = options
        addresses = tuple(dict.fromkeys(options.destination_addresses))
        self._destinations = {address: Destination(address, options) for address in addresses}
        self._pool = HostPool(addresses, options.mode)
        self._outages = {
            address: Outage(f"cannot publish to {address}", f"publishing to {address} again")
            for address in addresses
        }
        self._timings = Timings(options.status_every, addresses)
        self._filter = JsonFilter(
            options.require_json_field, options.require_json_value, options.whitelist_json_fields
        )

    async def run(self) -> None:
        """Relay messages, as `Pipe.run`, and hang up."""
        async with AsyncExitStack() as opened:
            for destination in self._destinations.values():
                opened.push_async_callback(destination.close)
            await super().run()

    async def _publish_batch(self, topic: str, batch: Batch) -> NDArray[np.bool_]:
        indexes, bodies = self._filtered(batch)
        stored = np.ones(len(batch), np.bool_)
        if bodies:
            to = self._options.destination_topic or topic
            stored[indexes] = await self._publish(to, bodies)
        return stored

    async def _requeue(self, batch: Batch, stored: NDArray[np.bool_]) -> None:
        delay_ms = self._delay_ms(int(batch.attempts[~stored].min()))
        log.debug("%s again in %d ms", counted(batch.unanswered_count, "message"), delay_ms)
        await batch.requeue(delay_ms, backoff=True)

    def _filtered(self, batch: Batch) -> tuple[list[int], list[bytes]]:
        """Return the bodies that pass the filter, and their indexes in the batch."""
        if not self._options.filters:
            return list(range(len(batch))), batch.bodies
        indexes: list[int] = []
        bodies: list[bytes] = []
        for index, body in enumerate(batch.bodies):
            try:
                left = self._filter.passes(body)
            except ValueError as error:
                log.error("left out, as it is no JSON object: %.200r: %s", body, error)
                continue
            if left is not None:
                indexes.append(index)
                bodies.append(left)
        return indexes, bodies

    async def _publish(self, topic: str, bodies: list[bytes]) -> list[bool]:
        """Publish to the first destination that works; return which messages are stored."""
        for address in self._pool.order():
            began_s = time.monotonic()
            try:
                await self._destinations[address].publish(topic, bodies)
            except (PublishRefused, BadBody) as error:
                code = error.code if isinstance(error, PublishRefused) else _OWN_FAULT[0]
                if code == "E_UNAUTHORIZED":
                    raise  # The others fail with the same error.
                if code in _OWN_FAULT and len(bodies) > 1:
                    alone = await asyncio.gather(*(self._publish(topic, [body]) for body in bodies))
                    return [stored for results in alone for stored in results]
                log.error("%s: %s: %s", address, counted(len(bodies), "message"), error)
                if code not in _OWN_FAULT:
                    self._pool.failed(address)
            except ConnectRefused:
                raise
            except ClientError as error:
                self._outages[address].failed(str(error))
                self._pool.failed(address)
            else:
                self._outages[address].over()
                seconds = time.monotonic() - began_s
                self._pool.succeeded(address, seconds)
                self._timings.note_host(address, seconds, len(bodies))
                self._timings.note(seconds, len(bodies))
                return [True] * len(bodies)
        return [False] * len(bodies)


DESCRIPTION = (
    "Publish the messages of topics to other brokers, and finish them once those have answered OK;"
    " takes the flags of nsq_to_nsq. Of several destinations each message goes to one."
)


def main(argv: Sequence[str]) -> int:
    """Relay messages; return the exit code of the process."""
    options = tool.options("relay", DESCRIPTION, RelayOptions, argv)
    relay = tool.made(lambda: Relay(options))
    return tool.run(relay.run, relay.stop)
