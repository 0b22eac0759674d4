"""Axelera's Voyager runtime, by its C interface.

Read ``accelerator`` first, then ``worker`` (its threads). Below them are ``tensors`` (memory, and how a frame becomes a tensor),
``session`` (the library's objects) and ``library`` (its functions).
"""
