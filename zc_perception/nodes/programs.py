"""What the console scripts run, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence

import rclpy

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.params.ros_arguments import refuse_unknown_parameters
from zc_perception.nodes.perception import perception_nodes, stereo_nodes
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import EXIT_FAILURE, run_program


def _checked(node: PerceptionNode) -> Sequence[PerceptionNode]:
    """The node alone, if it knows its parameters; else it is taken down.

    :raises ConfigError: it doesn't.
    """
    try:
        refuse_unknown_parameters([node], [])
    except BaseException:
        node.stop()
        node.destroy_node()
        raise
    return [node]


def capture_node(options: argparse.Namespace) -> int:
    """``capture_node``."""
    return run_program('capture_node', lambda context: _checked(CaptureNode(context=context)), options)


def inference_node(options: argparse.Namespace) -> int:
    """``inference_node``."""
    return run_program('inference_node', lambda context: _checked(InferenceNode(context=context)), options)


def overlay_node(options: argparse.Namespace) -> int:
    """``overlay_node``."""
    return run_program('overlay_node', lambda context: _checked(OverlayNode(context=context)), options)


def perception(options: argparse.Namespace) -> int:
    """``perception``."""

    def build(context: rclpy.Context) -> Sequence[PerceptionNode]:
        return stereo_nodes(context) if options.stereo else perception_nodes(context, options.cameras)

    return run_program('perception', build, options)


def zc_record(options: argparse.Namespace) -> int:
    """``zc_record``: until SIGINT, ``max_frames`` or ``max_duration``; 1 when the disk failed."""
    from zc_perception.nodes.recorder import RecorderNode  # none of the other programs needs it

    nodes: list[RecorderNode] = []

    def build(context: rclpy.Context) -> Sequence[PerceptionNode]:
        # The program waits for a signal; it is told to end by the same one.
        nodes.append(RecorderNode(context=context, on_finished=lambda: os.kill(os.getpid(), signal.SIGINT)))
        return _checked(nodes[0])

    code = run_program('zc_record', build, options)
    return code or (EXIT_FAILURE if nodes and nodes[0].failed else 0)


def component_container(options: argparse.Namespace) -> int:
    """``component_container``."""
    from zc_perception.nodes.container.program import run  # nor this

    return run('component_container', multi_threaded=False)


def component_container_mt(options: argparse.Namespace) -> int:
    """``component_container_mt``."""
    from zc_perception.nodes.container.program import run

    return run('component_container_mt', multi_threaded=True)
