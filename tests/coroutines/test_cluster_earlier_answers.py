"""Answers of a prompt's last visit in a whole run on virtual time: they reach the engines, and outlive the run."""

import pytest

from recipe.async_dapo.config import Drafts, RolloutStrategy
from recipe.async_dapo.core.prompt_history import MOST_ANSWERS
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.rollout.manager import make_group
from recipe.async_dapo.training.checkpoints import from_frames, to_frames

from ..support.simulated_cluster import Cluster
from ..support.simulated_options import options

DATA_SET = 12


class Revisited(Cluster):
    """Draws the same prompts again and again."""

    def _draw(self, count: int) -> list[PromptGroup]:
        numbers = range(self.num_drawn, self.num_drawn + count)
        self.num_drawn += count
        rows = [{"uid": f"group-{number}", "index": number % DATA_SET} for number in numbers]
        return [make_group(row, n=self.options.rollout_n, step=self.step_number) for row in rows]


def run(monkeypatch: pytest.MonkeyPatch, drafts: Drafts | None) -> Revisited:
    opts = options(drafts=drafts, rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED)
    cluster = Revisited(monkeypatch, opts)
    while cluster.num_drawn <= 2 * DATA_SET:
        cluster.step()
    return cluster


def test_given_a_second_visit_when_its_group_runs_then_its_engines_know_what_was_answered_at_the_first(monkeypatch):
    cluster = run(monkeypatch, Drafts.HISTORY)
    learned = [known for server in cluster.servers for known in server.learned]
    assert learned and all(int(uid.removeprefix("group-")) >= DATA_SET for uid, _ in learned)
    assert all(1 <= len(answers) <= MOST_ANSWERS and all(answers) for _, answers in learned)
    for server in cluster.servers:  # one agent loop worker tells a server once
        told = [uid for uid, _ in server.learned]
        assert max(map(told.count, told), default=0) <= cluster.options.num_workers
    kept = {key: place.load() for key, place in cluster.buffer.earlier.items()}
    assert kept
    frames = list(to_frames(cluster.buffer.state()))
    cluster.close()

    resumed = Revisited(monkeypatch, cluster.options)
    resumed.buffer.restore(from_frames(frames))
    assert {key: place.load() for key, place in resumed.buffer.earlier.items()} == kept
    assert resumed.buffer.earlier.size_bytes == cluster.buffer.earlier.size_bytes
    resumed.close()


def test_given_siblings_only_when_prompts_are_visited_again_then_nothing_is_kept_of_their_first_visit(monkeypatch):
    cluster = run(monkeypatch, Drafts.SIBLINGS)
    assert not len(cluster.buffer.earlier) and not any(server.learned for server in cluster.servers)
    cluster.close()
