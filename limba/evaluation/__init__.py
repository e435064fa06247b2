"""Evaluates models: validation figures, metrics of generated text, the report of a run.

Floor 4: imports floors 0 to 3 and `inference/`.
"""
