"""NSQ's protocols without I/O: bytes become commands, and answers become bytes.

May import: none of Martlet's packages. Brokers and clients share it. Start with `nsq`.
"""
