"""Converts checkpoints to and from the folders of other libraries, and proves that they compute the same.

Floor 4: imports floors 0 to 3 and `inference/`; torch and transformers are imported only here, when needed.
"""
