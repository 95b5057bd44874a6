"""vLLM's CPU worker, able to take new weights while it runs. vLLM loads it by the engine argument `worker_cls`."""

import torch
import vllm.model_executor.layers.utils as layer_utils
from vllm.v1.worker.cpu_worker import CPUWorker

from r3_ext.cpu.weight_sync import address_of_this_run
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


def keep_plain_weights(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute a linear layer from its own weight.

    vLLM's function packs the weight for the instruction set at hand and drops the original, and with it the
    `weight_loader` that verl's weight update goes through.
    """
    layer.cpu_linear = torch.nn.functional.linear


# vLLM offers no setting for this; the layers look the function up in this module each time they load weights.
layer_utils.dispatch_cpu_unquantized_gemm = keep_plain_weights


class TrainableCPUWorker(CPUWorker, vLLMColocateWorkerExtension):
    """vLLM's worker with verl's extension as a base: vLLM would mix it in, and its methods could not be extended."""

    def _get_zmq_handle(self) -> str:
        return address_of_this_run(super()._get_zmq_handle())
