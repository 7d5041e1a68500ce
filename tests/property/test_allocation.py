"""The strategies of allocation: RocketMQ's formulas, and what every strategy must keep."""

from hypothesis import given, settings
from hypothesis import strategies as st

from martlet.broker.allocation import STRATEGIES, Candidate, Place, allocate

counts = st.integers(0, 40)
names = st.lists(st.text("abcdef0123456789-", min_size=1, max_size=6), unique=True, max_size=12)
TO_ALL = sorted(set(STRATEGIES) - {"by-config", "by-machine-room"})


def place(count: int) -> Place:
    return Place("orders", "broker-a", "east", count)


@settings(deadline=None)
@given(counts, names, st.sampled_from(TO_ALL))
def test_each_queue_has_one_member(count: int, ids: list[str], strategy: str) -> None:
    members = [Candidate(id, room=("east", "west")[len(id) % 2]) for id in ids]
    found = allocate(strategy, place(count), members)
    assert set(found) == set(ids)
    if ids:
        assert sorted(queue for queues in found.values() for queue in queues) == list(range(count))
        assert all(queues == sorted(queues) for queues in found.values())


@settings(deadline=None)
@given(counts, names)
def test_averagely_is_the_formula(n: int, ids: list[str]) -> None:
    found = allocate("averagely", place(n), [Candidate(id) for id in ids])
    c = len(ids)
    for i, id in enumerate(sorted(ids)):
        mod = n % c
        size = 1 if n <= c else n // c + (1 if mod > 0 and i < mod else 0)
        start = i * size if mod > 0 and i < mod else i * size + mod
        take = max(0, min(size, n - start))
        assert found[id] == list(range(start, start + take))


@settings(deadline=None)
@given(counts, names)
def test_by_circle_and_by_room_are_the_formulas(n: int, ids: list[str]) -> None:
    circle = allocate("averagely-by-circle", place(n), [Candidate(id) for id in ids])
    room = allocate("by-machine-room", place(n), [Candidate(id, room="east") for id in ids])
    c = len(ids)
    for i, id in enumerate(sorted(ids)):
        assert circle[id] == [k for k in range(n) if k % c == i]
        q = n // c
        expected = list(range(q * i, q * i + q)) + ([i + q * c] if n % c > i else [])
        assert room[id] == expected


@settings(deadline=None)
@given(counts, names, names, st.data())
def test_sticky_is_even_and_moves_no_more_than_it_must(
    count: int, before: list[str], after: list[str], data: st.DataObject
) -> None:
    first = allocate("sticky", place(count), [Candidate(id) for id in before])
    grown = data.draw(st.integers(count, count + 5))
    members = [Candidate(id, held=first.get(id, [])) for id in after]
    then = allocate("sticky", place(grown), members)
    if not after:
        return
    sizes = sorted(len(queues) for queues in then.values())
    assert sizes[-1] - sizes[0] <= 1
    size, rest = divmod(grown, len(after))
    had = sorted((len(first.get(id, [])) for id in after), reverse=True)
    most_kept = sum(min(h, size + (at < rest)) for at, h in enumerate(had))
    kept = sum(len(set(then[id]) & set(first.get(id, []))) for id in after)
    assert kept == most_kept


def test_by_config_gives_what_is_named_and_each_queue_once() -> None:
    members = [Candidate("b", queues=(1, 2, 9)), Candidate("a", queues=(0, 1))]
    assert allocate("by-config", place(4), members) == {"a": [0, 1], "b": [2]}


def test_rooms() -> None:
    members = [Candidate("a", room="west"), Candidate("b", room="east")]
    assert allocate("machine-room-nearby", place(3), members) == {"a": [], "b": [0, 1, 2]}
    assert allocate("by-machine-room", place(3), members[:1]) == {"a": []}
    assert allocate("machine-room-nearby", place(3), members[:1]) == {"a": [0, 1, 2]}


@settings(deadline=None)
@given(counts, names)
def test_consistent_hash_moves_only_what_the_newcomer_gets(count: int, ids: list[str]) -> None:
    members = [Candidate(id) for id in ids]
    before = allocate("consistent-hash", place(count), members)
    after = allocate("consistent-hash", place(count), [*members, Candidate("newcomer")])
    for id in ids:
        assert set(after[id]) <= set(before[id])
