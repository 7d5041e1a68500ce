"""What a filter means, and how a wrong one is refused."""

from __future__ import annotations

import pytest

from martlet.properties.filter import MAX_LENGTH
from martlet.properties.filter.conditions import values_of
from martlet.properties.filter.parser import (
    MAX_DEPTH,
    MAX_TERMS,
    BadFilter,
    parse,
)
from martlet.properties.model import Properties

MESSAGE = values_of(
    Properties(
        tag="paid",
        keys=("k1",),
        order_key="customer 7",
        headers={
            "region": "eu",
            "route": "orders.new.eu.berlin",
            "price": "3.50",
            "count": "007",
            "id": "9007199254740993",
            "urgent": "True",
            "x-trace": "",
            "order": "it's",
            "TAGS": "a header",
            "größe": "L",
        },
    ).pack()
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region = 'eu'", True),
        ("region <> 'eu'", False),
        ("region != 'us'", True),
        ("'eu' = region", True),
        ("Region = 'eu'", None),
        ("region in ('us', 'eu')", True),
        ("region NOT IN ('us')", True),
        ("missing NOT IN ('us')", None),
        ("missing <> 'eu'", None),
        ("NOT missing = 'eu'", None),
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ('"x-trace" IS NOT NULL', True),
        ("x-trace = ''", True),
        ("\"order\" = 'it''s'", True),
        ("\"größe\" = 'L'", True),
        ("TAGS = 'paid'", True),
        ("\"TAGS\" = 'a header'", True),
        ("ORDER_KEY STARTSWITH 'customer '", True),
        # numbers
        ("price = 3.5", True),
        ("price = '3.5'", False),
        ("price > 3 AND price < 4", True),
        ("4 > price", True),
        ("4 <= price", False),
        ("price BETWEEN 3.5 AND 3.5", True),
        ("price NOT BETWEEN 1 AND 3", True),
        ("count = 7", True),
        ("count IN (6, 7)", True),
        ("id = 9007199254740993", True),
        ("id = 9007199254740992", False),
        ("id > 9007199254740992", True),
        ("id > 9007199254740992.0", True),
        ("price > -1e3", True),
        ("region > 3", None),
        ("region <> 3", None),
        ("region > 3 OR region = 'eu'", True),
        # booleans
        ("urgent = TRUE", True),
        ("urgent <> true", False),
        ("FALSE = urgent", False),
        ("region = TRUE", None),
        ("TRUE", True),
        ("NOT FALSE AND TRUE", True),
        # the logic of three values
        ("missing = 1 AND region = 'us'", False),
        ("missing = 1 AND region = 'eu'", None),
        ("missing = 1 OR region = 'eu'", True),
        ("missing = 1 OR region = 'us'", None),
        ("region = 'us' OR region = 'eu' AND price > 9", False),
        ("(region = 'eu' OR region = 'us') AND price > 3", True),
        ("NOT region = 'us' AND NOT (price > 9)", True),
        # texts
        ("route STARTSWITH 'orders.'", True),
        ("route ENDSWITH '.berlin'", True),
        ("route NOT CONTAINS '.eu.'", False),
        ("x-trace STARTSWITH ''", True),
        # RocketMQ's own example
        (
            "(TAGS is not null and TAGS in ('TagA', 'paid'))"
            " and (price is not null and price between 0 and 4)",
            True,
        ),
    ],
)
def test_a_filter_means_what_sql_does(text: str, expected: bool | None) -> None:
    assert parse(text).of(MESSAGE) is expected


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders.*.eu.#", ["orders.new.eu", "orders.new.eu.a.b"], ["orders.eu", "orders.a.b.eu"]),
        ("#", ["", "a", "a.b"], []),
        ("*", ["a"], ["", "a.b"]),
        ("", [""], ["a"]),
        ("a.#", ["a", "a.b", "a."], ["ab", "b.a", ""]),
        ("#.b", ["b", "a.b", "b.b"], ["ab", "b.a"]),
        ("a.#.b.#.c", ["a.b.c", "a.x.b.y.c", "a.b.b.c.c"], ["a.c", "a.b", "a.c.b"]),
        ("*.*", ["a.b", "."], ["a", "a.b.c"]),
        ("#.#", ["", "a", "a.b.c"], []),
        ("a.#.*", ["a.b", "a.b.c"], ["a"]),
        ("a+.b", ["a+.b"], ["aa.b"]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
    ],
)
def test_patterns_match_words_as_amqps_topic_exchange(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    condition = parse(f"route MATCHES '{pattern}'")
    for route in matching + others:
        values = values_of(Properties(headers={"route": route}).pack())
        assert condition.of(values) is (route in matching), route


def test_a_value_longer_than_a_routing_key_matches_no_pattern() -> None:
    for count, expected in ((255, True), (256, False)):
        values = values_of(Properties(headers={"route": "x" * count}).pack())
        assert parse("route MATCHES '#'").of(values) is expected


def test_a_hostile_value_does_not_make_a_pattern_try_all_ways() -> None:
    condition = parse("route MATCHES '" + "#.a." * 60 + "b'")
    values = values_of(Properties(headers={"route": "a." * 127}).pack())
    assert condition.of(values) is False  # It would not end in a lifetime.


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", 0, "its end: a property is expected"),
        ("region", 6, "its end: =, <>, <"),
        ("region =", 8, "a value is expected"),
        ("region = eu", 9, "a value is expected: a number, a text in single quotes"),
        ("region = 'eu", 9, "the text has no ' at its end"),
        ('"region = 1', 0, 'the name has no " at its end'),
        ("price >> 3", 7, "a value is expected"),
        ("price > 'x'", 6, "> compares numbers; texts are compared by =, <> and IN"),
        ("price > TRUE", 6, "> compares numbers"),
        ("price = 3x", 8, "that is no number"),
        ("1st = 'x'", 0, "a name that begins with a digit needs double quotes"),
        ("price = 1e999", 8, "below 1.8e308"),
        ("price = " + "1" * 65, 8, "at most 64 characters"),
        ("a = NULL", 4, "take IS NULL or IS NOT NULL"),
        ("a LIKE 'x%'", 2, "there is no LIKE: take STARTSWITH"),
        ("a IN ('x', 3)", 2, "either texts or numbers"),
        ("a IN ()", 6, "a value is expected"),
        ("a IN (TRUE)", 2, "take = TRUE or = FALSE"),
        ("a IN ('x'", 9, ") is expected"),
        ("a BETWEEN 1 OR 2", 12, "AND is expected"),
        ("a BETWEEN 'x' AND 2", 10, "a number is expected"),
        ("a STARTSWITH 3", 13, "takes a text in single quotes"),
        ("a MATCHES 'a*.b'", 10, "stand for words and not for parts of one, as in 'a*'"),
        ("a MATCHES '" + "a." * 130 + "'", 10, "a pattern of 260 bytes; the maximum is 255"),
        ("a = 1 b = 2", 6, "AND, OR or the end is expected"),
        ("(a = 1", 6, ") is expected"),
        ("a = 1)", 5, "AND, OR or the end is expected"),
        ("a = b", 4, "a value is expected"),
        ("1 = 2", 4, "a property is expected"),
        ("1", 0, "compared with a property"),
        ("order = 1 AND or = 2", 14, 'a header of that name is "OR" in double quotes'),
        ("KEYS = 'x'", 0, "there is no filter by keys"),
        ("größe = 1", 2, "needs double quotes"),
        ("a = 'x' ; DROP", 8, "';' belongs into quotes"),
        ('"" = 1', 0, "between 1 and 255 are allowed"),
        (f'"{"n" * 256}" = 1', 0, "the name takes 256 bytes"),
        ("a = '\ud800'", 4, "UTF-8 cannot encode"),
    ],
)
def test_a_wrong_filter_is_refused_with_the_place(text: str, place: int, problem: str) -> None:
    with pytest.raises(BadFilter) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert caught.value.position == place
    if place < len(text):
        assert f"character {place + 1}, " in str(caught.value)


def test_a_filter_at_a_limit_is_read_and_one_beyond_refused() -> None:
    at_limit = " OR ".join(["a = 1"] * (MAX_TERMS // 2))
    parse(at_limit)
    with pytest.raises(BadFilter, match="more than 256 tests and values"):
        parse(at_limit + " OR a = 1")
    parse("(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH)
    with pytest.raises(BadFilter, match="nested more than 32 deep"):
        parse("NOT " * (MAX_DEPTH + 1) + "a = 1")
    parse(f"a = '{'x' * (MAX_LENGTH - 6)}'")
    with pytest.raises(BadFilter, match="has 4097 characters, the maximum is 4096"):
        parse(f"a = '{'x' * (MAX_LENGTH - 5)}'")
