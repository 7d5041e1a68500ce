"""Plain HTTP for programs in any language: publish, receive by lease, and acknowledge by receipt.

::

    POST /v1/topics/T/messages              messages.py       parse, stage, say where they are
    POST /v1/topics/T/channels/C/receive    leases.py         a consumer of the core for each
                                   /finish  leases.py         a receipt names a delivery
    GET  /v1/openapi.json                   operations.py     made from the table of operations

May import: `martlet.broker`, `server`, aiohttp. Start with `api`.
"""
