"""The jobs on topics that run on Spark: ``martlet pipeline NAME``, spark-submit, or a call.

Each job is a module with a function and a `JOB`, a `martlet.pipeline.job.Job`::

    from martlet.pipeline.archive import ArchiveOptions, archive

    archive(ArchiveOptions(addresses=("127.0.0.1:4151",), topics=("orders",), out="archive"))

A job that is called like this runs in the active Spark session, or creates one.

May import: `martlet.spark`, `martlet.log`, `martlet.broker`'s formats.  Start with `job`.
"""
