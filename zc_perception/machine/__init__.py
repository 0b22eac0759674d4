"""
The parts that ``zc_doctor``'s checks are made of.

They lie in a low room, so that a camera or an accelerator, of this package or of another one, can
declare its own checks.

Read :mod:`~zc_perception.machine.checks` first: what a check is, what it is asked for and what it
says; then :mod:`~zc_perception.machine.system`: what it may look at.
"""
