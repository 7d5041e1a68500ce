"""Martlet: a broker that NSQ's clients use unchanged and that forgets nothing it answered OK."""

__version__ = "0.2.0"
