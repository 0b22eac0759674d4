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

"""Cameras of all kinds: V4L2 nodes, recordings, and calibrations that fit or don't."""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
from pathlib import Path
from typing import Any

from camera.replay_kit import IMAGE, replay, write_bag
from camera.test_replay_bag import nv12_entries
from camera.v4l2_double import DriverDouble
import cv2
from doctor.vehicle import capture, MetadataNode, Vehicle
import numpy as np
import pytest

from zc_perception.camera.calibration import Calibration, format_calibration
from zc_perception.camera.v4l2 import choice
from zc_perception.camera.v4l2.checks import look_at
from zc_perception.camera.v4l2.mjpeg import INSTALL
from zc_perception.doctor.needs import node_need
from zc_perception.doctor.node_checks import configured_cameras
from zc_perception.errors import ZcError
from zc_perception.machine.asking import NoAnswerError, Question
from zc_perception.machine.checks import Finding, Needs, Status
from zc_perception.machine.system import System

pytestmark = pytest.mark.usefixtures('no_fd_leak')
HARMLESS = {'QUERYCAP', 'REQBUFS', 'G_FMT', 'ENUM_FMT', 'ENUM_FRAMESIZES', 'ENUM_FRAMEINTERVALS'}


@pytest.mark.parametrize('multiplanar', [False, True])
def test_formats_sizes_and_rates_are_those_of_the_driver(multiplanar: bool) -> None:
    driver = DriverDouble('NV12', 'YUYV', multiplanar=multiplanar)
    view = look_at(driver)
    assert (view.driver, view.card, view.role) == ('double', 'Double Camera', 'capture')
    assert view.multiplanar is multiplanar
    rates = {'320x180': ['1 to 30'], '640x360': ['1 to 30']}
    formats = [{'fourcc': name, 'sizes': list(rates), 'rates': rates} for name in ('NV12', 'YUYV')]
    assert list(view.formats) == formats
    assert (view.busy, view.imports, view.current) == (False, True, 'NV12 320x180')
    assert set(driver.calls) <= HARMLESS and driver.count == 0


def test_a_camera_in_use_is_not_disturbed_and_a_metadata_node_asked_nothing_more() -> None:
    driver = DriverDouble()
    driver.fail('REQBUFS', errno.EBUSY)
    view = look_at(driver)
    assert (view.busy, view.imports) == (True, None) and view.formats
    node = MetadataNode()
    assert look_at(node).role == 'metadata' and node.calls == ['QUERYCAP']


def test_a_camera_that_is_unplugged_meanwhile_is_closed(vehicle: Vehicle) -> None:
    driver = vehicle.videos['/dev/video0']
    driver.fail('ENUM_FRAMESIZES', errno.ENODEV)
    (found,) = vehicle.found('cameras.devices').values()
    assert found.found.startswith('/dev/video0 does not answer: ') and driver.closed


@pytest.mark.parametrize('missing', ['', 'apt install it'])
@pytest.mark.parametrize('formats', [('MJPG',), ('YUYV', 'MJPG')])
def test_a_webcam_with_jpegs_is_as_good_as_the_library_that_decodes_them(
    formats: tuple[str, ...], missing: str, vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, 'missing_library', lambda: missing)
    vehicle.videos['/dev/video0'] = DriverDouble(*formats)
    finding = vehicle.found('cameras.configured')['/capture']
    if not missing:
        assert finding.status.value == 'ok' and finding.figures['nv12']
    elif formats == ('MJPG',):
        assert finding.status.value == 'fail'
        assert 'nothing but JPEGs in 640x360: apt install it' in finding.found
        assert finding.advice == INSTALL
    else:
        assert not finding.figures['nv12'] and 'no NV12, only MJPG, YUYV' in finding.found
        assert 'apt install libturbojpeg0' in finding.advice


