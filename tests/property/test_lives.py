"""Lives of a broker that once went wrong, told again step by step."""

from __future__ import annotations

from tests.property.test_broker import BrokerMachine, everything_small

__all__ = ["everything_small"]  # the fixture, which these need too


def test_a_segment_goes_only_when_the_copies_out_of_it_are_durable() -> None:
    """It was cleaned, and its batches stood elsewhere, but only in memory when the power failed."""
    state = BrokerMachine()
    state.open(seed=0, dropping=True)
    state.flood(delay_ms=0, name="b", segments=1)
    state.flood(delay_ms=0, name="a", segments=1)
    state.stop_and_start()
    state.create_channel_in_the_past(name="y", pick=0, share=0)
    state.create_channel_in_the_past(name="y", pick=1, share=0)
    state.create_channel_in_the_past(name="z", pick=1, share=0)
    large = ("a", [2500], 0, False)
    state.publish(parts=[large, ("b", [8] * 17, 1, False), large])
    state.stop_and_start()
    state.publish(parts=[("a", [1], 0, False), ("a", [1, 1], 0, False)])
    state.stands_where_the_model_stands()
    state.cut_power(seed=0)
    state.stands_where_the_model_stands()
    state.teardown()
