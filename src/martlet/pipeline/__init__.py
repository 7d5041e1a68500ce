"""The jobs on topics that run on Spark: ``martlet pipeline NAME``, spark-submit, or a call.

Each is a module with its function, and its `JOB`, which `martlet.pipeline.job` says what is::

    from martlet.pipeline.archive import ArchiveOptions, archive

    archive(ArchiveOptions(addresses=("127.0.0.1:4151",), topics=("orders",), out="archive"))

Called like this a job runs in the calling process's Spark session, or makes one.
"""
