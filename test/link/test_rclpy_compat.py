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

"""Names of rclpy that move between releases: where they are searched, and the error if missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zc_perception.link.rclpy_compat import answer_later, parameter_overrides


class Public:
    """A service as in releases up to Kilted."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Any]] = []

    def send_response(self, response: Any, header: Any) -> None:
        self.sent.append((response, header))


class Protected:
    """A service whose base class has made the method protected."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Any]] = []

    def _send_response(self, response: Any, header: Any) -> None:
        self.sent.append((response, header))


class Both(Protected):
    """A service with a public method that calls the protected one."""

    def send_response(self, response: Any, header: Any) -> None:
        self._send_response(response, header)


@pytest.mark.parametrize(
    ('kind', 'called'),
    [
        (Public, 'send_response'),
        (Protected, '_send_response'),
        (Both, 'send_response'),
        (Both, '_send_response'),
    ],
)
def test_an_answer_is_sent_once_whatever_an_executor_calls(kind: type[Any], called: str) -> None:
    service = kind()
    waiting: list[Any] = []
    answer_later(service, lambda response, answer: waiting.append((response, answer)))
    getattr(service, called)('empty', 'header')
    assert not service.sent
    ((response, answer),) = waiting
    assert response == 'empty'
    answer('filled')
    assert service.sent == [('filled', 'header')] and len(waiting) == 1


def test_an_rclpy_that_has_renamed_them_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"no 'Service\.send_response'.*newer release"):
        answer_later(SimpleNamespace(), lambda response, answer: None)
    with pytest.raises(RuntimeError, match=r"no 'Node\._parameter_overrides'"):
        parameter_overrides(SimpleNamespace())  # type: ignore[arg-type]
