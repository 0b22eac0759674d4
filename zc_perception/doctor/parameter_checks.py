"""The parameter file: what the nodes would refuse."""

from __future__ import annotations

from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Status, ok, skip
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System


def parameter_file(system: System, needs: Needs) -> Iterator[Finding]:
    """Every key and value, by the nodes' own rules; without rclpy only what the other checks read of it."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file)')
        return
    answer = system.ask('parameters', needs.path, 'given' if needs.cameras_given else 'named', *needs.namespaces())
    if 'error' in answer:
        problems, checked = list(needs.refused), None
    else:
        problems, checked = list(answer['problems']), answer['checked']
    misses = list(answer.get('misses', ()))
    warnings = [*misses, *answer.get('warnings', ())]
    figures = {'checked': checked, 'problems': problems, 'warnings': warnings}
    if problems:
        said = '; '.join(problems + warnings)
        yield Finding(Status.FAIL, f'{needs.path}: {said}', 'correct it: the node does not start with it', '', figures)
        return
    if checked is None:
        step = 'install it, or unset RMW_IMPLEMENTATION;' if 'missing' in answer else 'source ROS 2;'
        advice = f'{step} then run zc_doctor again, which checks every key; the values that other checks use have the right types'
        yield Finding(Status.WARN, f'{needs.path} could not be checked completely: {answer["error"]}', advice, '', figures)
    elif warnings:
        advice = 'correct it, unless it belongs to another package; the nodes start in any case'
        if misses:
            advice = 'correct it, or give zc_doctor the same --cameras as perception; without them these nodes do not start'
        yield Finding(Status.WARN, f'{needs.path}: {"; ".join(warnings)}', advice, '', figures)
    elif not checked:
        yield Finding(
            Status.WARN, f'{needs.path} has no parameter for the nodes of this package', 'name its sections /**/capture, /**/inference', ''
        )
    else:
        yield ok(f'{needs.path}: {checked} parameters, all known and in range', checked=checked)
