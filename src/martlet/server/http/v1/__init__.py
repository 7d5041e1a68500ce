"""Plain HTTP for programs in any language: publish, receive by lease, and acknowledge by receipt.

::

    POST /v1/topics/T/messages              messages.py       parse, stage, say where they are
    POST /v1/topics/T/channels/C/receive    leases.py         a consumer of the core for each
                                   /finish  receipt.py        names a delivery, over restarts too
    GET  /v1/openapi.json                   openapi.py        made from operations.py

May import: `martlet.broker`, `server`, aiohttp. Start with `api`.
"""
