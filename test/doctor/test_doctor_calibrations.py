"""Calibration files: the path that a node would look at, and what it does without one."""

from __future__ import annotations

import pytest
from doctor.breakages import capture
from doctor.vehicle import Vehicle

from zc_perception.camera.calibration import Calibration, format_calibration
from zc_perception.doctor.finding import Finding, Status

MATRIX = (400.0, 0.0, 320.0, 0.0, 400.0, 180.0, 0.0, 0.0, 1.0)


def calibration(vehicle: Vehicle) -> Finding:
    (found,) = [result.finding for result in vehicle.examine('cameras') if result.check.id == 'cameras.calibration']
    return found


def written(vehicle: Vehicle, name: str, width: int = 640, height: int = 360) -> None:
    vehicle.write(name, format_calibration(Calibration(width, height, 'capture', k=MATRIX)))


@pytest.mark.parametrize(
    ('url', 'path'),
    [
        ('file:///opt/${NAME}.yaml', '/opt/capture.yaml'),
        ('/opt/front.yaml', '/opt/front.yaml'),
        ('file://${ROS_HOME}/front.yaml', '/var/ros/front.yaml'),
        ('package://vehicle/config/front.yaml', '/ws/install/vehicle/share/vehicle/config/front.yaml'),
    ],
)
def test_a_file_that_is_named_and_not_there_is_a_warning_with_its_path(url: str, path: str, vehicle: Vehicle) -> None:
    vehicle.environment |= {'ROS_HOME': '/var/ros', 'AMENT_PREFIX_PATH': '/opt/ros/humble:/ws/install/vehicle'}
    vehicle.write('ws/install/vehicle/share/ament_index/resource_index/packages/vehicle', '')
    capture(camera_info_url=url)(vehicle)
    found = calibration(vehicle)
    assert found.status is Status.WARN and f"there is no '{path}'" in found.found and 'the node warns and goes on' in found.found
    assert (found.subject, found.figures['file'], found.figures['there']) == ('/capture', path, False) and found.advice
    written(vehicle, path.lstrip('/'))
    found = calibration(vehicle)
    assert found.status is Status.OK and path in found.found


def test_a_camera_for_which_none_is_named_needs_none(vehicle: Vehicle) -> None:
    vehicle.environment['ROS_HOME'] = '/var/ros'
    found = calibration(vehicle)
    assert found.status is Status.SKIP and '/var/ros/camera_info/capture.yaml' in found.found


def test_one_of_another_size_is_a_warning(vehicle: Vehicle) -> None:
    capture(camera_info_url='file:///opt/front.yaml')(vehicle)
    written(vehicle, 'opt/front.yaml', 1280, 720)
    found = calibration(vehicle)
    assert found.status is Status.WARN and '1280x720' in found.found and found.advice


def test_what_the_node_refuses_fails(vehicle: Vehicle) -> None:
    capture(camera_info_url='https://example.org/front.yaml')(vehicle)
    found = calibration(vehicle)
    assert found.status is Status.FAIL and 'must begin with file:// or package://' in found.found
