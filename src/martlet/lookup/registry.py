"""The registry: which brokers have which topics and channels.

It reads no clock and keeps nothing on disk: its caller passes the clock and each command of a
broker, and a broker registers everything again when it connects.  A topic or channel that no broker
has any more stays registered until a user deletes it, as with nsqlookupd; only ephemeral ones go by
themselves.

A *tombstone* on a broker's topic hides the broker from lookups of the topic, so that an operator
can take it out of service before the topic is deleted there.  It lasts for a configured time, or
until the broker registers the topic again on a new connection.

Of a broker with replicas only the latest primary is registered.  A new one replaces the one before,
whose connection stays open for a while where its machine fell silent.

In a lookup or a deletion ``*`` stands for all topics, as with nsqlookupd; it is no valid name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from martlet.lookup.failovers import Failovers
from martlet.names import is_ephemeral


@dataclass(eq=False, slots=True)
class Peer:
    """A broker that has identified itself."""

    id: str
    """The address of its connection, as ``address:port``."""
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str
    last_ns: int
    """When its latest command came."""
    replicated_broker: str = ""
    """The id of the broker, where this is the primary of one with replicas."""
    epoch: int = 0
    """Of the primary."""
    broker: str = ""
    """The id of a broker without replicas; empty if it does not report one."""
    run: str = ""
    """A random name of its process."""
    topics: dict[str, None] = field(default_factory=dict)
    channels: dict[tuple[str, str], None] = field(default_factory=dict)
    tombstones: dict[str, int] = field(default_factory=dict)
    """When each of its hidden topics was hidden."""

    @property
    def identity(self) -> dict[str, str]:
        """Martlet's own fields of a broker; two with one id have copies of a data folder."""
        return {"broker": self.broker, "run": self.run} if self.broker else {}

    def describe(self) -> dict[str, object]:
        """The fields that HTTP answers have."""
        return {
            "remote_address": self.id,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
        }


Peers = dict[Peer, None]
EVERY = "*"


