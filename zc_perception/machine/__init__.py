"""What ``zc_doctor``'s checks are made of, low enough that a camera or an accelerator, of this package or of another one, declares its own.

Read :mod:`~zc_perception.machine.checks` first: what a check is, what it is asked for and what it
says; then :mod:`~zc_perception.machine.system`: what it may look at.
"""
