"""What asking all-wrong groups again costs the generation of a synchronous step, with lengths of real reasoning models.

    python -m tests.benchmarks.waiting                         two worlds, limits of 8k and 16k: about a minute
    python -m tests.benchmarks.waiting --seeds 200 --again-n 8
    python -m tests.benchmarks.waiting --gpus 8 --running 256

A simulation; nothing is generated. One step of `reflection.when`, each way on the same plain answers:

    none        no reflection prompts: the first epoch of next_visit, too
    next_visit  second epoch: problems below reflection.threshold at their last visit are asked from the step's start
    next_step   the all-wrong groups of the step before are asked from the step's start
    at_once     asked at the first poll that finds the last answer of the group, if those before it in the seeded order
                leave a place (`due` of the recipe). First epoch: the history rescues nothing

At most reflection.max_fraction of the prompts are asked. A step ends with the poll that finds its last answer.

The lengths, and where they come from, are in lengths.py.

A decoding step takes `overhead + answers * per answer + weights / bandwidth + cache / (0.8 bandwidth)`. 1.3 ms, 0.014
ms and 0.8 follow from vLLM's times on an H100 PCIe (2.0 TB/s; github.com/vllm-project/vllm/pull/53060, FA3):
Qwen2.5-0.5B (1.0 GB; 12,288 bytes a token) 1.68 ms for one answer at 128 tokens, 2.15 for 32, 6.07 for 32 at 16,384;
Qwen3-1.7B (3.4 GB) 3.20 for one. Arithmetic adds 0.006 ms an answer. The bandwidth is an H100 SXM's, 3.35 TB/s, the
model Qwen-1.5B in both worlds: 3.1 GB a step, and 28 layers * 2 * 2 heads * 128 * 2 bytes = 28,672 a token. 2.3 million
tokens fit beside it (gpu_4x80gb); where more are cached vLLM preempts, which is not simulated. Nor are prefills (about
a second for 32 reflection prompts on each GPU), shared prefixes, grading and weight sync.
"""

import argparse
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recipe.r3.config.r3_config import AT_ONCE, NEXT_STEP, NEXT_VISIT, ReflectionConfig
from recipe.r3.replay.all_wrong import due
from tests.benchmarks.lengths import LIMITS, WORLDS, Fitted, Measured, Problems

NONE = "none"
PROMPT, REFLECTION_PROMPT = 200, 4096
"""Tokens; a reflection prompt shows an attempt of thousands of tokens, cut to data.max_prompt_length."""

Asked = Iterator[tuple[int, np.ndarray]]
"""Groups that are asked now, and the lengths of the answers."""


@dataclass(frozen=True)
class Engine:
    """Replicas of a model, one a GPU. A decoding step of n answers takes base_s + n * answer_s + cached * token_s."""

    base_s: float
    answer_s: float
    token_s: float
    """For each token in the cache of a running answer."""
    running: int
    """`max_num_seqs`."""
    replicas: int
    poll_s: float
    """`trainer.v1.sampler.sampler_kwargs.poll_interval`; verl's default is 2."""


