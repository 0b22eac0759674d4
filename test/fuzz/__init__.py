"""
What comes from outside, and what reads it.

Mutated from a stored corpus, by :mod:`~fuzz.run_fuzz` and in the tests.
"""
