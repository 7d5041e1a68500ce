"""Moving an nsqd's data folder into a Martlet log.

May import: `martlet.broker`, `martlet.log`, `martlet.server`. Start with `importing`; `diskqueue`
and `nsqd_folder` read nsqd's files.
"""
