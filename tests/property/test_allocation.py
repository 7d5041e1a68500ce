"""The strategies of allocation: RocketMQ's formulas, and what every strategy must keep."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from martlet.allocation import STRATEGIES, GroupMember, TopicQueue, allocate

counts = st.integers(0, 40)
names = st.lists(st.text("abcdef0123456789-", min_size=1, max_size=6), unique=True, max_size=12)
TO_ALL = sorted(set(STRATEGIES) - {"by-config", "by-machine-room"})


def share_out(strategy: str, count: int, members: Sequence[GroupMember]) -> dict[str, list[int]]:
    """The numbers of the queues of one broker."""
    assignment = allocate(strategy, "orders", at("a", count), members)
    return {id: [queue.number for queue in queues] for id, queues in assignment.items()}


def at(broker: str, count: int, room: str = "east") -> list[TopicQueue]:
    return [TopicQueue(broker, number, room) for number in range(count)]


@given(counts, names, st.sampled_from(TO_ALL))
def test_each_queue_has_one_member(count: int, ids: list[str], strategy: str) -> None:
    members = [GroupMember(id, room=("east", "west")[len(id) % 2]) for id in ids]
    assignment = share_out(strategy, count, members)
    assert set(assignment) == set(ids)
    if ids:
        assert sorted(queue for queues in assignment.values() for queue in queues) == list(
            range(count)
        )
        assert all(queues == sorted(queues) for queues in assignment.values())


@given(counts, names)
def test_averagely_is_the_formula(n: int, ids: list[str]) -> None:
    assignment = share_out("averagely", n, [GroupMember(id) for id in ids])
    c = len(ids)
    for i, id in enumerate(sorted(ids)):
        mod = n % c
        size = 1 if n <= c else n // c + (1 if mod > 0 and i < mod else 0)
        start = i * size if mod > 0 and i < mod else i * size + mod
        take = max(0, min(size, n - start))
        assert assignment[id] == list(range(start, start + take))


@given(counts, names)
def test_averaging_by_circle_and_by_machine_room_follow_the_formulas(
    n: int, ids: list[str]
) -> None:
    circle = share_out("averagely-by-circle", n, [GroupMember(id) for id in ids])
    room = share_out("by-machine-room", n, [GroupMember(id, room="east") for id in ids])
    c = len(ids)
    for i, id in enumerate(sorted(ids)):
        assert circle[id] == [k for k in range(n) if k % c == i]
        q = n // c
        expected = list(range(q * i, q * i + q)) + ([i + q * c] if n % c > i else [])
        assert room[id] == expected


@given(counts, names, names, st.data())
def test_sticky_is_even_and_moves_no_more_than_it_must(
    count: int, before: list[str], after: list[str], data: st.DataObject
) -> None:
    first = share_out("sticky", count, [GroupMember(id) for id in before])
    grown = data.draw(st.integers(count, count + 5))
    members = [
        GroupMember(id, held=[TopicQueue("a", n, "east") for n in first.get(id, [])])
        for id in after
    ]
    then = share_out("sticky", grown, members)
    if not after:
        return
    sizes = sorted(len(queues) for queues in then.values())
    assert sizes[-1] - sizes[0] <= 1
    size, rest = divmod(grown, len(after))
    had = sorted((len(first.get(id, [])) for id in after), reverse=True)
    max_kept = sum(min(h, size + (at < rest)) for at, h in enumerate(had))
    kept = sum(len(set(then[id]) & set(first.get(id, []))) for id in after)
    assert kept == max_kept


def test_by_config_assigns_the_named_queues_each_once() -> None:
    members = [GroupMember("b", queues=(1, 2, 9)), GroupMember("a", queues=(0, 1))]
    assert share_out("by-config", 4, members) == {"a": [0, 1], "b": [2]}


def test_machine_rooms() -> None:
    members = [GroupMember("a", room="west"), GroupMember("b", room="east")]
    assert share_out("machine-room-nearby", 3, members) == {"a": [], "b": [0, 1, 2]}
    assert share_out("by-machine-room", 3, members[:1]) == {"a": []}
    assert share_out("machine-room-nearby", 3, members[:1]) == {"a": [0, 1, 2]}


@given(counts, names)
def test_consistent_hash_moves_only_the_newcomer_s_queues(count: int, ids: list[str]) -> None:
    members = [GroupMember(id) for id in ids]
    before = share_out("consistent-hash", count, members)
    after = share_out("consistent-hash", count, [*members, GroupMember("newcomer")])
    for id in ids:
        assert set(after[id]) <= set(before[id])
