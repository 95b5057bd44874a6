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
"""Names that settings, formulas and rows share."""

MEAN_STD_NORM = "mean_std_norm"
NORMS = (MEAN_STD_NORM, "mean_norm")
PAPER, RELEASE = WEIGHTS = ("paper", "release")
AGENT_NAME = "session"
"""The agent loop, in rows and settings."""
VALID, BAD_FORMAT, INADMISSIBLE = "valid", "format", "inadmissible"
"""What an answer was: a command that the environment took; none in the form that is asked for, or cut off; or one that
the environment does not allow here."""
