"""TLS and compression between a socket and a protocol, on either side.

May import: `martlet.protocol`. Start with `layer`, the base of both, with compression.
"""