def test_an_element_that_a_pipeline_names_is_needed(vehicle: Vehicle) -> None:
    capture(
        camera='gstreamer',
        pipeline='nvv4l2camerasrc device=/dev/video0 ! nvvidconv ! video/x-raw,format=NV12',
    )(vehicle)
    found = vehicle.found('gstreamer.elements')
    failed = {name for name, finding in found.items() if finding.status is Status.FAIL}
    assert failed == {'nvv4l2camerasrc', 'nvvidconv'} and 'JetPack' in found['nvvidconv'].advice
    assert (found['v4l2src'].status, found['v4l2src'].advice) == (Status.SKIP, '')


def test_a_node_that_is_no_camera_is_left_out_and_the_camera_is_not(vehicle: Vehicle) -> None:
    vehicle.write('dev/video1', '')
    vehicle.write('dev/video10', '')
    vehicle.videos |= {'/dev/video1': MetadataNode(), '/dev/video10': DriverDouble('MJPG')}
    found = [
        (r.finding.subject, r.finding.status.value, r.finding.figures['role'])
        for r in vehicle.examine('cameras')[:3]
    ]
    assert found == [
        ('/dev/video0', 'ok', 'capture'),
        ('/dev/video1', 'skip', 'metadata'),
        ('/dev/video10', 'ok', 'capture'),
    ]


def test_who_uses_a_camera_is_named(vehicle: Vehicle) -> None:
    vehicle.users = ['this process', 'cheese (4711)']
    vehicle.videos['/dev/video0'].errors['REQBUFS'] += [errno.EBUSY] * 2
    found = [
        r.finding.found for r in vehicle.examine('cameras') if r.check.id != 'cameras.calibration'
    ]
    assert all('in use: cheese (4711)' in text for text in found) and len(found) == 2


@pytest.mark.parametrize(
    ('left', 'right'),
    [
        ('/dev/video0', '/dev/v4l/by-id/usb-camera'),
        ('/dev/v4l/by-id/usb-camera', '/dev/front'),
        ('/dev/missing', '/dev/missing'),
    ],
)
def test_two_nodes_can_not_have_one_camera_whatever_they_call_it(
    left: str, right: str, vehicle: Vehicle
) -> None:
    links = vehicle.root / 'dev/v4l/by-id'
    links.mkdir(parents=True)
    (links / 'usb-camera').symlink_to('../../video0')
    (vehicle.root / 'dev/front').symlink_to('v4l/by-id/usb-camera')
    vehicle.write('dev/video2', '')
    vehicle.videos['/dev/video2'] = DriverDouble('NV12')
    assert vehicle.yaml is not None
    vehicle.yaml |= {
        f'/{name}/capture': {'device': path}
        for name, path in (('left', left), ('right', right), ('rear', '/dev/video2'))
    }
    found = vehicle.found('cameras.configured')
    assert found['/left/capture'].status.value == found['/right/capture'].status.value == 'fail'
    assert f'{left} is also the camera of /right/capture' in found['/left/capture'].found
    assert found['/left/capture'].figures == {'shared_with': ['/right/capture']}
    assert found['/rear/capture'].status.value == 'ok', 'it has a camera of its own'


MATRIX = (400.0, 0.0, 320.0, 0.0, 400.0, 180.0, 0.0, 0.0, 1.0)


def calibration(vehicle: Vehicle) -> Finding:
    (found,) = vehicle.found('cameras.calibration').values()
    return found


def written(vehicle: Vehicle, name: str, width: int = 640, height: int = 360) -> None:
    vehicle.write(name, format_calibration(Calibration(width, height, 'capture', k=MATRIX)))


