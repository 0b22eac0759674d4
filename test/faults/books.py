"""Last of all: after all that was done to them, the programs hold what they held at first."""

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
