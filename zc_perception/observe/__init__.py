"""
What nodes say of themselves, and what tools of other processes see of them.

Read in this order:

1. :mod:`~zc_perception.observe.frame_log`: a node writes what it did with each frame into memory,
   and other processes read that. :mod:`~zc_perception.observe.timeline` makes a trace of several
   logs and of the kernel's events, and says how long each stage of a frame took. ``zc_timeline``
   is the program that shows both for the nodes that run.
2. :mod:`~zc_perception.observe.diagnostics`: ``/diagnostics``. Its figures are those of
   ``metrics``: latencies, and how much of a counter is new.
3. ``processes``: what ``/proc`` says of other processes, and the next step for a user that may not
   look at them or at the kernel.
"""
