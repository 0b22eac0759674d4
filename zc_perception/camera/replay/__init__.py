"""
Recordings as cameras.

Read ``camera`` first: it paces the frames of a ``source``. Each of the others is one kind of
source.
"""
