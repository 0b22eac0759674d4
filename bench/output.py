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

"""Write a benchmark's progress to standard error and its result to standard output."""

from __future__ import annotations

import sys

from zc_perception.terminal import put


def say(line: str) -> None:
    """Write progress to standard error; ignore a failure."""
    put(line, sys.stderr)


def show(text: str) -> str:
    """Write a result to standard output; return the error's text, empty if it was written."""
    error = put(text, sys.stdout)
    return '' if error is None else error.strerror or str(error)
