"""Benchmarks, run from a checkout: ``./run bench [NAME] [ARGUMENTS]``.

Without a name, a broker is measured beside another NSQ server (`bench.servers`). May import:
anything of Martlet; nothing imports it. Start with `main`.
"""
