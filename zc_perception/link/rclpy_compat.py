"""The one place that knows how rclpy versions differ (Humble to Rolling)."""

from __future__ import annotations

from typing import Any

import rclpy
from rclpy.executors import Executor
from rclpy.node import Node


def refuses_guard_conditions(executor: Executor | None) -> bool:
    """EventsExecutor (``rclpy.experimental``) raises for guard conditions; wake it by ``create_task`` instead."""
    return executor is not None and type(executor).__name__ == 'EventsExecutor'


def parameter_overrides(node: Node) -> dict[str, Any]:
    """What the command line and YAML files set for *node*: private in every version so far, hence read with care."""
    return dict(getattr(node, '_parameter_overrides', {}) or {})


def init_without_signal_handlers(context: rclpy.Context, args: list[str] | None) -> None:
    """Initialise *context*; signals are this program's own business, so that it ends in order."""
    rclpy.init(args=args, context=context, signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
