"""Of a parameter file's model: whether its manifest can be read, and on which accelerator it is loaded, for real, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

from zc_perception.doctor import answers
from zc_perception.doctor.needs import node_need
from zc_perception.machine.finding import Finding, Status, ok, skip, told
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.machine.system import System
from zc_perception.shipped_files import shipped_file


def _inferences(needs: Needs) -> tuple[NodeNeed, ...]:
    """Without a parameter file: what the inference node does by itself."""
    return needs.inferences or (node_need('inference', {}),)


def _question(inference: NodeNeed) -> str:
    return json.dumps(dict(inference.values))


def model_manifest(system: System, needs: Needs) -> Iterator[Finding]:
    """Found, valid, with the files of its engines."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            page = shipped_file('docs/models.md')
            advice = f'set model to a shipped one, or the path of a model.yaml (see {page})'
            yield Finding(Status.FAIL, str(answer['error']), advice, inference.node)
            continue
        engines = ', '.join(answer['engines'])
        figures = {key: answer[key] for key in ('name', 'manifest', 'engines', 'classes', 'input')}
        yield ok(
            f'model {answer["name"]}: engine {engines}, {answer["classes"]} classes',
            inference.node,
            **figures,
        )


def model_load(system: System, needs: Needs) -> Iterator[Finding]:
    """On which accelerator, and why on none that is better."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            yield skip('there is no such model; see model.manifest', inference.node)
            continue
        if 'error' in answer:
            yield told(Status.FAIL, answer['error'], inference.node, accelerator=inference.kind)
            continue
        figures = {
            key: answer[key] for key in ('accelerator', 'device', 'copy_free', 'engine', 'reasons')
        }
        device = f' ({answer["device"]})' if answer['device'] else ''
        found = f'model {answer["name"]} runs on {answer["accelerator"]}{device}, engine {answer["engine"]}'
        if answer[
            'reasons'
        ]:  # a model without a variant for a card, or no card, is no fault of the machine
            found += '; no better accelerator fits (--verbose says why)'
        yield ok(found, inference.node, **figures)
