"""What measures the package: figures that anyone can reproduce, with what they are compared to measured in the same run.

It is no part of the package and is not installed. In a clone ``make bench`` runs all of it,
``.venv/bin/python -m bench COMMAND`` one sub-command. The name ``zc_bench`` is in its messages and
in its JSON.

Read in this order:

1. :mod:`~bench.subcommand`: what a sub-command is; :mod:`~bench.program` has the list of them and
   runs one. One file is one sub-command, with its options and bars: :mod:`~bench.link`,
   ``decode``, ``pipeline``, ``scale``, ``startup``, ``timeline``.
2. :mod:`~bench.rows`: how samples become the rows of the JSON. ``bench.schema.json`` describes the
   file.
3. :mod:`~bench.worker`: what is measured runs in processes of its own. The benchmark sends each of
   them a command per line and reads an answer per line. :mod:`~bench.obeying` is the other end,
   which ``link_worker``, ``nodes_worker``, ``reader`` and ``floor_worker`` share.
4. :mod:`~bench.report`: what ``make bench`` runs: all sub-commands, then a page (``results``) with
   pictures (``plots``) of them.

``floor.py`` is an unmodified copy of the loops that the links are measured against, ``peers`` what
one would use instead of the links.
"""
