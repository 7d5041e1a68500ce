from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.text import (
    MAX_NS,
    counted,
    format_duration,
    go_json,
    parse_duration,
    parse_size,
    visible,
)

S = 10**9


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("100us", 100_000),
        ("100\u00b5s", 100_000),
        ("100\u03bcs", 100_000),
        ("100ms", 100_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", S),
        ("1m30s", 90 * S),
        ("1h15m30.918273645s", 4_530_918_273_645),
        ("-2ms", -2_000_000),
        ("+5s", 5 * S),
        ("0.3333333333333333333h", 1_199_999_999_999),
        ("9223372036854775807ns", MAX_NS),
    ],
)
def test_durations_of_go_are_read(text: str, expected_ns: int) -> None:
    assert parse_duration(text) == expected_ns


@pytest.mark.parametrize("text", ["", "-", "3", "1.5", ".s", "x", "1x", "s", "1s2", "1 s", "1,5s"])
def test_durations_that_go_refuses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|unit"):
        parse_duration(text)


def test_durations_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration("9223372036854775808ns")


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5\u00b5s"),
        (2_000_000, "2ms"),
        (90 * S, "1m30s"),
        (3600 * S, "1h0m0s"),
        (60 * S, "1m0s"),
        (1_000_000_001, "1.000000001s"),
        (-S, "-1s"),
    ],
)
def test_durations_are_written_as_by_go(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@given(st.integers(-MAX_NS, MAX_NS))
def test_written_durations_are_read_back(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("1048576", 1048576),
        ("64MiB", 64 << 20),
        ("64m", 64 << 20),
        ("5MB", 5_000_000),
        ("1.5 KiB", 1536),
        ("1_000", 1000),
        ("2g", 2 << 30),
    ],
)
def test_reads_sizes(text: str, expected_bytes: int) -> None:
    assert parse_size(text) == expected_bytes


@pytest.mark.parametrize("text", ["", "-1", "1.5", "lots", "5 XB", "0x10", "٣", "٣MiB"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_size(text)


def test_a_long_text_is_refused_in_time_by_its_length() -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size("1" * 1_000_000 + "!")


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1000, "1000 messages")],
)
def test_the_noun_follows_its_count(count: int, expected: str) -> None:
    assert counted(count, "message") == expected


def test_a_plural_of_its_own_and_a_form() -> None:
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(2, "batch", "batches") == "2 batches"
    assert counted(1_000_000, "message", form=",") == "1,000,000 messages"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", "orders"),
        ("Grüße 世界 🙂", "Grüße 世界 🙂"),
        ("a\tb\nc", "a\tb\nc"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("\u2066a\u2069", "\\u2066a\\u2069"),
        ("a\0b", "a\\u0000b"),
        ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("a\rb\x85", "a\\u000db\\u0085"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\ue000\U0010fffd", "\\ue000\\U0010fffd"),
    ],
)
def test_characters_that_hide_or_turn_text_are_written_out(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_a_shown_text_can_be_sent() -> None:
    everything = "".join(map(chr, range(0x110000)))
    visible(everything).encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, True], "b": {}}, '{"a":[1,null,true],"b":{}}'),
        ("<a href='x?y&z'>", "\"\\u003ca href='x?y\\u0026z'\\u003e\""),
        ("b\u00fc\u2028\u2029", '"b\u00fc\\u2028\\u2029"'),
        ("\ud800 and \U0001f600", '"\ufffd and \U0001f600"'),
        ('"\\\n\x01\x7f', '"\\"\\\\\\n\\u0001\x7f"'),
    ],
)
def test_it_is_compact_and_harmless_in_a_page(value: object, text: str) -> None:
    assert go_json(value) == text
