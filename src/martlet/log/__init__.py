"""The commit log: records in segment files, their index, recovery and retention.

May import: none of Martlet's packages; the log handles bytes and positions and knows no rules of
topics. Start with `record`, the format on disk, then `commit_log`.
"""
