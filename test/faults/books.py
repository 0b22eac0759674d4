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

"""The last fault: after all others, the programs hold the same resources as at first."""

from __future__ import annotations

from dataclasses import replace

from faults.harness import fault, Trial


@fault(
    'all of it together',
    (
        'after all faults, no process that lives on holds a descriptor, thread, mapping or socket '
        'more than at first'
    ),
)
def together(trial: Trial) -> None:
    stage = trial.stage
    held = {role: stage.first.held[role] for role in stage.pids()}
    lines = {role: len(program.lines) for role, program in stage.programs.items()}
    stage.settle(trial, replace(stage.first, held=held, lines=lines), final=True)
    stage.account()
