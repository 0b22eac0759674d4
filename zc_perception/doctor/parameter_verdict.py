"""Whether the nodes would take a parameter file: what ends a node, and what it only warns of. Starts no node.

The rules are the nodes' own. This module only finds out which nodes are going to have which section, asks the code that the nodes run
(:mod:`~zc_perception.nodes.parameter_sources`, :mod:`~zc_perception.nodes.start_values`, rcl itself), and says where in the file a value
stands. It needs ROS, so only :mod:`~zc_perception.doctor.answers` imports it, in a process of its own.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from zc_perception.doctor.needs import nodes_named, parameters_of
from zc_perception.errors import ConfigError, nearest
from zc_perception.nodes.parameter_sources import belongs_elsewhere, judge_sections, likely_meant, section_matches
from zc_perception.nodes.parameter_yaml import Section, read_parameter_yaml

# In front of and behind what rcl's parser has to say.
_RCL_PREFIX, _RCL_PLACES = re.compile(r".*?params file: '.*?'\. Error: ", re.DOTALL), re.compile(r',? at \S+\.c:\d+')
GIVEN, NAMED = 'given', 'named'
# What a program of cameras runs, once for each namespace.
_OF_A_CAMERA = ('capture', 'inference', 'overlay')
_OF_EVERY_NODE = ('use_sim_time', 'start_type_description_service')


def node_kinds() -> dict[str, Any]:
    """The node classes by their nodes' names.

    :raises ImportError: there is no rclpy, or no messages.
    """
    return {kind.__module__.rpartition('.')[2]: kind for kind in importlib.import_module('zc_perception.nodes.components').KINDS}


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


def _overridden(index: int, key: str, nodes: Sequence[str], sections: Sequence[Section]) -> bool:
    """Whether all nodes that a section is for get another value from a later one."""
    meant = [node for node in nodes if section_matches(sections[index][0], node)]
    later = [section for section, values in sections[index + 1 :] if key in values]
    return bool(meant) and all(any(section_matches(section, node) for section in later) for node in meant)


def judge_file(path: str, cameras: str = NAMED, *namespaces: str, missing: str = '') -> dict[str, Any]:
    """What the nodes would say to a parameter file: problems that end a node, and what it only warns of. Starts no node.

    :param cameras: :data:`GIVEN` if these are all cameras that there are going to be; :data:`NAMED` if that follows from the file, so that
        others are possible.
    :param namespaces: of the nodes that are going to have the file; an empty text is the root.
    :param missing: the middleware that the environment names but that is not installed: then rclpy can't be imported.
    :returns: among others ``misses``: sections that the nodes refuse unless there are other cameras than the file names.
    """
    try:
        sections = read_parameter_yaml(path)
    except ConfigError as error:
        return {'problems': [str(error)], 'warnings': [], 'checked': 0}
    if missing:
        return {'error': f"RMW_IMPLEMENTATION is '{missing}', which is not installed", 'missing': missing}
    try:
        kinds = node_kinds()
    except ImportError as error:
        return {'error': f'the nodes could not be imported: {error}'}
    if refusal := _refusal(path):
        return {'problems': [refusal], 'warnings': [], 'checked': 0}
    problems: list[str] = []
    warnings: list[str] = []
    elsewhere = {spec.name: spec for kind in kinds.values() for spec in kind.SPECS}
    prefixes = ('qos_overrides.', *(prefix for kind in kinds.values() for prefix in getattr(kind, 'PREFIXES', ())))
    checked = 0
    nodes = [f'{space}/{kind}' for space in namespaces for kind in kinds]
    nodes += [node for kind in kinds if cameras == NAMED or kind not in _OF_A_CAMERA for node in nodes_named(kind, sections)]
    names = [section for section, _ in sections]
    of_cameras = [f'{space}/{kind}' for space in namespaces for kind in _OF_A_CAMERA]
    refused, warned = judge_sections([name for name in names if name.rsplit('/', 1)[-1] in _OF_A_CAMERA], of_cameras, names)
    misses = [f'section {problem}' for problem in refused]
    named = any(nodes_named(kind, sections) for kind in _OF_A_CAMERA)
    if cameras == GIVEN or not named:
        problems += misses if cameras == GIVEN else [f'{miss}, or give --cameras as perception gets it' for miss in misses]
        misses = []
    warnings += warned
    keys = {name: {spec.name for spec in kind.SPECS} for name, kind in kinds.items()}
    warnings += likely_meant([s for s in sections if not nearest(s[0].rsplit('/', 1)[-1], kinds)], of_cameras, keys)
    for index, (section, values) in enumerate(sections):
        name = section.rsplit('/', 1)[-1]
        kind = kinds.get(name)
        if kind is None and '*' not in name:
            if hint := nearest(name, kinds):
                problems.append(f"section '{section}': there is no node '{name}' here{hint}")
            continue  # another package's node
        of_others = cameras == GIVEN and not any(section_matches(section, node) for node in nodes)
        for key, value in values.items():
            checked += 1
            if key in _OF_EVERY_NODE or key.startswith(prefixes):
                if kind is not None and not of_others and _is_anothers(key, kind, kinds):
                    problems.append(f"section '{section}': parameter '{key}' is unknown: the node has no such topic to override")
                continue
            if kind is None and key not in elsewhere:  # another package's parameter, or a typing error
                if hint := nearest(key, elsewhere):
                    warnings.append(f"section '{section}': no node here has a parameter '{key}'{hint}")
                continue
            has_it = kind is None or any(spec.name == key for spec in kind.SPECS)
            unheard = of_others or (has_it and _overridden(index, key, nodes, sections))
            (warnings if unheard else problems).extend(_problem(section, key, value, kind, kinds))
    for node, name in _expected(sections, kinds, namespaces if cameras == GIVEN else None):
        for sentence in _start_problems(kinds[name], node, parameters_of(node, sections)):
            if not any(problem.endswith(sentence) for problem in problems):
                problems.append(f"node '{node}': {sentence}")
    return {'problems': problems, 'warnings': warnings, 'misses': misses, 'checked': checked, 'nodes': sorted(kinds)}


def _start_problems(kind: Any, node: str, values: dict[str, Any]) -> list[str]:
    """What the node itself says to all that it gets; each value alone was looked at where it stands."""
    found: list[str] = importlib.import_module('zc_perception.nodes.start_values').value_problems(kind, node, values)
    return found


def _is_anothers(key: str, kind: Any, kinds: dict[str, Any]) -> bool:
    """Whether it is the QoS of a topic as only other nodes of ours have it. Any other topic may be a remapped one."""
    known = importlib.import_module('zc_perception.nodes.qos_overrides').known_in_any_namespace
    return not known(key, kind.ENDPOINTS) and any(known(key, other.ENDPOINTS) for other in kinds.values())


def _expected(sections: Sequence[Section], kinds: dict[str, Any], given: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """The nodes that are going to have the file, with their names: those of the namespaces that are *given*, or those that it names.

    A recorder only where a section is for it.
    """
    named = {name: nodes_named(name, sections) for name in _OF_A_CAMERA}
    spaces = given
    if spaces is None:
        spaces = list(dict.fromkeys(node.rpartition('/')[0] for nodes in named.values() for node in nodes)) or ['']
    for name in kinds:
        meant = [f'{space}/{name}' for space in spaces]
        if name not in _OF_A_CAMERA:
            own = [section for section, _ in sections if section.rsplit('/', 1)[-1] == name]
            meant = [node for node in meant if any(section_matches(section, node) for section in own)]
        for node in (given is None and named.get(name)) or meant:
            yield node, name


def _problem(section: str, key: str, value: Any, kind: Any, kinds: dict[str, Any]) -> Iterator[str]:
    """At most one. *kind* is ``None`` for a section of every node, whose keys need only suit those that have them."""
    specs = [spec for k in ([kind] if kind else kinds.values()) for spec in k.SPECS if spec.name == key]
    if not specs:
        hint = belongs_elsewhere(key) or nearest(key, [spec.name for spec in kind.SPECS])
        yield f"section '{section}': parameter '{key}' is unknown{hint}"
    for spec in specs:
        try:
            spec.convert(value)
        except ConfigError as error:
            yield f"section '{section}': {error}"
            return
