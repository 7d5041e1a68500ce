"""Former names of the package are still there, and name their successors."""

import pytest

import martlet.client
from martlet.client import PullConsumer, PullCounts, QueueId


@pytest.mark.parametrize(("former", "now"), [("Place", QueueId), ("Tally", PullCounts)])
def test_a_former_name_is_the_same_class_and_warns(former: str, now: type) -> None:
    with pytest.warns(DeprecationWarning, match=f"{former} is {now.__name__} now"):
        assert getattr(martlet.client, former) is now


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Outpost'"):
        getattr(martlet.client, "Outpost")  # noqa: B009 - it is not there


def test_its_names_are_listed() -> None:
    assert {"Consumer", "Producer"} <= set(dir(martlet.client))
    assert "__path__" not in dir(martlet.client)


def test_a_former_property_has_the_value_of_its_successor() -> None:
    assert PullConsumer.tally is PullConsumer.current_counts
