"""The file for spark-submit, alone in its folder, so that no module here shadows another.

May import: `martlet.cli.pipeline`. Start with `martlet_pipeline`.
"""
