"""
Run ``zc_doctor``: look at a vehicle before it drives, change nothing, and say what to do.

Read in this order:

1. :mod:`~zc_perception.machine`: what a check is, what it may look at, and what it says.
2. :mod:`~zc_perception.doctor.registry`: the list of all checks;
   :mod:`~zc_perception.doctor.needs` reads what the parameter file asks.
3. One of the files of checks, such as :mod:`~zc_perception.doctor.node_checks`.
4. :mod:`~zc_perception.doctor.answers`: the questions that are put to processes of their own.
5. :mod:`~zc_perception.doctor.zc_doctor` reads the options, :mod:`~zc_perception.doctor.command`
   runs the checks and reports.

To add a check: write its function beside those of its subject, and add it to the registry, or to
``CHECKS`` of the kind that needs it.
"""
