# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
The benchmarks of the package, with figures that anyone can reproduce.

A benchmark measures its case and everything it compares that case with in one run. The benchmarks
are not installed with the package. In a clone ``make bench`` runs all of them, and
``.venv/bin/python -m bench COMMAND`` runs one. Their messages and JSON call the program
``zc_bench``. A *floor* is a bare loop of system calls, the least that a link can cost. A *bar* is
a limit that a measured figure has to meet.

Read in this order:

1. :mod:`~bench.subcommand` defines a sub-command; :mod:`~bench.program` lists all of them and runs
   one. Each sub-command has a file with its options and bars: :mod:`~bench.link`, ``decode``,
   ``pipeline``, ``scale``, ``startup``, ``timeline``.
2. :mod:`~bench.rows` turns samples into the rows of the JSON file, which ``bench.schema.json``
   describes.
3. :mod:`~bench.worker`: the measured programs run in processes of their own. The benchmark sends
   each process one command per line and reads one answer per line. :mod:`~bench.obeying` does this
   in the process; ``link_worker``, ``nodes_worker``, ``reader`` and ``floor_worker`` use it.
4. :mod:`~bench.report` is the program of ``make bench``. It runs all sub-commands, then writes a
   page (``results``) with pictures (``plots``).

``floor.py`` is an unmodified copy of the loops that the links are measured against. ``peers`` are
the libraries that one could use instead of this package's links.
"""
