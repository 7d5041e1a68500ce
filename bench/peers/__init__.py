"""Martlet beside other brokers, each by its own protocol: ``./run bench peers``.

::

    main          rows x brokers, in turns
      daemons     finds, starts and stops the brokers
      load        what one connection does: it publishes, or consumes
      protocols   the bytes of each protocol

Martlet and nsqd are measured by the loads of `bench.servers`.
"""