class Registry:
    """The brokers, topics and channels that are registered.

    Args:
        clock: the running time, in nanoseconds since 1970; it never goes back.
        inactive_ns: lookups omit a broker that was silent for longer.
        tombstone_ns: how long a tombstone lasts.
        failovers: learns which brokers with replicas have no primary.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        inactive_ns: int,
        tombstone_ns: int,
        failovers: Failovers,
    ) -> None:
        self._clock = clock
        self._inactive_ns = inactive_ns
        self._tombstone_ns = tombstone_ns
        self._failovers = failovers
        self.peers: Peers = {}
        self._topics: dict[str, Peers] = {}
        self._channels: dict[str, dict[str, Peers]] = {}

    def join(self, peer: Peer) -> None:
        """Add a broker that has identified itself."""
        self.peers[peer] = None

    def primaries(self, broker: str) -> list[Peer]:
        """The registered primaries of a broker with replicas."""
        return [peer for peer in self.peers if broker and peer.replicated_broker == broker]

    def copies(self, peer: Peer) -> list[Peer]:
        """The registered brokers that have the same id as this one, and are other processes."""
        same = [other for other in self.peers if peer.broker and other.broker == peer.broker]
        return [other for other in same if other.run != peer.run]

    def leave(self, peer: Peer) -> None:
        """Remove a broker; its topics and channels stay registered."""
        if peer.replicated_broker:
            self._failovers.lost(peer.replicated_broker, peer.topics)
        for topic, channel in list(peer.channels):
            self._channels[topic][channel].pop(peer, None)
        for topic in list(peer.topics):
            self._topics[topic].pop(peer, None)
        self.peers.pop(peer, None)
        peer.channels.clear()
        peer.topics.clear()

    def ping(self, peer: Peer) -> None:
        """Note that a broker is alive."""
        peer.last_ns = self._clock()

    def register(self, peer: Peer, topic: str, channel: str) -> None:
        """Register a broker's topic, and its channel unless that is empty."""
        if channel:
            self._channels.setdefault(topic, {}).setdefault(channel, {})[peer] = None
            peer.channels[topic, channel] = None
        self._topics.setdefault(topic, {})[peer] = None
        peer.topics[topic] = None
        if peer.replicated_broker:
            self._failovers.registered(peer.replicated_broker, topic)

    def unregister(self, peer: Peer, topic: str, channel: str) -> None:
        """Unregister a broker's channel; if that is empty, its topic with all channels."""
        if channel:
            self._drop_channel(peer, topic, channel)
            return
        # Ephemeral channels stay until they are unregistered by name, as with nsqlookupd.
        for name, channel_peers in self._channels.get(topic, {}).items():
            channel_peers.pop(peer, None)
            peer.channels.pop((topic, name), None)
        peers = self._topics.get(topic)
        if peers is not None:
            peers.pop(peer, None)
            if not peers and is_ephemeral(topic):
                del self._topics[topic]
        peer.topics.pop(topic, None)
        peer.tombstones.pop(topic, None)

    def _drop_channel(self, peer: Peer, topic: str, channel: str) -> None:
        peer.channels.pop((topic, channel), None)
        channels = self._channels.get(topic, {})
        peers = channels.get(channel)
        if peers is not None:
            peers.pop(peer, None)
            if not peers and is_ephemeral(channel):
                del channels[channel]

    def create(self, topic: str, channel: str = "") -> None:
        """Register a topic, and a channel unless that is empty, though no broker has it."""
        if channel:
            self._channels.setdefault(topic, {}).setdefault(channel, {})
        self._topics.setdefault(topic, {})

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its channels."""
        if topic == EVERY:
            for name in list(self._topics | self._channels):
                self.delete_topic(name)
        for peers in self._channels.pop(topic, {}).values():
            for peer in peers:
                peer.channels = {key: None for key in peer.channels if key[0] != topic}
        for peer in self._topics.pop(topic, {}):
            del peer.topics[topic]
            peer.tombstones.pop(topic, None)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Delete a channel; return False if it is not registered."""
        peers = self._channels.get(topic, {}).pop(channel, None)
        if peers is None:
            return False
        for peer in peers:
            del peer.channels[topic, channel]
        return True

    def tombstone(self, topic: str, node: str) -> None:
        """Hide the broker at ``address:http port`` from lookups of the topic."""
        for name in self._meant(topic):
            for peer in self._topics[name]:
                if f"{peer.broadcast_address}:{peer.http_port}" == node:
                    peer.tombstones[name] = self._clock()

    @property
    def topics(self) -> list[str]:
        """All registered topics, sorted."""
        return sorted(self._topics)

    def channels(self, topic: str) -> list[str]:
        """The registered channels of a topic, sorted."""
        if topic == EVERY:
            return sorted(name for channels in self._channels.values() for name in channels)
        return sorted(self._channels.get(topic, ()))

    def knows(self, topic: str) -> bool:
        """Whether a topic is registered."""
        return bool(self._meant(topic))

    def is_tombstoned(self, peer: Peer, topic: str) -> bool:
        """Whether a broker is hidden from lookups of the topic."""
        since_ns = peer.tombstones.get(topic)
        return since_ns is not None and self._clock() - since_ns < self._tombstone_ns

    def producers(self, topic: str) -> list[Peer]:
        """The active brokers that have a topic and are not hidden."""
        peers = {
            peer: None
            for name in self._meant(topic)
            for peer in self._topics[name]
            if self._is_active(peer) and not self.is_tombstoned(peer, name)
        }
        return list(peers)

    def nodes(self) -> list[Peer]:
        """The active brokers."""
        return [peer for peer in self.peers if self._is_active(peer)]

    def _meant(self, topic: str) -> list[str]:
        if topic == EVERY:
            return list(self._topics)
        return [topic] if topic in self._topics else []

    def _is_active(self, peer: Peer) -> bool:
        return self._clock() - peer.last_ns <= self._inactive_ns

    def registrations(self) -> dict[str, list[Peer]]:
        """All registrations, by ``category:topic:channel``."""
        registered = {"client::": list(self.peers)} if self.peers else {}
        for topic, peers in self._topics.items():
            if peers:
                registered[f"topic:{topic}:"] = list(peers)
        for topic, channels in self._channels.items():
            for channel, peers in channels.items():
                if peers:
                    registered[f"channel:{topic}:{channel}"] = list(peers)
        return registered
