"""Checkpoints to and from other libraries' folders, with the proof that they compute the same.

Floor 4: imports floors 0 to 3 and `inference/`; torch and transformers are imported here alone, when needed.
"""
