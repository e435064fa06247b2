"""What can happen to a training run, done to real runs: kills, damage, full disks, changed text, unlike hosts.

`starts.py` starts processes and reads their consoles, `runs.py` has undisturbed runs and compares the others with them,
and each `test_*.py` does one kind of fault. docs/development/reliability.md says what each fault is answered with.
"""
