"""Martlet's client beside pynsq, ansq, gnsq and go-nsq's bench tools. Start with `main`."""
