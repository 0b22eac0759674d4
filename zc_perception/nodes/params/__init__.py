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
Read parameters from files and command lines, check them, and hold those of a running node.

To find the source of an error message: most messages "parameter 'NAME' is …; it must be …" come
from :mod:`~zc_perception.parameters`, which applies a declaration, such as one in
:mod:`~zc_perception.nodes.declarations`. The other messages of this form come from a node's
``CHECKS`` or, if they are about QoS, from :mod:`~zc_perception.nodes.params.qos_overrides`. A
message that a file can't be read comes from :mod:`~zc_perception.nodes.params.yaml_file`. Other
messages about a file come from :mod:`~zc_perception.nodes.params.verdict`. Messages that a node
writes at its start about an unknown parameter, and messages about ``ros2 param set``, come from
:mod:`~zc_perception.nodes.params.node_parameters`.

Read in this order:

1. :mod:`~zc_perception.parameters`: one parameter with its type, range and choices.
2. :mod:`~zc_perception.nodes.params.yaml_file`: reads a parameter file as ROS does, with the line
   of each key.
3. :mod:`~zc_perception.nodes.params.verdict`: checks whether nodes would start with a file, for
   launch files and ``zc_doctor``. It also finds the package's node classes by name.
4. :mod:`~zc_perception.nodes.params.node_parameters`: declares, checks and changes the parameters
   of a running node.

:mod:`~zc_perception.nodes.params.ros_arguments` reads command lines,
:mod:`~zc_perception.nodes.params.qos_overrides` handles ``qos_overrides.*``, and
:mod:`~zc_perception.nodes.params.schema` writes the JSON schema.
"""
