"""Part of `limba/training/`: what a run reports of itself: figures of a step, logs, FLOPs, traces.

Imports what `limba/training/` may import.
"""
