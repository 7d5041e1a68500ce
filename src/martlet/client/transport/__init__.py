"""One connection to a broker: find, open, secure and keep it.

May import: `martlet.protocol`, `martlet.layer`, `client.errors`. Start with `connection`; `dialer`
reconnects, `discovery` asks lookup daemons, `calls` is RPC.
"""
