"""The model: its manifest, its engine files, and the accelerator that would run it. Loaded for real, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Status, ok, skip
from zc_perception.doctor.needs import InferenceNeed, Needs
from zc_perception.doctor.system import System


def _inferences(needs: Needs) -> tuple[InferenceNeed, ...]:
    """Without a parameter file: what the inference node does by itself."""
    return needs.inferences or (InferenceNeed(),)


def _question(inference: InferenceNeed) -> str:
    return json.dumps(inference.as_json() | {'node': ''})


def model_manifest(system: System, needs: Needs) -> Iterator[Finding]:
    """Found, valid, with the files of its engines."""
    for inference in _inferences(needs):
        answer = system.ask('model', _question(inference))
        if answer.get('stage') == 'manifest':
            advice = 'set model to a shipped one, or the path of a model.yaml (see docs/models.md)'
            yield Finding(Status.FAIL, str(answer['error']), advice, inference.node)
            continue
        engines = ', '.join(answer['engines'])
        figures = {key: answer[key] for key in ('name', 'manifest', 'engines', 'classes', 'input')}
        yield ok(f'model {answer["name"]}: engine {engines}, {answer["classes"]} classes', inference.node, **figures)


def model_load(system: System, needs: Needs) -> Iterator[Finding]:
    """On which accelerator, and why on none that is better."""
    for inference in _inferences(needs):
        answer = system.ask('model', _question(inference))
        if answer.get('stage') == 'manifest':
            yield skip('there is no such model; see model.manifest', inference.node)
            continue
        if 'error' in answer:
            found, _, advice = str(answer['error']).rpartition('; ')
            yield Finding(Status.FAIL, found or advice, advice, inference.node, {'accelerator': inference.accelerator})
            continue
        figures = {key: answer[key] for key in ('accelerator', 'device', 'copy_free', 'engine', 'reasons')}
        device = f' ({answer["device"]})' if answer['device'] else ''
        found = f'model {answer["name"]} runs on {answer["accelerator"]}{device}, engine {answer["engine"]}'
        if answer['reasons']:  # a model without a variant for a card, or no card, is no fault of the machine
            found += '; no better accelerator fits (--verbose says why)'
        yield ok(found, inference.node, **figures)
