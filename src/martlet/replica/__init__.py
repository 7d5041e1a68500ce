"""Replicas of a broker's log: who is primary, and how the others follow. No sockets and no clock.

May import: `martlet.broker` and `martlet.log`. Start with `replica`, which is all of one process;
`tests/simulation` runs several of them with real logs.
"""
