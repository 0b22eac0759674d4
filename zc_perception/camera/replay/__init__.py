"""Recordings as cameras. Read ``camera`` first: it paces the frames of a ``source``. The others are one kind of source each."""
