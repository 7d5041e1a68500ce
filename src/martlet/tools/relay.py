"""Relay: passes messages on to other brokers, and finishes them once those have answered OK.

Messages go as they come, many in one command.  Where a destination does not take them the next one
that works is tried; where none does they are requeued, for longer with each attempt, and the
consumer backs off.  A message that a destination refuses for itself, as one that is too large for
it, does not hold up the others that came with it: then each is published alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy as np

from martlet.client import (
    BadBody,
    Batch,
    ClientError,
    ConnectRefused,
    Consumer,
    Producer,
    PublishRefused,
)
from martlet.options.relay import RelayOptions
from martlet.outage import Outage
from martlet.plural import counted
from martlet.tools.client_settings import producer_settings, retry
from martlet.tools.host_pool import HostPool
from martlet.tools.json_filter import JsonFilter
from martlet.tools.source import consumer
from martlet.tools.timing import Timings

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""How long a destination may take to store messages, connecting included."""
_MAX_AT_ONCE = 2000
_OWN_FAULT = ("E_BAD_MESSAGE", "E_BAD_BODY")
"""What is refused for itself, and not because the destination can not store anything."""


class Destination:
    """A broker to publish to, which is connected when it is first needed."""

    def __init__(self, address: str, options: RelayOptions) -> None:
        self._address = address
        self._options = options
        self._connecting: asyncio.Task[Producer] | None = None
        """One attempt for all that wait for it."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Return when everything is stored. Raises ClientError."""
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


class Relay:
    """Passes messages on.

    Args:
        options: as the flags give them.
    """

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        addresses = tuple(dict.fromkeys(options.destination_addresses))
        self._addresses = addresses
        self._pool = HostPool(addresses, options.mode)
        self._outages = {
            each: Outage(f"cannot publish to {each}", f"publishing to {each} again")
            for each in addresses
        }
        self._timings = Timings(options.status_every, addresses)
        self._filter = JsonFilter(
            options.require_json_field, options.require_json_value, options.whitelist_json_fields
        )
        self._retry = retry(options.client)
        self._consumers = {
            topic: consumer(options, topic, options.channel)
            for topic in dict.fromkeys(options.topics)
        }

    async def run(self) -> None:
        """Pass messages on until stopped.

        Raises:
            ClientError: a broker, or a destination, will not have it.
        """
        async with AsyncExitStack() as opened:
            self._destinations = {
                address: Destination(address, self._options) for address in self._addresses
            }
            for destination in self._destinations.values():
                opened.push_async_callback(destination.close)
            async with asyncio.TaskGroup() as group:
                for topic, source in self._consumers.items():
                    name = f"martlet relay {topic}"
                    group.create_task(self._follow(topic, source), name=name)

    def stop(self) -> None:
        """Take no more messages; those in hand are stored and finished."""
        for each in self._consumers.values():
            each.stop()

    async def _follow(self, topic: str, source: Consumer) -> None:
        to = self._options.destination_topic or topic
        async with source, asyncio.TaskGroup() as passing:
            async for batch in source.batches(max_messages=_MAX_AT_ONCE):
                passing.create_task(self._pass(to, batch))

    async def _pass(self, topic: str, batch: Batch) -> None:
        """See what becomes of the messages of a batch, and answer each for it."""
        places, bodies = self._filtered(batch)
        stored = np.ones(len(batch), np.bool_)
        if bodies:
            stored[places] = await self._publish(topic, bodies)
        if stored.any():
            await batch.finish(stored)
        if not stored.all():
            attempts = int(batch.attempts[~stored].min())
            delay_ms = round(1000 * self._retry.delay_s(attempts))
            log.debug(
                "%s again in %d ms", counted(int(np.count_nonzero(~stored)), "message"), delay_ms
            )
            await batch.requeue(delay_ms, backoff=True)

    def _filtered(self, batch: Batch) -> tuple[list[int], list[bytes]]:
        """What passes the filter, and its places in the batch."""
        if not self._options.filters:
            return list(range(len(batch))), batch.bodies
        places: list[int] = []
        bodies: list[bytes] = []
        for place, body in enumerate(batch.bodies):
            try:
                left = self._filter.passes(body)
            except ValueError as error:
                log.error("left out, as it is no JSON object: %.200r: %s", body, error)
                continue
            if left is not None:
                places.append(place)
                bodies.append(left)
        return places, bodies

    async def _publish(self, topic: str, bodies: list[bytes]) -> list[bool]:
        """Publish to the first destination that takes messages; which of them are stored."""
        for address in self._pool.order():
            began_s = time.monotonic()
            try:
                await self._destinations[address].publish(topic, bodies)
            except (PublishRefused, BadBody) as error:
                code = error.code if isinstance(error, PublishRefused) else _OWN_FAULT[0]
                if code == "E_UNAUTHORIZED":
                    raise  # It will be said of the others too.
                if code in _OWN_FAULT and len(bodies) > 1:
                    alone = await asyncio.gather(*(self._publish(topic, [body]) for body in bodies))
                    return [stored for each in alone for stored in each]
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
