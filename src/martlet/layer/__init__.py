"""Layers between a socket and what speaks the protocol: TLS and compression, for both ends."""
