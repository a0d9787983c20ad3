"""What every process of a run uses, whatever its part: logs, asyncio, the pins, what other nodes are sent."""
