"""The programs behind the figures in README.md and benchmarks/README.md."""
