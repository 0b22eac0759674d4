"""``zc_doctor``: looks at a vehicle before it drives, changes nothing, and says what to do.

Read in this order:

1. :mod:`~zc_perception.doctor.registry`: the list of all checks. A check is a function that gets the machine and the needs, and yields
   findings.
2. :mod:`~zc_perception.doctor.finding`: what a check says, and how bad that is; :mod:`~zc_perception.doctor.needs`: what the parameter file
   asks of the machine; :mod:`~zc_perception.doctor.system`: what a check may look at.
3. One of the files of checks, such as :mod:`~zc_perception.doctor.camera_checks`.
4. :mod:`~zc_perception.doctor.running`: one thread for each group runs the checks of that group, one after the other.
   :mod:`~zc_perception.doctor.asking` puts questions that may hang or crash to a process of their own, which runs
   :mod:`~zc_perception.doctor.answers`.
5. :mod:`~zc_perception.doctor.zc_doctor` reads the options, :mod:`~zc_perception.doctor.command` runs it all and reports.

To add a check: write its function beside those of its subject, and add it to ``CHECKS`` of the registry.
"""
