"""The commit log: records in segment files, their index, recovery and retention.

May import: none of Martlet's packages; it knows bytes and positions, and no topic's rules. Start
with `record`, the format on disk, then `commit_log`.
"""
