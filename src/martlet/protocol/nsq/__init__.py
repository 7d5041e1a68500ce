"""NSQ's TCP protocol V2, both sides, without I/O.

May import: `protocol` and numpy. Start with `v2`, the commands and errors; `decoder` reads commands
from bytes. Of the client's side, `commands` encodes commands, and `frames` and `message_run` read
what the broker sends.
"""
