"""What the console scripts run, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial

import rclpy

from zc_perception.errors import EXIT_FAILURE
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.perception import perception_nodes, stereo_nodes
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import run_program


def _node(program: str, kind: type[PerceptionNode], options: argparse.Namespace) -> int:
    """A program that has one node."""
    return run_program(program, lambda context, check: [kind(context=context)], options)


capture_node = partial(_node, 'capture_node', CaptureNode)
inference_node = partial(_node, 'inference_node', InferenceNode)
overlay_node = partial(_node, 'overlay_node', OverlayNode)


def perception(options: argparse.Namespace) -> int:
    """``perception``."""

    def build(context: rclpy.Context, check: Callable[[], None]) -> Sequence[PerceptionNode]:
        return (
            stereo_nodes(context, check)
            if options.stereo
            else perception_nodes(context, options.cameras, check)
        )

    return run_program('perception', build, options)


def zc_record(options: argparse.Namespace) -> int:
    """``zc_record``: until SIGINT, ``max_frames`` or ``max_duration``; 1 when the disk failed."""
    from zc_perception.nodes.recorder import RecorderNode  # none of the other programs needs it

    nodes: list[RecorderNode] = []

    def build(context: rclpy.Context, check: Callable[[], None]) -> Sequence[PerceptionNode]:
        # The program waits for a signal; it is told to end by the same one.
        nodes.append(
            RecorderNode(context=context, on_finished=lambda: os.kill(os.getpid(), signal.SIGINT))
        )
        return nodes

    code = run_program('zc_record', build, options)
    return code or (EXIT_FAILURE if nodes and nodes[0].failed else 0)


def _container(program: str, options: argparse.Namespace, *, multi_threaded: bool) -> int:
    """A program that holds components."""
    from zc_perception.nodes.container import run  # nor this

    return run(program, multi_threaded=multi_threaded)


component_container = partial(_container, 'component_container', multi_threaded=False)
component_container_mt = partial(_container, 'component_container_mt', multi_threaded=True)
