"""An agent of OpenAI's agents SDK with a tool, as a command of its own environment."""

import asyncio
import json
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # else it sends what it does to OpenAI
sample = json.loads(Path("sample.json").read_text())


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


agent = Agent(name="adder", instructions="Be short.", model="policy", tools=[add])
said = asyncio.run(Runner.run(agent, sample["raw_prompt"][-1]["content"])).final_output
right = float(said == sample["reward_model"]["ground_truth"])
sys.stdout.write(json.dumps({"reward": right, "said": said}) + "\n")
