"""The training loop, its step, optimizer, checkpoints and logs.

`loop.py` runs the steps, `update.py` compiles one and `step.py` computes it. `optimizer.py` goes around the rules of
`rules.py`, with the learning rate of `schedule.py`. `row_reader.py` has the rows of each step, and `guard.py` decides
which batches are not trained on.

Floor 3: imports `config/`, `sharding/`, `data/`, `model/` and `formats/`.
"""
