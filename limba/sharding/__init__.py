"""The device mesh, what lies where on it, and the processes of one run.

Floor 1: imports `config/`.
"""
