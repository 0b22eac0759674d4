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

"""What ``zc_doctor`` looks at for recordings: whether they can be played."""

from __future__ import annotations

import contextlib
from contextlib import suppress
import json
from typing import Any

from zc_perception.errors import ConfigError, ZcError
from zc_perception.local_path import local_path
from zc_perception.machine.asking import NoAnswerError
from zc_perception.machine.checks import fail, Finding, NodeNeed, ok, warn
from zc_perception.machine.system import System


def recording(system: System, camera: NodeNeed) -> Finding:
    if not camera['video']:
        advice = (
            'set it in the parameter file, or when the node starts (-p '
            f'{camera.node.rsplit("/", 1)[-1]}:video:=PATH)'
        )
        return warn(
            "camera replay has no recording: parameter 'video' is empty", advice, camera.node
        )
    path = camera['video']
    with suppress(ConfigError):  # what is wrong with it is what opening it says
        path = local_path(path, 'video')
    asked = {
        'video': str(system.root / path.lstrip('/')) if path.startswith('/') else path,
        **{name: camera[name] for name in ('width', 'height', 'framerate', 'replay_topic')},
    }
    try:
        answer = system.ask(try_recording, json.dumps(asked))
    except NoAnswerError as error:
        answer = {'error': str(error)}
    if 'error' in answer:
        return fail(
            answer['error'], 'give video the path of a recording that can be played', camera.node
        )
    return ok(
        f'{camera["video"]} can be played, {answer["width"]}x{answer["height"]}',
        camera.node,
        **answer,
    )


def try_recording(text: str) -> dict[str, Any]:
    """
    Tell whether a recording can be played: open it as the capture node does, and close it.

    :param text: JSON: ``video``, ``width``, ``height``, ``framerate`` and ``replay_topic``
        as the node has them.
    """
    from zc_perception.camera.replay.opening import open_source

    wanted = json.loads(text)
    try:
        source = open_source(
            wanted['video'],
            width=wanted['width'],
            height=wanted['height'],
            framerate=wanted['framerate'],
            topic=wanted['replay_topic'],
        )
    except ZcError as error:
        return {'error': str(error)}
    with contextlib.closing(source):
        return {'width': source.width, 'height': source.height}
