"""Operations, each declared once: its request, its answer, who may call it, and what it does.

Servers, clients, commands, pages and the reference derive from a declaration. A ground package: of
Martlet it imports `names` and `text` alone. Start with `operation`, and `dead_letters` for an
example. `access` has the classes of callers, and the class of each call that is not declared yet.

A broker listens, and `martlet.client` is imported, before msgspec is: import a module of operations
where one of them is used.
"""
