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

"""Makes a camera's nodes in one process, where they pass frames as Python objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter

from zc_perception.camera.stereo import Side
from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode, StereoRig, StereoSide
from zc_perception.nodes.command_lines import check_cameras
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.params.node_parameters import begin_node
from zc_perception.nodes.perception_node import all_or_none, PerceptionNode, process_ledger
from zc_perception.parameters import EVERY_NODE_SPECS

Overrides = Mapping[str, Mapping[str, Any]]


class PerceptionGraph:
    """
    The three nodes of one camera, which agree on buffers that the accelerator can import.

    :param overrides: for a node (key ``capture``, ``inference`` or ``overlay``), start values of
        its parameters, in addition to those of the command line.
    :param camera: the camera's name, which becomes the namespace; empty for a single camera.
    :param stereo: the camera's side of a stereo pair; *camera* is then the full namespace, and the
        command line's namespace is ignored.
    :raises ZcError: a parameter, file or model can't be used; the nodes made so far are
        destroyed.
    """

    def __init__(
        self,
        context: rclpy.Context,
        overrides: Overrides | None = None,
        camera: str = '',
        stereo: StereoSide | None = None,
    ) -> None:
        self.ledger = process_ledger(context)
        self._namespace = f'/{camera}' if camera else ''
        self._stereo = stereo
        self._nodes: list[PerceptionNode] = []
        with all_or_none(self._nodes):
            self.capture = self._make(CaptureNode, 'capture', context, overrides)
            self.inference = self._make(InferenceNode, 'inference', context, overrides)
            self.overlay = self._make(OverlayNode, 'overlay', context, overrides)
            if self.capture.keeps_all and not self.inference.parameters['keep_all']:
                self.inference.get_logger().warning(
                    'parameter keep_all is true for capture, but not for inference: set '
                    "'keep_all' for inference, or "
                    'inference skips frames'
                )

    def _make(
        self, kind: Any, name: str, context: rclpy.Context, overrides: Overrides | None
    ) -> Any:
        values = (overrides or {}).get(name, {})
        options: dict[str, Any] = {'namespace': self._namespace} if self._namespace else {}
        if self._stereo is not None:
            # This namespace replaces that of the command line: rcl prefers a node's own arguments.
            options['cli_args'] = ['--ros-args', '-r', f'__ns:={self._namespace}']
            options |= {'stereo': self._stereo} if kind is CaptureNode else {}
        node = kind(
            context=context,
            parameter_overrides=[Parameter(k, value=v) for k, v in values.items()],
            **options,
        )
        self._nodes.append(node)
        if self._namespace and node.get_namespace() != self._namespace:
            raise ConfigError(
                f"--cameras and a namespace for all nodes (__ns:={node.get_namespace()}) can't go "
                f"together; leave the namespace out, and name the cameras "
                f"'{node.get_namespace().strip('/')}{self._namespace}' and so on"
            )
        own = node.get_fully_qualified_name()
        if any(other.get_fully_qualified_name() == own for other in self._nodes[:-1]):
            raise ConfigError(
                f"-r __node:= gives several nodes the name '{own}'; name one node: -r "
                'capture:__node:=NAME (in a launch file, give this program no name=)'
            )
        return node

    @property
    def nodes(self) -> Sequence[PerceptionNode]:
        """The nodes, producers first."""
        return tuple(self._nodes)

    @property
    def drained(self) -> bool:
        """Whether no frame comes from the camera any more, and all frames have been processed."""
        return bool(self.capture.finished and self.inference.idle)


def perception_nodes(
    context: rclpy.Context, cameras: Sequence[str], check: Callable[[], None]
) -> Sequence[PerceptionNode]:
    """
    Make the nodes of each camera, in a namespace with the camera's name.

    :param cameras: the cameras' names; empty: one camera, whose nodes get no such namespace.
    :param check: called before the nodes of each camera are made; if it raises, all nodes so far
        are destroyed.
    :raises ConfigError: a name can't be a namespace, or is given twice.
    """
    check_cameras(cameras, '--cameras')
    return _wired(
        [partial(PerceptionGraph, context, camera=camera) for camera in cameras or ('',)], check
    )


def stereo_nodes(context: rclpy.Context, check: Callable[[], None]) -> Sequence[PerceptionNode]:
    """Make a stereo pair's nodes, in the program's namespace plus ``/left`` or ``/right``."""
    namespace = _program_namespace(context)
    rig = StereoRig()
    names = {side: f'{namespace}/{side.value}'.strip('/') for side in Side}
    graphs = [
        partial(PerceptionGraph, context, camera=name, stereo=StereoSide(rig, side))
        for side, name in names.items()
    ]
    # List the capture nodes first. NodeGroup.start() begins at the list's end, so the two cameras
    # start last, one right after the other: without a trigger they capture at nearly equal times.
    return sorted(_wired(graphs, check), key=lambda node: not isinstance(node, CaptureNode))


def _program_namespace(context: rclpy.Context) -> str:
    """Return the command line's namespace for all nodes; a temporary node is made to read it."""
    own = [Parameter(spec.name, value=False) for spec in EVERY_NODE_SPECS]
    node = Node.__new__(Node)
    begin_node(
        node,
        'zc_stereo',
        context=context,
        start_parameter_services=False,
        enable_rosout=False,
        parameter_overrides=own,
    )
    try:
        return str(node.get_namespace()).strip('/')
    finally:
        node.destroy_node()


def _wired(
    graphs: Sequence[Callable[[], PerceptionGraph]], check: Callable[[], None]
) -> Sequence[PerceptionNode]:
    nodes: list[PerceptionNode] = []
    with all_or_none(nodes):
        for graph in graphs:
            check()
            nodes += graph().nodes
    return nodes
