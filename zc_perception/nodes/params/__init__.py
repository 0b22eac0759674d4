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
Parameters: the nodes' declarations, the values of a parameter file, and refused values.

Why is a parameter refused? A message with "it must be" comes from
:mod:`~zc_perception.parameters`, and the declaration of that parameter stands at the top of the
node's own module. All other messages about a file, before a start, come from
:mod:`~zc_perception.nodes.params.verdict`. Messages about a node's keys at its start, and about
``ros2 param set``, come from :mod:`~zc_perception.nodes.params.node_parameters`.

Read in this order:

1. :mod:`~zc_perception.parameters`: one parameter with its type, range and choices.
2. :mod:`~zc_perception.nodes.params.yaml_file`: a parameter file as ROS reads it, with the line of
   each key.
3. :mod:`~zc_perception.nodes.params.verdict`: would these nodes take this file? Launch files and
   ``zc_doctor`` ask it before anything starts. It has the package's nodes by name, too.
4. :mod:`~zc_perception.nodes.params.node_parameters`: the parameters of a node that runs, and
   their changes.

Besides: :mod:`~zc_perception.nodes.params.ros_arguments` reads command lines,
:mod:`~zc_perception.nodes.params.qos_overrides` is about ``qos_overrides.*``, and
:mod:`~zc_perception.nodes.params.schema` writes the JSON schema.
"""
