"""The agent of gnsq; see `story`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import gnsq
from tests.interop.agents import story
from tests.interop.agents.story import report


def handle(_consumer: gnsq.Consumer, message: Any) -> None:
    body = message.body.decode()
    report("received", body=body, attempts=message.attempts)
    message.enable_async()
    if body == story.AGAIN and message.attempts == 1:
        message.requeue(story.AGAIN_MS, backoff=False)
    elif body == story.SLOW:
        gevent.spawn(finish_slowly, message)
    else:
        message.finish()


def finish_slowly(message: Any) -> None:
    ends_s = time.monotonic() + story.SLOW_S
    while time.monotonic() < ends_s:
        message.touch()
        gevent.sleep(story.TOUCH_S)
    message.finish()


def publish(body: str, send: Callable[[], Any]) -> None:
    try:
        with gevent.Timeout(story.PUBLISH_S):
            answer = send()
    except (gnsq.errors.NSQException, gevent.Timeout) as error:
        report("failed", body=body, reason=repr(error))
    else:
        assert answer == b"OK", answer
        report("published", body=body)


def main() -> None:
    given = story.Arguments()
    topic = given.topic
    options = {"heartbeat_interval": story.HEARTBEAT_S, **given.negotiated()}
    consumer = gnsq.Consumer(topic, given.channel, given.address, max_in_flight=10, **options)
    consumer.on_message.connect(handle)
    consumer.start(block=False)
    # Its producer takes the OK of an upgrade for the answer to a publish, and fails.
    producer = gnsq.Producer(given.address, heartbeat_interval=story.HEARTBEAT_S)
    producer.start()

    def pub(body: str) -> Callable[[], Any]:
        return lambda: producer.publish(topic, body.encode())

    bodies = [body.encode() for body in story.TOGETHER]
    publish(",".join(story.TOGETHER), lambda: producer.multipublish(topic, bodies))
    later = story.LATER.encode()
    publish(story.LATER, lambda: producer.publish(topic, later, defer=story.LATER_MS))
    for body in (story.PLAIN, story.AGAIN, story.SLOW):
        publish(body, pub(body))
    gevent.sleep(story.SLOW_S + 1)
    report("quiet")
    gevent.sleep(story.QUIET_S)
    report("ticking")
    number = 0
    while True:
        number += 1
        publish(f"tick-{number}", pub(f"tick-{number}"))
        gevent.sleep(story.TICK_S)


if __name__ == "__main__":
    main()
