#!/usr/bin/env bash
# Start Ray on this node, with the network interface that the nodes share named to NCCL, gloo and vLLM.
#
#   bash examples/cluster/start_ray.sh                     on the head node; prints RAY_ADDRESS=HOST:PORT
#   bash examples/cluster/start_ray.sh HOST:PORT           on every other node
#
# Further arguments go to `ray start`. R3_INTERFACE names an interface (default: the one of the route to the head node,
# on the head node that of the default route), RAY_PORT the head's port (6379).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bash "$root/examples/install.sh" 1>&2
python="$(bash "$root/examples/install.sh" --print-python)"
head=""
if [[ "${1:-}" == *:* && "${1:-}" != --* ]]; then
    head="$1"
    shift
fi

# The interface of the route to the head node, and this node's address on it. A datagram socket is connected, and
# nothing is sent.
read -r interface address < <("$python" - "${head%:*}" "${R3_INTERFACE:-}" <<'END'
import socket
import sys

import psutil

head, wanted = sys.argv[1:]
addresses = {
    name: [entry.address for entry in entries if entry.family == socket.AF_INET]
    for name, entries in psutil.net_if_addrs().items()
}
if wanted:
    if not addresses.get(wanted):
        sys.exit(f"R3_INTERFACE={wanted} has no IPv4 address; there are {', '.join(n for n in addresses if addresses[n])}")
    print(wanted, addresses[wanted][0])
else:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((head or "8.8.8.8", 9))
            address = probe.getsockname()[0]
    except OSError as error:
        sys.exit(f"no route to {head or 'anywhere'} ({error}): name the interface that the nodes share, R3_INTERFACE=eth1")
    print(next(name for name, known in addresses.items() if address in known), address)
END
)
[[ -n "$address" ]] || exit 1
export NCCL_SOCKET_IFNAME="$interface" GLOO_SOCKET_IFNAME="$interface" VLLM_HOST_IP="$address"
# Whoever reaches an open port of Ray runs what he likes; the nodes share the token of the user's home folder.
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
ray=("$python" -m ray.scripts.scripts)
if [[ -z "$head" ]]; then
    if [[ "$RAY_AUTH_MODE" == token && -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ]]; then
        "${ray[@]}" get-auth-token --generate > /dev/null
    fi
    head="$address:${RAY_PORT:-6379}"
    "${ray[@]}" start --head --node-ip-address "$address" --port "${RAY_PORT:-6379}" --include-dashboard false \
        --disable-usage-stats "$@" 1>&2
    echo "RAY_ADDRESS=$head"
else
    "${ray[@]}" start --address "$head" --node-ip-address "$address" --disable-usage-stats "$@" 1>&2
fi
