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
Check the nodes of the parameter file, and the ROS 2 that they run on.

A camera's class declares the camera's own checks. Models are really loaded, in a separate process.
Running nodes are found by their frame logs, without ROS.

Sources: REP 2000 (distributions); Fast DDS documentation on shared-memory transport and profile
files; ``config/fastdds_images.xml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import grp
import json
import os
from pathlib import Path
import tempfile
import xml.etree.ElementTree as ElementTree

from zc_perception.camera.calibration import (
    calibration_path,
    camera_name_of,
    CameraInfoStore,
    NoPackageError,
)
from zc_perception.camera.kinds import CAMERAS
from zc_perception.detection.tiles import parse_roi, plan
from zc_perception.doctor import answers
from zc_perception.doctor.needs import beside, camera_class, node_need, pool_need, PoolNeed
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.link.shared_memory.unix_socket import (
    default_folder,
    folder_complaint,
    runtime_folder,
    socket_path,
    SUFFIX,
)
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
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.npu.selection import candidates
from zc_perception.observe.frame_log import find_frame_logs
from zc_perception.shipped_files import shipped_file


def parameter_file(system: System, needs: Needs) -> Iterator[Finding]:
    """Check each key and value of the parameter file by the nodes' own rules."""
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
            'install this middleware, or unset RMW_IMPLEMENTATION;'
            if 'missing' in answer
            else 'source ROS 2;'
        )
        advice = f'{step} then run zc_doctor again, so that it checks every key'
        yield warn(f'{needs.path} could not be checked: {answer["error"]}', advice, checked=None)
        return
    problems, misses, checked = answer['problems'], answer.get('misses', []), answer['checked']
    warnings = [*misses, *answer['warnings']]
    figures = {'checked': checked, 'problems': problems, 'warnings': warnings}
    if problems:
        found = f'{needs.path}: {"; ".join([*problems, *warnings])}'
        yield fail(found, 'correct the file: a node does not start with such an error', **figures)
    elif warnings:
        advice = (
            'correct the file, unless the message is about a node of another package; the nodes '
            'start in any case'
        )
        if misses:
            advice = (
                'correct the file, or give zc_doctor the same --cameras as the program '
                'perception; without --cameras these nodes do not start'
            )
        yield warn(f'{needs.path}: {"; ".join(warnings)}', advice, **figures)
    elif not checked:
        found = f'{needs.path} has no parameter for the nodes of this package'
        yield warn(found, 'name its sections /**/capture, /**/inference', **figures)
    else:
        yield ok(f'{needs.path}: {checked} parameters, all known and in range', **figures)


def configured_cameras(system: System, needs: Needs) -> Iterator[Finding]:
    """Check each camera of the parameter file, by the checks of the camera's class."""
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
    """Find a package's share folder as ament does; raise LookupError for an unknown package."""
    for prefix in filter(None, system.environment.get('AMENT_PREFIX_PATH', '').split(os.pathsep)):
        index = Path(prefix, 'share/ament_index/resource_index/packages', package)
        if (system.root / str(index).lstrip('/')).exists():
            return str(Path(prefix, 'share', package))
    raise LookupError(package)


def calibrations(system: System, needs: Needs) -> Iterator[Finding]:
    """Check the calibration file of each camera of the parameter file."""
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
        return fail(str(error), f'correct this parameter: {_UNCALIBRATED}', camera.node)
    except ConfigError as error:
        return fail(str(error), 'correct this value: the node does not start with it', camera.node)
    there = system.root / str(path).lstrip('/')
    store = CameraInfoStore(str(there), name, size, rescale=camera['rescale_camera_info'])
    if store.failure:
        return fail(store.failure, f'correct this file: {_UNCALIBRATED}', camera.node)
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
    """Return the parameter file's inference nodes; if it has none, a node with default values."""
    return needs.inferences or (node_need('inference', {}),)


def _question(inference: NodeNeed) -> str:
    return json.dumps(dict(inference.values))


