"""A count that is added to the declarations is in every format, without a line in another file."""

import subprocess
import sys

_ADDED = """
    seen_count: int = Count(
        "Messages that were seen.",
        "martlet_{kind}_seen_total",
        statsd="seen",
        text="seen: %-3d",
        column="seen",
        is_own=True,
        path="message_count",
    ).field()
"""
_SCRIPT = r"""
import asyncio, importlib.util, io, sys

spec = importlib.util.find_spec("martlet.schema.counts")
text = spec.loader.get_source(spec.name)
for kind, last in (("channel", "dead_letter_count"), ("topic", "refused_count")):
    head, begin, rest = text.partition(f"    {last}: int = ")
    field, end, tail = rest.partition(").field()\n")
    text = head + begin + field + end + sys.argv[1].replace("{kind}", kind) + tail
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
exec(compile(text, spec.origin, "exec"), vars(module))

from rich.console import Console
from tests.crash.wire import http

from martlet.console.cluster import ClusterView, merge
from martlet.cli.nsq_tools.stat import Poll, table
from martlet.client.admin import Admin
from martlet.server.observability.statsd import Statsd, _counts
from martlet.testing import Broker


async def main():
    async with Broker() as broker:
        broker.server.broker.topic("t").channel("c")
        for _ in range(3):
            await http(broker.http_address, "/pub?topic=t", b"x")
        for target in ("/stats?format=json", "/stats", "/metrics"):
            print((await http(broker.http_address, target)).decode())
        made = Statsd(broker.server.options)
        for packet in await _counts(broker.server.stats, made, broker.server.options):
            print(packet.decode())
        async with Admin([broker.http_address]) as admin:
            nodes = await admin.nodes.stats()
        (node,) = nodes.values.values()
        (channel,) = node.topics[0].channels
        print("topic at the client:", node.topics[0].seen_count)
        print("channels at the client:", (channel + channel).seen_count)
        totals = merge(nodes, ClusterView(), 0.0)
        print("channel of the page:", totals.topics["t"].channels["c"].counts.seen_count)
        print("documented:", "seen_count: Messages that were seen." in type(channel.counts).__doc__)
        look = Poll(0.0, {("t", "c"): channel.counts}, frozenset(), [])
        console = Console(file=io.StringIO(), width=200)
        console.print(table(None, look))
        print(console.file.getvalue())


asyncio.run(main())
"""


def test_a_count_that_is_declared_is_in_every_format() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, _ADDED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for shown in (
        '"dead_letter_count":0,"seen_count":3,',
        '"refused_count":0,"seen_count":3}',
        " be-depth: 3     inflt: 0    def: 0    re-q: 0     timeout: 0     seen: 3   msgs: 3 ",
        " be-depth: 0     seen: 3   msgs: 3 ",
        '# TYPE martlet_topic_seen_total counter\nmartlet_topic_seen_total{topic="t"} 3\n',
        'martlet_channel_seen_total{topic="t",channel="c"} 3\n',
        ".topic.t.seen:3|c\n",
        ".topic.t.channel.c.seen:3|c\n",
        "topic at the client: 3\n",
        "channels at the client: 6\n",
        "channel of the page: 3\n",
        "documented: True\n",
        "timed out  seen  messages  clients",
    ):
        assert shown in done.stdout
