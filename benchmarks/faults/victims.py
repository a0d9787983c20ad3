"""Which processes of a run play which part: Ray names the processes of actors after their classes."""

import re
from collections.abc import Sequence

import psutil

# Part -> what the title of its process begins with.
TITLES = {
    "agent loop worker": r"ray::(\S+:)?AsyncDAPOAgentLoopWorker\b",
    "coordinator": r"ray::(\S+:)?CoordinatorProcess\b",
    "load balancer": r"ray::(\S+:)?(Global|Rolling)LoadBalancer\b",
    "reward worker": r"ray::(\S+:)?RewardLoopWorker\b",
    "TransferQueue controller": r"ray::(\S+:)?TransferQueueController\b",
    "TransferQueue storage": r"ray::(\S+:)?SimpleStorageUnit\b",
    "all servers": r"ray::(\S+:)?HostActor\b",
    "server": r"ray::(\S+:)?(Holding)?ServerActor\b",
    "engine core": r"VLLM::EngineCore\b",
    "training worker": r"ray::(\S+:)?(WorkerDict|EmulatedRank)\b",
    "task runner": r"ray::(\S+:)?StruckTaskRunner\b",
    "Ray node": r"\S*/raylet\b",
}
DRIVER = "driver"
VICTIMS = (*TITLES, DRIVER)

# What an error that names the part says, in the last line of the run.
NAMES = {
    "agent loop worker": r"AgentLoopWorker|agent loop worker",
    "coordinator": r"[Cc]oordinator",
    "load balancer": r"LoadBalancer|load balancer",
    "reward worker": r"RewardLoopWorker|reward worker",
    "TransferQueue controller": r"TransferQueue",
    "TransferQueue storage": r"TransferQueue",
    "all servers": r"HostActor|rehearsed_servers|no engine is left",
    "server": r"no engine is left",
    "engine core": r"no engine is left|[Ee]ngine core",
    "training worker": r"WorkerDict|EmulatedRank|training (worker|rank)",
    "task runner": r"TaskRunner",
    "Ray node": r"raylet|node",
    "network": r"node",
}


def find(part: str, driver: int, processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The processes to strike: the first one of a part, of a node all."""
    if part == DRIVER:
        return [psutil.Process(driver)]
    found = [process for process in processes if re.match(TITLES[part], title_of(process))]
    if part == "Ray node":
        return [*found, *(child for raylet in found for child in raylet.children(recursive=True))]
    return found[:1]


def named_in(part: str, line: str) -> bool:
    return re.search(NAMES[part], line) is not None


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()  # who renames itself fills up what it was given
    except psutil.Error:
        return ""
