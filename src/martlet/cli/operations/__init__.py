"""Commands that inspect and change brokers, through `martlet.client.admin`.

May import: `martlet.cli.broker_http`, and `martlet.broker` for names and policies. Start with
`peek`, a typical one.
"""
