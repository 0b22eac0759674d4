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

from setuptools import setup

setup(
    name='counter_camera',
    version='0.0.1',
    py_modules=['counter_camera'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/counter_camera']),
        ('share/counter_camera', ['package.xml']),
    ],
    install_requires=['setuptools'],
    maintainer='you',
    maintainer_email='you@example.com',
    description='A camera for the capture node of zc_perception: it counts its frames.',
    license='Apache-2.0',
    # The capture node finds cameras by this group: kind = module:Class
    entry_points={'zc_perception.cameras': ['counter = counter_camera:CounterCamera']},
)
