"""NSQ's protocols without I/O: decode bytes into commands, encode answers into bytes.

May import: none of Martlet's packages. Brokers and clients share it. Start with `nsq`.
"""
