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

"""Console scripts that run nodes; ``--help`` works without ROS; after a signal they return 0."""

from __future__ import annotations

from functools import partial
import os
import signal
import sys

from zc_perception.nodes import STARTUP
from zc_perception.terminal import ending_quietly

TYPE_CHECKING = False  # not imported from typing: zc_perception/__init__.py says why
if TYPE_CHECKING:
    import argparse  # noqa: I300
    from collections.abc import Callable, Sequence

    from zc_perception.nodes.perception_node import PerceptionNode


def _start(name: str, run: Callable[[str, argparse.Namespace], int]) -> int:
    """Parse the options of program *name* and pass them to *run*; return the exit code."""
    with ending_quietly():
        STARTUP.reached('interpreter')
        from zc_perception.nodes.command_lines import options_of
        from zc_perception.programs import start

        return start(options_of(name), partial(run, name))


def _one_node(program: str, options: argparse.Namespace) -> int:
    from zc_perception.nodes.params.verdict import node_kind
    from zc_perception.nodes.process import run_program

    kind = node_kind(program.removesuffix('_node'))
    return run_program(program, lambda context, check: [kind(context=context)], options)


def _perception(program: str, options: argparse.Namespace) -> int:
    from zc_perception.nodes.perception import perception_nodes, stereo_nodes
    from zc_perception.nodes.process import run_program

    def build(context: object, check: Callable[[], None]) -> Sequence[PerceptionNode]:
        if options.stereo:
            return stereo_nodes(context, check)
        return perception_nodes(context, options.cameras, check)

    return run_program(program, build, options)


def _record(program: str, options: argparse.Namespace) -> int:
    """Record until a signal or a limit, or repair a recording; return 1 if the disk failed."""
    if options.repair is not None:
        return _repair(options.repair)
    from zc_perception.errors import EXIT_FAILURE
    from zc_perception.nodes.process import run_program
    from zc_perception.nodes.recorder import RecorderNode

    nodes: list[RecorderNode] = []

    def build(context: object, check: Callable[[], None]) -> Sequence[PerceptionNode]:
        # run_program() ends only after a signal, so the recorder sends SIGINT to this process
        # when a limit is reached or the disk has failed.
        end = partial(os.kill, os.getpid(), signal.SIGINT)
        nodes.append(RecorderNode(context=context, on_finished=end))
        return nodes

    code = run_program(program, build, options)
    return code or (EXIT_FAILURE if nodes and nodes[0].failed else 0)


def _repair(folder: str) -> int:
    """Complete the files that a killed recorder left in *folder*; needs no ROS."""
    from pathlib import Path

    from zc_perception.camera.mcap_file import finish_recording
    from zc_perception.errors import ConfigError
    from zc_perception.terminal import put

    parts, done = finish_recording(Path(folder))
    if not parts and done:
        raise ConfigError(f"'{folder}' has no MCAP file that can be read: {'; '.join(done)}")
    if not parts:
        raise ConfigError(f"'{folder}' has no MCAP file; give the folder of a recording")
    for sentence in done or [f"'{folder}' is complete: {len(parts)} files"]:
        put(sentence, sys.stdout)
    return 0


def _container(program: str, options: argparse.Namespace) -> int:
    from zc_perception.nodes.container import run

    return run(program, multi_threaded=program.endswith('_mt'))


capture_node = partial(_start, 'capture_node', _one_node)
gstreamer_node = partial(_start, 'gstreamer_node', _one_node)
inference_node = partial(_start, 'inference_node', _one_node)
overlay_node = partial(_start, 'overlay_node', _one_node)
perception = partial(_start, 'perception', _perception)
zc_record = partial(_start, 'zc_record', _record)
component_container = partial(_start, 'component_container', _container)
component_container_mt = partial(_start, 'component_container_mt', _container)
