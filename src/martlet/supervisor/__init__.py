"""Several servers as processes: started in order, watched, restarted, stopped in reverse.

May import: `martlet.options` and the loose modules. Start with `plan`, which says what is started;
`martlet up` runs it.
"""
