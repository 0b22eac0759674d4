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

"""The environment is real ROS 2, and built interface packages match upstream on the wire."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
import sys

import pytest

rclpy = pytest.importorskip('rclpy', reason='needs the environment that `make env` sets up')
from ament_index_python import get_package_share_directory, get_resource  # noqa: E402, I100
from rclpy.context import Context  # noqa: E402
from rclpy.node import Node  # noqa: E402
from waiting import until  # noqa: E402

# RIHS01 hashes from the released definitions of vision_msgs 4.1.1, foxglove_msgs 3.4.3,
# ffmpeg_image_transport_msgs 1.0.1 and Jazzy's composition_interfaces.
UPSTREAM_HASHES = {
    'vision_msgs/msg/BoundingBox2D': '008eacbb0cf8f26e83795547bed013eec3675485ef386ec056d80eaaf1c1ce2f',  # noqa: E501
    'vision_msgs/msg/BoundingBox2DArray': '2464e82838009386d371b523211c21c91d74d313fcdd6788223c531d621cf691',  # noqa: E501
    'vision_msgs/msg/BoundingBox3D': 'bbb73a65c163d7f9bb29009c7bde9f7faa576bd2d23299c4511d19230dab4698',  # noqa: E501
    'vision_msgs/msg/BoundingBox3DArray': 'a81938db9576b10c2eecd7c5a5da3eac496efd00221b25ed051dfbc81fb56da6',  # noqa: E501
    'vision_msgs/msg/Classification': 'f74db28d0eaef3afb78f48bf2161cd709a1383a0309d3454383b25be11345143',  # noqa: E501
    'vision_msgs/msg/Detection2D': '0d12b69df5c593b3455b7346fac8205437a7d4bcb09b9e0e0b2dde787ded38ea',  # noqa: E501
    'vision_msgs/msg/Detection2DArray': '214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968',  # noqa: E501
    'vision_msgs/msg/Detection3D': 'ddd703be132ab0b69d33121f1bb034132bfbb3b0ac5f9fb1516005ba1c8a265b',  # noqa: E501
    'vision_msgs/msg/Detection3DArray': '793f5eab9595ac1c0da07873cc859db42eae51f0ee76056db8562515d830e018',  # noqa: E501
    'vision_msgs/msg/LabelInfo': '3d37df4015cdf660cc851c51897f2acd957e1ca6205ba0a99aebffb9406b0783',  # noqa: E501
    'vision_msgs/msg/ObjectHypothesis': '51da43cec11c01957a64d1e05a24acd18aae7745ec30b74348ad5f6d634f7f90',  # noqa: E501
    'vision_msgs/msg/ObjectHypothesisWithPose': '41c12344c0396c48b81df12467c192d99b2a0eb1463c5c37194e4223251c80bc',  # noqa: E501
    'vision_msgs/msg/Point2D': 'eab0e83f44ab4de92ceaf76dd7d0e7638f2bdd1d16ffbe16c7a136c48e407247',
    'vision_msgs/msg/Pose2D': 'b0b5d1d7b4c20dd4fcde3ed1d4b289a919290572007d67a97043814db25d3648',
    'vision_msgs/msg/VisionClass': '1e4a11f0fed50b5623cb8ff26ca0e37952a48a9c074d16f804b44e9164c2037a',  # noqa: E501
    'vision_msgs/msg/VisionInfo': '95d3116a17484ad91c9a2686e1d54890bbfc3ff6c6a2de137738c4950d45d284',  # noqa: E501
    'foxglove_msgs/msg/CircleAnnotation': '8bd0a9869b14ed054b6e3fbfb09bd0dbaa90946083adcca96c964a20191fd99a',  # noqa: E501
    'foxglove_msgs/msg/Color': 'ed1b16da40c954e6456b950c2ef4559c179e5cb98f1363cb28c3b90c6ee14120',
    'foxglove_msgs/msg/CompressedVideo': '32039eafc3770e589c86c4dabff9c392ce9955ebffd43f5f60763011d43d8d1d',  # noqa: E501
    'foxglove_msgs/msg/ImageAnnotations': 'bc4e578b1ef80953415d6f966a4cab305c8a44c8b64fc405312b6f06a08fc45e',  # noqa: E501
    'foxglove_msgs/msg/KeyValuePair': '3a1aafc9b6c5876181434af49e3077c3e63174d48c4be9fbc8f65547c59aaded',  # noqa: E501
    'foxglove_msgs/msg/Point2': 'd85e823b78e2e88bc31629e305558bcdd2ecc9225f5f9390f96d91930f5696f0',
    'foxglove_msgs/msg/PointsAnnotation': 'e151e5042d911c2949ff9ef427944596eefdf9672ff93d381e8d24e60addf8e6',  # noqa: E501
    'foxglove_msgs/msg/TextAnnotation': '9678167e063be85463865db2383506c704498e5f8657f24c576a996e7f2ed2e4',  # noqa: E501
    'ffmpeg_image_transport_msgs/msg/FFMPEGPacket': '648d84e0d33cbf76daf54b094d8f06154b8a24800a19c14371754df799fbaf79',  # noqa: E501
    'composition_interfaces/srv/ListNodes': '13f30d73a74c844ee4bacf78f3680f08777cad137f10fbd6a648544cc7b59d2a',  # noqa: E501
    'composition_interfaces/srv/LoadNode': '2e521ef6066fba6d7fc3a3b175d486709f01b4d738d9a59188858546fc8e5acd',  # noqa: E501
    'composition_interfaces/srv/UnloadNode': 'dce562f83adc735ddcfe9dfb927b89293d4dd0fe2b8fc91e772fb83e970a43b0',  # noqa: E501
}


@pytest.mark.parametrize('package', sorted({name.partition('/')[0] for name in UPSTREAM_HASHES}))
def test_a_built_package_is_in_the_ament_index(package: str) -> None:
    listed = get_resource('rosidl_interfaces', package)[0].split()
    share = Path(get_package_share_directory(package))
    assert share.is_relative_to(sys.prefix) and (share / 'package.xml').is_file()
    installed = [path for path in share.glob('*/*') if path.suffix != '.json']
    assert sorted(listed) == sorted(str(path.relative_to(share)) for path in installed)
    expected = {name for name in UPSTREAM_HASHES if name.startswith(f'{package}/')}
    assert {f'{package}/{path[:-4]}' for path in listed if path.endswith('.idl')} == expected


def test_every_type_loads_and_its_hash_in_the_file_and_on_the_wire_is_upstreams() -> None:
    context = Context()
    rclpy.init(context=context)
    node = Node('hashes', context=context, start_parameter_services=False)
    try:
        for name, expected in UPSTREAM_HASHES.items():
            package, kind, interface = name.split('/')
            file = Path(get_package_share_directory(package), kind, f'{interface}.json')
            hashes = json.loads(file.read_text(encoding='utf-8'))['type_hashes']
            assert {'type_name': name, 'hash_string': f'RIHS01_{expected}'} in hashes
            generated = getattr(importlib.import_module(f'{package}.{kind}'), interface)
            for part in (generated,) if kind == 'msg' else (generated.Request, generated.Response):
                assert part() == part(), name
            if kind == 'msg':
                node.create_publisher(generated, name, 1)
                (info,) = until(lambda topic=name: node.get_publishers_info_by_topic(topic), name)
                found = info.topic_type_hash
                assert (found.version, bytes(found.value).hex()) == (1, expected)
    finally:
        node.destroy_node()
        rclpy.shutdown(context=context)
