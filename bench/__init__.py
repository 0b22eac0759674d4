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

Everything that a figure is compared with is measured in the same run.

The benchmarks are no part of the package and are not installed. In a clone ``make bench`` runs all
of them, ``.venv/bin/python -m bench COMMAND`` one sub-command. The name ``zc_bench`` is in their
messages and in their JSON.

Read in this order:

1. :mod:`~bench.subcommand`: what a sub-command is; :mod:`~bench.program` has the list of them and
   runs one. One file is one sub-command, with its options and bars: :mod:`~bench.link`,
   ``decode``, ``pipeline``, ``scale``, ``startup``, ``timeline``.
2. :mod:`~bench.rows`: how samples become the rows of the JSON. ``bench.schema.json`` describes the
   file.
3. :mod:`~bench.worker`: the measured programs run in processes of their own. The benchmark sends
   each of them a command per line and reads an answer per line. :mod:`~bench.obeying` is the other
   end, which ``link_worker``, ``nodes_worker``, ``reader`` and ``floor_worker`` share.
4. :mod:`~bench.report`: what ``make bench`` runs: all sub-commands, then a page (``results``) with
   pictures (``plots``) of them.

``floor.py`` is an unmodified copy of the loops that the links are measured against; ``peers`` are
the libraries that one could use instead of the links.
"""
