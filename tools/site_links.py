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
A hook of mkdocs that adapts the pages, which are written for GitHub, to the site.

Some links of the pages lead to files outside docs/. If such a file is a picture, the hook copies
it to the site. Otherwise the hook makes the link lead to ``repo_url`` of mkdocs.yml. If that isn't
set, it makes the link plain text.
"""

from __future__ import annotations

from pathlib import Path
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ('.png', '.jpg', '.svg')
# A fence or a code span, which isn't changed; or a link to a file outside docs/.
_PART = re.compile(
    (
        r'^ *```.*?^ '
        r'*```|(?<!\[)`[^`\n]*`|(?P<mark>!?)\[(?P<words>[^\]]*)\]\(\.\./(?P<path>[^)#\s]+)'
        r'(?P<anchor>#[^)\s]*)?\)'
    ),
    re.DOTALL | re.MULTILINE,
)
# In a numbered list, GitHub needs three spaces before a fence, Python-Markdown four.
_FENCE_IN_LIST = re.compile(r'^ {3}```.*?^ {3}```$', re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """
    Rewrite a page's links; mkdocs calls this for each page.

    Every page is a file directly in docs/, so ``../`` is the repository's root.
    """

    def replacement(found: re.Match[str]) -> str:
        path = found['path']
        if path is None:
            return found[0]
        if found['mark'] and path.endswith(PICTURES):
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
            return f'![{found["words"]}]({path})'
        if not config.repo_url:
            return found['words']
        kind = 'tree' if (ROOT / path).is_dir() else 'blob'
        target = f'{config.repo_url.rstrip("/")}/{kind}/main/{path}{found["anchor"] or ""}'
        return f'[{found["words"]}]({target})'

    return _FENCE_IN_LIST.sub(
        lambda found: re.sub('^', ' ', found[0], flags=re.MULTILINE),
        _PART.sub(replacement, markdown),
    )
