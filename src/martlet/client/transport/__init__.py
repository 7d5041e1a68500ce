"""One connection to a broker, and how it is found, opened, secured and kept.

May import: `martlet.protocol`, `martlet.layer`, `client.errors`. Start with `connection`; `dialer`
reconnects, `discovery` asks lookup daemons, `calls` is RPC.
"""
