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
Parameters: values of files and command lines, their checks, and a running node's parameters.

To find the source of a refusal: a message with "it must be" comes from
:mod:`~zc_perception.parameters`, by a declaration in :mod:`~zc_perception.nodes.declarations`. All
other messages about a file, before a start, come from :mod:`~zc_perception.nodes.params.verdict`.
Messages about a node's keys at its start, and about ``ros2 param set``, come from
:mod:`~zc_perception.nodes.params.node_parameters`.

Read in this order:

1. :mod:`~zc_perception.parameters`: one parameter with its type, range and choices.
2. :mod:`~zc_perception.nodes.params.yaml_file`: reads a parameter file as ROS does, with the line
   of each key.
3. :mod:`~zc_perception.nodes.params.verdict`: checks whether nodes would start with a file, for
   launch files and ``zc_doctor``. It also has the package's nodes by name.
4. :mod:`~zc_perception.nodes.params.node_parameters`: declares, checks and changes the parameters
   of a running node.

:mod:`~zc_perception.nodes.params.ros_arguments` reads command lines,
:mod:`~zc_perception.nodes.params.qos_overrides` handles ``qos_overrides.*``, and
:mod:`~zc_perception.nodes.params.schema` writes the JSON schema.
"""
