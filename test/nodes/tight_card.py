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
``inference_node`` with a card whose driver has ioctls 64 to 66.

It takes tight images only, and doesn't say so beforehand.

tight_card.py [ARGUMENTS OF inference_node] prints the number of each job, which ends at once and
has found nothing
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npu.card_kit import CardFence, CountingCard, memfd_results  # noqa: E402

from zc_perception.negotiation.constraints import BufferConstraints  # noqa: E402
from zc_perception.nodes import main  # noqa: E402
from zc_perception.npu.axl import accelerator as axl  # noqa: E402


class TightCard(CountingCard):
    """In place of :class:`AxlDevice`."""

    def __init__(self, path: str, numbers: Any, tree: Any) -> None:
        super().__init__(level=1)

    def submit(self, *arguments: Any) -> CardFence:
        fence = super().submit(*arguments)
        fence.signal()
        print(f'job {len(self.jobs)}', flush=True)
        return fence


_stated = axl.AxlAccelerator.constraints


def _without_dmabufs(self: axl.AxlAccelerator) -> BufferConstraints:
    """Where the tests run there may be none."""
    return replace(_stated(self), devices=(), heaps=None)


if __name__ == '__main__':
    axl.AxlDevice = TightCard  # type: ignore[assignment, misc]
    axl.AxlAccelerator.constraints = _without_dmabufs  # type: ignore[method-assign]
    axl.open_result_heap = memfd_results
    sys.exit(main.inference_node())
