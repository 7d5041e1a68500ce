"""What operations are, declared once for all who offer, ask or describe them.

A ground package: it imports nothing of the broker, servers or clients. `access` has the classes of
callers, `access_table` the class of each call.
"""
