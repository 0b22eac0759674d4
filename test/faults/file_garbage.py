"""Parameter files that nobody should write: our own with something wrong, YAML of any shape, and what is no YAML at all."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CONFIG = Path(__file__).resolve().parents[2] / 'config'
CORPUS = Path(__file__).resolve().parents[1] / 'fuzz' / 'corpus' / 'parameters'

_VALUES = ['~', '', '{}', '[]', '[[1]]', '[1, a]', '"\\0"', '.nan', '-1', '1e999', '9' * 20, '0x', '*a', '&a', '!!python/none',
           '!!python/object/apply:os.system ["true"]', "'", '"', '|', '>', '? a', '- b', '\t', 'yes', 'null', '2020-01-01', '{a: {b: 1}}',
           'x' * 5000]  # fmt: skip
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_names = st.sampled_from(['/**', '/**/capture', 'capture', 'ros__parameters', 'width', 'model', 'slots', '']) | st.text(max_size=8)
_trees = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=12)


def mutated(rng: random.Random, text: str) -> bytes:
    """One of our files, with one to three things wrong."""
    lines = text.splitlines()
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                lines[at] = re.sub(r':.*', f': {rng.choice(_VALUES)}', lines[at])
            case 1:
                lines[at] = rng.choice([' ', '  ', '\t']) + lines[at]
            case 2:
                lines[at] = lines[at].lstrip()
            case 3:
                lines.insert(at, rng.choice(lines))
            case 4:
                lines[at] = re.sub(r'(\w)(\w+):', r'\2\1:', lines[at])
            case 5:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case _:
                lines[at] = lines[at].replace(':', rng.choice(['', '::', ': :', ' :', ': ? ']))
    raw = bytearray('\n'.join(lines).encode() + b'\n')
    if rng.random() < 0.3:
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def shaped(count: int, seed: int) -> list[bytes]:
    """YAML of any shape, by hypothesis."""
    found: list[bytes] = []

    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(_trees)
    def collect(tree: Any) -> None:
        found.append(yaml.safe_dump(tree, allow_unicode=True).encode('utf-8', 'surrogatepass'))

    from hypothesis import seed as seeded

    seeded(seed)(collect)()
    return found[:count]


def garbage(count: int, rng: random.Random) -> list[bytes]:
    """*count* files: the stored ones, and a third each of the others."""
    stored = [path.read_bytes() for path in sorted(CORPUS.glob('*'))]
    texts = [path.read_text(encoding='utf-8') for path in sorted(CONFIG.glob('*.yaml'))]
    files = [*stored, *shaped(count // 3, rng.randrange(1 << 30)), *(mutated(rng, rng.choice(texts)) for _ in range(count // 2))]
    while len(files) < count:
        files.append(rng.randbytes(rng.randrange(300)))
    rng.shuffle(files)
    return files[:count]
