"""The lookup daemon: which brokers have which topics."""
