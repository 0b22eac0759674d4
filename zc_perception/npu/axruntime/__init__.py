"""
Axelera's Voyager runtime.

The vendor's Python package is used where it can be imported, else the C library.

Read ``accelerator`` first, then ``worker`` (the threads of one core). Below them are ``tensors``
(memory, and how a frame becomes one) and ``runtime`` (what both interfaces have in common).
``binding`` is the Python interface; ``session`` (objects) and ``library`` (functions) are the C
interface. ``releases`` knows which releases of runtime, driver and firmware go together.
"""
