"""Simulates candidates, one after another or on several processes, and puts the results side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from math import ceil

from ...async_dapo.core.mix import Mix
from .candidates import Candidate, bound_of, natural_concurrency
from .measures import StepMeasure, mean_of
from .scenario import Scenario
from .simulated_training import TrainingRun

TRAJECTORIES_TO_MEASURE = 16_000
TRAJECTORY_S = 4e-4  # of a core, to simulate one: seen on one machine
EVEN = 0.02  # of the tokens trained in a window, that its end may hold more or fewer than its beginning
LONGEST = 4  # times its fewest steps has a window that does not become even
STEPS_TO_CONVERGE = 3  # of a pool that sizes itself
MOST_WARMUP = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate and its mean step."""

    candidate: Candidate
    mean: StepMeasure
    natural_len_tok: float  # mean response length of the valid groups among the prompts it drew
    bound_s: float  # the fastest step that the GPUs allow, without drafts
    speed_up: float = 1.0  # tokens in the loss per second, over the first row's

    @property
    def bound_share(self) -> float:
        """Of the bound's speed, reached; one that drafts or prefers short answers may pass 1."""
        return self.bound_s / self.mean.step_s

    @property
    def length_bias(self) -> float:
        """Mean trained response length over the natural one; below 1, training prefers short answers."""
        return self.mean.trained_len_tok / self.natural_len_tok if self.natural_len_tok else 1.0


def simulate(
    scenario: Scenario, candidate: Candidate, *, steps: int | None, warmup: int | None
) -> tuple[StepMeasure, float]:
    """The mean step of a candidate, after its buffer has filled, and the natural length of its prompts [tokens].

    Without a number of `steps`, as many as generate what they train: a round that drains may end with several batches.
    """
    run = TrainingRun(scenario, candidate.system)
    warmup, fewest = _fewest_steps(scenario, candidate, run, steps=steps, warmup=warmup)
    held_tok = 0
    for _ in range(warmup):
        held_tok = run.step().buffered_tok
    most = steps or LONGEST * fewest
    measured = [run.step() for _ in range(fewest)]
    while len(measured) < most and not _is_even(measured, held_tok):
        measured.append(run.step())
    return mean_of(measured), run.natural_len_tok


def expected_s(
    scenario: Scenario, candidates: Sequence[Candidate], *, steps: int | None, warmup: int | None, jobs: int
) -> float:
    """What a sweep takes on free cores, about [s]."""
    each = [
        _fewest_steps(scenario, one, TrainingRun(scenario, one.system), steps=steps, warmup=warmup)
        for one in candidates
    ]
    trajectories = sum(map(sum, each)) * scenario.train_batch_size * scenario.rollout_n
    return TRAJECTORY_S * trajectories / min(jobs, len(candidates))


def _fewest_steps(
    scenario: Scenario, candidate: Candidate, run: TrainingRun, *, steps: int | None, warmup: int | None
) -> tuple[int, int]:
    """Steps that are simulated and not measured, and those that are measured at least."""
    batch = scenario.train_batch_size * scenario.rollout_n
    if warmup is None:
        capacity = min(natural_concurrency(scenario), scenario.num_servers * scenario.max_num_seqs)
        warmup = _steps_to_steady_state(run, candidate, batch, scenario.mean_len_tok, capacity)
    return warmup, steps or min(40, max(2, ceil(TRAJECTORIES_TO_MEASURE / batch)))


def _is_even(window: Sequence[StepMeasure], held_tok: int) -> bool:
    """Whether a window ends with about the tokens for later steps that were held before it."""
    return abs(window[-1].buffered_tok - held_tok) <= EVEN * sum(step.trained_tok for step in window)


def _steps_to_steady_state(
    run: TrainingRun, candidate: Candidate, batch: int, mean_len_tok: float, capacity: int
) -> int:
    """Steps until as many trajectories end in a step as begin, of every length; 0 for a system that keeps nothing.

    In the first steps of a large pool short responses end and long ones do not: it trains on short ones, and later on
    those that were left. A mean one is in flight for as many rounds as there are batches in flight. In an engine it is
    for as many as there are batches in the engines, and the longest for as many times more as it is longer, or until
    the limit on staleness has it finished.

    Args:
        capacity: trajectories that the engines run at once.
    """
    habits = candidate.system.habits
    if habits.drops_surplus and (run.options.drains or habits.drops_interrupted):
        return 0
    held = Mix(run.options.over_sampling()).groups_to_hold * run.options.rollout_n
    in_flight = min(candidate.concurrency or run.first_pool_size, held)
    rounds = in_flight / batch
    longest = min(in_flight, capacity) / batch * run.options.max_response_length / mean_len_tok
    if run.options.max_staleness is not None:
        longest = min(longest, run.options.max_staleness + 1)
    least = 1 if candidate.concurrency else STEPS_TO_CONVERGE
    return min(MOST_WARMUP, max(least, ceil(rounds) + ceil(longest)))


def sweep(
    scenario: Scenario,
    candidates: list[Candidate],
    *,
    steps: int | None = None,
    warmup: int | None = None,
    jobs: int = 1,
    on_row: Callable[[Candidate, StepMeasure], None] = lambda candidate, mean: None,
    is_urgent: Callable[[Candidate], bool] = lambda candidate: False,
    first: Row | None = None,
) -> list[Row]:
    """Simulate every candidate; speed-ups refer to the first. The same seed gives the same rows, on any `jobs`.

    Args:
        on_row: called with each row's mean step when it is known.
        is_urgent: these are simulated before the others.
        first: of an earlier sweep, that speed-ups refer to.
    """
    run = partial(simulate, scenario, steps=steps, warmup=warmup)
    order = sorted(range(len(candidates)), key=lambda place: not is_urgent(candidates[place]))
    results = dict(zip(order, _simulate_all(run, [candidates[place] for place in order], jobs, on_row), strict=True))
    reference = (results[0][0] if first is None else first.mean).tokens_per_s_per_gpu
    bound_s = bound_of(scenario).step_s
    return [
        Row(
            candidate=candidate,
            mean=mean,
            natural_len_tok=natural_len_tok,
            bound_s=bound_s,
            speed_up=mean.tokens_per_s_per_gpu / reference,
        )
        for place, candidate in enumerate(candidates)
        for mean, natural_len_tok in (results[place],)
    ]


def _simulate_all(
    run: Callable[[Candidate], tuple[StepMeasure, float]],
    candidates: list[Candidate],
    jobs: int,
    on_row: Callable[[Candidate, StepMeasure], None],
) -> list[tuple[StepMeasure, float]]:
    """In the order of the candidates. After the first error no other candidate is begun."""
    if jobs <= 1:
        results = []
        for candidate in candidates:
            results.append(run(candidate))
            on_row(candidate, results[-1][0])
        return results
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        futures = {pool.submit(run, candidate): candidate for candidate in candidates}
        try:
            for future in as_completed(futures):
                on_row(futures[future], future.result()[0])
        finally:
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]
