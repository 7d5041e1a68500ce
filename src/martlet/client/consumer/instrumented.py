"""Call a consumer's hooks for its sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from martlet.client.consumer.buffer import BufferedRun
from martlet.client.consumer.subscription import Subscription
from martlet.client.hooks import Hooks, Publishing
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES


class Counted(Protocol):
    """Counts messages."""

    @property
    def finished(self) -> int:
        """The number finished."""

    @property
    def requeued(self) -> int:
        """The number requeued."""


def instrument(hooks: Hooks, subscription: Subscription) -> None:
    """Have the hooks called with received and answered messages, beside set callbacks."""
    address = str(subscription.address)
    if hooks.on_received is not None:
        subscription.on_delivery = _receiving(hooks.on_received, address, subscription.on_delivery)
    if hooks.has_publishing:
        subscription.reply_hooks = partial(_replying, hooks)
    if hooks.has_settling:
        on_settled, report = subscription.on_settled, settling(hooks, address, subscription)

        def settled() -> None:
            on_settled()
            report()

        subscription.on_settled = settled


def _replying(
    hooks: Hooks, topic: str, body: bytes, /
) -> tuple[Mapping[str, str], Callable[[BaseException | None], object]]:
    """Call the hooks of a publish for a reply."""
    call = hooks.begin(Publishing(topic, body))
    return call.headers, partial(hooks.end, call)


def _receiving(
    on_received: Callable[[str, int, int], object],
    address: str,
    on_delivery: Callable[[BufferedRun], None],
) -> Callable[[BufferedRun], None]:
    def received(delivery: BufferedRun) -> None:
        run = delivery.run
        on_received(address, run.count, len(run.raw) - FRAME_HEADER_BYTES * run.count)
        on_delivery(delivery)

    return received


def settling(hooks: Hooks, address: str, counted: Counted) -> Callable[[], None]:
    """Make a function that calls the hooks with the answers since its last call."""
    finished = requeued = 0

    def report() -> None:
        nonlocal finished, requeued
        now_finished, now_requeued = counted.finished, counted.requeued
        if hooks.on_finished is not None and now_finished > finished:
            hooks.on_finished(address, now_finished - finished)
        if hooks.on_requeued is not None and now_requeued > requeued:
            hooks.on_requeued(address, now_requeued - requeued)
        finished, requeued = now_finished, now_requeued

    return report
