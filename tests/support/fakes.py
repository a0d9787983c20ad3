"""Stand-ins for other processes: actor handles as Ray's, scripted engine servers, scripted rewards."""

from .fake_handle import FakeHandle, RemoteCall
from .scripted_reward import ScriptedReward
from .scripted_server import ScriptedServer, log_prob_of, token_at

__all__ = ["FakeHandle", "RemoteCall", "ScriptedReward", "ScriptedServer", "log_prob_of", "token_at"]
