"""Whether the nodes would take a parameter file: what ends a node, and what it only warns of. Starts no node.

:mod:`~zc_perception.nodes.params.verdict` judges; this module asks rcl's own parser first, and says what depends on which cameras there
are. It needs ROS, so only :mod:`~zc_perception.doctor.answers` imports it, in a process of its own.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.yaml_file import last_name, nodes_named, read_parameter_yaml

# In front of and behind what rcl's parser has to say.
_RCL_PREFIX, _RCL_PLACES = re.compile(r".*?params file: '.*?'\. Error: ", re.DOTALL), re.compile(r',? at \S+\.c:\d+')
GIVEN, NAMED = 'given', 'named'


def _refusal(path: str) -> str:
    """Why rcl can't parse the file; empty: it can. Neither the environment's domain nor a log file plays a part."""
    rclpy = importlib.import_module('rclpy')
    context = rclpy.Context()
    try:
        context.init(['--ros-args', '--params-file', path], initialize_logging=False, domain_id=0)
    except Exception as error:  # rclpy has several classes of its own for this
        reason = ' '.join(_RCL_PLACES.sub('', _RCL_PREFIX.sub('', str(error))).split())
        return f'ROS refuses it: {reason}'
    context.try_shutdown()
    return ''


def judge_file(path: str, cameras: str = NAMED, *namespaces: str, missing: str = '') -> dict[str, Any]:
    """What the nodes would say to a parameter file: problems that end a node, and what it only warns of. Starts no node.

    :param cameras: :data:`GIVEN` if these are all cameras that there are going to be; :data:`NAMED` if that follows from the file, so that
        others are possible.
    :param namespaces: of the nodes that are going to have the file; an empty text is the root.
    :param missing: the middleware that the environment names but that is not installed: then rclpy can't be imported.
    :returns: among others ``misses``: sections that the nodes refuse unless there are other cameras than the file names.
    """
    try:
        file = read_parameter_yaml(path)
    except ConfigError as error:
        return {'problems': [str(error)], 'warnings': [], 'checked': 0}
    if missing:
        return {'error': f"RMW_IMPLEMENTATION is '{missing}', which is not installed", 'missing': missing}
    try:
        verdict = importlib.import_module('zc_perception.nodes.params.verdict')
        kinds = importlib.import_module('zc_perception.nodes.params.kinds').node_kinds()
    except ImportError as error:
        return {'error': f'the nodes could not be imported: {error}'}
    if refusal := _refusal(path):
        return {'problems': [refusal], 'warnings': [], 'checked': 0}
    found = verdict.judge(file, verdict.expected_nodes(file.sections, namespaces if cameras == GIVEN else None))
    problems = [f"section '{one.section}': {one}" if one.section else f"node '{one.node}': {one}" for one in found.problems]
    misses = [f'section {one}' for one in found.misses]
    if cameras == GIVEN or not any(nodes_named(name, file.sections) for name in kinds):
        problems += misses if cameras == GIVEN else [f'{miss}, or give --cameras as perception gets it' for miss in misses]
        misses = []
    ours = [values for section, values in file.sections if '*' in last_name(section) or last_name(section) in kinds]
    checked = sum(map(len, ours))
    return {'problems': list(dict.fromkeys(problems)), 'warnings': found.warnings, 'misses': misses, 'checked': checked}
