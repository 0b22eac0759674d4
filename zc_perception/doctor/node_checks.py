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
Check what the nodes of the parameter file will do.

That is: their parameters, cameras, calibrations, models and agreements on buffers. The class of a
camera declares what the camera needs. Models are loaded for real, in a process of their own. The
nodes' frame logs tell what runs, which needs no ROS.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
from pathlib import Path

from zc_perception.camera.calibration import (
    calibration_path,
    camera_name_of,
    CameraInfoStore,
    NoPackageError,
)
from zc_perception.camera.kinds import CAMERAS
from zc_perception.doctor import answers
from zc_perception.doctor.needs import node_need, pool_need
from zc_perception.errors import ConfigError
from zc_perception.machine.checks import (
    fail,
    Finding,
    Needs,
    NodeNeed,
    ok,
    skip,
    Status,
    told,
    warn,
)
from zc_perception.machine.system import System
from zc_perception.observe.frame_log import find_frame_logs
from zc_perception.shipped_files import shipped_file


def parameter_file(system: System, needs: Needs) -> Iterator[Finding]:
    """Check each key and value by the nodes' own rules, which need rclpy."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file)')
        return
    answer = system.ask(
        answers.check_parameters,
        needs.path,
        'given' if needs.cameras_given else 'named',
        *needs.namespaces(),
    )
    if 'error' in answer:
        step = (
            'install it, or unset RMW_IMPLEMENTATION;' if 'missing' in answer else 'source ROS 2;'
        )
        advice = f'{step} then run zc_doctor again, which checks every key'
        yield warn(f'{needs.path} could not be checked: {answer["error"]}', advice, checked=None)
        return
    problems, misses, checked = answer['problems'], answer.get('misses', []), answer['checked']
    warnings = [*misses, *answer['warnings']]
    figures = {'checked': checked, 'problems': problems, 'warnings': warnings}
    if problems:
        found = f'{needs.path}: {"; ".join([*problems, *warnings])}'
        yield fail(found, 'correct it: the node does not start with it', **figures)
    elif warnings:
        advice = 'correct it, unless it belongs to another package; the nodes start in any case'
        if misses:
            advice = (
                'correct it, or give zc_doctor the same --cameras as perception; without '
                'them these nodes do not start'
            )
        yield warn(f'{needs.path}: {"; ".join(warnings)}', advice, **figures)
    elif not checked:
        found = f'{needs.path} has no parameter for the nodes of this package'
        yield warn(found, 'name its sections /**/capture, /**/inference', **figures)
    else:
        yield ok(f'{needs.path}: {checked} parameters, all known and in range', **figures)


def configured_cameras(system: System, needs: Needs) -> Iterator[Finding]:
    """Let the class of each camera of the parameter file look at that camera."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file), so no camera is configured')
    for camera in needs.cameras:
        try:
            kind = CAMERAS.load(camera.kind)
        except ConfigError as error:
            yield told(Status.FAIL, error, camera.node)
        else:
            yield kind.examine(system, needs, camera)


_UNCALIBRATED = (
    'the node warns and goes on, and its camera_info says uncalibrated (a camera matrix of zeros)'
)


def _share_folder(system: System, package: str) -> str:
    """
    Find a package's share folder as ament does; the folder may be missing.

    :raises LookupError: no such package in this environment.
    """
    for prefix in filter(None, system.environment.get('AMENT_PREFIX_PATH', '').split(os.pathsep)):
        index = Path(prefix, 'share/ament_index/resource_index/packages', package)
        if (system.root / str(index).lstrip('/')).exists():
            return str(Path(prefix, 'share', package))
    raise LookupError(package)


