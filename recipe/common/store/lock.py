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
"""One trainer per file: the lock beside a store's file, and the file systems that cannot share memory."""

import fcntl
import os
import socket
import weakref

from recipe.common.store.file import Kind

NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p"),
    *("virtiofs", "pvfs2", "orangefs", "fuse"),
}


def network_file_system(path: str, mounts: str | None = None) -> str | None:
    """The type of the network file system that holds `path`, or None. `mounts`: the text of /proc/self/mounts."""
    if mounts is None:
        if not os.path.exists("/proc/self/mounts"):
            return None
        with open("/proc/self/mounts") as file:
            mounts = file.read()
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, this_kind, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = f"{os.path.realpath(path)}/".startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, this_kind
    name = "fuse" if kind.startswith("fuse.") else kind
    return kind if name in NETWORK_FILE_SYSTEMS else None


class Lock:
    """Holds `{path}.lock` for this process; the kernel lets go of it when the process dies, however it dies."""

    def __init__(self, path: str, kind: Kind):
        self._file = open(f"{path}.lock", "a+")
        # A forked child shares the lock, and would hold it after this process died.
        file = weakref.ref(self._file)
        os.register_at_fork(after_in_child=lambda: (held := file()) and held.close())
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip()
            self._file.close()
            raise kind.error(
                f"{kind.name} {path}: in use by {owner or 'another process'}; one trainer per file: wait for it to "
                f"end, or set {kind.key} to a file of this run"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()