class Replica:
    """Continuous batching: who waits joins at the step after another has ended, first come, first served."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.now, self.steps, self.cached, self.most_cached = 0.0, 0, 0, 0
        self.running: list[tuple[int, int, int]] = []
        """Heap of (the step that ends the answer, group, tokens in the cache then)."""
        self.waiting: deque[tuple[int, int, int]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.waiting)

    def submit(self, group: int, length: int, prompt: int) -> None:
        """It joins the step that is under way, or waits."""
        self.waiting.append((group, length, prompt))

    def run(self, until: float) -> list[int]:
        """Decode until then; returns the group of each answer that ended."""
        ended = []
        while self.in_flight:
            self._admit()
            n, engine = len(self.running), self.engine
            # The i-th step from here reads cached + n * i tokens.
            first = engine.base_s + n * engine.answer_s + engine.token_s * (self.cached + n / 2)
            grows = engine.token_s * n / 2
            steps = self.running[0][0] - self.steps
            if self.now + steps * (first + steps * grows) > until:
                self._decode(_steps_within(until - self.now, first, grows), n, first, grows)
                return ended
            self._decode(steps, n, first, grows)
            while self.running and self.running[0][0] == self.steps:
                _, group, tokens = heapq.heappop(self.running)
                self.cached -= tokens
                ended.append(group)
        self.now = until
        return ended

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.engine.running:
            group, length, prompt = self.waiting.popleft()
            heapq.heappush(self.running, (self.steps + length, group, prompt + length))
            self.cached += prompt

    def _decode(self, steps: int, n: int, first: float, grows: float) -> None:
        self.now += steps * (first + steps * grows)
        self.steps += steps
        self.cached += n * steps
        self.most_cached = max(self.most_cached, self.cached)


def _steps_within(seconds: float, first: float, grows: float) -> int:
    """Most k with k * (first + k * grows) <= seconds."""
    if grows == 0:
        return max(0, int(seconds / first))
    return max(0, int((math.sqrt(first * first + 4 * grows * max(0.0, seconds)) - first) / (2 * grows)))


@dataclass(frozen=True)
class Generation:
    seconds: float
    tokens: int
    asked: int
    """Reflection groups."""
    most_cached: int
    """Tokens on one GPU."""


def generate(
    engine: Engine, plain_PN: np.ndarray, early: Sequence[np.ndarray], ask: Callable[[set[int]], Asked] | None = None
) -> Generation:
    """One step.

    Args:
        plain_PN: tokens of each answer of each group.
        early: tokens of the answers of the reflection groups that are asked from the start.
        ask: given the plain groups that have ended so far, which ones are asked now.
    """
    replicas = [Replica(engine) for _ in range(engine.replicas)]
    answers = [(group, plain_PN[group], PROMPT) for group in range(len(plain_PN))]
    answers += [(-1, lengths, REFLECTION_PROMPT) for lengths in early]
    left, tokens, asked, now = Counter(), 0, len(early), 0.0
    while answers or any(replica.in_flight for replica in replicas):
        for group, lengths, prompt in answers:
            left[group] += len(lengths)
            tokens += int(lengths.sum())
            for length in lengths:
                min(replicas, key=lambda replica: replica.in_flight).submit(group, int(length), prompt)
        now += engine.poll_s
        left.subtract([group for replica in replicas for group in replica.run(now)])
        ended = {group for group, count in left.items() if count == 0 and group >= 0}
        answers = [(-1, lengths, REFLECTION_PROMPT) for _, lengths in ask(ended)] if ask else []
        asked += len(answers)
    return Generation(now, tokens, asked, max(replica.most_cached for replica in replicas))


def at_once(
    order: Sequence[int], hard_P: np.ndarray, cap: int, answers: Callable[[int], np.ndarray]
) -> Callable[[set[int]], Asked]:
    """What the recipe's `Asker` does at a poll of the synchronous mode.

    Args:
        order: of the groups, in which they get the places.
        answers: lengths of the answers when this group is asked again.
    """
    places, asked = [str(group) for group in order], set()

    def ask(ended: set[int]) -> Asked:
        now = due(places, {str(group): bool(hard_P[group]) for group in ended}, cap)
        for group in [int(place) for place in now if int(place) not in asked]:
            asked.add(group)
            yield group, answers(group)

    return ask


def step(
    world: Measured | Fitted, limit: int, way: str, again_n: int, seed: int, args: argparse.Namespace, engine: Engine
) -> Generation:
    """One step of a way; the plain answers depend on the seed alone."""
    config = ReflectionConfig()
    cap = config.cap(args.prompts)
    rng, other = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    problems = world.problems(rng, args.prompts, limit)
    plain_PN, right_P = world.answers(rng, problems, args.n, limit)
    order = other.permutation(args.prompts)

    def again(of: Problems) -> np.ndarray:
        lengths = world.answers(other, of, again_n, limit)[0] * args.again_length
        return lengths.clip(1, limit).astype(int)

    if way == AT_ONCE:
        ask = at_once(order.tolist(), right_P == 0, cap, lambda group: again(problems.take([group]))[0])
        return generate(engine, plain_PN, [], ask)
    if way == NONE:
        return generate(engine, plain_PN, [])
    if way == NEXT_STEP:
        problems = world.problems(other, args.prompts, limit)
    before_P = world.answers(other, problems, args.n, limit)[1]
    hard_P = before_P == 0 if way == NEXT_STEP else before_P < config.threshold
    return generate(engine, plain_PN, list(again(problems.take([row for row in order if hard_P[row]][:cap]))))


def report(name: str, limit: int, args: argparse.Namespace, engine: Engine) -> None:
    world, rng = WORLDS[name], np.random.default_rng(0)
    lengths, right = world.answers(rng, world.problems(rng, 20_000, limit), args.n, limit)
    print(f"\n{name}, limit {limit}: {lengths.mean():.0f} tokens an answer, {(lengths >= limit).mean():.0%} cut off")
    print(f"{(right == 0).mean():.0%} of the groups all wrong, with {lengths[right == 0].mean():.0f} tokens an answer")
    print(f"{'way':<12}{'n again':>8}{'seconds':>16}{'growth':>18}{'M tokens':>10}{'asked':>7}{'M cached':>10}")
    base = np.array([])
    for way, n in [(NONE, 0), *((way, n) for n in args.again_n for way in (NEXT_VISIT, NEXT_STEP, AT_ONCE))]:
        found = [step(world, limit, way, n, seed, args, engine) for seed in range(args.seeds)]
        seconds = np.array([one.seconds for one in found])
        base = seconds if way == NONE else base
        tokens, asked = (np.mean([getattr(one, field) for one in found]) for field in ("tokens", "asked"))
        cached, growth = max(one.most_cached for one in found), 100 * (seconds / base - 1)
        grown = f"{growth.mean():+8.1f} % ± {half(growth):4.1f}" if way != NONE else ""
        told = f"{seconds.mean():9.1f} ± {half(seconds):4.1f}{grown:>18}{tokens / 1e6:>10.2f}{asked:>7.1f}"
        print(f"{way:<12}{n or '':>8}{told}{cached / 1e6:>10.2f}", flush=True)


def half(values: np.ndarray) -> float:
    """Half of the 95 % interval of the mean."""
    return 1.96 * values.std(ddof=1) / math.sqrt(len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--again-n", type=int, nargs="+", default=[8, 4, 2], help="answers of a reflection group")
    parser.add_argument("--again-length", type=float, default=1.0, help="of such an answer, in plain ones")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--running", type=int, default=320, help="max_num_seqs")
    parser.add_argument("--overhead-ms", type=float, default=1.3)
    parser.add_argument("--per-answer-ms", type=float, default=0.02)
    args = parser.parse_args()
    engine = Engine(
        base_s=args.overhead_ms / 1e3 + 3.1e9 / 3.35e12,
        answer_s=args.per_answer_ms / 1e3,
        token_s=28_672 / (0.8 * 3.35e12),
        running=args.running,
        replicas=args.gpus,
        poll_s=2.0,
    )
    each = args.prompts * args.n / args.gpus
    print(f"{args.seeds} steps of {args.prompts} prompts * {args.n} on {args.gpus} GPUs: {each:.0f} answers each")
    for name in WORLDS:
        for limit in LIMITS:
            report(name, limit, args, engine)


if __name__ == "__main__":
    main()
