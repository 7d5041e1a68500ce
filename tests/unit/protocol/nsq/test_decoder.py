"""The decoder's result for each command, and nsqd's text for each error."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from martlet.names import is_valid_name
from martlet.native import native
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.decoder import Decoder
from martlet.protocol.nsq.v2 import (
    MAX_LINE_BYTES,
    Auth,
    Close,
    Command,
    Finish,
    FinishRun,
    IdentifyCommand,
    LineTooLong,
    Nop,
    ParserState,
    ProtocolError,
    ProtocolLimits,
    PublishCommand,
    Ready,
    RequeueCommand,
    SendCommand,
    Subscribe,
    Touch,
)

LIMITS = ProtocolLimits(
    max_rdy_count=2500, max_msg_size=1000, max_body_size=5000, max_req_timeout_ms=3_600_000
)
ID = b"0123456789abcdef"


def decoder(state: ParserState = ParserState.INIT) -> Decoder:
    made = Decoder(LIMITS, is_valid_name)
    made.state = state
    return made


def decode(data: bytes, state: ParserState = ParserState.INIT) -> list[Command]:
    """All commands of some bytes, which must be whole."""
    buffer = bytearray(data)
    made, at = [], 0
    reader = decoder(state)
    while at < len(buffer):
        decoded = reader.decode(buffer, at, len(buffer))
        assert decoded is not None, buffer[at:]
        command, at = decoded
        made.append(command)
    return made


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub(*bodies: bytes, size: int | None = None, count: int | None = None) -> bytes:
    content = struct.pack(">i", len(bodies) if count is None else count)
    content += b"".join(map(sized, bodies))
    return b"MPUB t\n" + struct.pack(">i", len(content) if size is None else size) + content


def bodies_of(command: Command) -> list[bytes]:
    assert isinstance(command, PublishCommand)
    return [bytes(body) for body in command.bodies]


@pytest.mark.parametrize(
    ("line", "state", "command"),
    [
        (b"NOP\n", ParserState.INIT, Nop()),
        (b"NOP whatever\n", ParserState.CLOSING, Nop()),
        (b"CLS\n", ParserState.SUBSCRIBED, Close()),
        (b"RDY 2500\n", ParserState.SUBSCRIBED, Ready(2500)),
        (b"RDY 0\r\n", ParserState.SUBSCRIBED, Ready(0)),
        (b"RDY\n", ParserState.SUBSCRIBED, Ready(1)),
        (b"RDY \n", ParserState.SUBSCRIBED, Ready(0)),
        (b"RDY 007 x\n", ParserState.SUBSCRIBED, Ready(7)),
        (b"FIN " + ID + b"\n", ParserState.SUBSCRIBED, Finish(ID)),
        (b"FIN " + ID + b" x\r\n", ParserState.CLOSING, Finish(ID)),
        (b"FIN ~~~~~~~~~~~~~~~~\n", ParserState.CLOSING, Finish(b"~" * 16)),
        (b"TOUCH " + ID + b"\n", ParserState.SUBSCRIBED, Touch(ID)),
        (b"REQ " + ID + b" 0\n", ParserState.SUBSCRIBED, RequeueCommand(ID, 0)),
        (b"REQ " + ID + b" \n", ParserState.SUBSCRIBED, RequeueCommand(ID, 0)),
        (b"REQ " + ID + b" 3600001\n", ParserState.CLOSING, RequeueCommand(ID, 3_600_001)),
        (b"SUB t c\n", ParserState.INIT, Subscribe("t", "c")),
        (b"SUB t#ephemeral c.d-e_f\n", ParserState.INIT, Subscribe("t#ephemeral", "c.d-e_f")),
        (
            b"IDENTIFY\n" + sized(b'{"Client_ID": "x"}'),
            ParserState.INIT,
            IdentifyCommand({"client_id": "x"}),
        ),
        (b"IDENTIFY\n" + sized(b"null"), ParserState.INIT, IdentifyCommand({})),
        (b"AUTH\n" + sized(b"secret"), ParserState.INIT, Auth(b"secret")),
        (
            b"PUB t\n" + sized(b"body"),
            ParserState.INIT,
            PublishCommand("PUB", "t", [b"body"], 1, None),
        ),
        (
            b"PUB t\r\n" + sized(b"\n"),
            ParserState.CLOSING,
            PublishCommand("PUB", "t", [b"\n"], 1, None),
        ),
        (
            b"DPUB t 50\n" + sized(b"body"),
            ParserState.INIT,
            PublishCommand("DPUB", "t", [b"body"], 1, 50),
        ),
    ],
)
def test_each_command(line: bytes, state: ParserState, command: Command) -> None:
    assert decode(line, state) == [command]


def test_the_bodies_of_an_mpub_have_one_size_or_several() -> None:
    (command,) = decode(mpub(b"abc", b"def"))
    assert isinstance(command, PublishCommand)
    assert bodies_of(command) == [b"abc", b"def"]
    assert (command.verb, command.topic, command.commands) == ("MPUB", "t", 1)
    (command,) = decode(mpub(b"abc", b"de", b"f"))
    assert bodies_of(command) == [b"abc", b"de", b"f"]
    (command,) = decode(mpub(b"x"))
    assert bodies_of(command) == [b"x"]


def test_runs_are_one_command() -> None:
    fins = [b"FIN %016x\n" % n for n in range(100)]
    (run,) = decode(b"".join(fins), ParserState.SUBSCRIBED)
    assert isinstance(run, FinishRun)
    assert run.ids.tolist() == list(range(100))
    pubs = b"".join(b"PUB t\n" + sized(b"%03d" % n) for n in range(50))
    (command,) = decode(pubs)
    assert isinstance(command, PublishCommand)
    assert command.commands == 50
    assert bodies_of(command) == [b"%03d" % n for n in range(50)]


def test_runs_end_where_something_else_comes() -> None:
    fins = b"".join(b"FIN %016x\n" % n for n in range(10))
    commands = decode(
        fins + b"RDY 5\n" + fins + b"FIN " + b"x" * 16 + b"\n", ParserState.SUBSCRIBED
    )
    assert [type(command) for command in commands] == [FinishRun, Ready, FinishRun, Finish]
    pubs = b"".join(b"PUB t\n" + sized(b"%03d" % n) for n in range(5))
    commands = decode(pubs + b"PUB u\n" + sized(b"abc") + pubs + b"NOP\n")
    assert [(c.topic, len(c.bodies)) for c in commands if isinstance(c, PublishCommand)] == [
        ("t", 5),
        ("u", 1),
        ("t", 5),
    ]


def test_publishes_of_other_sizes_belong_to_the_run_where_that_is_compiled() -> None:
    pubs = b"".join(b"PUB t\n" + sized(b"x" * size) for size in (3, 3, 3, 3, 3, 6, 1))
    commands = decode(pubs)
    counts = [len(c.bodies) for c in commands if isinstance(c, PublishCommand)]
    assert counts == ([5, 1, 1] if native is None else [7])
    sizes = [len(body) for command in commands for body in bodies_of(command)]
    assert sizes == [3, 3, 3, 3, 3, 6, 1]


def test_a_bad_id_among_good_ones_costs_the_others_nothing() -> None:
    lines = [b"FIN %016x\n" % n for n in range(2000)]
    lines[1000] = b"FIN not-a-number-zzz\n"
    commands = decode(b"".join(lines), ParserState.SUBSCRIBED)
    assert [type(command) for command in commands] == [FinishRun, Finish, FinishRun]
    first, _, second = commands
    assert isinstance(first, FinishRun)
    assert isinstance(second, FinishRun)
    assert np.concatenate([first.ids, second.ids]).tolist() == [n for n in range(2000) if n != 1000]


FATAL = {
    ParserState.INIT: [
        (b"BOGUS a b\n", "E_INVALID invalid command BOGUS"),
        (b"IDENTIFY\n" + sized(b'"x"'), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n" + sized(b"{} x"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"AUTH\n" + struct.pack(">i", -1), "E_BAD_BODY AUTH invalid body size -1"),
        (b"SUB t c\xff\n", 'E_BAD_CHANNEL SUB channel name "c\\xff" is not valid'),
        (b"PUB t\n" + sized(b""), "E_BAD_MESSAGE PUB invalid message body size 0"),
        (
            b"PUB t\n" + struct.pack(">i", -(1 << 31)),
            "E_BAD_MESSAGE PUB invalid message body size -2147483648",
        ),
        (mpub(*[b"x" * 1000] * 5, b"y", size=9), "E_BAD_BODY MPUB body too big 5001 > 5000"),
        (mpub(b"a", b""), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
    ],
    ParserState.SUBSCRIBED: [
        (b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
        (b"FIN short\n", "E_INVALID invalid message ID"),
        (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    ],
    ParserState.CLOSING: [(b"SUB t c\n", "E_INVALID cannot SUB in current state")],
}
"""Those of nsqd's answers that it has recorded are compared over the wire, in tests/interop."""


