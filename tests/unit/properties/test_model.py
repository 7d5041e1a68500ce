"""The limits of properties, and bytes that are no block of them."""

import struct
from dataclasses import replace

import pytest

from martlet.properties.block import Block, entries_of, pack_block, read_at_once
from martlet.properties.model import BadProperties, Properties, Sent, tag_hash


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (Properties(tag="a|b"), "without '|'"),
        (Properties(tag=" a"), "spaces around"),
        (Properties(tag="*"), r"not '\*'"),
        (Properties(tag="x" * 256), "256 bytes, the maximum is 255"),
        (Properties(keys=("",)), "between 1 and 1024"),
        (Properties(keys=("k",) * 65), "65 keys, the maximum is 64"),
        (Properties(order_key="x" * 1025), "the order key 'x+' takes 1025 bytes"),
        (Properties(order_key=b"\xff" * 1025), "the order key '.+' takes 1025 bytes"),
        (Properties(headers={"": "x"}), "between 1 and 255"),
        (Properties(headers={"n" * 256: "x"}), "between 1 and 255"),
        (Properties(headers={"n": "x" * 40_000}), "takes 40000 bytes"),
        (Properties(headers={f"n{i}": "x" * 8000 for i in range(5)}), "the maximum is 32768"),
        (Properties(headers={"n": "\ud800"}), "UTF-8"),
        (Properties(headers={"n": 7}), "is int, it must be str"),  # type: ignore[dict-item]
    ],
)
def test_impossible_properties_are_named(properties: Properties, text: str) -> None:
    with pytest.raises(BadProperties, match=text):
        properties.pack()


TAG = Properties(tag="x").pack()


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"\x01", "truncated"),
        (struct.pack("<I", 0), "truncated"),
        (struct.pack("<I", 1000), "truncated"),
        (struct.pack("<IIII", 1, 0, 9, 0), "do not fill it"),
        (pack_block([(5, Properties(tag="x").pack())]), "of message 5, but there are 3"),
        (pack_block([(1, b""), (1, b"")]), "do not rise"),
        (struct.pack("<IIII", 1, 0, 2, 0) + b"\x01\x00", "cut in the middle"),
        (pack_block([(0, b"\x63\x00\x00\x00")]), "kind 99"),
        (struct.pack("<IIII", 1, 0, 5, 0) + b"\x01\x00\x01\x00\xff", "UTF-8"),
        (struct.pack("<IIII", 1, 0, 5, 0) + b"\x02\x00\x01\x00\xff", "UTF-8"),
        (struct.pack("<IIII", 1, 0, 6, 0) + b"\x03\x01\x01\x00\xffx", "UTF-8"),
        (struct.pack("<IIII", 1, 0, 4, 0) + b"\x04\x00\x00\x00", "the order key '' takes 0 bytes"),
        (pack_block([(0, Properties(system={"reason": "x"}).pack())]), "only the broker may set"),
        (pack_block([(0, Properties(keys=("k",)).pack() + TAG)]), "behind other fields"),
        (pack_block([(0, TAG + TAG)]), "one of several"),
        (pack_block([(0, b"\x01\x01\x01\x00nx")]), "behind other fields"),
        (pack_block([(0, Properties(sent=Sent(bytes(16), 1)).pack())]), "which no client may"),
    ],
)
def test_a_block_that_no_client_may_send_is_refused(block: bytes, text: str) -> None:
    with pytest.raises(BadProperties, match=text):
        entries_of(block, 3)


def test_nothing_is_a_block_of_nothing() -> None:
    assert len(Block(b"")) == 0
    assert Block(b"").of(0) == b""
    assert not entries_of(b"", 3)


def test_the_hash_of_a_tag_is_javas() -> None:
    # "TagA".hashCode() and others, as of a JVM, without sign.
    assert tag_hash("TagA") == 2598919
    assert tag_hash("") == 0
    assert tag_hash("polygenelubricants") == 0x8000_0000


BINARY = Properties("red", ("k",), {"trace": b"\xff\x00", "region": "eu"}, b"\x00\xfe")


def test_an_order_key_and_values_of_headers_are_bytes_where_they_are_no_text() -> None:
    entry = BINARY.pack()
    assert Properties.unpack(entry) == BINARY
    assert entries_of(pack_block([(2, entry)]), 3) == [(2, entry)]
    assert BINARY.to_json() == {
        "tag": "red",
        "keys": ["k"],
        "headers": {"region": "eu"},
        "headers_base64": {"trace": "/wA="},
        "order_key_base64": "AP4=",
    }


def test_bytes_that_are_text_are_stored_as_the_text_is() -> None:
    text = Properties(headers={"name": "Zoë"}, order_key="straße")
    as_bytes = Properties(headers={"name": "Zoë".encode()}, order_key="straße".encode())
    assert as_bytes.pack() == text.pack()
    assert Properties.unpack(as_bytes.pack()) == text


@pytest.mark.parametrize(
    ("properties", "is_read"),
    [
        (Properties(order_key=b"\x80\xff"), True),
        (Properties("red", ("k",), {"trace": b"\xff", "name": "Zoë"}, "straße", priority=7), True),
        (Properties(keys=("straße",)), False),  # Whether it is UTF-8 has to be checked.
        (Properties(headers={"straße": "x"}), False),
    ],
)
def test_values_of_any_bytes_are_checked_for_all_messages_at_once(
    properties: Properties, is_read: bool
) -> None:
    entries = [(n, replace(properties, tag=f"t{n}").pack()) for n in range(40)]
    block = pack_block(entries)
    packed = read_at_once(block, 40)
    assert (packed is not None) == is_read
    assert list(packed or entries_of(block, 40)) == entries
