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
"""A checkpoint of somebody else is data: reading it runs nothing of what it names.

verl reads checkpoints with `torch.load(..., weights_only=False)`, which calls whatever function the file names. torch
lets an environment variable overrule that argument; besides tensors and plain values, verl's files hold numpy's random
state only.
"""

import os
import pickle
import re
from contextlib import contextmanager

import numpy as np
import torch

VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
STATE = np.random.get_state()[1]  # pyright: ignore[reportArgumentType]
ARRAY = [np.ndarray, np.dtype, type(STATE.dtype), STATE.__reduce__()[0]]
"""What torch needs to be allowed to rebuild numpy's random state."""


@contextmanager
def without_unpickling():
    """Inside, every `torch.load` of this process reads tensors, plain values and arrays of numbers.

    Raises:
        ValueError: a file names anything else. It has not been called.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        with torch.serialization.safe_globals(ARRAY):
            yield
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"names {named[1]}" if named else "holds more than tensors and plain values"
        raise ValueError(f"a file of the checkpoint is not read, as that could run a program: it {what}") from error
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
