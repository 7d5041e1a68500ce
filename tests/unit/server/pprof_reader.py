"""Reads what server/observability/pprof.py writes, by the format's definition and without its
code.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from typing import Any, NamedTuple


class Read(NamedTuple):
    """A profile: its types, and each stack with its values."""

    types: list[tuple[str, str]]
    samples: dict[tuple[str, ...], list[int]]
    numbers: dict[int, int]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            assert at + value <= len(data)
            found[key >> 3].append(data[at : at + value])
            at += value
        else:
            assert key & 7 == 0
            found[key >> 3].append(value)
    return found


def numbers(packed: list[bytes]) -> list[int]:
    found, at = [], 0
    data = b"".join(packed)
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def read_profile(data: bytes) -> Read:
    """The profile with ``function file:line`` for each place."""
    profile = fields(gzip.decompress(data))
    strings = [string.decode() for string in profile[6]]
    assert strings[0] == ""
    functions = {}
    for function in map(fields, profile[5]):
        functions[function[1][0]] = strings[function[2][0]], strings[function[4][0]]
    places = {}
    for location in map(fields, profile[4]):
        line = fields(location[4][0])
        name, file = functions[line[1][0]]
        places[location[1][0]] = f"{name} {file}:{line[2][0]}"
    samples = {
        tuple(places[number] for number in numbers(sample[1])): numbers(sample[2])
        for sample in map(fields, profile[2])
    }
    kinds = [(strings[kind[1][0]], strings[kind[2][0]]) for kind in map(fields, profile[1])]
    assert len(samples) == len(profile[2])
    return Read(kinds, samples, {number: profile[number][0] for number in (9, 10, 12)})
