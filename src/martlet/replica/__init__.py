"""Replicas of a broker's log: who is primary, and how the others follow. No sockets and no clock.

`replica` is the whole of one process; `simulate` in the tests runs several with real logs.
"""