def model_manifest(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that each model's manifest exists and is valid, and that its engines' files exist."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            page = shipped_file('docs/models.md')
            advice = f'correct what the message names, or set model to another one (see {page})'
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
    """Load each model, and report the accelerator and why no better accelerator is used."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            yield skip('the model cannot be read; see check model.manifest', inference.node)
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
        # The finding is ok even if the reasons name better accelerators: the machine has no such
        # card, or the model doesn't fit the card.
        if answer['reasons']:
            found += '; no better accelerator fits (--verbose says why)'
        yield ok(found, inference.node, **figures)


def planned_agreements(system: System, needs: Needs) -> Iterator[Finding]:
    """Report the buffers that each camera in the parameter file and its consumers would use."""
    if not needs.cameras:
        yield skip('no parameter file with a camera was given (--params-file)')
    for camera in needs.cameras:
        need, node = pool_need(system, needs, camera), camera.node
        nodes = ' and '.join(one.node for one in needs.inferences)
        required = any(one['copy_free'] == 'required' for one in needs.inferences)
        if need.refusal:
            step = (
                "change what the error names: 'participants', 'slots', 'heap', or the format or "
                f'the size of {node}'
            )
            yield fail(f'the buffers cannot be made: {need.refusal}', step, node)
        elif need.misfits:
            step = f'change the format, size or heap of {node}, or the accelerator of {nodes}'
            found = (
                'an accelerator gets frames as messages, which are copies, or gets no frames: '
                f'{"; ".join(need.misfits)}'
            )
            yield Finding(Status.FAIL if required else Status.WARN, found, step, node)
        elif outside := _roi_outside(need, beside(needs, camera)):
            yield told(Status.FAIL, outside, node)
        elif need.problem:
            yield skip(f'the planned buffers are not known: {need.problem}', node)
        else:
            yield ok(f'{need.agreed or f"{need.slots} slots"}, in {need.memory}', node)


def _roi_outside(need: PoolNeed, inferences: Sequence[NodeNeed]) -> str:
    """
    Return a message about an inference node whose ``roi`` isn't inside the camera's frames.

    If there is no such node, return an empty text.
    """
    readers = ACCELERATORS.declared.readers.get('roi', ())
    for one in inferences:
        if any(need.size) and not set(candidates(one.kind)).isdisjoint(readers):
            try:
                plan(need.size, parse_roi(one['roi']), (1, 1), 0.0)
            except AcceleratorError as error:
                return f'{one.node} loses every frame: {error}'
            except ConfigError:  # the check parameters.file reports it
                continue
    return ''


def running_agreements(system: System, needs: Needs) -> Iterator[Finding]:
    """Report the buffers that running capture nodes use, and the consumers that they refuse."""
    cameras = 0
    with find_frame_logs(system.proc) as logs:
        for log in logs:
            facts = log.facts()
            if log.role != 'capture' or not log.alive or 'agreed' not in facts:
                continue
            cameras += 1
            figures = {key: facts.get(key) for key in ('possible_formats', 'possible_heaps')}
            could = f'the camera could give {facts["possible_formats"]}'
            yield ok(f'{facts["agreed"]}; {could}', log.node, **figures)
            for name, why in facts['refused'].items():
                reason, _, step = str(why).rpartition('; ')
                yield warn(f'{name} is refused: {reason}', step, log.node, **figures)
    if not cameras:
        yield skip('no capture node of this user runs')


SUPPORTED = ('humble', 'jazzy', 'kilted', 'rolling')
_PROFILES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')
#: The bytes of Fast DDS's shared-memory segment if no profile file sets its size.
_DEFAULT_SEGMENT = 512 * 1024
_USUAL_IMAGE = 1920 * 1080 * 3
_SOURCE = 'source /opt/ros/DISTRO/setup.bash before the nodes start'
_MIB = 1 << 20
_NO_MIDDLEWARE = (
    'the middleware that RMW_IMPLEMENTATION names is not installed; see check ros.middleware'
)


def ros_distribution(system: System, needs: Needs) -> Iterator[Finding]:
    """Check the distribution in ROS_DISTRO, or else the installed distributions."""
    name = system.environment.get('ROS_DISTRO', '')
    installed = system.names('opt/ros')
    figures = {'name': name, 'installed': installed}
    if name in SUPPORTED:
        yield ok(f'ROS 2 {name}', **figures)
    elif name:
        found = f"ROS 2 '{name}', with which this package is not tested"
        yield warn(found, f'use {", ".join(SUPPORTED[:-1])} or {SUPPORTED[-1]}', **figures)
    elif installed:
        yield warn(f'ROS_DISTRO is not set; installed: {", ".join(installed)}', _SOURCE, **figures)
    elif system.ask(answers.describe_ros).get('rclpy_version'):
        yield ok('ROS 2 from Python wheels: ROS_DISTRO is not set', **figures)
    else:
        yield fail(
            'there is no ROS 2', f'install ROS 2 {SUPPORTED[0]} or newer; {_SOURCE}', **figures
        )


def ros_rclpy(system: System, needs: Needs) -> Iterator[Finding]:
    """Check whether rclpy can be imported, in a separate process."""
    answer = system.ask(answers.describe_ros)
    figures = {'version': answer['rclpy_version']}
    if 'missing' in answer:
        yield skip(_NO_MIDDLEWARE, **figures)
    elif 'error' in answer:
        advice = f'{_SOURCE}, and use the Python version for which rclpy was built'
        yield fail(f"rclpy can't be imported: {answer['error']}", advice, **figures)
    else:
        yield ok(f'rclpy {answer["rclpy_version"] or "of an unknown version"}', **figures)


def ros_middleware(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that the middleware of RMW_IMPLEMENTATION is installed, and that rclpy uses it."""
    answer = system.ask(answers.describe_ros)
    wanted, there = system.environment.get('RMW_IMPLEMENTATION', ''), answer['middlewares']
    figures = {'wanted': wanted, 'installed': there, 'used': answer.get('middleware', '')}
    advice = f'apt install ros-$ROS_DISTRO-{wanted.replace("_", "-")}, or unset RMW_IMPLEMENTATION'
    if 'missing' in answer:
        found = (
            f"RMW_IMPLEMENTATION is '{answer['missing']}', which is not installed: no "
            'node can start'
        )
        yield fail(f'{found}; installed: {", ".join(there) or "none"}', advice, **figures)
    elif 'error' in answer:
        yield skip('rclpy can not be imported; see check ros.rclpy', **figures)
    elif wanted and figures['used'] != wanted:
        yield fail(
            f"RMW_IMPLEMENTATION is '{wanted}', but {figures['used']} is used", advice, **figures
        )
    else:
        yield ok(
            (
                f'{figures["used"]}{" (the default)" if not wanted else ""}; installed: '
                f'{", ".join(there) or figures["used"]}'
            ),
            **figures,
        )


def ros_messages(system: System, needs: Needs) -> Iterator[Finding]:
    """Check whether the message packages that the nodes need can be imported."""
    answer = system.ask(answers.describe_ros)
    if 'missing' in answer or 'error' in answer:
        yield skip(
            _NO_MIDDLEWARE
            if 'missing' in answer
            else 'rclpy can not be imported; see check ros.rclpy'
        )
        return
    broken = {name: why for name, why in answer['messages'].items() if why}
    if broken:
        packages = ' '.join(
            f'ros-$ROS_DISTRO-{name.split(".")[0].replace("_", "-")}' for name in broken
        )
        found = '; '.join(f'{name}: {why}' for name, why in broken.items())
        yield fail(
            f'not all messages can be imported: {found}',
            f'apt install {packages}',
            messages=answer['messages'],
        )
    else:
        yield ok(f'{", ".join(answer["messages"])} can be imported', messages=answer['messages'])


def _segment(path: Path) -> int:
    """Return the largest ``segment_size`` of a Fast DDS profile in bytes; 0: none."""
    tree = ElementTree.parse(path)
    sizes = [
        (node.text or '').strip()
        for node in tree.iter()
        if node.tag.rpartition('}')[2] == 'segment_size'
    ]
    return max((int(size) for size in sizes if size.isdigit()), default=0)


def _image(system: System, needs: Needs) -> int:
    """Return the number of bytes of the cameras' largest image, in rgb8."""
    sizes = [camera_class(camera).picture_size(system, camera.values) for camera in needs.cameras]
    return max((w * h * 3 for w, h in sizes), default=0) or _USUAL_IMAGE


def large_messages(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that an image message fits into Fast DDS's segment or Cyclone DDS's socket buffer."""
    answer = system.ask(answers.describe_ros)
    if 'missing' in answer:
        yield skip(_NO_MIDDLEWARE, middleware=answer['missing'])
        return
    used = answer.get('middleware') or system.environment.get('RMW_IMPLEMENTATION', '')
    image = _image(system, needs)
    # The subject of a sentence in each message below.
    only = 'plain image subscribers of other processes'
    if 'cyclone' in used:
        yield _receive_buffer(system, image, only)
        return
    if 'fastrtps' not in used:
        yield skip(f'this check does not support {used or "the middleware"}', middleware=used)
        return
    set_here = {
        name: system.environment[name] for name in _PROFILES if system.environment.get(name)
    }
    profile = shipped_file('config/fastdds_images.xml')
    advice = (
        f'set {_PROFILES[0]} (Kilted and later: {_PROFILES[1]}) to {profile} for publisher and '
        'subscriber'
    )
    figures: dict[str, object] = {
        'middleware': used,
        'profiles': set_here,
        'segment': _DEFAULT_SEGMENT,
        'image': image,
    }
    if not set_here:
        room = (
            f'an image of {image / _MIB:.1f} MiB does not fit into the default segment of 512 KiB'
        )
        found = (
            f'no Fast DDS profile is set: {room}; {only} lose most images with best-effort QoS, '
            'and get images late with reliable QoS'
        )
        yield warn(found, advice, **figures)
        return
    name, path = next(iter(set_here.items()))
    try:
        figures['segment'] = size = _segment(
            system.root / path.lstrip('/') if path.startswith('/') else Path(path)
        )
    except (OSError, ElementTree.ParseError) as error:
        yield fail(f"{name} is '{path}', which can't be read: {error}", advice, **figures)
        return
    if size < 2 * image:
        found = (
            f"{name} '{path}' has a segment of {size / _MIB:.1f} MiB, images have "
            f'{image / _MIB:.1f} MiB'
        )
        yield warn(found, f'raise segment_size to at least {4 * image} bytes', **figures)
    else:
        yield ok(
            f'{path}: segment of {size / _MIB:.0f} MiB for images of {image / _MIB:.1f} MiB',
            **figures,
        )


def _receive_buffer(system: System, image: int, only: str) -> Finding:
    limit = system.read('proc/sys/net/core/rmem_max')
    figures = {'rmem_max': int(limit) if limit.isdigit() else None, 'image': image}
    if limit.isdigit() and int(limit) < image:
        advice = (
            'sysctl -w net.core.rmem_max=67108864 net.ipv4.ipfrag_time=3 '
            'net.ipv4.ipfrag_high_thresh=134217728'
        )
        found = (
            f'net.core.rmem_max is {int(limit) / _MIB:.1f} MiB, an image has {image / _MIB:.1f} '
            f'MiB: {only} lose images with best-effort QoS, and get images late with reliable QoS'
        )
        return warn(found, advice, **figures)
    return ok(f'Cyclone DDS with net.core.rmem_max {limit or "unknown"}', **figures)


def runtime_socket_folder(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that publishers can use the folder of their sockets, or make it if it is missing."""
    folder = default_folder(system.environment)
    figures: dict[str, object] = {'folder': str(folder), 'exists': folder.is_dir(), 'sockets': 0}
    groups = sorted(
        {
            camera['shared_memory_group']
            for camera in needs.cameras
            if camera['shared_memory_group']
        }
    )
    step = 'set the environment variable ZC_RUNTIME_DIR to another folder, the same for all nodes'
    for name in groups:
        try:
            number = grp.getgrnam(name).gr_gid
        except KeyError:
            advice = f'groupadd {name}, or set shared_memory_group to a group that exists'
            yield fail(
                f"there is no group '{name}' (shared_memory_group)", advice, name, **figures
            )
            return
        if number not in {*os.getgroups(), os.getegid()} and system.user:
            found = (
                f"this user is not in group '{name}' (shared_memory_group), so its "
                "nodes cannot give this group access to the links' socket folder"
            )
            yield fail(found, f'usermod -aG {name} USER, and log in again', name, **figures)
            return
    try:
        socket_path(folder, '0' * 32)
        if os.path.lexists(folder):
            if groups:
                # Check only the owner: the nodes set the folder's group when they start.
                _owned(folder, system.user)
            else:
                runtime_folder(None, system.environment)
    except ConfigError as error:
        yield told(Status.FAIL, error, '', **figures)
        return
    if figures['exists']:
        figures['sockets'] = sum(name.endswith(SUFFIX) for name in os.listdir(folder))
    elif refusal := _refusal(folder.parent):
        found = (
            f"folder '{folder}' does not exist, and can't be made in {folder.parent}: {refusal}"
        )
        yield fail(found, f'make it with mode 0700 for this user, or {step}', **figures)
        return
    if complaint := folder_complaint(system.environment):
        found, _, advice = complaint.rpartition(': ')
        yield warn(found, advice, **figures)
    elif figures['exists']:
        yield ok(
            f"folder '{folder}' belongs to this user alone and has {figures['sockets']} sockets",
            **figures,
        )
    else:
        yield ok(f"folder '{folder}' can be made when it is needed", **figures)


def _refusal(parent: os.PathLike[str]) -> str:
    """Return why no folder can be made in *parent*, by trying it; empty: a folder can be made."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix='.zc_doctor-', dir=parent))
    except OSError as error:
        return error.strerror or str(error)
    return ''


def _owned(folder: os.PathLike[str], user: int) -> None:
    owner = os.lstat(folder).st_uid
    if owner != user:
        raise ConfigError(
            f"folder '{folder}' for shared-memory sockets belongs to user {owner}, not to this "
            f'user, {user}; name another folder in the environment variable ZC_RUNTIME_DIR'
        )
