"""What the figures in README.md and benchmarks/README.md are made with."""
