"""What a consumer's hooks are told by one of its subscriptions."""

from __future__ import annotations

from collections.abc import Callable

from martlet.client.hooks import Hooks
from martlet.client.inbox import Delivery
from martlet.client.subscription import Subscription
from martlet.protocol.message_run import FRAME_HEADER_BYTES


def tell(hooks: Hooks, subscription: Subscription) -> None:
    """Have the hooks told of what comes and is answered, besides whoever is told already."""
    address = str(subscription.address)
    if hooks.on_received is not None:
        subscription.on_delivery = _receiving(hooks.on_received, address, subscription.on_delivery)
    if hooks.on_finished is not None or hooks.on_requeued is not None:
        subscription.on_settled = _settling(hooks, address, subscription)


def _receiving(
    on_received: Callable[[str, int, int], object],
    address: str,
    on_delivery: Callable[[Delivery], None],
) -> Callable[[Delivery], None]:
    def received(delivery: Delivery) -> None:
        run = delivery.run
        on_received(address, run.count, len(run.raw) - FRAME_HEADER_BYTES * run.count)
        on_delivery(delivery)

    return received


def _settling(hooks: Hooks, address: str, subscription: Subscription) -> Callable[[], None]:
    """Tells what has been answered since it told last: all that went in one write."""
    on_settled = subscription.on_settled
    finished = requeued = 0

    def settled() -> None:
        nonlocal finished, requeued
        on_settled()
        now_finished, now_requeued = subscription.finished, subscription.requeued
        if hooks.on_finished is not None and now_finished > finished:
            hooks.on_finished(address, now_finished - finished)
        if hooks.on_requeued is not None and now_requeued > requeued:
            hooks.on_requeued(address, now_requeued - requeued)
        finished, requeued = now_finished, now_requeued

    return settled
