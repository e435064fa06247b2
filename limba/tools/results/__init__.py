"""Results that one can publish: tasks of a suite, each by a protocol, measured on several models beside baselines.

Imports the engine by `limba.api`.
"""
