"""What benchmarks/faults.py breaks on purpose, one module for each kind of fault.

Part of `benchmarks/`.
"""
