"""The pull consumer: queues of a topic are allocated to the members of a group, which fetch them.

A queue belongs to one member at a time, so it is handled in order, and all that a broker keeps of a
group is one offset a queue: everything below it is done.  From the broker to the application::

    BrokerMembership       one broker: joins the group, and asks for its queues (a long poll)
      Fetcher              one queue: asks for what comes next (a long poll), ahead of the handlers
        AssignedQueue      what was fetched and is not done, within `FlowLimits`
          ReadyQueues      the queues that have something, in turns
            Worker         a handler at work; or an iterator of the application's

What is committed of a queue is the lowest offset whose handling is not done (`OffsetTracker`),
however many handlers are at work on later ones.  So a message may come twice, and none is missed.
A queue that is to go to another member is given back once the handlers that are at work on it have
ended.

`BroadcastSession` stands in the place of `BrokerMembership` for broadcasting, where each consumer
has all queues and its offsets are in a file of its own (`OffsetFile`).
"""
