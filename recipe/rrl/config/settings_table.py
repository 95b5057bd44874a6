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
"""`python -m recipe.rrl.config.settings_table`: write what rrl.yaml and README.md say, from rrl_config.py."""

import sys
from pathlib import Path

from recipe.common.config import settings_text
from recipe.rrl.config.rrl_config import KEY, RRLConfig

HERE = Path(__file__).parent
COMMAND = "python -m recipe.rrl.config.settings_table"
BLOCK = settings_text.Block(
    RRLConfig,
    KEY,
    method="rrl",
    others={"ppo": HERE / "method" / "ppo.yaml"},
    placed={"states.path": "${trainer.default_local_dir}/states.sqlite"},
)


def written() -> dict[Path, str]:
    """What each file should hold."""
    return settings_text.written([(BLOCK, HERE / "rrl.yaml")], COMMAND, HERE.parent / "README.md")


if __name__ == "__main__":
    sys.exit(settings_text.main(sys.argv[1:], COMMAND, written()))
