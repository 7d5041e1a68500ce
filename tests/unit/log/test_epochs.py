"""Where the logs of two replicas part."""

from __future__ import annotations

import pytest

from martlet.log.epochs import MAX_EPOCHS, EpochRange, Epochs, common_position


def epochs(*ranges: tuple[int, int, int]) -> list[EpochRange]:
    """Return (epoch, start, end) ranges."""
    return [EpochRange(*each) for each in ranges]


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ([(1, 0, 80)], [(1, 0, 80)], 80),
        ([(1, 0, 80)], [(1, 0, 240)], 80),
        ([(1, 0, 240)], [(1, 0, 80)], 80),
        # A tail of epoch 1 that the next primary did not have.
        ([(1, 0, 240)], [(1, 0, 80), (2, 1024, 1104)], 80),
        ([(1, 0, 80), (2, 1024, 1104)], [(1, 0, 240)], 80),
        # Epochs of which each has one of its own.
        ([(1, 0, 80), (2, 1024, 1104)], [(1, 0, 160), (3, 1024, 1104)], 80),
        # The first segments were retired at one of them.
        ([(1, 512, 800), (2, 1024, 1104)], [(1, 0, 800), (2, 1024, 1200)], 1104),
        ([(2, 4096, 4800)], [(1, 0, 800), (2, 1024, 5000)], 4800),
        # The first record of an epoch is damaged in one of them.
        ([(1, 0, 80), (2, 1024, 9000)], [(1, 0, 80), (2, 1208, 5000)], 5000),
        # The epoch's first segments were retired at one of them.
        ([(1, 0, 80), (2, 1024, 1104)], [(1, 0, 80), (2, 2048, 2128)], 1104),
        ([(1, 0, 80)], [(2, 1024, 1104)], None),
        ([], [(1, 0, 80)], None),
    ],
)
def test_the_common_position(
    ours: list[tuple[int, int, int]], theirs: list[tuple[int, int, int]], common: int | None
) -> None:
    assert common_position(epochs(*ours), epochs(*theirs)) == common
    assert common_position(epochs(*theirs), epochs(*ours)) == common


def test_a_cut_forgets_what_is_behind_it() -> None:
    found = Epochs()
    for epoch, start, end in [(1, 0, 80), (1, 80, 240), (3, 1024, 1104), (3, 1104, 1184)]:
        found.add(epoch, start, end)
    assert found.ranges == epochs((1, 0, 240), (3, 1024, 1184))
    assert found.last == 3
    found.cut(1104)
    assert found.ranges == epochs((1, 0, 240), (3, 1024, 1104))
    found.cut(1024)
    assert found.last == 1
    found.cut(0)
    assert found.last == 0


def test_epochs_outlive_their_segments() -> None:
    found = Epochs()
    found.add(3, 4096, 4200)
    found.add(5, 8192, 8300)
    # 2 and 4 were retired, the end of 3 too; 5 and 6 were cut, or lost with the power.
    found.remember(
        epochs((2, 0, 4000), (3, 4040, 5000), (4, 5200, 8192), (5, 8192, 9000), (6, 9000, 9080))
    )
    assert found.ranges == epochs((2, 0, 4000), (3, 4040, 5000), (4, 5200, 8192), (5, 8192, 8300))


def test_as_many_epochs_are_remembered_as_fit() -> None:
    found = Epochs()
    found.add(1000, 10_000, 10_080)
    found.remember([EpochRange(epoch, epoch * 8, epoch * 8 + 8) for epoch in range(1, 100)])
    assert len(found.ranges) == MAX_EPOCHS
    assert found.last == 1000


def test_what_was_cut_off_is_not_remembered() -> None:
    """The records of another epoch are in its place."""
    found = Epochs()
    found.add(3, 0, 352)
    found.add(5, 352, 500)
    found.remember(epochs((3, 0, 176), (4, 176, 352)))
    assert found.ranges == epochs((3, 0, 352), (5, 352, 500))


def test_a_copy_on_a_new_disk_learns_of_the_epochs_that_were_removed() -> None:
    found = Epochs()
    found.add(4, 8192, 9000)
    found.adopt(epochs((2, 0, 800), (3, 1024, 5000), (4, 6000, 9500), (5, 9600, 9900)), 8192)
    assert found.ranges == epochs((2, 0, 800), (3, 1024, 5000), (4, 6000, 9000))
