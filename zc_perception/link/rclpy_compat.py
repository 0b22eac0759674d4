"""The one place that knows how rclpy versions differ (Humble to Rolling)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import Executor
from rclpy.node import Node
from rclpy.subscription import Subscription

try:
    from rclpy.exceptions import InvalidHandle
except ImportError:  # before Jazzy
    from rclpy.handle import InvalidHandle

# Once they are shut down, executors have no guard condition any more, and nodes' handles are destroyed.
_GONE = (InvalidHandle, AttributeError, RuntimeError)


def refuses_guard_conditions(executor: Executor | None) -> bool:
    """EventsExecutor (``rclpy.experimental``) raises for guard conditions; wake it by ``create_task`` instead."""
    return executor is not None and type(executor).__name__ == 'EventsExecutor'


def call_soon(executor: Executor, function: Callable[[], object]) -> None:
    """Run *function* on the executor's thread; not at all if that is shutting down. Any thread may call this."""
    with contextlib.suppress(*_GONE):
        executor.create_task(function)


def trigger(guard: Any) -> None:
    """Trigger a guard condition that may be destroyed at the same time. For every frame, hence no context manager."""
    try:  # noqa: SIM105
        guard.trigger()
    except InvalidHandle:
        pass


def subscription_count(publisher: Any) -> int:
    """Readers of a publisher; none once it is destroyed."""
    try:
        return int(publisher.get_subscription_count())
    except InvalidHandle:
        return 0


def publish(publisher: Any, message: Any) -> None:
    """Publish, unless the publisher is destroyed."""
    with contextlib.suppress(InvalidHandle):
        publisher.publish(message)


def tells_message_info(executor: Executor) -> bool:
    """Whether callbacks may take a message's information beside it: not in Humble, and an EventsExecutor dies of it."""
    return hasattr(Subscription, 'CallbackType') and not refuses_guard_conditions(executor)


def parameter_overrides(node: Node) -> dict[str, Any]:
    """What the command line and YAML files set for *node*: private in every version so far, hence read with care."""
    return dict(getattr(node, '_parameter_overrides', {}) or {})


def init_without_signal_handlers(context: rclpy.Context, args: list[str] | None) -> None:
    """Initialise *context*; signals are this program's own business, so that it ends in order."""
    rclpy.init(args=args, context=context, signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
