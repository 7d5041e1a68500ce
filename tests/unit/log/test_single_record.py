"""A lone message is stored as a batch of one would be, byte for byte."""

from hypothesis import given
from hypothesis import strategies as st

from martlet.log.batch import LogBatch
from martlet.log.record import Contents, RecordKind, seal
from martlet.log.single_record import MAX_BODY_BYTES, Lone, lone_length

U32 = st.integers(0, (1 << 32) - 1)
U62 = st.integers(0, (1 << 62) - 1)
IDS = st.integers(0, (1 << 65) - 1)
BODIES = st.binary(min_size=1, max_size=600) | st.integers(1, MAX_BODY_BYTES).map(bytes)


@given(bodies=st.lists(BODIES, min_size=1, max_size=3), id=IDS, place=U62, topic=U32, now_ns=U62)
def test_the_bytes_are_those_of_a_batch_of_one(
    bodies: list[bytes], id: int, place: int, topic: int, now_ns: int
) -> None:
    """Also where the buffer still holds the message before."""
    lone = Lone()
    for body in bodies:
        batch = LogBatch()
        batch.begin(id & (1 << 64) - 1, now_ns)
        batch.add(body)
        record, flags = batch.finish()
        kind, position = int(RecordKind.BATCH), place & ~7
        contents = Contents(topic, 3, 1, place, now_ns, 0, batch.payload_length)
        seal(record, kind, flags, position, 7, contents)
        assert lone_length(len(body)) == len(record)
        built = lone.record(memoryview(body), id, position, 7, topic, 3, place, now_ns)
        assert bytes(built) == bytes(record)
