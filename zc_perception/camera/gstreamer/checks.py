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
What ``zc_doctor`` checks for pipelines.

That is GStreamer's version, the elements that matter, and the parameter file's pipelines.
GStreamer is asked in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TYPE_CHECKING

from zc_perception.errors import ZcError
from zc_perception.machine.checks import fail, Finding, Need, Needs, ok, skip, told
from zc_perception.machine.system import System

if TYPE_CHECKING:
    from zc_perception.camera.gstreamer.abi import GStreamer

_JETPACK = 'it comes with JetPack (nvidia-l4t-gstreamer), and a container needs it mounted'


#: What each is for, and where it comes from.
PURPOSES = {
    'appsink': (
        'the end of every pipeline, which gives frames to this package',
        'apt install gstreamer1.0-plugins-base',
    ),
    'v4l2src': ('V4L2 cameras in pipelines', 'apt install gstreamer1.0-plugins-good'),
    'nvarguscamerasrc': ("the Argus camera (ZED X through Jetson's ISP)", _JETPACK),
    'nvv4l2camerasrc': ('V4L2 cameras into NVMM memory', _JETPACK),
    'nvvidconv': ('conversions in NVMM memory', _JETPACK),
    'libcamerasrc': ('libcamera in pipelines', 'apt install gstreamer1.0-libcamera'),
}


# What cannot be done without.
_OF_CAMERA = {'gstreamer': ('appsink',), 'argus': ('appsink', 'nvarguscamerasrc')}


def _pipeline_need(needs: Needs) -> Need:
    return needs.camera('gstreamer', 'argus')


def gstreamer_library(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that GStreamer loads."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask(describe_gstreamer, *PURPOSES)
    if 'error' in answer:
        yield told(
            _pipeline_need(needs).missing_extra, answer['error']
        )  # as the camera itself says it, with the packages to install
    else:
        yield ok(f'GStreamer {answer["version"]}', version=answer['version'])


def gstreamer_elements(system: System, needs: Needs) -> Iterator[Finding]:
    """Report one line for each element."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask(describe_gstreamer, *PURPOSES)
    if 'error' in answer:
        yield skip('GStreamer can not be loaded; see gstreamer.library')
        return
    wanted = {name for camera in needs.cameras for name in _OF_CAMERA.get(camera.kind, ())}
    if all(camera['pipeline'].strip() for camera in needs.cameras if camera.kind == 'argus'):
        wanted.discard('nvarguscamerasrc')  # a pipeline brings its own source
    pipelines = [camera['pipeline'] for camera in needs.cameras if camera.kind in _OF_CAMERA]
    wanted |= {
        part.split()[0] for pipeline in pipelines for part in pipeline.split('!') if part.split()
    }
    for name, (purpose, advice) in PURPOSES.items():
        found: dict[str, Any] = answer['elements'].get(name, {'there': False})
        need = Need.REQUIRED if name in wanted else Need.UNUSED if needs.known else Need.POSSIBLE
        figures = {'there': found['there']}
        if not found['there']:
            step = advice if need is Need.REQUIRED else ''
            yield Finding(
                need.missing_extra,
                f'element {name} is missing; it is for: {purpose}',
                step,
                name,
                figures,
            )
        elif 'error' in found:
            yield Finding(need.missing, f'{name}: {found["error"]}', advice, name, figures)
        else:
            yield ok(f'{name}, for: {purpose}', name, **figures)


def gstreamer_pipelines(system: System, needs: Needs) -> Iterator[Finding]:
    """Make each pipeline of the parameter file, and throw it away."""
    cameras = [camera for camera in needs.cameras if camera.kind in _OF_CAMERA]
    if not cameras:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
    for camera in cameras:
        if not camera['pipeline'].strip():
            if camera.kind == 'argus':
                yield skip(
                    (
                        f'argus makes its own pipeline for sensor {camera["sensor_id"]}; see '
                        'gstreamer.elements'
                    ),
                    camera.node,
                )
            else:
                advice = (
                    "set parameter pipeline, for example to 'v4l2src device=/dev/video0 "
                    "io-mode=dmabuf'"
                )
                yield fail('camera gstreamer has an empty pipeline', advice, camera.node)
            continue
        answer = system.ask(try_pipeline, camera['pipeline'])
        if 'error' in answer:
            advice = (
                'compare the names of elements and properties with gst-inspect-1.0 '
                'ELEMENT, and see gstreamer.elements'
            )
            yield fail(
                f'GStreamer can not make the pipeline: {answer["error"]}', advice, camera.node
            )
        else:
            yield ok('GStreamer can make the pipeline', camera.node)


def _element(gst: GStreamer, name: str) -> dict[str, Any]:
    if not gst.has_element(name):
        return {'there': False}
    made = gst.gst_element_factory_make(name.encode(), None)
    if not made:
        return {
            'there': True,
            'error': (
                'the registry has it, but it could not be made: a library of its plugin is missing'
            ),
        }
    gst.gst_object_unref(gst.gst_object_ref_sink(made))
    return {'there': True}


def describe_gstreamer(*elements: str) -> dict[str, Any]:
    """Return the version, and whether each element can be made; or why there is no GStreamer."""
    from zc_perception.camera.gstreamer.abi import load_gstreamer

    try:
        gst = load_gstreamer()
    except ZcError as error:
        return {'error': str(error)}
    return {
        'version': '.'.join(map(str, gst.version)),
        'elements': {name: _element(gst, name) for name in elements},
    }


def try_pipeline(description: str) -> dict[str, Any]:
    """
    Tell whether a pipeline can be made of *description*, as the gstreamer camera does.

    No device is opened.
    """
    from zc_perception.camera.gstreamer.pipeline import check_description

    try:
        check_description(description)
    except ZcError as error:
        return {'error': str(error)}
    return {}
