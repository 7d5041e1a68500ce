"""The commit log: bytes and positions; it knows no topic's rules."""
