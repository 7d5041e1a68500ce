"""Command lines that are refused, with the reason and an exit code: 2 if nothing was tried."""

from __future__ import annotations

import pytest
from tests import brokers
from tests.interop.cli.tools import Tool, fill

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

broker = brokers.process()

AT = "--nsqd-tcp-address=127.0.0.1:1"
ID = "0" * 16
IMPORT = "import-nsqd /none --data-path=/nowhere"
WRONG = [
    ("pub --topic=t", "name the broker to publish to"),
    (f"pub {AT}", "--topic is missing"),
    (f"pub --topic=$ {AT}", "--topic=$ is not valid"),
    (f"tail --topic=$ {AT}", "--topic=$ is not valid"),
    ("tail --topic=t", "name the source of the messages"),
    (f"tail {AT}", "--topic is missing"),
    (f"to-http --topic=t --channel=$ {AT} --post=http://a", "--channel=$ is not"),
    ("to-http --topic=t --nsqd-tcp-address=a:x --post=http://a", "no address"),
    (f"to-http --topic=t --channel=c {AT} --post=http://a --get=http://a/%s", "exclude each other"),
    (f"relay --topic=t {AT} --destination-nsqd-tcp-address=a:x", "no address"),
    (f"to-file {AT}", "--topic or --topic-pattern"),
    (f"to-file --topic=t {AT} --output-dir=/proc/x", "--output-dir=/proc/x cannot be created: No"),
    ("peek t =A", "the channel is missing"),
    ("peek t c", "say which brokers to ask"),
    ("peek t c =A --state=lost", "--state=lost is none of in_flight"),
    ("topic create t =A --queues=0", "--queues is 0"),
    ("topic create t =A --queues=1025", "--queues is 1025"),
    ("topic create =A", "the topic is missing: add its name"),
    ("topic explode t", "there is no action 'explode'"),
    ("topic", "martlet topic: name an action: list, create"),
    ("topic lst", "there is no action 'lst'; did you mean 'list'?"),
    ("topic pause =A", "the topic is missing: add its name"),
    ("topic pause a/b =A", "--topic=a/b is not valid"),
    ("topic configure t retension=1 =A", "there is no setting 'retension'"),
    ("topic configure t trace=yes =A", "trace must be one of default, on, off"),
    ("topic configure t retention_ms=3d =A", "has the unknown unit 'd'"),
    ("topic configure =A", "the topic is missing"),
    ("channel configure t c lock_ms =A", "write NAME=VALUE, such as lock_ms=default"),
    ("channel explode", "there is no action 'explode'; name list, create"),
    ("channel pause t =A", "the channel is missing"),
    ("channel delete t c", "say which brokers to ask"),
    ("nodes", "say which brokers to ask"),
    ("health extra =A", "'extra' belongs to no flag"),
    ("replay t c =A", "give one of --to-offset"),
    ("replay t c =A --to-offset=1 --beginning", "give one of --to-"),
    ("replay t c =A --to-time=soon", "--to-time=soon is no time"),
    ("replay t c --lookupd-http-address=h:1 --to-offset=9", "needs one --address"),
    ("stat =A --channel=c", "the topic of the channel is missing"),
    ("stat =A", "output without a table prints one channel: add --topic"),
    ("stat =A --interval=0s --topic=t --channel=c", "--interval is 0s"),
    ("dead-letters lst =A", "there is no action 'lst'; did you mean 'list'?"),
    ("dead-letters =A", "name an action: list, show, redrive or purge"),
    ("dead-letters list orders =A", "--topic and --channel go together"),
    ("dead-letters show =A", "add --topic and --channel, or --dead-letter-topic"),
    ("dead-letters purge t c =A", "add --all, or any of --id"),
    ("dead-letters list --since=soon =A", "--since=soon is no time"),
    ("dead-letters redrive t c --since=0 =A", "the selection is missing: add --all"),
    ("groups =A", "name an action: list, describe or reset"),
    ("groups explode =A", "there is no action 'explode'; name list, describe or reset"),
    ("groups describe orders =A", "the argument --group is missing"),
    ("groups describe orders a$b =A", "a$b"),
    ("groups reset orders g =A", "say where to, with one of --to-first"),
    ("groups reset orders g --to-last --to-first =A", "say where to, with one of"),
    ("groups reset orders g --to-time=soon =A", "--to-time=soon is no time"),
    ("groups reset orders g --to-last --queue=-1 =A", "--queue is -1; it must be between"),
    ("groups reset orders g --to-offset=1 --address=h:1 =A", "needs one --address"),
    ("transactions undo =A", "there is no action 'undo'; name list, show, commit or rollback"),
    ("transactions commit =A", "the transaction is missing"),
    (f"transactions commit {'t' * 256} =A", "--id must be a text of at most 255 characters"),
    ("transactions list --state=gone =A", "--state=gone: it is one of open, silent, prepared"),
    ("transactions list x =A", "'list' takes no --id"),
    ("delayed list =A", "--topic is missing"),
    ("delayed --topic=t =A", "name an action: list or cancel"),
    ("delayed forget t =A", "there is no action 'forget'; name list or cancel"),
    ("delayed cancel t =A", "give --id of those to cancel"),
    (f"delayed cancel t --id={ID} --all =A", "give --id of those to cancel"),
    ("delayed list t --id=xyz =A", "--id=xyz: an id has 16 hexadecimal"),
    ("trace =A", "give either a message's --id or a --key"),
    ("trace --data-path=x", "give either a message's --id or a --key"),
    (f"trace --id={ID} --key=k =A", "give either a message's --id or a --key"),
    ("trace --key=k --topic=a$b =A", "--topic=a$b is not valid: 1 to 64 of the characters"),
    ("trace --key=k --topic=a$b --data-path=x", "--topic=a$b is not valid"),
    ("replicas shwo --metadata=sqlite:x", "there is no action 'shwo'; did you mean 'show'"),
    ("replicas show", "the metadata store is missing: give --metadata"),
    ("replicas add --metadata=sqlite:x", "add takes one replica, not 0"),
    ("replicas add a b --metadata=sqlite:x", "add takes one replica, not 2"),
    ("replicas show a --metadata=sqlite:x", "show takes no replica, not 1"),
    ("replicas create --metadata=sqlite:x", "create takes the names of the replicas, not 0"),
    ("replicas set --metadata=sqlite:x", "set what: give --copies or --min-in-sync"),
    ("replicas force a --metadata=sqlite:x", "give --accept-loss"),
    ("replicas remove a$b --metadata=sqlite:x", "--replica=a$b is not valid"),
    (f"{IMPORT} --max-bytes-per-file=2miles", "'2miles' is not a size; write bytes, or 64KiB"),
    (f"{IMPORT} --max-bytes-per-file=4095", "'4095' is not between 4KiB and 1TiB"),
    (f"{IMPORT} --min-free-bytes=2TiB", "'2TiB' is not between 4KiB and 1TiB"),
    ("pipeline", "name a job: archive, report, replay, dead-letters or audit"),
    ("pipeline archiv", "there is no job 'archiv'; did you mean 'archive'?"),
    ("pipeline --once", "there is no job '--once'"),
    ("completion tcsh", "bash|zsh|fish"),
    ("up --workers=2 -- --data-path=x", "--data-path after -- is a flag of martlet up"),
    ("up -- --config=x", "name the brokers' config file with --broker-config"),
    ("up -- --max-rdy-count=0", "--max-rdy-count is 0; it must be"),
    ("up -- --max-msg-sise=3", "did you mean --max-msg-size?"),
    ("up --broker-config=/nowhere/at.all", "--config=/nowhere/at.all: No such file"),
    ("up --lookup-config=/nowhere/at.all", "--config=/nowhere/at.all: No such file"),
    ("up --admin-http-address=127.0.0.1:4151", "are both port 4151"),
]
REFUSED = [
    (
        "peek t none =A",
        "no channel 'none' of topic 't'; to list those there: martlet channel list t",
    ),
    ("peek none c =A", "no topic 'none'; to list those there: martlet topic list --address="),
    ("peek t c --nsqd-http-address=127.0.0.1:1", "127.0.0.1:1"),
    ("peek t c --lookupd-http-address=A", "it has no /lookup"),
    ("replay t c =A --to-offset=99", "cannot be set back to 99"),
    ("replay t c =A --beginning --new-channel", "there is a channel 'c'"),
    ("stat =A --topic=t --channel=x --count=1", "no broker has its channel"),
    ("topic configure x =A", "there is no topic 'x'"),
    ("channel configure t x =A", "to create it: martlet channel create t x --address="),
    ("channel configure y x =A", "to create it: martlet topic create y --address="),
    ("channel create nowhere c =A", "no topic 'nowhere'; to create it: martlet topic create"),
    ("dead-letters show --dead-letter-topic=no --topic=t =A", "there is no topic 'no'"),
    ("dead-letters show t c =A", "channel 'c' of topic 't' has no dead letters"),
    ("groups describe nowhere g =A", "there is no topic 'nowhere'"),
    ("groups describe t c =A", "is a channel that consumers share"),
    ("transactions commit nobody =A", "there is no transaction 'nobody'"),
    ("up --data-path=/dev/null/x", "/dev/null/x"),
    (f"pub --topic=t {AT} --timeout=300ms /dev/null", "no broker within 0.3 s"),
    (f"pub --topic=t {AT} -- /no/such/file", "cannot read the file"),
]


@pytest.mark.parametrize(
    ("code", "line", "text"),
    [*((2, line, text) for line, text in WRONG), *((1, line, text) for line, text in REFUSED)],
)
def test_a_command_line_is_refused_with_the_reason(
    broker: BrokerProcess, tool: Tool, code: int, line: str, text: str
) -> None:
    if code == 1:
        fill(broker, "t", 1)
    line = line.replace(" =A", f" --address={broker.http_address}")
    tool(*line.replace("=A", f"={broker.http_address}").split()).fails(text, code)
