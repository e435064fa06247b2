"""Pages in the browser: the report of runs, and a page on which one tries a model.

Imports the engine.
"""
