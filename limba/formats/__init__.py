"""Files to arrays and back, numpy only: Limba's checkpoints, T5X's, Hugging Face's.

Floor 2: imports `config/`.
"""
