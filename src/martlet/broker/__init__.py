"""The broker's core: topics, channels, groups and transactions over a log, without I/O or a clock.

May import: `martlet.log`. Sockets, files, the time and random numbers are passed in, so that tests
run it in simulated time. Start with `broker`, which holds everything; each package below it is one
concept.
"""
