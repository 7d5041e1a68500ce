"""The life of topics and channels in Martlet, beside the record of nsqd 1.3.0."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.broker import topic_cases
from tests.interop.broker.topic_cases import STORIES, NsqdInMemory, Stage
from tests.interop.nsqd_process import NEEDS_NSQD

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
def test_stories_run_as_with_nsqd(broker: BrokerProcess, story: Callable[[Stage], None]) -> None:
    seen = topic_cases.answers_of(broker, story)
    assert [name for name, _ in seen] == [name for name, _ in RECORDED[story.__name__]]
    for (name, value), (_, recorded) in zip(seen, RECORDED[story.__name__], strict=True):
        assert value == recorded, name
