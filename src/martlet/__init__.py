"""Martlet: a broker that NSQ's clients use unchanged and that forgets nothing it answered OK."""

__version__ = "0.1.0"
