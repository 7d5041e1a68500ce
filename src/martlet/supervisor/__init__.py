"""Several servers as processes: started in order, watched, restarted, stopped in reverse.

May import: none of Martlet's packages. Start with `plan`, which says what is started; `martlet up`
runs it.
"""
