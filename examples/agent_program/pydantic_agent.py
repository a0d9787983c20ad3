"""An agent of pydantic-ai with a tool, as a command of its own environment, whose variables have address and key."""

import json
import sys
from pathlib import Path

from pydantic_ai import Agent

sample = json.loads(Path("sample.json").read_text())
agent = Agent("openai:policy", instructions="Be short.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


said = agent.run_sync(sample["raw_prompt"][-1]["content"]).output
right = float(said == sample["reward_model"]["ground_truth"])
sys.stdout.write(json.dumps({"reward": right, "said": said}) + "\n")