@pytest.mark.parametrize(
    ('url', 'path'),
    [
        ('file:///opt/${NAME}.yaml', '/opt/capture.yaml'),
        (
            'package://vehicle/config/front.yaml',
            '/ws/install/vehicle/share/vehicle/config/front.yaml',
        ),
    ],
)
def test_a_file_that_is_named_and_not_there_is_a_warning_with_its_path(
    url: str, path: str, vehicle: Vehicle
) -> None:
    vehicle.environment |= {
        'ROS_HOME': '/var/ros',
        'AMENT_PREFIX_PATH': '/opt/ros/humble:/ws/install/vehicle',
    }
    vehicle.write('ws/install/vehicle/share/ament_index/resource_index/packages/vehicle', '')
    capture(camera_info_url=url)(vehicle)
    found = calibration(vehicle)
    assert found.status is Status.WARN and found.subject == '/capture' and found.advice
    assert f"there is no '{path}'" in found.found and 'the node warns and goes on' in found.found
    assert (found.figures['file'], found.figures['there']) == (path, False)
    written(vehicle, path.lstrip('/'))
    found = calibration(vehicle)
    assert found.status is Status.OK and path in found.found


def test_one_of_another_size_is_a_warning_and_what_the_node_refuses_fails(
    vehicle: Vehicle,
) -> None:
    capture(camera_info_url='file:///opt/front.yaml')(vehicle)
    written(vehicle, 'opt/front.yaml', 1280, 720)
    found = calibration(vehicle)
    assert found.status is Status.WARN and '1280x720' in found.found and found.advice
    capture(camera_info_url='https://example.org/front.yaml')(vehicle)
    found = calibration(vehicle)
    assert found.status is Status.FAIL and 'must begin with file:// or package://' in found.found


Make = Callable[[Path], Path]


def bag(folder: Path) -> Path:
    return write_bag(folder / 'bag', nv12_entries(), msgtype=IMAGE)


def damaged_bag(folder: Path) -> Path:
    path = bag(folder)
    (path / 'metadata.yaml').write_text('rosbag2_bagfile_information: [')
    return path


def picture(folder: Path) -> Path:
    assert cv2.imwrite(str(folder / 'one.png'), np.zeros((48, 64, 3), np.uint8))
    return folder / 'one.png'


def needing(**values: Any) -> Needs:
    return Needs('vehicle.yaml', (node_need('capture', {'camera': 'replay', **values}),))


def configured(path: Path | str, **values: Any) -> Finding:
    (found,) = configured_cameras(System(), needing(video=str(path), **values))
    return found


def random_bytes(folder: Path) -> Path:
    (folder / 'drive.mp4').write_bytes(os.urandom(5000))
    return folder / 'drive.mp4'


BAD: dict[str, tuple[Make, dict[str, Any]]] = {
    'random bytes': (random_bytes, {}),
    'not there': (lambda folder: folder / 'nowhere.mp4', {}),
    'a damaged bag': (damaged_bag, {}),
    'a topic of something else': (picture, {'replay_topic': '/image_raw'}),
}


@pytest.mark.parametrize('case', BAD)
def test_a_recording_that_can_not_be_played_is_the_nodes_own_sentence(
    case: str, tmp_path: Path
) -> None:
    make, values = BAD[case]
    path = make(tmp_path)
    with pytest.raises(ZcError) as refused:
        replay(path, **values).close()
    found = configured(path, **values)
    assert (found.status, found.found) == (Status.FAIL, str(refused.value))
    assert found.subject == '/capture' and found.advice


@pytest.mark.parametrize(
    ('make', 'values'), [(bag, {'replay_topic': '/camera/image_raw'}), (picture, {})]
)
def test_one_that_can_is_ok_with_its_size(
    make: Make, values: dict[str, Any], tmp_path: Path
) -> None:
    found = configured(make(tmp_path), **values)
    assert found.status is Status.OK
    assert found.figures.keys() == {'width', 'height'} and min(found.figures.values()) > 0


def test_a_decoder_that_crashes_or_hangs_is_no_end_of_the_doctor(tmp_path: Path) -> None:
    told = 'the process that looked at recording was ended by SIGSEGV'

    def ask(question: Question, *arguments: str) -> dict[str, Any]:
        raise NoAnswerError(told)

    (found,) = configured_cameras(System(ask=ask), needing(video=str(tmp_path)))
    assert (found.status, found.found) == (Status.FAIL, told)
