"""TLS and compression between a socket and a protocol, at either end.

May import: `martlet.protocol`. Start with `layer`, which both are built on.
"""
