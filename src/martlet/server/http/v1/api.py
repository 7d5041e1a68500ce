"""The endpoints of plain HTTP: publish, receive, acknowledge, and the document that describes them.

A refusal is JSON with a ``message`` that names the thing, the limit and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiohttp import ClientError

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.errors import (
    Conflict,
    LimitReached,
    NotFound,
    NotInFlight,
    TooMany,
    WritesRefused,
)
from martlet.broker.retry import Cause, DeadLetterReason
from martlet.names import is_ephemeral
from martlet.options import BrokerOptions
from martlet.server.group_commit import GroupCommit
from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.http.response import respond
from martlet.server.http.v1.arguments import (
    json_fields,
    only_arguments,
    refusal,
    require_media_type,
    seconds,
    valid_names,
    whole_number,
)
from martlet.server.http.v1.guard import HttpGuard
from martlet.server.http.v1.leases import (
    MAX_CHARACTERS,
    BadReceipt,
    ChannelDeleted,
    LeasedMessage,
    Leases,
    ReceiveRefused,
    ReceivingClient,
    queue_and_offset,
    shown,
)
from martlet.server.http.v1.messages import JSON, MessagePublisher
from martlet.server.http.v1.operations import (
    MAX_ERROR,
    MAX_RECEIPTS,
    MAX_RECEIVED,
    MAX_WAIT_S,
    MIN_VISIBILITY_S,
    document,
)
from martlet.server.rpc.registry import CallArguments, CallError
from martlet.text import SECOND_NS

MAX_BODY_BYTES = 1 << 20
"""The limit of a request that acknowledges."""
_GONE: Mapping[str, list[object]] = {"messages": []}
"""The answer to a client that has disconnected."""


class HttpApi:
    """Plain HTTP for any language."""

    def __init__(
        self,
        broker: BrokerCore,
        options: BrokerOptions,
        publisher: MessagePublisher,
        leases: Leases,
        guard: HttpGuard,
        commits: GroupCommit,
    ) -> None:
        self._broker = broker
        self._options = options
        self._publisher = publisher
        self._leases = leases
        self._guard = guard
        self._commits = commits

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/v1/topics/:topic/messages": {"POST": self.publish},
            "/v1/topics/:topic/channels/:channel/receive": {"POST": self.receive},
            "/v1/topics/:topic/channels/:channel/finish": {"POST": self.finish},
            "/v1/topics/:topic/channels/:channel/requeue": {"POST": self.requeue},
            "/v1/topics/:topic/channels/:channel/touch": {"POST": self.touch},
            "/v1/topics/:topic/channels/:channel/reject": {"POST": self.reject},
            "/v1/openapi.json": {"GET": self.describe},
        }

    async def describe(self, request: Request) -> object:
        """Answer the OpenAPI document of the routes below `/v1`."""
        return document()

    async def publish(self, request: Request) -> object:
        """Publish one message as JSON, or many as NDJSON."""
        (topic,) = valid_names(request)
        only_arguments(request, ("wait",))
        await self._guard.may_publish(request, topic)
        return await self._publisher.publish(request, topic)

    # receiving

    async def receive(self, request: Request) -> object:
        """Receive messages of a channel, or wait for some; each has a receipt."""
        topic, name = valid_names(request)
        only_arguments(request, ("max", "wait", "visibility"))
        max_count = whole_number(request, "max", 1, (1, MAX_RECEIVED))
        wait_s = seconds(request.query.get("wait", "0"), "wait", (0, MAX_WAIT_S))
        visibility_s = self._options.msg_timeout_ns / SECOND_NS
        if "visibility" in request.query:
            visibility_s = self._visibility_s(request.query["visibility"])
        if is_ephemeral(name) or is_ephemeral(topic):
            raise HttpError(
                400,
                "EPHEMERAL: an #ephemeral topic or channel goes with its last consumer, and over"
                " HTTP there is none between two requests: take a name without that suffix",
            )
        await self._guard.may_consume(request, topic, name)
        await request.read(MAX_BODY_BYTES, "BODY_TOO_BIG: receive takes no body")
        client = await self._subscribe(request, topic, name, visibility_s)
        return await self._received(request, client, max_count, wait_s)

    async def _subscribe(
        self, request: Request, topic: str, name: str, visibility_s: float
    ) -> ReceivingClient:
        try:
            self._broker.topic(topic).opened_channel(name)
            await self._commits.changes_settled()
            # Again, for it may have been deleted meanwhile.
            channel = self._broker.topic(topic).opened_channel(name)
            agents = request.headers("User-Agent")
            agent = agents[0][:100] if agents else ""
            return self._leases.subscribe(channel, visibility_s, request.remote_address, agent)
        except Conflict as error:
            raise HttpError(409, f"CONFLICT: {error}") from None
        except (LimitReached, ReceiveRefused, TooMany) as error:
            raise HttpError(503, f"LIMIT_REACHED: {error}") from None
        except WritesRefused as error:
            raise HttpError(503, f"REFUSED: {error}") from None

    async def _received(
        self, request: Request, client: ReceivingClient, max_count: int, wait_s: float
    ) -> object:
        """Wait for messages, and send them, unless the client has disconnected."""
        messages: list[LeasedMessage] = []
        sent, done = False, False
        try:
            with request.when_gone(client.woken.set):
                await self._leases.wait(client, max_count, wait_s)
                messages = await self._leases.lease(client)
            if request.is_gone:
                return _GONE
            response = respond(200, {"messages": [self._shown(client, m) for m in messages]})
            sent = True
            await request.send(response)
            done = True
        except ChannelDeleted:
            raise HttpError(404, "CHANNEL_NOT_FOUND: it was deleted meanwhile") from None
        except (ConnectionError, ClientError):
            return _GONE
        finally:
            # Also where the request is cancelled, since the server stops.
            if not done:
                self._leases.abandon(client, messages, sent=sent)
        return response

    def _shown(self, client: ReceivingClient, message: LeasedMessage) -> dict[str, object]:
        channel = client.channel
        position = queue_and_offset(channel, channel.queue.offset_of(message.message_id))
        return shown(message, position, self._leases.receipt(client, message))

    def _visibility_s(self, value: object) -> float:
        greatest_s = self._options.max_msg_timeout_ns / SECOND_NS
        limits = min(MIN_VISIBILITY_S, greatest_s), greatest_s
        return seconds(value, "visibility", limits, "--max-msg-timeout")

    # acknowledging

    async def finish(self, request: Request) -> object:
        """Finish messages by their receipts."""
        channel, receipts, _ = await self._read_receipts(request)

        def finish(client: ReceivingClient, position: int) -> None:
            client.channel.finish(client.consumer, position)

        return self._acknowledge(channel, receipts, finish, finishes=True)

    async def requeue(self, request: Request) -> object:
        """Have messages delivered again, after a `delay`: they have failed."""
        channel, receipts, fields = await self._read_receipts(request, "delay", "error")
        greatest_s = self._options.max_req_timeout_ns / SECOND_NS
        delay_s = seconds(fields.get("delay", 0), "delay", (0, greatest_s), "--max-req-timeout")
        delay_ns = round(delay_s * SECOND_NS)
        error = _error(fields)

        def requeue(client: ReceivingClient, position: int) -> None:
            client.channel.requeue(client.consumer, position, delay_ns, error, Cause.REQUEUED)

        return self._acknowledge(channel, receipts, requeue)

    async def touch(self, request: Request) -> object:
        """Begin the leases of messages again, with the same or another `visibility`."""
        channel, receipts, fields = await self._read_receipts(request, "visibility")
        visibility_s = self._visibility_s(fields["visibility"]) if "visibility" in fields else 0.0

        def touch(client: ReceivingClient, position: int) -> int:
            return self._leases.touch(client, position, visibility_s)

        return self._acknowledge(channel, receipts, touch, shown_as="lease_ends_ms")

    async def reject(self, request: Request) -> object:
        """Move messages to the channel's dead-letter topic."""
        channel, receipts, fields = await self._read_receipts(request, "error")
        error = _error(fields)

        def reject(client: ReceivingClient, position: int) -> None:
            client.channel.reject(client.consumer, position, DeadLetterReason.REJECTED, error)

        return self._acknowledge(channel, receipts, reject)

    async def _read_receipts(
        self, request: Request, *optional: str
    ) -> tuple[Channel | PartitionedChannel, list[object], Mapping[str, object]]:
        """Return the channel, receipts and fields of an acknowledgement. Raises HttpError."""
        topic, channel = valid_names(request)
        only_arguments(request, ())
        require_media_type(request, JSON)
        await self._guard.may_consume(request, topic, channel)
        too_big = f"BODY_TOO_BIG: a request that acknowledges has at most {MAX_BODY_BYTES} bytes"
        fields = json_fields(await request.read(MAX_BODY_BYTES, too_big), "the body")
        try:
            CallArguments(fields).only("receipts", *optional)
        except CallError as error:
            raise refusal(error, "the body") from None
        receipts = fields.get("receipts")
        if not isinstance(receipts, list) or not 0 < len(receipts) <= MAX_RECEIPTS:
            raise HttpError(
                400, f"BAD_ARGUMENT: 'receipts' must be a list of 1 to {MAX_RECEIPTS} receipts"
            )
        for name in ("delay", "visibility"):
            if isinstance(fields.get(name), str):
                raise HttpError(400, f"BAD_ARGUMENT: {name!r} must be a number, not text")
        try:
            all_queues = self._broker.find_topic(topic).find_channel(channel).all_queues
        except NotFound as error:
            raise HttpError(404, f"NOT_FOUND: {error}") from None
        return all_queues, receipts, fields

    def _acknowledge(
        self,
        channel: Channel | PartitionedChannel,
        receipts: Sequence[object],
        act: Callable[[ReceivingClient, int], object],
        *,
        finishes: bool = False,
        shown_as: str = "",
    ) -> object:
        """Acknowledge messages. Returns the answer.

        Args:
            act, finishes: as `Leases.acknowledge` takes them.
            shown_as: the field for what `act` returns; empty for none.
        """
        results: list[dict[str, object]] = []
        for receipt in receipts:
            shown_receipt = receipt if isinstance(receipt, str) else ""
            result: dict[str, object] = {"receipt": shown_receipt[:MAX_CHARACTERS], "status": "OK"}
            try:
                done = self._leases.acknowledge(channel, receipt, act, finishes=finishes)
                result |= {shown_as: done} if shown_as else {}
            except BadReceipt as error:
                result |= {"status": "BAD_RECEIPT", "text": str(error)}
            except NotInFlight as error:
                result |= {"status": "NOT_IN_FLIGHT", "text": str(error)}
            results.append(result)
        self._broker.write_moved(channel)
        is_done = any(result["status"] == "OK" for result in results)
        return respond(200 if is_done else 409, {"results": results})


def _error(fields: Mapping[str, object]) -> str:
    """Return the reason of a failure. Raises HttpError."""
    error = fields.get("error", "")
    if not isinstance(error, str) or len(error) > MAX_ERROR:
        raise HttpError(
            400, f"BAD_ARGUMENT: 'error' must be a text of at most {MAX_ERROR} characters"
        )
    return error.encode("utf-8", "replace").decode()
