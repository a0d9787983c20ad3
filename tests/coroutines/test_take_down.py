"""The begin of a run, and its end: one part that cannot be closed keeps no other one open."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.training import run


def test_given_a_logger_that_fails_at_the_end_then_the_data_plane_is_closed_and_the_router_file_gone(
    monkeypatch, tmp_path
) -> None:
    closed = []
    monkeypatch.setattr(run, "end_queue", lambda: closed.append("data plane"))
    router_config = tmp_path / "router" / "router.yaml"
    router_config.parent.mkdir()
    router_config.write_text("")

    def finish(exit_code: int) -> None:
        raise ConnectionError("the logger's server is gone")

    trainer = SimpleNamespace(logger=SimpleNamespace(finish=finish))
    with pytest.raises(ConnectionError):
        run.take_down(trainer, router_config, succeeded=True)
    assert closed == ["data plane"] and not router_config.parent.exists()


@pytest.mark.parametrize(("threads", "cores", "wanted"), [(1, 4, [4]), (1, 192, [16]), (8, 192, [])])
def test_the_trainer_computes_on_idle_cores_unless_the_user_names_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, wanted: list[int]
) -> None:
    class Ends(Exception):
        pass

    def end(_: object) -> None:
        raise Ends

    used: list[int] = []
    monkeypatch.setattr(run.torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(run.torch, "set_num_threads", used.append)
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda _: range(cores))
    for name in ("configure_verl_logging", "show_logs"):
        monkeypatch.setattr(run, name, lambda: None)
    monkeypatch.setattr(run, "localise", end)
    with pytest.raises(Ends):
        run.train(OmegaConf.create())
    assert used == wanted
