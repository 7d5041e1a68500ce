"""Properties come out of a block as they went in, whole or cut."""

from hypothesis import given
from hypothesis import strategies as st

from martlet.properties.block import Block, entries_of, pack_block
from martlet.properties.model import NONE, Properties, Sent

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)
tags = st.text("abcdefg-._é", max_size=8)
some = st.builds(
    Properties,
    tag=tags,
    keys=st.lists(names, max_size=3).map(tuple),
    headers=st.dictionaries(names, texts, max_size=3),
    order_key=texts,
    system=st.just({}),
)
marks = st.builds(
    Sent,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**32 - 1),
)
batches = st.lists(st.one_of(st.just(NONE), some), min_size=1, max_size=20)


def packed(batch: list[Properties]) -> bytes:
    return pack_block([(n, properties.pack()) for n, properties in enumerate(batch) if properties])


@given(some, st.one_of(st.none(), marks))
def test_an_entry_unpacks_to_the_packed_properties(
    properties: Properties, sent: Sent | None
) -> None:
    expected = Properties(
        properties.tag,
        properties.keys,
        properties.headers,
        properties.order_key,
        {"reason": "x"},
        sent,
    )
    assert Properties.unpack(expected.pack()) == expected


@given(batches, st.data())
def test_a_block_and_any_cut_of_it_hold_each_entry(
    batch: list[Properties], data: st.DataObject
) -> None:
    block = Block(packed(batch))
    assert [Properties.unpack(block.of(n)) for n in range(len(batch))] == batch
    begin = data.draw(st.integers(0, len(batch)))
    end = data.draw(st.integers(begin, len(batch)))
    cut = Block(block.cut(begin, end))
    assert [Properties.unpack(cut.of(n)) for n in range(end - begin)] == batch[begin:end]
    assert (cut.tags == Block(packed(batch[begin:end])).tags).all()


@given(batches)
def test_valid_blocks_of_a_client_are_taken_unchanged(batch: list[Properties]) -> None:
    entries = entries_of(packed(batch), len(batch))
    assert entries == [(n, properties.pack()) for n, properties in enumerate(batch) if properties]
