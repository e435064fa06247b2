"""How good a model is: figures on validation data, metrics of its text, the report of a run.

Floor 4: imports floors 0 to 3 and `inference/`.
"""