def calibrations(system: System, needs: Needs) -> Iterator[Finding]:
    """Check the calibration of each camera of the parameter file."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file), so no camera is configured')
    for camera in needs.cameras:
        yield _calibration(system, camera)


def _calibration(system: System, camera: NodeNeed) -> Finding:
    name = camera_name_of(camera['camera_name'] or camera.node)
    size = (camera['width'], camera['height']) if camera['width'] and camera['height'] else (0, 0)
    try:
        path = calibration_path(
            camera['camera_info_url'],
            name,
            package_folder=lambda package: _share_folder(system, package),
            environment=system.environment,
        )
    except NoPackageError as error:
        return fail(str(error), f'correct it: {_UNCALIBRATED}', camera.node)
    except ConfigError as error:
        return fail(str(error), 'correct it: the node does not start with this value', camera.node)
    there = system.root / str(path).lstrip('/')
    store = CameraInfoStore(str(there), name, size, rescale=camera['rescale_camera_info'])
    if store.failure:
        return fail(store.failure, f'correct it: {_UNCALIBRATED}', camera.node)
    figures = {
        'file': str(path),
        'camera_name': name,
        'there': there.exists(),
        'named': bool(camera['camera_info_url']),
    }
    if not there.exists():
        if not camera['camera_info_url']:
            return skip(
                f"no calibration is set (camera_info_url), and there is no '{path}'",
                camera.node,
                **figures,
            )
        advice = (
            'put the file there (camera_calibration writes it), or set camera_info_url '
            'to a file that exists'
        )
        return warn(
            f"there is no '{path}' (camera_info_url); {_UNCALIBRATED}",
            advice,
            camera.node,
            **figures,
        )
    if troubles := store.troubles:
        texts, steps = ('; '.join(dict.fromkeys(part)) for part in zip(*troubles, strict=True))
        return Finding(
            Status.WARN if store.wrong else Status.OK,
            texts,
            steps if store.wrong else '',
            camera.node,
            figures,
        )
    return ok(f"calibration '{path}' can be used", camera.node, **figures)


def _inferences(needs: Needs) -> tuple[NodeNeed, ...]:
    """Return the inference nodes; without a parameter file: one with its defaults."""
    return needs.inferences or (node_need('inference', {}),)


def _question(inference: NodeNeed) -> str:
    return json.dumps(dict(inference.values))


def model_manifest(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that the manifest is found and valid, and that the files of its engines are there."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            page = shipped_file('docs/models.md')
            advice = f'set model to a shipped one, or the path of a model.yaml (see {page})'
            yield fail(str(answer['error']), advice, inference.node)
            continue
        engines = ', '.join(answer['engines'])
        figures = {key: answer[key] for key in ('name', 'manifest', 'engines', 'classes', 'input')}
        yield ok(
            f'model {answer["name"]}: engine {engines}, {answer["classes"]} classes',
            inference.node,
            **figures,
        )


def model_load(system: System, needs: Needs) -> Iterator[Finding]:
    """Say on which accelerator the model loads, and why on no better one."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            yield skip('there is no such model; see model.manifest', inference.node)
            continue
        if 'error' in answer:
            yield told(Status.FAIL, answer['error'], inference.node, accelerator=inference.kind)
            continue
        figures = {
            key: answer[key] for key in ('accelerator', 'device', 'copy_free', 'engine', 'reasons')
        }
        device = f' ({answer["device"]})' if answer['device'] else ''
        found = (
            f'model {answer["name"]} runs on {answer["accelerator"]}{device}, engine '
            f'{answer["engine"]}'
        )
        if answer[
            'reasons'
        ]:  # a model without a variant for a card, or no card, is no fault of the machine
            found += '; no better accelerator fits (--verbose says why)'
        yield ok(found, inference.node, **figures)


def planned_agreements(system: System, needs: Needs) -> Iterator[Finding]:
    """Report what each camera of the parameter file and its consumers would agree on."""
    if not needs.cameras:
        yield skip('no parameter file was given (--params-file)')
    for camera in needs.cameras:
        need, node = pool_need(system, needs, camera), camera.node
        beside = ' and '.join(one.node for one in needs.inferences)
        required = any(one['copy_free'] == 'required' for one in needs.inferences)
        if need.refusal:
            step = (
                "change what the message names: 'participants', 'slots', 'heap', the "
                f'format or the size of {node}'
            )
            yield fail(f'there can be no buffers: {need.refusal}', step, node)
        elif need.misfits:
            step = f'change the format, size or heap of {node}, or the accelerator of {beside}'
            found = (
                'frames come as messages, which are copies, or not at all: '
                f'{"; ".join(need.misfits)}'
            )
            yield Finding(Status.FAIL if required else Status.WARN, found, step, node)
        elif need.problem:
            yield skip(f'it is agreed on when the camera streams: {need.problem}', node)
        else:
            yield ok(f'{need.agreed or f"{need.slots} slots"}, in {need.memory}', node)


def running_agreements(system: System, needs: Needs) -> Iterator[Finding]:
    """
    Report what each running capture node has agreed on with its consumers.

    Also what its camera could give, and which consumers it refuses.
    """
    cameras = 0
    with find_frame_logs(system.proc) as logs:
        for log in logs:
            facts = log.facts()
            if log.role != 'capture' or not log.alive or 'agreed' not in facts:
                continue
            cameras += 1
            figures = {key: facts.get(key) for key in ('possible_formats', 'possible_heaps')}
            could = f'it could give {facts["possible_formats"]}'
            yield ok(f'{facts["agreed"]}; {could}', log.node, **figures)
            for name, why in facts['refused'].items():
                reason, _, step = str(why).rpartition('; ')
                yield warn(f'{name} is refused: {reason}', step, log.node, **figures)
    if not cameras:
        yield skip('no capture node of this user runs')
