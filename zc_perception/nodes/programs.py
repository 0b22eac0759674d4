"""What the console scripts run, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import rclpy

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.perception import perception_nodes, stereo_nodes
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import OptionParser, refuse_unknown_parameters, run_program


def _single(kind: type[PerceptionNode]) -> Callable[[rclpy.Context, object], Sequence[PerceptionNode]]:
    def build(context: rclpy.Context, options: object) -> Sequence[PerceptionNode]:
        node = kind(context=context)  # type: ignore[call-arg]
        try:
            refuse_unknown_parameters([node], [])
        except BaseException:
            node.stop()
            node.destroy_node()
            raise
        return [node]

    return build


def capture_node() -> int:
    """``capture_node``."""
    return run_program('capture_node', _single(CaptureNode), parser=OptionParser('capture_node', "A camera's frames and its camera_info."))


def inference_node() -> int:
    """``inference_node``."""
    parser = OptionParser('inference_node', 'Detections in the frames of a camera of this or another process.')
    return run_program('inference_node', _single(InferenceNode), parser=parser)


def overlay_node() -> int:
    """``overlay_node``."""
    parser = OptionParser('overlay_node', 'The frames with what was detected in them drawn in, while somebody looks.')
    return run_program('overlay_node', _single(OverlayNode), parser=parser)


def perception() -> int:
    """``perception``."""
    parser = OptionParser(prog='perception', description='Capture, inference and overlay in one process, for one camera or several.')
    which = parser.add_mutually_exclusive_group()
    which.add_argument('--cameras', nargs='+', default=[], metavar='NAME', help='one set of nodes for each, in the namespace of its name')
    which.add_argument('--stereo', action='store_true', help='two cameras in namespaces left and right, whose frames are pairs')

    def build(context: rclpy.Context, options: argparse.Namespace) -> Sequence[PerceptionNode]:
        return stereo_nodes(context) if options.stereo else perception_nodes(context, options.cameras)

    return run_program('perception', build, parser=parser)
