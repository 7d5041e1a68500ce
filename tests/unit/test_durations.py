import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.durations import MAX_NS, format_duration, parse_duration, parse_size

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
