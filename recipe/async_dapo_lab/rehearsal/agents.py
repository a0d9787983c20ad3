"""Scripted agents in the place of a run's agent programs."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from ...async_dapo.config.values import ConfigError
from ...async_dapo.extensions.gateway.black_box import BlackBoxAgent
from .options import NODE, RehearsalOptions
from .scripted_agent import SCRIPT

_FILE = "agents.yaml"  # in the folder of results
_FUNCTION = f"{__package__}.scripted_agent:run"


class ScriptedAgent(BlackBoxAgent):
    """An agent program of so many turns.

    Args:
        turns: of each trajectory [count].
        own_s: between two of them [real s].
        metric: that groups are filtered by.
    """

    def __init__(self, *args: Any, turns: int, own_s: float, metric: str, **options: Any) -> None:
        super().__init__(*args, agent=_FUNCTION, **options)
        self._script = {"turns": turns, "own_s": own_s, "metric": metric}

    async def _agent(self, address: str, key: str, sample: dict[str, Any]) -> Any:
        return await super()._agent(address, key, {"raw_prompt": sample["raw_prompt"], SCRIPT: self._script})


def script_agents(config: DictConfig, options: RehearsalOptions) -> None:
    """Have scripted agents run in the place of a checked run's agent programs.

    Raises:
        ConfigError: if the run has none.
    """
    agent = config.actor_rollout_ref.rollout.agent
    path = agent.agent_loop_config_path
    entries: Any = [] if path is None else OmegaConf.load(path)
    programs = f"{BlackBoxAgent.__module__}.{BlackBoxAgent.__qualname__}"
    if not any(entry["_target_"] == programs for entry in entries):
        raise ConfigError(NODE + "agent_turns", options.agent_turns, "the run has no agent program; leave it null")
    groups = config.algorithm.filter_groups
    scripted = {
        "_target_": f"{__name__}.{ScriptedAgent.__qualname__}",
        "turns": options.agent_turns,
        "own_s": options.agent_own_s / options.speedup,
        "metric": groups.metric if groups.enable else "acc",
    }
    rehearsed = [{"name": one["name"]} | scripted if one["_target_"] == programs else one for one in entries]
    file = Path(options.folder, _FILE)
    OmegaConf.save(OmegaConf.create(rehearsed), file)
    with open_dict(config):
        agent.agent_loop_config_path = str(file)
