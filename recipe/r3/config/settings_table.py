# Copyright 2026 Individual Contributor: the R^3 recipe authors
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
"""`python -m recipe.r3.config.settings_table`: write what r3.yaml and README.md say, from r3_config.py."""

import sys
from pathlib import Path

from recipe.common.config import settings_text
from recipe.r3.config.r3_config import KEY, R3Config

HERE = Path(__file__).parent
COMMAND = "python -m recipe.r3.config.settings_table"
BLOCK = settings_text.Block(
    R3Config,
    KEY,
    method="r3",
    others={"r3_paper": HERE / "method" / "r3_paper.yaml"},
    placed={"history.path": "${trainer.default_local_dir}/history.sqlite"},
    told={
        "replay.reflected_unless": "`ATTEMPT_WORDS`",
        "reflection.template": "see `r3_config.py`",
        "reflection.template_cut_off": "see `r3_config.py`",
    },
)


def written() -> dict[Path, str]:
    """What each file should hold."""
    return settings_text.written([(BLOCK, HERE / "r3.yaml")], COMMAND, HERE.parent / "README.md")


if __name__ == "__main__":
    sys.exit(settings_text.main(sys.argv[1:], COMMAND, written()))