@pytest.mark.parametrize(
    ("state", "data", "text"), [(state, *row) for state, rows in FATAL.items() for row in rows]
)
def test_errors_have_nsqd_s_words(state: ParserState, data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        decode(data, state)
    assert str(raised.value) == text
    assert raised.value.fatal
    frame = raised.value.frame()
    assert struct.unpack(">II", frame[:8]) == (len(frame) - 4, 1)
    assert frame[8:].decode() == text


def test_a_send_of_one_message_is_limited_as_the_message_is() -> None:
    reader = Decoder(LIMITS._replace(max_msg_size=70_000), is_valid_name)
    reader.extended = True

    def decode_send(*bodies: bytes) -> Command:
        data = bytearray(commands.send("t", bodies, {"queue": 1}, b""))
        decoded = reader.decode(data, 0, len(data))
        assert decoded is not None
        return decoded[0]

    assert isinstance(decode_send(b"x" * 70_000), SendCommand)
    with pytest.raises(ProtocolError, match="SEND message too big 70001 > 70000"):
        decode_send(b"x" * 70_001)
    with pytest.raises(ProtocolError, match=r"SEND of 2 messages too big .* > 5000 \(--max-body-"):
        decode_send(b"x" * 3000, b"y" * 3000)
    with pytest.raises(
        ProtocolError, match=r"SEND body too big .* \(--max-body-size, or --max-msg"
    ):
        decode_send(b"x" * 140_000)


def test_a_fin_among_many_in_the_wrong_state_is_refused_too() -> None:
    with pytest.raises(ProtocolError, match="cannot FIN in current state"):
        decode((b"FIN " + ID + b"\n") * 10)


def test_a_line_without_an_end_is_not_waited_for() -> None:
    reader = decoder()
    line = bytearray(b"NOP" + b" " * MAX_LINE_BYTES)
    assert reader.decode(line, 0, MAX_LINE_BYTES - 1) is None
    with pytest.raises(LineTooLong):
        reader.decode(line, 0, MAX_LINE_BYTES)


@pytest.mark.parametrize("size", [1, 3, 4, 8, 18, 20, 500, 5000])
@pytest.mark.parametrize("some", [[b"a"], [b"a", b"b"], [b"one", b"four!", b"x" * 30]])
def test_an_mpub_ends_behind_its_last_message_whatever_its_size_says(
    size: int, some: list[bytes]
) -> None:
    """Clients that count their bodies alone work with nsqd."""
    first, second = decode(mpub(*some, size=size) + b"NOP\n")
    assert bodies_of(first) == some
    assert isinstance(second, Nop)
    data = mpub(*some, size=size)
    reader, waits = decoder(), 0
    for end in range(1, len(data)):
        assert reader.decode(bytearray(data), 0, end) is None
        waits += reader.wanted_bytes > 0
    assert waits
    decoded = reader.decode(bytearray(data), 0, len(data))
    assert decoded is not None
    assert (bodies_of(decoded[0]), decoded[1]) == (some, len(data))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"PUB t\n", 10),
        (b"PUB t\n" + struct.pack(">i", 100), 110),
        (b"PUB t\n" + struct.pack(">i", 100) + b"x" * 99, 110),
        (b"MPUB t\n" + struct.pack(">i", 500), 511),
        (b"IDENTIFY\n\x00\x00", 13),
        (b"DPUB t 1\n", 13),
        (b"SUB t", 0),
    ],
)
def test_a_decoder_says_how_many_bytes_it_waits_for(data: bytes, wanted: int) -> None:
    reader = decoder()
    assert reader.decode(bytearray(b"....." + data), 5, 5 + len(data)) is None
    assert reader.wanted_bytes == wanted


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PUB t", None),
        (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n" + sized(b"abc")[:-1], "E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t 1\n" + sized(b"abc")[:-1], "E_BAD_MESSAGE DPUB failed to read message body"),
        (b"IDENTIFY\n\x00", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"AUTH\n" + sized(b"abc")[:-1], "E_BAD_BODY AUTH failed to read body"),
        (b"MPUB t\n\x00", "E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n" + struct.pack(">i", 50), "E_BAD_BODY MPUB failed to read message count"),
        (b"MPUB t\n" + sized(b"abc"), "E_BAD_BODY MPUB failed to read message count"),
        (
            b"MPUB t\n" + sized(struct.pack(">ii", 1, 9) + b"abc"),
            "E_BAD_MESSAGE MPUB failed to read message body",
        ),
        (mpub(b"a", count=2), "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (mpub(b"ab", b"c")[:-6], "E_BAD_MESSAGE MPUB failed to read message body"),
        (mpub(b"ab", b"c")[:-3], "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    ],
)
def test_the_error_of_a_client_that_hangs_up_in_the_middle(data: bytes, text: str | None) -> None:
    error = decoder().cut_off(bytearray(data + b"left over"), len(data))
    assert (None if error is None else str(error)) == text


def test_lines_of_any_length_are_not_remembered() -> None:
    """A client that says something else behind the topic each time costs no memory."""
    reader = decoder()
    for number in range(200):
        line = b"PUB t " + b"%d" % number * 2000
        buffer = bytearray(line + b"\n" + sized(b"x"))
        decoded = reader.decode(buffer, 0, len(buffer))
        assert decoded is not None
        assert decoded[0] == PublishCommand("PUB", "t", [b"x"], 1, None)
    assert sum(map(len, reader._known_lines)) < 100_000


def test_a_lone_publish_is_recognised_once_its_line_is_known() -> None:
    """Whatever else it could be, or where more or less has come, is left to `decode`."""
    decoder = Decoder(LIMITS, is_valid_name)
    data = b"PUB t\n" + struct.pack(">i", 5) + b"hello"
    buffer = bytearray(data + b"\n" * 40000)
    assert decoder.lone_publish(buffer, len(data)) is None
    decoder.decode(bytearray(data), 0, len(data))
    assert decoder.lone_publish(buffer, len(data)) == ("t", len(data) - 5)
    for end in (*range(1, len(data)), len(data) + 1, 2 * len(data)):
        assert decoder.lone_publish(buffer, end) is None
    for other in (
        b"PUB u\n" + data[6:],
        b"MPUB t\n" + data[6:],
        b"PUB t\r\n" + data[6:],
        b"PUB t\n\0\0\0\0",
        b"PUB t\n\xff\xff\xff\xffhello",
        b"NOP\n",
        b"\n",
        b"x" * 5000,
    ):
        assert decoder.lone_publish(bytearray(other), len(other)) is None


def test_a_lone_publish_beyond_the_limit_is_left_to_the_decoder_which_refuses_it() -> None:
    decoder = Decoder(LIMITS._replace(max_msg_size=4), is_valid_name)
    small = bytearray(b"PUB t\n\0\0\0\4four")
    decoder.decode(small, 0, len(small))
    assert decoder.lone_publish(small, len(small)) is not None
    large = bytearray(b"PUB t\n\0\0\0\5large")
    assert decoder.lone_publish(large, len(large)) is None
    with pytest.raises(ProtocolError, match="too big 5 > 4"):
        decoder.decode(large, 0, len(large))
