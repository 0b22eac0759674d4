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

"""Run ``python -m bench``; import :mod:`~bench.program` only once signals are handled."""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; its exit codes are those of :func:`~bench.program.run`."""
    with ending_quietly('zc_bench'):
        from bench import program

        return program.run(arguments)


if __name__ == '__main__':
    sys.exit(main())
