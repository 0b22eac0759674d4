"""``zc_bench``: figures that anyone can reproduce, with what they are compared to measured in the same run.

Read in this order:

1. :mod:`~zc_perception.bench.subcommand`: what a sub-command is; :mod:`~zc_perception.bench.program` has the list of them and runs one.
   One file is one sub-command, with its options and bars: :mod:`~zc_perception.bench.link`, ``decode``, ``pipeline``, ``realtime``,
   ``scale``, ``startup``, ``timeline``.
2. :mod:`~zc_perception.bench.rows`: how samples become the rows of the JSON. ``bench.schema.json`` describes the file.
3. :mod:`~zc_perception.bench.worker`: what is measured runs in processes of its own. The benchmark sends each of them a command per line
   and reads an answer per line. :mod:`~zc_perception.bench.obeying` is the other end, which ``link_worker``, ``nodes_worker``,
   ``reader`` and ``bare_worker`` share.

``floor.py`` is an unmodified copy of the loops that the links are measured against. ``make bench`` runs all sub-commands, with what one
would use instead of the links added to ``link`` (``tools/bench_peers``), and makes a page with plots of them: ``tools/bench_report.py``.
"""
