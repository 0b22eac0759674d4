"""GStreamer: its version, the elements that matter with the real names of their properties, and the parameter file's pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zc_perception.doctor.finding import Finding, Need, Status, ok, skip
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System

_JETPACK = 'it comes with JetPack (nvidia-l4t-gstreamer), and a container needs it mounted'
_SDK = 'activate the Voyager SDK (GST_PLUGIN_PATH)'
#: What each is for, and where it comes from.
PURPOSES = {
    'appsink': ('the end of every pipeline, which gives frames to this package', 'apt install gstreamer1.0-plugins-base'),
    'v4l2src': ('V4L2 cameras in pipelines', 'apt install gstreamer1.0-plugins-good'),
    'nvarguscamerasrc': ("the Argus camera (ZED X through Jetson's ISP)", _JETPACK),
    'nvv4l2camerasrc': ('V4L2 cameras into NVMM memory', _JETPACK),
    'nvvidconv': ('conversions in NVMM memory', _JETPACK),
    'libcamerasrc': ('libcamera in pipelines', 'apt install gstreamer1.0-libcamera'),
    'axinferencenet': ("the Voyager SDK's own inference in pipelines; this package does not need it", _SDK),
    'axtransform': ("the Voyager SDK's preprocessing in pipelines; this package does not need it", _SDK),
}
# What cannot be done without.
_OF_CAMERA = {'gstreamer': ('appsink',), 'argus': ('appsink', 'nvarguscamerasrc')}


def _need(needs: Needs) -> Need:
    return needs.camera('gstreamer', 'argus')


def gstreamer_library(system: System, needs: Needs) -> Iterator[Finding]:
    """Whether it loads."""
    if _need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask('gstreamer')
    if 'error' in answer:
        # It is what the camera itself would say, with the packages to install.
        found, _, advice = str(answer['error']).rpartition('; ')
        yield Finding(_need(needs).missing_extra, found or advice, advice)
    else:
        yield ok(f'GStreamer {answer["version"]}', version=answer['version'])


def gstreamer_elements(system: System, needs: Needs) -> Iterator[Finding]:
    """One line for each element."""
    if _need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask('gstreamer')
    if 'error' in answer:
        yield skip('GStreamer can not be loaded; see gstreamer.library')
        return
    wanted = {name for camera in needs.cameras for name in _wanted(camera.camera, camera.pipeline)}
    for name, (purpose, advice) in PURPOSES.items():
        found: dict[str, Any] = answer['elements'].get(name, {'there': False})
        need = Need.REQUIRED if name in wanted else Need.UNUSED if needs.known else Need.POSSIBLE
        figures = {'there': found['there'], 'plugin': found.get('plugin', ''), 'properties': found.get('properties', {})}
        if not found['there']:
            yield Finding(
                need.missing_extra,
                f'element {name} is missing; it is for: {purpose}',
                advice if need is Need.REQUIRED else '',
                name,
                figures,
            )
        elif 'error' in found:
            yield Finding(need.missing, f'{name}: {found["error"]}', advice, name, figures)
        else:
            properties = ', '.join(f'{key} ({kind})' for key, kind in figures['properties'].items()) or 'none of interest'
            yield ok(f'{name} of plugin {figures["plugin"]}; properties: {properties}', name, **figures)


def _wanted(kind: str, pipeline: str) -> set[str]:
    """Elements that the camera can't do without; an argus camera with a pipeline brings its own source."""
    named = {part.split()[0] for part in pipeline.split('!') if part.split()} if kind in _OF_CAMERA else set()
    own = set(_OF_CAMERA.get(kind, ()))
    return named | (own - {'nvarguscamerasrc'} if pipeline.strip() else own)


def gstreamer_pipelines(system: System, needs: Needs) -> Iterator[Finding]:
    """Each pipeline of the parameter file, made and thrown away."""
    cameras = [camera for camera in needs.cameras if camera.camera in _OF_CAMERA]
    if not cameras:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
    for camera in cameras:
        if not camera.pipeline.strip():
            if camera.camera == 'argus':
                yield skip(f'argus makes its own pipeline for sensor {camera.sensor_id}; see gstreamer.elements', camera.node)
            else:
                advice = "set parameter pipeline, for example to 'v4l2src device=/dev/video0 io-mode=dmabuf'"
                yield Finding(Status.FAIL, 'camera gstreamer has an empty pipeline', advice, camera.node)
            continue
        answer = system.ask('pipeline', camera.pipeline)
        if 'error' in answer:
            advice = 'compare the names of elements and properties with gst-inspect-1.0 ELEMENT, and see gstreamer.elements'
            yield Finding(Status.FAIL, f'GStreamer can not make the pipeline: {answer["error"]}', advice, camera.node)
        else:
            yield ok('GStreamer can make the pipeline', camera.node)
