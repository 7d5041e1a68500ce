"""The pull consumer: the queues of a topic are assigned to the members of a group, which fetch
them.

A queue belongs to one member at a time, so it is handled in order, and a broker keeps one offset a
queue for the group: everything below it is done. From the broker to the application::

    BrokerMembership       one broker: joins the group, and asks for its queues (a long poll)
      Fetcher              one queue: asks for what comes next (a long poll), ahead of the handlers
        AssignedQueue      what was fetched and is not done, within `FlowLimits`
          ReadyQueues      the queues that have something, in turns
            Worker         a handler at work; or an iterator of the application's

The committed offset of a queue is the lowest one whose handling is not done (`OffsetTracker`),
however many handlers are working on later ones: delivery is at least once. A queue that moves to
another member is released after its running handlers have ended.

For broadcasting, `BroadcastSession` replaces `BrokerMembership`: each consumer has all queues, and
its offsets are in a file of its own (`OffsetFile`).

It may import the rest of the client but its producers. Start reading with
`martlet.client.group.consumer`.
"""
