"""The begin of a run, and its end: one part that cannot be closed keeps no other one open."""

from types import SimpleNamespace

import pytest

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
