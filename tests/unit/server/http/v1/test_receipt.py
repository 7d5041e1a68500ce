"""The text of a receipt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.server.http.v1.receipt import MAX_CHARACTERS, BadReceipt, LeaseReceipt

U64 = st.integers(0, (1 << 64) - 1)


@given(U64, U64, U64, U64, U64, st.integers(1, (1 << 32) - 1))
def test_a_receipt_is_read_as_it_was_written(
    epoch: int, lease: int, channel: int, id: int, stored_at_ns: int, attempts: int
) -> None:
    message_id = b"%016x" % id
    receipt = LeaseReceipt(epoch, lease, channel, message_id, stored_at_ns, attempts)
    assert len(str(receipt)) <= MAX_CHARACTERS
    assert LeaseReceipt.parse(str(receipt)) == receipt


@pytest.mark.parametrize(
    "text", ["", "x", "1-1-1-1-1-1-1", "2-1-1-1-0000000000000000-1-1", "1-1-1-1-" + "0" * 16]
)
def test_another_text_is_no_receipt(text: str) -> None:
    with pytest.raises(BadReceipt, match="the text 'receipt' of a received message"):
        LeaseReceipt.parse(text)
