"""What becomes of topics and channels in Martlet, beside what nsqd 1.3.0 showed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import topic_cases
from tests.interop.nsqd_process import NEEDS_NSQD
from tests.interop.topic_cases import STORIES, NsqdInMemory, Stage

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

RECORDED: dict[str, list[Any]] = json.loads(
    (Path(__file__).parent / "nsqd_topics.json").read_text(encoding="utf-8")
)


@pytest.fixture(
    scope="module",
    params=[
        BrokerProcess,
        # nsqd itself, where there is one, keeps the record honest.
        pytest.param(NsqdInMemory, marks=NEEDS_NSQD),
    ],
    ids=["martlet", "nsqd"],
)
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with request.param() as process:
        yield process


def test_every_story_is_recorded() -> None:
    assert list(RECORDED) == [story.__name__ for story in STORIES], "make the record anew"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_is_seen_is_what_nsqd_shows(
    broker: BrokerProcess, story: Callable[[Stage], None]
) -> None:
    seen = topic_cases.told(broker, story)
    assert [what for what, _ in seen] == [what for what, _ in RECORDED[story.__name__]]
    for (what, value), (_, recorded) in zip(seen, RECORDED[story.__name__], strict=True):
        assert value == recorded, what
