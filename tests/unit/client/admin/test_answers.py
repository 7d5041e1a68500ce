"""Answers of several brokers."""

import pytest

from martlet.client.admin import AdminError, AdminNotFound, AdminUnreachable, Answers, ChannelCounts

MISSING = AdminNotFound("http://b", "there is no topic 't'", 404)
DOWN = AdminUnreachable("http://c", "connection refused")


def test_a_missing_topic_is_no_failure() -> None:
    answers = Answers({"http://a": 1}, {"http://b": MISSING})
    assert answers.failures == {}
    assert answers.check() is answers


def test_the_first_failure_is_raised() -> None:
    answers = Answers({"http://a": 1}, {"http://b": MISSING, "http://c": DOWN})
    assert answers.failures == {"http://c": DOWN}
    with pytest.raises(AdminUnreachable, match="cannot connect to http://c: connection refused"):
        answers.check()


def test_values_are_converted_added_and_joined() -> None:
    answers = Answers({"a": [("t", 1), ("u", 2)], "b": [("t", 3)]}, {"c": DOWN})
    assert answers.map(len).values == {"a": 2, "b": 1}
    assert answers.map(len).errors == {"c": DOWN}
    assert answers.total(len) == 3
    assert answers.joined() == [("t", 1), ("u", 2), ("t", 3)]
    assert answers.added(lambda item: item[0], lambda item: item[1]) == {"t": 4, "u": 2}


def test_counts_are_added_field_by_field() -> None:
    one = ChannelCounts(depth=1, requeue_count=2)
    assert one + ChannelCounts(depth=10, client_count=3) == ChannelCounts(
        depth=11, requeue_count=2, client_count=3
    )


def test_an_error_keeps_its_kind_with_another_text() -> None:
    error = AdminError("http://a", "old", 409, "CONFLICT").replace("new", {"http://c": DOWN})
    assert (str(error), error.status, error.code) == ("http://a: new", 409, "CONFLICT")
    assert error.errors == {"http://c": DOWN}
    assert isinstance(MISSING.replace("x"), AdminNotFound)
