"""Coverage-guided fuzzing of the V2 decoder: ``./run fuzz [a flag of libFuzzer]...``

Fed whole, byte by byte or in pieces, the same bytes are the same commands and the same error, and
nothing else is ever raised.  The first byte of an input says in which state the connection is and
where the bytes are cut.  What is found interesting is kept in ``.fuzz`` of the folder it is started
in, and begun with the next time; an input that fails is written to ``crash-...`` there.

It needs atheris, which is installed by hand: the locked environment is without it.
"""

from __future__ import annotations

import struct
import sys
from importlib import import_module
from pathlib import Path

CORPUS = Path(".fuzz")
SECONDS = 60
"""How long it runs by default."""
SEEDS = [
    b"\x00IDENTIFY\n\x00\x00\x00\x02{}SUB t c\nRDY 5\nNOP\nCLS\n",
    b"\x01" + b"".join(b"FIN %016x\n" % n for n in range(6)),
    b"\x01REQ 0123456789abcdef 100\nTOUCH 0123456789abcdef\r\nFIN 0123456789abcdef\n",
    b"\x02" + b"PUB t\n\x00\x00\x00\x03abc" * 6,
    b"\x00DPUB t 100\n\x00\x00\x00\x01x"
    + b"MPUB t\n"
    + struct.pack(">iiiBiB", 14, 2, 1, 65, 1, 66),
    b"\x00AUTH\n\x00\x00\x00\x06secret",
]


def main() -> None:
    """Fuzz for a while."""
    try:
        atheris = import_module("atheris")
    except ImportError:
        sys.exit(f"fuzzing needs atheris: {sys.executable} -m pip install atheris")
    with atheris.instrument_imports(include=["martlet.protocol"]):
        decoding = import_module("tests.property.protocol.nsq.decoding")
        states = list(import_module("martlet.protocol.nsq.v2").State)

    def one_input(data: bytes) -> None:
        if not data:
            return
        state, rest = states[data[0] % len(states)], data[1:]
        expected = decoding.decode_all([rest], state)
        assert decoding.decode_all(decoding.one_by_one(rest), state) == expected
        step = 1 + data[0] // len(states)
        pieces = [rest[at : at + step] for at in range(0, len(rest), step)]
        assert decoding.decode_all(pieces, state) == expected

    CORPUS.mkdir(exist_ok=True)
    for number, seed in enumerate(SEEDS):
        (CORPUS / f"seed-{number}").write_bytes(seed)
    flags = sys.argv[1:]
    if not any(flag.startswith(("-max_total_time", "-runs")) for flag in flags):
        flags.append(f"-max_total_time={SECONDS}")
    atheris.Setup([sys.argv[0], *flags, str(CORPUS)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
