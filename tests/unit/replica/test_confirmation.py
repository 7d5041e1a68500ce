"""What is confirmed, and when the set may change."""

from __future__ import annotations

from martlet.replica.confirmation import Confirmation
from martlet.replica.replica_set import Quorum

THREE = Quorum(frozenset("abc"), 2)
TWO = Quorum(frozenset("ab"), 2)


def confirmation(quorum: Quorum = THREE, *, min_in_sync: int = 2) -> Confirmation:
    """Of an epoch whose first record ends at 1000."""
    return Confirmation(quorum, min_in_sync, 1000)


def acknowledge(confirmed: Confirmation, **positions: int) -> int:
    """Return what is confirmed after some acknowledgements."""
    for name, position in positions.items():
        confirmed.acknowledge(name, position)
    confirmed.update()
    return confirmed.position


def test_as_many_copies_as_are_asked_for_confirm() -> None:
    confirmed = confirmation()
    assert acknowledge(confirmed, a=3000) == 0
    assert acknowledge(confirmed, b=2000) == 2000
    assert acknowledge(confirmed, c=2500) == 2500
    assert acknowledge(confirmed, b=2800, c=2800) == 2800


def test_what_is_older_than_the_epoch_is_confirmed_with_its_first_record() -> None:
    confirmed = confirmation()
    assert acknowledge(confirmed, a=1000, b=992, c=992) == 0
    assert acknowledge(confirmed, c=1000) == 1000


def test_one_that_is_not_in_sync_does_not_count() -> None:
    assert acknowledge(confirmation(TWO), a=2000, c=2000) == 0


def test_nothing_is_confirmed_while_too_few_are_in_sync() -> None:
    confirmed = confirmation(Quorum(frozenset("a"), 1))
    assert acknowledge(confirmed, a=2000) == 0
    confirmed.min_in_sync = 1
    assert acknowledge(confirmed) == 2000


def test_both_quorums_count_while_the_set_changes() -> None:
    confirmed = confirmation()
    assert acknowledge(confirmed, a=2000, b=1500, c=2000) == 2000
    assert not confirmed.allows(TWO)
    confirmed.acknowledge("b", 2000)
    assert confirmed.allows(TWO)
    confirmed.begin_change(TWO)
    assert not confirmed.allows(TWO)
    assert acknowledge(confirmed, a=3000, c=3000) == 2000
    assert acknowledge(confirmed, b=2500) == 2500
    confirmed.end_change(THREE)
    assert acknowledge(confirmed) == 3000


def test_a_new_quorum_has_the_epochs_first_record() -> None:
    """A fresh primary has confirmed nothing, but its log holds what older epochs confirmed."""
    confirmed = confirmation()
    acknowledge(confirmed, a=1000, c=500)
    assert not confirmed.allows(Quorum(frozenset("ac"), 2))
    confirmed.acknowledge("c", 1000)
    assert confirmed.allows(Quorum(frozenset("ac"), 2))


def test_a_connection_that_ended_does_not_count() -> None:
    confirmed = confirmation()
    acknowledge(confirmed, b=2000)
    confirmed.forget("b")
    assert acknowledge(confirmed, a=2000) == 0
    assert acknowledge(confirmed, b=1500) == 1500
