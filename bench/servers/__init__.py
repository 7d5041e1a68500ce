"""Measuring brokers: ``martlet bench``.

One load generator for every server that speaks NSQ's protocol, so that two servers differ in
nothing but themselves::

    comparison      rows x servers, in turns
      row             what is measured: a load, and what must be there before
        load            what one connection does
      load_processes  processes that do it together, a connection each
      target          a server: its two ports, its topics
    report          the table, the JSON
    start           what a broker costs that does nothing
    workers         one broker and several, beside nsqd
"""
