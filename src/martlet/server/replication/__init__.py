"""A replica as a process: sockets, files, threads and the metadata store around
`martlet.replica.replica`.

May import: all of the server's packages, and those below. Start with `node`.
"""
