"""Commands that look at a run and a machine before the run starts.

Imports the engine, and T5X's reader in `limba/tools/migrate/`.
"""
