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
Metis cards through Axelera's Voyager runtime.

Axelera's Python package is used if it can be imported, otherwise the C library. Read
``accelerator`` first, then ``worker`` (the threads of one core). ``tensors`` has the tensors'
memory and converts frames into tensors. ``runtime`` has the base classes of the C and the Python
interface, and the objects of the C interface. ``binding`` is the Python interface, ``library`` has
the C functions.
"""
