"""Questions that need ROS: which there is, which middleware, whether its messages load, and whether a parameter file suits the nodes.

Nothing here imports ROS before it is asked.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from zc_perception.errors import ConfigError, nearest
from zc_perception.verify.doctor.parameter_file import node_sections, read_parameter_file

MESSAGES = ('sensor_msgs.msg', 'vision_msgs.msg', 'diagnostic_msgs.msg', 'std_srvs.srv', 'lifecycle_msgs.srv')
_OF_EVERY_NODE = ('use_sim_time', 'start_type_description_service')


def _middlewares() -> list[str]:
    """Installed ones: those in the ament index, and those of wheels."""
    found = set()
    for prefix in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep):
        folder = os.path.join(prefix, 'share/ament_index/resource_index/rmw_typesupport')
        if prefix and os.path.isdir(folder):
            found |= {name for name in os.listdir(folder) if name != 'rmw_implementation'}
    for distribution in metadata.distributions():
        name = (distribution.metadata['Name'] or '').lower().replace('-', '_').removeprefix('ros_')
        if name.startswith('rmw_') and name.endswith('_cpp') and '_shared_' not in name:
            found.add(name)
    return sorted(found)


def _version(*names: str) -> str:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ''


def describe_ros() -> dict[str, Any]:
    """rclpy with its version and middleware, and what each package of messages says to being imported."""
    answer: dict[str, Any] = {'middlewares': _middlewares(), 'rclpy_version': _version('rclpy', 'ros-rclpy'), 'messages': {}}
    try:
        rclpy = importlib.import_module('rclpy')
        answer['middleware'] = rclpy.get_rmw_implementation_identifier()
    except Exception as error:  # an rclpy of another Python, a middleware that isn't there: whatever it is, it is the finding
        answer['error'] = f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'
        return answer
    for name in MESSAGES:
        try:
            importlib.import_module(name)
            answer['messages'][name] = ''
        except Exception as error:
            answer['messages'][name] = f'{type(error).__name__}: {" ".join(str(error).split())[:200]}'
    return answer


def _node_kinds(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        if 'SPECS' in vars(kind) and kind.SPECS:
            yield kind
        yield from _node_kinds(kind)


def node_kinds() -> dict[str, Any]:
    """The node classes by their nodes' names.

    :raises ImportError: there is no rclpy, or no messages.
    """
    nodes = importlib.import_module('zc_perception.nodes')
    base = importlib.import_module('zc_perception.nodes.perception_node').PerceptionNode
    for module in pkgutil.iter_modules(nodes.__path__):
        importlib.import_module(f'zc_perception.nodes.{module.name}')
    return {kind.__module__.rpartition('.')[2]: kind for kind in _node_kinds(base)}


def check_parameters(path: str) -> dict[str, Any]:
    """What the nodes would say to a parameter file: one problem for each key or section that they refuse. Starts no node."""
    try:
        sections = node_sections(read_parameter_file(path))
    except ConfigError as error:
        return {'problems': [str(error)], 'checked': 0}
    try:
        kinds = node_kinds()
    except ImportError as error:
        return {'error': f'the nodes could not be imported: {error}'}
    problems: list[str] = []
    elsewhere = {spec.name for kind in kinds.values() for spec in kind.SPECS}
    prefixes = ('qos_overrides.', *(prefix for kind in kinds.values() for prefix in getattr(kind, 'PREFIXES', ())))
    checked = 0
    for section, values in sections:
        name = section.rsplit('/', 1)[-1]
        kind = kinds.get(name)
        if kind is None and '*' not in name:
            if hint := nearest(name, kinds):
                problems.append(f"section '{section}': there is no node '{name}' here{hint}")
            continue  # another package's node
        for key, value in values.items():
            checked += 1
            problems += _problem(section, key, value, kind, kinds, elsewhere, prefixes)
    return {'problems': problems, 'checked': checked, 'nodes': sorted(kinds)}


def _problem(
    section: str, key: str, value: Any, kind: Any, kinds: dict[str, Any], elsewhere: set[str], prefixes: tuple[str, ...]
) -> Iterator[str]:
    """At most one. *kind* is ``None`` for a section of every node, whose keys need only suit those that have them."""
    if key in _OF_EVERY_NODE or key.startswith(prefixes):
        return
    specs = [spec for k in ([kind] if kind else kinds.values()) for spec in k.SPECS if spec.name == key]
    if not specs:
        if kind is not None:
            yield f"section '{section}': parameter '{key}' is unknown{nearest(key, [s.name for s in kind.SPECS])}"
        elif hint := nearest(key, elsewhere):
            yield f"section '{section}': no node has a parameter '{key}'{hint}"
        return
    for spec in specs:
        try:
            spec.convert(value)
        except ConfigError as error:
            yield f"section '{section}': {error}"
            return
