"""A filter says the same of each message by itself and of a batch at once, however it is cut."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from martlet.broker.queue.channel_filter import ChannelFilter
from martlet.properties.block import Block, pack_block
from martlet.properties.filter import MAX_LENGTH
from martlet.properties.filter.columns import PropertyColumns
from martlet.properties.filter.conditions import values_of
from martlet.properties.filter.parser import BadFilter, parse
from martlet.properties.model import Properties

TOKENS = (
    *("a", "NOT", "AND", "OR", "(", ")", "IN", "=", "<", "'x'", "1", ","),
    *("IS", "NULL", "BETWEEN", "MATCHES", "'#.*'", "TRUE"),
)
NAMES = ("a", "b", "x-region", "order")
WORDS = st.sampled_from(("", "eu", "us", "eu.", ".", "é", "\0", "a\0", "'", "true", "FALSE", "*"))
VALUES = st.one_of(
    WORDS,
    st.lists(st.sampled_from(("eu", "us", "x", "")), max_size=6).map(".".join),
    st.integers(-5, 5).map(str),
    st.sampled_from((2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1)).map(str),
    st.floats(allow_nan=False, width=32).map(repr),
    st.text("0123456789+-.eE", max_size=8),
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.just("1" * 63),
    st.just("eu." * 90),
)
MESSAGES = st.lists(
    st.one_of(
        st.just(Properties()),
        st.builds(
            Properties,
            tag=st.sampled_from(("", "red", "Aa", "BB")),
            keys=st.lists(st.just("k"), max_size=2).map(tuple),
            headers=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
            order_key=st.sampled_from(("", "red", "1")),
        ),
        # More fields than are walked side by side.
        st.just(Properties(keys=("k",) * 40, headers={"a": "eu", "b": "2"})),
    ),
    min_size=1,
    max_size=70,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


texts = VALUES.map(quoted)
numbers = st.one_of(
    st.integers(-5, 5),
    st.sampled_from((2**53, 2**53 + 1, 2.0**53, -(2**53) - 1, 0.5, -1e300)),
).map(str)
names = st.sampled_from(('"a"', "b", "x-region", '"order"', "TAGS", "ORDER_KEY"))
signs = st.sampled_from(("=", "<>", "!=", "<", "<=", ">", ">="))
patterns = st.lists(st.sampled_from(("*", "#", "eu", "us", "x", "")), max_size=5).map(
    lambda words: quoted(".".join(words))
)
nots = st.sampled_from(("", "NOT "))
tests = st.one_of(
    st.sampled_from(("TRUE", "false")),
    st.tuples(names, signs, numbers).map(" ".join),
    st.tuples(numbers, signs, names).map("".join),
    st.tuples(names, st.sampled_from(("=", "<>")), texts).map(" ".join),
    st.tuples(names, st.sampled_from(("= TRUE", "<> TRUE", "= FALSE"))).map(" ".join),
    st.tuples(names, st.sampled_from(("IS NULL", "IS NOT NULL"))).map(" ".join),
    st.builds("{} {}BETWEEN {} AND {}".format, names, nots, numbers, numbers),
    st.builds(
        lambda name, no, some: f"{name} {no}IN ({', '.join(some)})",
        names,
        nots,
        st.one_of(
            st.lists(texts, min_size=1, max_size=4), st.lists(numbers, min_size=1, max_size=3)
        ),
    ),
    st.builds(
        "{} {}{} {}".format,
        names,
        nots,
        st.sampled_from(("STARTSWITH", "endswith", "Contains")),
        texts,
    ),
    st.builds("{} {}MATCHES {}".format, names, nots, patterns),
)
filters = st.recursive(
    tests,
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        st.builds("({} AND {})".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(filters, MESSAGES)
@example("a >= 9007199254740993", [Properties(headers={"a": "9007199254740992"})] * 40)
@example("a = 3", [Properties(headers={"a": "1-2"}), Properties(headers={"a": "3"})] * 20)
def test_a_condition_is_the_same_for_a_message_and_for_a_batch(
    text: str, batch: list[Properties]
) -> None:
    condition = parse(text)
    entries = [properties.pack() for properties in batch if properties]
    expected = [condition.of(values_of(entry)) for entry in entries]
    if entries:
        block = Block(pack_block(list(enumerate(entries))))
        columns = PropertyColumns(block, np.arange(len(entries)))
        true, false = condition.select(columns, True), condition.select(columns, False)
        assert not (true & false).any()
        truths = [True if t else False if f else None for t, f in zip(true, false, strict=True)]
        assert truths == expected


@given(
    st.one_of(st.just(""), filters), st.sets(st.sampled_from(("red", "Aa"))), MESSAGES, st.data()
)
def test_a_filter_accepts_the_same_of_any_cut_of_a_batch(
    text: str, tags: set[str], batch: list[Properties], data: st.DataObject
) -> None:
    channel_filter = ChannelFilter(tuple(tags), text)
    entries = [(number, properties.pack()) for number, properties in enumerate(batch) if properties]
    block = pack_block(entries) if entries else None
    begin = data.draw(st.integers(0, len(batch)))
    end = data.draw(st.integers(begin, len(batch)))
    accepted = channel_filter.accepted(block, begin, end).tolist()
    assert accepted == [n for n in range(begin, end) if channel_filter.accepts(batch[n].pack())]
    if tags:
        assert all(batch[number].tag in tags for number in accepted)


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text("aTORND'\"()=<>!,.#*-+13e ", max_size=60),
        st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join),
    )
)
def test_whatever_is_written_is_read_or_refused_with_a_place(text: str) -> None:
    error = None
    try:
        parse(text)
    except BadFilter as raised:
        error = raised
    if error is not None:
        assert 0 <= error.position <= min(len(text), MAX_LENGTH)
        assert str(error).startswith("the filter is wrong at ")
