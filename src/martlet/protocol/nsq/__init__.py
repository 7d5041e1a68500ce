"""NSQ's TCP protocol V2 on the broker's side, without I/O.

May import: `protocol` and numpy. Start with `v2`, which turns bytes into commands; `commands` has
the other side's bytes, `decoder` and `message_run` what a client receives.
"""
