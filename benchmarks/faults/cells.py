"""The cells of the fault matrix: who is struck, when, and how."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

KILL, STOP = "SIGKILL", "SIGSTOP"
CUT, CUT_FOR_A_WHILE = "cut", "cut for 10 s"
STOP_S = 30.0  # a stopped process goes on after that
# Environment variables by which a life tells its processes where to announce and to note.
SOCKET, NOTES, LIFE, STACK = "FAULTS_SOCKET", "FAULTS_NOTES", "FAULTS_LIFE", "FAULTS_STACK"


class Stack(StrEnum):
    EMULATED = "emulated"  # the rehearsal: all real but engines and training, on two servers
    VLLM = "vllm"  # the CPU stack, two engines
    NODES = "two nodes"  # the rehearsal, on two Ray nodes with a cable between them
    SEPARATE = "separate"  # the CPU stack, two engines on GPUs of their own
    SEPARATE_NODES = "separate on two nodes"  # the same, one of the engines on the second node

    @property
    def is_rehearsed(self) -> bool:
        return self in (Stack.EMULATED, Stack.NODES)

    @property
    def is_separate(self) -> bool:
        return self in (Stack.SEPARATE, Stack.SEPARATE_NODES)

    @property
    def has_two_nodes(self) -> bool:
        return self in (Stack.NODES, Stack.SEPARATE_NODES)


class Moment(StrEnum):
    START = "start"  # TransferQueue and agent loop workers are there, engines are not
    BEFORE = "before the first round"
    ROUND = "in a round"
    STOPPING = "at the stop"
    TRAINING = "while training"
    SAVE = "at a save"
    UPDATE = "in the weight update"
    VALIDATION = "at a validation"

    @property
    def is_once(self) -> bool:
        """In a life."""
        return self in (Moment.START, Moment.BEFORE)


# The strike comes so long after the moment has been announced, at the most [s].
_SPREAD_S = {
    Moment.START: 3.0,
    Moment.BEFORE: 0.0,  # the first round opens at once
    Moment.ROUND: 0.3,
    Moment.STOPPING: 0.01,
    Moment.TRAINING: 0.2,
    Moment.SAVE: 0.05,
    Moment.UPDATE: 0.1,
    Moment.VALIDATION: 0.3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    stack: Stack
    who: str  # a key of `victims.VICTIMS`
    when: Moment
    how: str = KILL
    stop_s: float = STOP_S

    @property
    def holds_trainer(self) -> bool:
        """The trainer waits for the strike: its part of an update is over in hundredths of a second."""
        return self.stack.is_separate and self.when is Moment.UPDATE and self.who in ("training worker", "task runner")

    @property
    def name(self) -> dict[str, str]:
        """Its columns."""
        return {"stack": self.stack, "who": self.who, "when": self.when, "how": self.how}

    def delay_s(self, seed: int) -> float:
        return random.Random(f"{seed} {self.name}").uniform(0.0, _SPREAD_S[self.when])


def _cells(stack: Stack, how: str, table: Mapping[str, Sequence[Moment]]) -> list[Cell]:
    """Every part at its first moment, then every part at its second one, and so on."""
    rounds = range(max(map(len, table.values())))
    return [
        Cell(stack=stack, who=who, when=moments[number], how=how)
        for number in rounds
        for who, moments in table.items()
        if number < len(moments)
    ]


_M = Moment
# A killed one of these ends the run, which is started again: a start a cell.
_KILLED = {
    "agent loop worker": (_M.START, _M.ROUND, _M.STOPPING, _M.TRAINING, _M.VALIDATION),
    "coordinator": (_M.BEFORE, _M.ROUND, _M.STOPPING, _M.UPDATE),
    "load balancer": (_M.BEFORE, _M.ROUND, _M.STOPPING, _M.TRAINING),
    "reward worker": (_M.ROUND, _M.TRAINING, _M.VALIDATION),
    "TransferQueue controller": (_M.START, _M.ROUND, _M.TRAINING, _M.SAVE),
    "TransferQueue storage": (_M.ROUND, _M.TRAINING),
    "all servers": (_M.ROUND, _M.UPDATE),
    "training worker": (_M.TRAINING, _M.SAVE),
    "task runner": (_M.START, _M.ROUND, _M.SAVE, _M.VALIDATION),
    "driver": (_M.START, _M.ROUND, _M.TRAINING, _M.SAVE),
    "Ray node": (_M.ROUND, _M.UPDATE),
}
# Those that were stopped go on: many cells a start.
_STOPPED = {
    "agent loop worker": (_M.ROUND,),
    "coordinator": (_M.STOPPING,),
    "load balancer": (_M.ROUND,),
    "reward worker": (_M.ROUND,),
    "TransferQueue controller": (_M.TRAINING,),
    "TransferQueue storage": (_M.ROUND,),
    "all servers": (_M.ROUND,),
    "task runner": (_M.UPDATE,),
    "driver": (_M.SAVE,),
    "Ray node": (_M.ROUND,),
    "training worker": (_M.TRAINING,),
}
# One of two engines at a time: the run goes on. The last one's death is in `tests/e2e/test_dying_engines.py`.
_ENGINES_STOPPED = {
    "server": (_M.ROUND, _M.UPDATE),
    "engine core": (_M.TRAINING,),
    "training worker": (_M.TRAINING,),
}
_ENGINES_KILLED = {
    "server": (_M.ROUND, _M.UPDATE, _M.STOPPING, _M.SAVE, _M.VALIDATION),
    "engine core": (_M.TRAINING, _M.ROUND, _M.START, _M.STOPPING, _M.SAVE, _M.VALIDATION),
    "training worker": (_M.UPDATE,),
}
# Engines on GPUs of their own: a trainer that dies in an update, an engine that does, and what is between them.
_SEPARATE_STOPPED = {"server": (_M.UPDATE,), "training worker": (_M.UPDATE,), "load balancer": (_M.UPDATE,)}
_SEPARATE_KILLED = {
    "training worker": (_M.UPDATE, _M.TRAINING),
    "server": (_M.UPDATE, _M.TRAINING),
    "engine core": (_M.UPDATE,),
    "task runner": (_M.UPDATE,),
    "load balancer": (_M.UPDATE,),
}

MATRIX = {
    Stack.EMULATED: _cells(Stack.EMULATED, STOP, _STOPPED) + _cells(Stack.EMULATED, KILL, _KILLED),
    Stack.VLLM: _cells(Stack.VLLM, STOP, _ENGINES_STOPPED) + _cells(Stack.VLLM, KILL, _ENGINES_KILLED),
    Stack.NODES: [
        Cell(stack=Stack.NODES, who="network", when=_M.BEFORE, how=CUT_FOR_A_WHILE, stop_s=10.0),
        Cell(stack=Stack.NODES, who="network", when=_M.ROUND, how=CUT_FOR_A_WHILE, stop_s=10.0),
        Cell(stack=Stack.NODES, who="network", when=_M.ROUND, how=CUT),
        Cell(stack=Stack.NODES, who="Ray node", when=_M.ROUND),
    ],
    Stack.SEPARATE: _cells(Stack.SEPARATE, STOP, _SEPARATE_STOPPED) + _cells(Stack.SEPARATE, KILL, _SEPARATE_KILLED),
    Stack.SEPARATE_NODES: [
        Cell(stack=Stack.SEPARATE_NODES, who="network", when=_M.UPDATE, how=CUT_FOR_A_WHILE, stop_s=10.0),
        Cell(stack=Stack.SEPARATE_NODES, who="network", when=_M.UPDATE, how=CUT),
    ],
}
# What the tests play: two parts that stop for a moment, and one whose death ends the run, which is then resumed.
SAMPLE = [
    Cell(stack=Stack.EMULATED, who="agent loop worker", when=_M.ROUND, how=STOP, stop_s=1.0),
    Cell(stack=Stack.EMULATED, who="task runner", when=_M.UPDATE, how=STOP, stop_s=1.0),
    Cell(stack=Stack.EMULATED, who="reward worker", when=_M.ROUND),
]
