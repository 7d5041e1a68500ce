"""The registry: its entries, and their expiry."""

from martlet.lookup.failovers import Failovers
from martlet.lookup.registry import Peer, Registry

SECOND_NS = 1_000_000_000


class World:
    """A registry with its clock."""

    def __init__(self) -> None:
        self.now_ns = 10**18
        self.registry = Registry(
            lambda: self.now_ns,
            300 * SECOND_NS,
            45 * SECOND_NS,
            Failovers(lambda: self.now_ns / 1e9),
        )

    def peer(self, name: str, *topics: str) -> Peer:
        """A broker that has these topics."""
        peer = Peer(f"{name}:1", name, name, 4150, 4151, "1.3.0", "", "", self.now_ns)
        self.registry.join(peer)
        for topic in topics:
            self.registry.register(peer, topic, "")
        return peer


def test_a_long_silent_broker_is_not_listed_until_it_is_heard() -> None:
    world = World()
    silent, active = world.peer("silent", "t"), world.peer("heard", "t")
    world.now_ns += 300 * SECOND_NS
    world.registry.ping(active)
    assert world.registry.producers("t") == [silent, active]
    world.now_ns += 1
    assert world.registry.producers("t") == [active]
    assert world.registry.nodes() == [active]
    world.registry.ping(silent)
    assert world.registry.producers("t") == [silent, active]


def test_a_tombstone_hides_a_broker_for_one_topic_and_for_a_while() -> None:
    world = World()
    one, two = world.peer("one", "t", "u"), world.peer("two", "t")
    world.registry.tombstone("t", "one:4151")
    world.registry.tombstone("t", "two:4150")
    assert world.registry.producers("t") == [two]
    assert world.registry.producers("u") == [one]
    assert world.registry.nodes() == [one, two]
    world.now_ns += 45 * SECOND_NS
    assert world.registry.producers("t") == [one, two]


def test_a_tombstone_ends_when_the_topic_is_registered_anew() -> None:
    world = World()
    one = world.peer("one", "t")
    world.registry.tombstone("t", "one:4151")
    world.registry.register(one, "t", "c")
    assert world.registry.producers("t") == []
    world.registry.unregister(one, "t", "")
    world.registry.register(one, "t", "")
    assert world.registry.producers("t") == [one]


def test_names_outlive_their_brokers_unless_they_are_ephemeral() -> None:
    world = World()
    one = world.peer("one", "t", "gone#ephemeral")
    world.registry.register(one, "t", "c")
    world.registry.register(one, "t", "gone#ephemeral")
    world.registry.unregister(one, "t", "gone#ephemeral")
    world.registry.unregister(one, "gone#ephemeral", "")
    assert world.registry.topics == ["t"]
    world.registry.leave(one)
    assert world.registry.producers("t") == []
    assert (world.registry.topics, world.registry.channels("t")) == (["t"], ["c"])


def test_a_deleted_topic_is_forgotten_with_its_channels_and_may_come_again() -> None:
    world = World()
    one = world.peer("one", "t", "u")
    world.registry.register(one, "t", "c")
    world.registry.delete_topic("t")
    assert not world.registry.knows("t")
    assert world.registry.channels("t") == []
    assert list(one.topics) == ["u"]
    assert world.registry.delete_channel("t", "c") is False
    world.registry.register(one, "t", "c")
    assert world.registry.delete_channel("t", "c") is True
    world.registry.leave(one)
    assert world.registry.registrations() == {}
