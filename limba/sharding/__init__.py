"""The device mesh, the shardings of arrays over it, and the processes of one run.

Floor 1: imports `config/` and `storage/`.
"""
