"""README's table of launch arguments, held against the launch files' own."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DECLARED = re.compile(r"DeclareLaunchArgument\(\s*'(\w+)'")


def test_the_table_has_every_argument_and_no_other() -> None:
    files = [*(REPOSITORY / 'launch').glob('*.py'), REPOSITORY / 'zc_perception/nodes/launching/arguments.py']
    declared = {name for file in files for name in DECLARED.findall(file.read_text(encoding='utf-8'))}
    table = (REPOSITORY / 'README.md').read_text(encoding='utf-8').partition('| argument | default | meaning |\n')[2].partition('\n\n')[0]
    rows = {name for row in table.splitlines() for name in re.findall(r'`(\w+)`', row.split(' | ')[0])}
    assert len(declared) > 10 and rows == declared
