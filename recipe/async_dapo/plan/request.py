"""One request of a simulated server."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class Request:
    """A trajectory in a server. `owner` is the caller's, never looked into here."""

    owner: Any
    context_tok: int  # prompt and what has been generated, before admission
    remaining_tok: int
    prefill_tok: int  # of the context, to be computed on admission
    is_recompute: bool = False  # preempted: its context was computed before
    generated_tok: int = 0  # in this server, over preemptions
    delivered_tok: int = 0  # of these: handed to the owner
    order: int = 0  # of admission
    start_step: int = 0
    due_step: int = 0

    def deliver(self) -> int:
        """The number of tokens since the last delivery."""
        new_tok, self.delivered_tok = self.generated_tok - self.delivered_tok, self.generated_tok
        return new_tok

    def note_tokens(self, step: int) -> None:
        """It has got a token by each of the server's steps up to this one."""
        new_tok = step - self.start_step
        self.start_step = step
        self.generated_tok += new_tok
        self.context_tok += new_tok
        self.remaining_tok -= new_tok

    def is_running(self, order: int) -> bool:
        """Whether what was planned for its admission of this order still holds."""
        return self.due_step > 0 and self.order == order
