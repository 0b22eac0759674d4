"""What ``zc_doctor``'s checks are made of, low enough that a camera or an accelerator, of this package or of another one, declares its own.

Read in this order: :mod:`~zc_perception.machine.checks` (what a check is), :mod:`~zc_perception.machine.finding` (what it says, and how
bad that is), :mod:`~zc_perception.machine.system` (what it may look at), :mod:`~zc_perception.machine.needs` (what the parameter file
asks). Besides: :mod:`~zc_perception.machine.heaps` has the machine's heaps, :mod:`~zc_perception.machine.device_users` who has a device
open, and :mod:`~zc_perception.machine.asking` puts questions that may hang or crash to a process of their own, which runs
:mod:`~zc_perception.machine.answering`.
"""
