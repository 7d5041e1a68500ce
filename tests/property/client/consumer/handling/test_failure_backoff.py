"""Backing off goes as in NSQ's clients, modelled here as they are written: step by step."""

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from martlet.client.consumer.handling.backoff import (
    TABLE,
    BackoffAction,
    BackoffEvent,
    BackoffState,
    FailureBackoff,
    FailureGate,
)

EVENTS = [BackoffEvent.SUCCESS, BackoffEvent.FAILURE, BackoffEvent.REQUEUE, BackoffEvent.ELAPSED]
SETTINGS = st.builds(
    FailureBackoff,
    multiplier_s=st.sampled_from([0.5, 1.0, 3.0]),
    max_s=st.sampled_from([0.0, 1.0, 2.0, 7.0, 8.0, 120.0]),
    strategy=st.sampled_from(["exponential", "full_jitter"]),
)


class BackoffModel:
    """A counter and a timer, as go-nsq has them."""

    def __init__(self, settings: FailureBackoff, seed: int) -> None:
        self.settings = settings
        self.dice = random.Random(seed)
        self.counter = 0
        self.waits = False
        self.wait_s = 0.0
        self.ready = "all"

    def calculate(self, counter: int) -> float:
        full_s = self.settings.multiplier_s * 2.0**counter
        if self.settings.strategy == "full_jitter":
            full_s *= self.dice.random()
        return full_s

    def answered(self, event: BackoffEvent) -> None:
        if self.waits:
            return
        changed = False
        if event is BackoffEvent.SUCCESS and self.counter > 0:
            self.counter -= 1
            changed = True
        elif event is BackoffEvent.FAILURE:
            next_s = self.calculate(self.counter + 1)
            if self.settings.max_s and next_s <= self.settings.max_s:
                self.counter += 1
                changed = True
        if self.counter == 0 and changed:
            self.ready = "all"
        elif self.counter > 0:
            self.wait_s = min(self.calculate(self.counter), self.settings.max_s)
            self.ready = "none"
            self.waits = True

    def elapsed(self, is_connected: bool) -> None:
        if self.waits:
            if is_connected:
                self.waits = False
                self.ready = "one"
            else:
                self.wait_s = 1.0


@given(
    settings=SETTINGS,
    seed=st.integers(),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.booleans()), max_size=80),
)
def test_backing_off_goes_as_in_the_clients_of_nsq(
    settings: FailureBackoff, seed: int, events: list[tuple[BackoffEvent, bool]]
) -> None:
    gate = FailureGate(settings, random.Random(seed).random)
    model = BackoffModel(settings, seed)
    ready = "all"
    for event, is_connected in events:
        action = gate.feed(event, is_connected=is_connected)
        if event is BackoffEvent.ELAPSED:
            model.elapsed(is_connected)
        else:
            model.answered(event)
        ready = {
            BackoffAction.BLOCK: "none",
            BackoffAction.TRY: "one",
            BackoffAction.RESUME: "all",
        }.get(action, ready)
        assert ready == model.ready
        assert gate.level == model.counter
        assert (gate.state is BackoffState.BLOCKED) == model.waits
        assert (gate.state is BackoffState.OPEN) == (model.counter == 0)
        if action in (BackoffAction.BLOCK, BackoffAction.WAIT):
            assert gate.wait_s == model.wait_s
            assert action is BackoffAction.WAIT or gate.wait_s <= settings.max_s


def test_the_table_has_each_state_with_each_event() -> None:
    missing = set(product(BackoffState, BackoffEvent)) - TABLE.keys()
    assert missing == {(BackoffState.OPEN, BackoffEvent.SUCCESS_AT_LEVEL_1)}, "OPEN is level 0"
    for (state, _), step in TABLE.items():
        assert (step.action is BackoffAction.NOTHING) == (
            step.state is state and not step.level_change
        ) or (step.action in (BackoffAction.BLOCK, BackoffAction.WAIT))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"multiplier_s": -1}, "multiplier_s=-1"),
        ({"max_s": float("nan")}, "max_s=nan"),
        ({"strategy": "linear"}, "exponential or full_jitter"),
    ],
)
def test_senseless_settings_are_refused(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FailureBackoff(**arguments)  # type: ignore[arg-type]
