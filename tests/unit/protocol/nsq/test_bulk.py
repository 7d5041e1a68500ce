"""Runs are looked for a bounded stretch: a buffer full of short ones must not cost its square."""

import pytest

from martlet.protocol.nsq.bulk import MAX_FINISHES, MAX_PUBLISHES, finish_run, publish_run

GOOD = b"FIN 0123456789abcdef\n"
BAD = b"FIN zzzzzzzzzzzzzzzz\n"


@pytest.mark.parametrize("count", [2, 15, 16, 17, 80, 81, 500, MAX_FINISHES - 1])
def test_a_run_of_finishes_ends_before_the_first_other_command(count: int) -> None:
    buffer = bytearray(GOOD * count + BAD * 3 + GOOD * 3)
    ids = finish_run(buffer, 0, len(buffer))
    assert ids is not None
    assert len(ids) == count


def test_a_run_of_finishes_is_looked_for_so_far_and_no_farther() -> None:
    buffer = bytearray(GOOD * (3 * MAX_FINISHES))
    ids = finish_run(buffer, 0, len(buffer))
    assert ids is not None
    assert len(ids) == MAX_FINISHES


def test_a_run_of_publishes_is_looked_for_so_far_and_no_farther() -> None:
    one = b"PUB t\n\0\0\0\1x"
    buffer = bytearray(one * (3 * MAX_PUBLISHES))
    bodies, end = publish_run(buffer, 0, len(buffer), len(b"PUB t\n"), 1, 100)
    assert len(bodies) == MAX_PUBLISHES
    assert end == MAX_PUBLISHES * len(one)


def test_a_wrong_id_in_front_is_no_run() -> None:
    for wrong in (BAD + GOOD, GOOD + BAD):
        buffer = bytearray(wrong + GOOD * 20)
        assert finish_run(buffer, 0, len(buffer)) is None
