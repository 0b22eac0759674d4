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
The entry point of ``zc_verify``; :mod:`~zc_perception.verify.verification` does the work.

That module is imported inside ``ending_quietly``, so that a Ctrl-C during the import prints no
traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly


def main(words: Sequence[str] | None = None) -> int:
    """
    Run ``zc_verify`` and return its exit status.

    :param words: the arguments; ``None``: those of the command line.
    """
    with ending_quietly('zc_verify'):
        from zc_perception.programs import start
        from zc_perception.verify import verification

        return start(verification.parser(), verification.run, words)


if __name__ == '__main__':
    sys.exit(main())
