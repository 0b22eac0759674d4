"""From a ``LoadNode`` request to the arguments of a component's constructor.

Of the extra arguments that rclcpp knows, rclpy has no say in three: there is no topic statistics, always a publisher of parameter
events, and no clock thread. Asked for what rclpy does anyway they are accepted, else refused: a launch file that needs one of them
must not believe that it got it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from composition_interfaces.srv import LoadNode
from rclpy.context import Context
from rclpy.logging import LoggingSeverity
from rclpy.parameter import Parameter

from zc_perception.link.rclpy_compat import has_logger_service, without_type_description
from zc_perception.nodes.container.plugins import LoadError, one_line

# Of rclcpp's, those that become an argument of rclpy's Node.
_FORWARDED = {
    'forward_global_arguments': 'use_global_arguments',
    'enable_rosout': 'enable_rosout',
    'start_parameter_services': 'start_parameter_services',
    'enable_logger_service': 'enable_logger_service',
}
# The others: what rclpy does, and why it can't do otherwise.
_FIXED = {
    'enable_topic_statistics': (False, 'rclpy has no topic statistics'),
    'start_parameter_event_publisher': (True, 'nodes of rclpy always publish parameter events'),
    'use_clock_thread': (False, 'rclpy reads /clock on the executor'),
}
_IN_PROCESS = 'use_intra_process_comms'
LEVELS = {int(level): level for level in LoggingSeverity if level}


@dataclass(frozen=True)
class NodeOptions:
    """How a component is to be made.

    :param arguments: for its constructor.
    :param in_process: whether its adapted endpoints may hand on objects; ``False``: messages over DDS only.
    :param level: of its logger; ``None``: the container's.
    :param full_name: where it was asked for in full; else only the node itself knows.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    in_process: bool = True
    level: LoggingSeverity | None = None
    full_name: str = ''


def _parameters(messages: Sequence[Any]) -> list[Parameter]:
    parameters = []
    for message in messages:
        try:
            parameters.append(Parameter.from_parameter_msg(message))
        except Exception as error:  # rclpy has several classes for this
            raise LoadError(f"Parameter '{message.name}' can't be used: {one_line(error)}") from error
    return parameters


def _extra_arguments(messages: Sequence[Any]) -> dict[str, bool]:
    """:raises LoadError: one is unknown, not a boolean, or can't be had."""
    found: dict[str, bool] = {}
    for parameter in _parameters(messages):
        name = parameter.name
        if name not in (*_FORWARDED, *_FIXED, _IN_PROCESS):
            raise LoadError(f"Extra component argument '{name}' is not supported")
        if parameter.type_ != Parameter.Type.BOOL:
            raise LoadError(f"Extra component argument '{name}' must be a boolean")
        value = bool(parameter.value)
        fixed = _FIXED.get(name)
        if name == 'enable_logger_service' and not has_logger_service():
            fixed = (False, 'this rclpy has no logger service')
        if fixed is not None and value is not fixed[0]:
            raise LoadError(f"Extra component argument '{name}' can't be {str(value).lower()}: {fixed[1]}; leave it out")
        if fixed is None:
            found[name] = value
    return found


def _remaps(request: LoadNode.Request, namespace: str) -> list[str]:
    """The request's rules before its name and namespace, so that a rule that names the node wins."""
    for rule in request.remap_rules:
        if ':=' not in rule:
            raise LoadError(f"Remap rule '{rule}' can't be used: write it as 'from:=to'")
    rules = list(request.remap_rules)
    rules += [f'__node:={request.node_name}'] if request.node_name else []
    rules += [f'__ns:={namespace}'] if namespace else []
    return ['--ros-args', *(word for rule in rules for word in ('-r', rule))]


def node_options(request: LoadNode.Request, context: Context, warn: Callable[[str], object]) -> NodeOptions:
    """What *request* asks for.

    :param warn: told what is allowed but seldom meant.
    :raises LoadError: what can't be had, in rclcpp's words where it has some.
    """
    extra = _extra_arguments(request.extra_arguments)
    if extra.get('forward_global_arguments'):
        warn("forward_global_arguments: the container's own arguments, such as its remaps, now apply to the component as well")
    if request.log_level and request.log_level not in LEVELS:
        known = ', '.join(f'{number} ({level.name.lower()})' for number, level in sorted(LEVELS.items()))
        raise LoadError(f"log_level {request.log_level} is none; use one of {known}, or 0 for the container's")
    namespace = f'/{request.node_namespace.strip("/")}' if request.node_namespace else ''
    arguments: dict[str, Any] = {
        'context': context,
        'use_global_arguments': False,
        'cli_args': _remaps(request, namespace),
        'parameter_overrides': without_type_description(_parameters(request.parameters)),
    }
    arguments |= {_FORWARDED[name]: value for name, value in extra.items() if name in _FORWARDED}
    renamed = any('__' in rule.partition(':=')[0] for rule in request.remap_rules)
    known_in_full = request.node_name and namespace and not renamed
    return NodeOptions(
        arguments,
        extra.get(_IN_PROCESS, True),
        LEVELS.get(request.log_level),
        f'{namespace.rstrip("/")}/{request.node_name}' if known_in_full else '',
    )
