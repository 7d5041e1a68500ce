"""The HTTP endpoints of nsqlookupd: look topics up, create and delete them.

The checks, their order, and the status and message of each refusal are nsqlookupd's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from martlet.names import is_valid_name
from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.server.http.request import HttpError, Request, Routes

if TYPE_CHECKING:
    from martlet.lookup.failovers import Failovers
    from martlet.lookup.registry import Peer, Registry

log = logging.getLogger(__name__)

_NEVER_NS = -6795364578871345152
"""The time of a tombstone that was never set, as nsqlookupd shows it."""


class LookupApi:
    """nsqlookupd's endpoints over a registry."""

    def __init__(self, registry: Registry, failovers: Failovers) -> None:
        self._registry = registry
        self._failovers = failovers

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/ping": {"GET": self.ping},
            "/info": {"GET": self.info},
            "/debug": {"GET": self.debug},
            "/lookup": {"GET": self.lookup},
            "/topics": {"GET": self.topics},
            "/channels": {"GET": self.channels},
            "/nodes": {"GET": self.nodes},
            "/topic/create": {"POST": self.create_topic},
            "/topic/delete": {"POST": self.delete_topic},
            "/topic/tombstone": {"POST": self.tombstone},
            "/channel/create": {"POST": self.create_channel},
            "/channel/delete": {"POST": self.delete_channel},
        }

    async def ping(self, request: Request) -> object:
        """Answer `OK`."""
        return "OK"

    async def info(self, request: Request) -> object:
        """Answer the version of nsqlookupd whose API this is."""
        return {"version": NSQD_VERSION}

    async def lookup(self, request: Request) -> object:
        """Answer the brokers that have a topic, and its channels; wait for a failover that is under
        way.
        """
        topic = request.argument("topic")
        await self._failovers.returned(topic)
        if not self._registry.knows(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return {
            "channels": self._registry.channels(topic),
            "producers": [peer.describe() for peer in self._registry.producers(topic)],
        }

    async def topics(self, request: Request) -> object:
        """List all topics."""
        return {"topics": self._registry.topics}

    async def channels(self, request: Request) -> object:
        """List the channels of a topic."""
        return {"channels": self._registry.channels(request.argument("topic"))}

    async def nodes(self, request: Request) -> object:
        """List brokers with their topics, and whether each topic is hidden there."""
        registry = self._registry
        return {
            "producers": [
                {
                    **peer.describe(),
                    "tombstones": [registry.is_tombstoned(peer, topic) for topic in peer.topics],
                    "topics": list(peer.topics),
                    **peer.identity,
                }
                for peer in registry.nodes()
            ]
        }

    async def debug(self, request: Request) -> object:
        """Dump all registrations."""
        registrations = {}
        for key, peers in self._registry.registrations().items():
            topic = key.split(":")[1] if key.startswith("topic:") else ""
            registrations[key] = [self._in_full(peer, topic) for peer in peers]
        return dict(sorted(registrations.items()))

    @staticmethod
    def _in_full(peer: Peer, topic: str) -> dict[str, object]:
        fields = peer.describe() | {
            "id": peer.id,
            "last_update": peer.last_ns,
            "tombstoned": topic in peer.tombstones,
            "tombstoned_at": peer.tombstones.get(topic, _NEVER_NS),
        }
        del fields["remote_address"]
        return dict(sorted(fields.items()))

    async def create_topic(self, request: Request) -> object:
        """Register a topic, for consumers that wait for it."""
        topic = request.argument("topic")
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        log.info("DB: adding topic(%s)", topic)
        self._registry.create(topic)
        return None

    async def delete_topic(self, request: Request) -> object:
        """Delete a topic and its channels."""
        topic = request.argument("topic")
        log.info("DB: removing topic(%s)", topic)
        self._registry.delete_topic(topic)
        return None

    async def tombstone(self, request: Request) -> object:
        """Hide a broker from lookups of a topic."""
        topic, node = request.argument("topic"), request.argument("node")
        log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self._registry.tombstone(topic, node)
        return None

    async def create_channel(self, request: Request) -> object:
        """Register a channel; brokers on which the topic appears create it at once."""
        topic, channel = request.topic_and_channel()
        log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._registry.create(topic, channel)
        return None

    async def delete_channel(self, request: Request) -> object:
        """Delete a channel."""
        topic, channel = request.topic_and_channel()
        if not self._registry.delete_channel(topic, channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return None
