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

"""``camera_info`` beside the picture, and the service ``set_camera_info``."""

from __future__ import annotations

from collections.abc import Mapping
import threading
from typing import Any

from ament_index_python.packages import get_package_share_directory, PackageNotFoundError
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo
from sensor_msgs.srv import SetCameraInfo

from zc_perception.camera.calibration import camera_name_of, CameraInfoStore, from_camera_info
from zc_perception.camera.camera import Camera
from zc_perception.errors import ConfigError
from zc_perception.frame import Header
from zc_perception.link.image_conversion import stamp_to_message
from zc_perception.link.rclpy_compat import subscription_count
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.params.qos_overrides import publisher_qos
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.observe.diagnostics import ERROR, OK, Part, Row, Status, WARN

# Many cameras have no calibration, which is no fault; a wrong calibration is one.
CALIBRATION = Part(
    'calibration',
    Row(lambda s: s.failed, ERROR, '{text}', '{advice}', ('the camera counts as not calibrated: '
        'why the file or its URL is no good'),
        'correct it, or [calibrate](calibration.md)'),
    Row(lambda s: s.wrong, WARN, '{text}', '{advice}', 'the file of `camera_info_url` is not '
                                                       'there, or a calibration is of another '
                                                       'camera '
        'or picture size', 'calibrate, set `camera_name` or `camera_info_url`, or see '
        '[another picture size](calibration.md#another-picture-size)'),
    Row(lambda s: s.text, OK, '{text}', '{advice}'),
    Row(lambda s: not s.calibrated, OK, 'no calibration'),
    well='calibrated',
)  # fmt: skip


def _package_folder(name: str) -> str:
    try:
        return str(get_package_share_directory(name))
    except (
        PackageNotFoundError,
        ValueError,
    ) as error:  # ValueError: no package can have such a name
        raise LookupError(name) from error


def calibration_store(values: Mapping[str, Any], node: str) -> CameraInfoStore:
    """
    Return the place of the calibration that the parameters name.

    :param values: of the capture node.
    :param node: the full name of the camera's node.
    :raises ConfigError: no file can have such a URL.
    """
    name = camera_name_of(values['camera_name'] or node)
    return CameraInfoStore(
        values['camera_info_url'],
        name,
        (0, 0),
        package_folder=_package_folder,
        rescale=values['rescale_camera_info'],
    )


class CameraInfoPublisher:
    """Publishes the calibration with each frame's own header, while there is a subscriber."""

    def __init__(self, node: PerceptionNode, parameters: NodeParameters) -> None:
        self._node = node
        self._lock = threading.Lock()
        self.reload(parameters)
        self._message = CameraInfo()
        self._publisher = node.create_publisher(
            CameraInfo, 'camera_info', publisher_qos(node, 'camera_info', QoSProfile(depth=5))
        )
        self._service = node.create_service(SetCameraInfo, 'set_camera_info', self._on_set)

    def reload(self, parameters: NodeParameters) -> None:
        """Read the calibration from the place that the parameters name now."""
        store = calibration_store(parameters, self._node.get_fully_qualified_name())
        with self._lock:
            self._store = store
        if store.failure:
            self._node.warn_once(store.notices, error=True)

    def begin(self, camera: Camera) -> None:
        """Publish for that camera from now on."""
        with self._lock:
            self._store.resize(camera.width, camera.height, has_lens=camera.has_lens)
            self._update()
        self._node.warn_once(self._store.notices)

    def _update(self) -> None:
        message = CameraInfo()
        self._store.current.fill(message)
        self._message = message

    def publish(self, header: Header) -> None:
        """Publish for the frame with that header."""
        if subscription_count(self._publisher):
            with self._lock:
                stamp_to_message(header, self._message)
                self._publisher.publish(self._message)

    def _on_set(
        self, request: SetCameraInfo.Request, response: SetCameraInfo.Response
    ) -> SetCameraInfo.Response:
        try:
            with self._lock:
                self._store.replace(from_camera_info(request.camera_info, self._store.camera_name))
                self._update()
        except ConfigError as error:
            response.success, response.status_message = False, str(error)
            return response
        response.success, response.status_message = True, f"written to '{self._store.place}'"
        return response

    def status(self) -> Status:
        """Return the status for diagnostics."""
        with self._lock:
            store = self._store
            troubles, published = store.troubles, store.current
            failed, wrong = bool(store.failure), store.wrong
        values = {
            'file': store.place,
            'camera_name': store.camera_name,
            'calibrated': published.calibrated,
        }
        if published.calibrated and published.picture != store.calibration.picture:
            values['scaled_from'] = '{}x{}'.format(*store.calibration.picture)
        text, advice = (
            '; '.join(dict.fromkeys(trouble[n] for trouble in troubles)) for n in range(2)
        )
        return CALIBRATION.status(
            values,
            failed=failed,
            wrong=wrong,
            text=text,
            advice=advice,
            calibrated=published.calibrated,
        )
