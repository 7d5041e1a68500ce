"""The file for spark-submit, alone in its folder, so that no module here hides one of others.

May import: `martlet.cli.pipeline`. Start with `martlet_pipeline`.
"""
