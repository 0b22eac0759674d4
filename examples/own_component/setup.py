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
    name='own_component',
    version='0.0.1',
    packages=['own_component'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/own_component']),
        ('share/own_component', ['package.xml']),
    ],
    install_requires=['setuptools'],
    maintainer='you',
    maintainer_email='you@example.com',
    description='Publishes the brightness of camera frames, from inside the perception container.',
    license='Apache-2.0',
    # The container finds components by this group: package::Plugin = module:Class
    entry_points={
        'rclpy_components': ['own_component::Brightness = own_component.brightness:Brightness']
    },
)
