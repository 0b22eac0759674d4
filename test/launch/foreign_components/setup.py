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
Another project's package, with a component for rclpy's proposal of a Python container.

Nothing of zc_perception is in it.
"""

from setuptools import setup

setup(
    name='foreign_components',
    version='0.0.1',
    packages=['foreign_components'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/foreign_components']),
        ('share/foreign_components', ['package.xml']),
    ],
    install_requires=['setuptools'],
    zip_safe=True,
    maintainer='somebody',
    maintainer_email='somebody@example.com',
    description='A component for tests.',
    license='Apache-2.0',
    entry_points={
        'rclpy_components': ['foreign_components::Talker = foreign_components.talker:Talker']
    },
)
