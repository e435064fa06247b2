"""The command `limba`: flags and gin files become one RunConfig, which one call takes.

Floor 5, the highest: gin is imported only here.
"""
