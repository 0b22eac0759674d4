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

"""
Functions that checks run in a separate process, by :func:`~zc_perception.machine.asking.ask`.

Each function makes the same calls as the nodes, and may load any library. It returns a JSON value.
Its imports are inside the function, so that the other functions start faster.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib
from importlib import metadata
import json
import os
from typing import Any

from zc_perception.errors import ConfigError, ZcError

MESSAGES = (
    'sensor_msgs.msg',
    'vision_msgs.msg',
    'diagnostic_msgs.msg',
    'std_srvs.srv',
    'lifecycle_msgs.srv',
)


def try_model(text: str) -> dict[str, Any]:
    """
    Load a model on its accelerator, with the inference node's parameters in *text* (JSON).

    Return the values of the manifest and of the chosen accelerator. If no accelerator can be
    opened, return ``error`` and ``stage`` (``accelerator``) in place of the accelerator's values.
    If the manifest can't be loaded, return only ``error`` and ``stage`` (``manifest``).
    """
    from zc_perception.memory.ledger import CopyLedger
    from zc_perception.npu.manifest import load_manifest
    from zc_perception.npu.selection import open_accelerator

    wanted = json.loads(text)
    try:
        manifest = load_manifest(wanted['model'])
    except ZcError as error:
        return {'error': str(error), 'stage': 'manifest'}
    engines = {
        variant.engine: variant.missing or str(variant.file or '') for variant in manifest.variants
    }
    answer: dict[str, Any] = {
        'name': manifest.name,
        'manifest': str(manifest.path),
        'engines': engines,
        'classes': len(manifest.classes),
        'input': [manifest.input.width, manifest.input.height],
    }
    try:
        selection = open_accelerator(wanted['accelerator'], manifest, wanted, CopyLedger())
    except ZcError as error:
        return {**answer, 'error': str(error), 'stage': 'accelerator'}
    try:
        capabilities = selection.accelerator.capabilities()
        return {
            **answer,
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'copy_free': capabilities.copy_free,
            'engine': selection.manifest.engine,
            'reasons': list(selection.reasons),
        }
    finally:
        selection.accelerator.close()


def _middlewares() -> list[str]:
    """Return the installed RMW implementations, including those from Python wheels."""
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


def _missing_middleware(installed: Sequence[str]) -> str:
    """Return RMW_IMPLEMENTATION if it names a middleware that isn't installed; else ''."""
    wanted = os.environ.get('RMW_IMPLEMENTATION', '')
    if not wanted or wanted in installed:
        return ''
    folders = os.environ.get('LD_LIBRARY_PATH', '').split(os.pathsep)
    folders += [
        os.path.join(prefix, 'lib')
        for prefix in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
        if prefix
    ]
    return (
        ''
        if any(
            folder and os.path.exists(os.path.join(folder, f'lib{wanted}.so'))
            for folder in folders
        )
        else wanted
    )


def _version(*names: str) -> str:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ''


def describe_ros() -> dict[str, Any]:
    """
    Return rclpy's version, its middleware, and the message packages that can be imported.

    ``messages`` has, for each package, the error of its import; empty: no error.
    The result has ``missing`` if the middleware of RMW_IMPLEMENTATION isn't installed; then rclpy
    can't be used.
    """
    answer: dict[str, Any] = {
        'middlewares': _middlewares(),
        'rclpy_version': _version('rclpy', 'ros-rclpy'),
        'messages': {},
    }
    if missing := _missing_middleware(answer['middlewares']):
        return {**answer, 'missing': missing}
    try:
        rclpy = importlib.import_module('rclpy')
        answer['middleware'] = rclpy.get_rmw_implementation_identifier()
    # Return any error, such as that of an rclpy built for another version of Python.
    except Exception as error:
        answer['error'] = f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'
        return answer
    for name in MESSAGES:
        try:
            importlib.import_module(name)
            answer['messages'][name] = ''
        except Exception as error:
            answer['messages'][name] = (
                f'{type(error).__name__}: {" ".join(str(error).split())[:200]}'
            )
    return answer


def check_parameters(path: str, cameras: str = 'named', *namespaces: str) -> dict[str, Any]:
    """
    Check a parameter file by the nodes' own rules, without starting a node.

    :param cameras: ``given`` if *namespaces* are those of all cameras that will run; ``named`` if
        *namespaces* come from the file, so that cameras with other namespaces may run too.
    :param namespaces: the namespaces of the nodes that will get the file; an empty text is the
        root namespace.
    :returns: a dict. ``problems``: errors with which a node wouldn't start. ``warnings``: other
        mistakes. ``misses``: a message for each section that only a node in another namespace
        could read; if no such node can run, these messages are in ``problems``. ``checked``: the
        number of checked parameters. Without a usable ROS the dict has only ``error``, and
        ``missing`` if the middleware isn't installed.
    """
    from zc_perception.nodes.params.yaml_file import last_name, nodes_named, read_parameter_yaml

    try:
        file = read_parameter_yaml(path)
    except ConfigError as error:
        return {'problems': [str(error)], 'warnings': [], 'checked': 0}
    if missing := _missing_middleware(_middlewares()):
        return {
            'error': f"RMW_IMPLEMENTATION is '{missing}', which is not installed",
            'missing': missing,
        }
    # Imported by import_module(), so that type checkers don't follow the import: these modules
    # import rclpy, for which type checkers find no types.
    try:
        verdict = importlib.import_module('zc_perception.nodes.params.verdict')
        kinds = importlib.import_module('zc_perception.nodes.params.verdict').node_kinds()
    except ImportError as error:
        return {'error': f'the nodes could not be imported: {error}'}
    given = cameras == 'given'
    found = verdict.judge(
        file, verdict.expected_nodes(file.sections, namespaces if given else None)
    )
    problems = [
        f"section '{one.section}': {one}" if one.section else f"node '{one.node}': {one}"
        for one in found.problems
    ]
    misses = [f'section {one}' for one in found.misses]
    if given or not any(nodes_named(name, file.sections) for name in kinds):
        problems += (
            misses
            if given
            else [
                f'{miss}, or give zc_doctor the same --cameras as the program perception'
                for miss in misses
            ]
        )
        misses = []
    ours = [
        values
        for section, values in file.sections
        if '*' in last_name(section) or last_name(section) in kinds
    ]
    checked = sum(map(len, ours))
    return {
        'problems': list(dict.fromkeys(problems)),
        'warnings': found.warnings,
        'misses': misses,
        'checked': checked,
    }
