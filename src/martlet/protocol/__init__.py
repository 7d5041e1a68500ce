"""Bytes into commands and back, without I/O; for brokers and for clients."""
