"""The admin page: a process that shows brokers in a browser, and acts on them.

::

    brokers  <- /stats, once for all tabs -  collector -> CountHistory, ClusterView
                                                 |
    browser  -- GET page ------------------>  pages: HTML from a template
             <- the same region again ------  live: server-sent events, after each poll
             -- POST form ------------------>  actions -> martlet.client.Admin -> audit
    scripts  -- /api/* -------------------->  nsqadmin: its routes and answers

Each request passes `martlet.console.guard` first: it knows the user, and refuses what a page on
another site could have sent.
"""
