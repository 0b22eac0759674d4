"""What the kernel and ``/proc`` say of a running system, from outside. Nothing here knows the nodes' frame logs.

Each reader returns its figures, or an :class:`~zc_perception.verify.evidence.unreadable.Unreadable` that says why it can't read and what to
do about it. All take the roots of their trees (``/proc``, debugfs, tracefs) as parameters, so that tests give them folders.

Read :mod:`~zc_perception.verify.evidence.kernel_events` for events, :mod:`~zc_perception.verify.evidence.buffers` for dma-bufs,
:mod:`~zc_perception.verify.evidence.mappings` and :mod:`~zc_perception.verify.evidence.pins` for who can touch a frame,
:mod:`~zc_perception.verify.evidence.memmove_probe` and :mod:`~zc_perception.verify.evidence.sampling` for copies.
"""
